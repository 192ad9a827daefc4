from __future__ import annotations

from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from checkpoint.state_file import write_state
from checkpoint.store import CheckpointStore
from checkpoint.ticket import SaveTicket
from tests.checkpoint.save_parts import FAST, TABLES


@pytest.fixture
def ticket(tmp_path: Path) -> SaveTicket:
    store = CheckpointStore(str(tmp_path), run="r", retry=FAST)
    return store.begin("full", timeline=0, samples=0, consistent=True, tables=TABLES, parent=None)


@pytest.mark.parametrize(
    ("name", "file"), [("dense", "dense"), ("dense/trainer-0", "dense.trainer-0"), ("a/b/c_1", "a.b.c_1")]
)
def test_the_file_is_named_after_the_state(ticket: SaveTicket, name: str, file: str) -> None:
    entry = write_state(ticket, name, {"w": torch.arange(3)})
    assert (entry.path, entry.state) == (f"state-{file}.safetensors", name)
    data = Path(ticket.url, entry.path).read_bytes()
    assert (entry.bytes, entry.checksum) == (len(data), f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}")


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "a.b", "..", "../x", "a b", "a\n", "ä", "a\x00"])
def test_other_names_are_refused_before_anything_is_written(ticket: SaveTicket, name: str) -> None:
    before = set(Path(ticket.url).iterdir())
    with pytest.raises(ValueError, match="use letters, digits"):
        write_state(ticket, name, {"w": torch.ones(1)})
    assert set(Path(ticket.url).iterdir()) == before


def test_a_tensor_name_that_safetensors_could_not_read_back_is_refused(ticket: SaveTicket) -> None:
    with pytest.raises(ValueError, match="no tensor can be named '__metadata__'"):
        write_state(ticket, "dense", {"__metadata__": torch.ones(1)})


def test_tensors_of_all_kinds_come_back(ticket: SaveTicket) -> None:
    flat = torch.arange(10.0)
    tensors = {
        "first": flat[:5],
        "second": flat[5:],
        "across": flat[3:7],
        "tied": flat,
        "tied again": flat,
        "strided": flat[::3],
        "turned": torch.arange(6).reshape(2, 3).t(),
        "scalar": torch.tensor(-7),
        "empty": torch.empty(0, 4),
        "half": flat.bfloat16(),
        "flags": flat > 4,
    }
    found = load_file(Path(ticket.url, write_state(ticket, "dense", tensors).path))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
