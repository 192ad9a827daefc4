"""``penumbra checkpoint`` on saves written by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from services.cli.app import run
from tests.checkpoint.saves import Table, row_wise, write_save

ROOT = Path(__file__).parents[3]
FULL, DELTA, PRIORITY = "0000-00000001-full", "0000-00000002-delta", "0000-00000003-priority"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Two tables on two shards, a full save, a delta, a priority save, and a save that crashed."""
    directory = tmp_path / "runs" / "demo"
    url = directory / "checkpoints"
    generator = torch.Generator().manual_seed(3)
    tables = [
        Table.random(name, rows, 8, "exact_row_wise_adagrad", generator) for name, rows in (("C1", 100), ("C2", 9))
    ]
    specs = {table.name: table.spec for table in tables}
    shards = [[table.cut(row_wise(table, 2)[shard]) for table in tables] for shard in range(2)]
    states = {"dense": {"model.w": torch.ones(2, 3)}}
    write_save(url, FULL, specs, shards, samples=1000, states=states, extra={"data_position": {"row": 1000}})
    for save_id, parent, ids in ((DELTA, FULL, [1, 2, 60]), (PRIORITY, DELTA, [7])):
        rows = tables[0].cut(tables[0].piece(0, 100), torch.tensor(ids), cut=int(save_id[5:13]))
        write_save(url, save_id, specs, [[rows]], parent=parent, samples=1000 + len(ids), consistent=save_id == DELTA)
    (url / "saves" / "0000-00000004-full").mkdir()
    torch.save([table.weight for table in tables], tmp_path / "weights.pt")
    return directory


class Penumbra:
    """Runs ``penumbra checkpoint …`` in this process, as ``main`` would."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *args: str | Path) -> tuple[int, str, str]:
        try:
            code = run(["checkpoint", *map(str, args)])
        except SystemExit as end:
            code = int(end.code or 0)
        seen = self._capfd.readouterr()
        return code, seen.out, seen.err

    def json(self, *args: str | Path, code: int = 0) -> Any:
        found, out, err = self(*args, "--json")
        assert found == code, err
        return json.loads(out)


@pytest.fixture
def penumbra(capfd: pytest.CaptureFixture[str]) -> Penumbra:
    return Penumbra(capfd)


@pytest.mark.parametrize("verb", ["list", "inspect"])
def test_in_a_process_of_its_own_without_torch(run_dir: Path, verb: str) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['penumbra', 'checkpoint', {verb!r}, {str(run_dir)!r}, '--json']\n"
        "from services.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        "    print(end.code, sorted({'torch', 'ray'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stderr.endswith("0 []\n")
    assert json.loads(done.stdout)["run"] == "r"


def test_list(penumbra: Penumbra, run_dir: Path) -> None:
    found = penumbra.json("list", run_dir)
    assert found["url"] == f"{run_dir}/checkpoints"
    assert found["run"] == "r"
    assert [(save["save_id"], save["samples"], save["unusable"]) for save in found["saves"]] == [
        (FULL, 1000, None), (DELTA, 1003, None), (PRIORITY, 1001, None)
    ]  # fmt: skip
    assert list(found["incomplete"]) == ["0000-00000004-full"]
    (run_dir / "checkpoints" / "saves" / DELTA / "shard-0000.safetensors").unlink()
    code, out, _ = penumbra("list", f"file://{run_dir}/checkpoints")
    assert code == 0
    assert f"it continues {DELTA}, and" in " ".join(out.split())
    assert "0000-00000004-full is no save" in out


def test_inspect_equals_the_model(penumbra: Penumbra, run_dir: Path) -> None:
    found = penumbra.json("inspect", run_dir, FULL)
    spec = {"dim": 8, "dtype": "fp32", "optimizer": "exact_row_wise_adagrad", "encodings": ["fp32"]}
    assert found["tables"] == {
        name: {"rows": rows, "saved_rows": rows, **spec} for name, rows in (("C1", 100), ("C2", 9))
    }
    assert {shard: (view["pieces"], view["rows"]) for shard, view in found["shards"].items()} == {
        "0": (["C1[0:50, 0:8]", "C2[0:4, 0:8]"], 54),
        "1": (["C1[50:100, 0:8]", "C2[4:9, 0:8]"], 55),
    }
    assert (found["samples"], found["kind"], found["extra"]) == (1000, "full", {"data_position": {"row": 1000}})
    assert list(found["states"]) == ["dense"]
    newest = penumbra.json("inspect", run_dir)
    assert (newest["save_id"], newest["parent"], newest["tables"]["C1"]["saved_rows"]) == (PRIORITY, DELTA, 1)
    shown = penumbra("inspect", run_dir, FULL)[1]
    assert all(
        text in shown for text in ("C1[50:100, 0:8]", "exact_row_wise_adagrad", "1,000 samples", "data_position")
    )


def test_inspect_of_the_newest_says_what_it_passed_over(penumbra: Penumbra, run_dir: Path) -> None:
    saves = run_dir / "checkpoints" / "saves"
    manifest = saves / PRIORITY / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    (saves / DELTA / "shard-0000.safetensors").unlink()
    code, out, err = penumbra("inspect", run_dir)
    assert (code, out.split()[0]) == (0, FULL)
    assert f"skipped {PRIORITY}: " in err and f"skipped {DELTA}: " in err


def test_verify_finds_one_flipped_bit(penumbra: Penumbra, run_dir: Path) -> None:
    found = penumbra.json("verify", run_dir)
    assert found["ok"]
    assert (found["newest"], found["newest_exact"]) == (PRIORITY, DELTA)
    path = run_dir / "checkpoints" / "saves" / DELTA / "shard-0000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    found = penumbra.json("verify", run_dir, code=1)
    assert [bool(save["faults"]) for save in found["saves"]] == [False, True, False]
    assert [save["unusable"] is None for save in found["saves"]] == [True, False, False]
    assert f"save {DELTA}, file shard-0000.safetensors: checksum" in found["saves"][1]["faults"][0]
    assert (found["newest"], found["newest_exact"]) == (FULL, FULL)
    assert penumbra.json("verify", run_dir, FULL)["ok"]
    assert "not usable" in penumbra("verify", run_dir)[1]


def test_a_damaged_manifest_is_a_fault_and_a_save_that_was_never_completed_is_none(
    penumbra: Penumbra, run_dir: Path
) -> None:
    assert penumbra.json("verify", run_dir)["incomplete"] == ["0000-00000004-full"]
    path = run_dir / "checkpoints" / "saves" / PRIORITY / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"priority", b"prioritx", 1))
    found = penumbra.json("verify", run_dir, code=1)
    assert (found["ok"], list(found["damaged"]), found["newest"]) == (False, [PRIORITY], DELTA)
    assert "altered after it was written" in penumbra("verify", run_dir)[1]
    assert list(penumbra.json("list", run_dir)["damaged"]) == [PRIORITY]
    assert "altered" in penumbra.json("verify", run_dir, PRIORITY, code=1)["error"]
    assert penumbra.json("verify", run_dir, DELTA)["ok"]
    assert penumbra.json("inspect", run_dir, DELTA)["save_id"] == DELTA


def test_export_loads_into_torchrec(penumbra: Penumbra, run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.pt"
    found = penumbra.json("export", run_dir, out, "--tables-only")
    assert (found["path"], found["save_id"]) == (str(out), PRIORITY)
    tables = [
        EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=r, feature_names=[n])
        for n, r in (("C1", 100), ("C2", 9))
    ]
    collection = EmbeddingBagCollection(tables=tables)
    collection.load_state_dict(torch.load(out, weights_only=True), strict=True)
    for name, weight in zip(("C1", "C2"), torch.load(tmp_path / "weights.pt", weights_only=True), strict=True):
        assert torch.equal(collection.state_dict()[f"embedding_bags.{name}.weight"], weight)
    assert "is there already" in penumbra.json("export", run_dir, out, code=1)["error"]
    smaller = tmp_path / "m.safetensors"
    code, shown, progress = penumbra(
        "export", run_dir, smaller, "--format", "safetensors", "--save", FULL, "--dtype", "bf16"
    )
    assert code == 0
    assert "load_file" in shown
    assert progress == "reading C1\nreading C2\n"


@pytest.mark.parametrize("action", ["list", "inspect", "verify"])
def test_nothing_there_is_an_error_that_says_where_it_looked(penumbra: Penumbra, tmp_path: Path, action: str) -> None:
    code, out, err = penumbra(action, tmp_path, "--json")
    assert code == 1
    assert json.loads(out)["error"].startswith(f"no saves in {tmp_path} or {tmp_path}/checkpoints")
    assert err.startswith("penumbra: error: no saves in")


def test_a_save_that_is_not_there(penumbra: Penumbra, run_dir: Path) -> None:
    error = penumbra.json("inspect", run_dir, "0000-00000009-full", code=1)["error"]
    assert error.startswith("no save '0000-00000009-full' under ") and f"{FULL}, {DELTA}, {PRIORITY}" in error
    assert penumbra("inspect")[0] == 2
    assert "error" in penumbra.json("export", run_dir, "x", "--dtype", "fp8", code=2)
