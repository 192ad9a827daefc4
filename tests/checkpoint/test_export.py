"""An exported model loads into TorchRec's own classes and predicts what the saved rows and dense part predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import choose
from checkpoint.errors import CheckpointError
from checkpoint.export import ExportDtype, ExportFormat, export
from tests.checkpoint.saves import Rows, Table, column_wise, row_wise, write_save
from trainer.config import ModelConfig
from trainer.dlrm import build_dense

FULL, DELTA = "0000-00000001-full", "0000-00000002-delta"
DIM, DENSE, ROWS = 8, 5, {"C1": 40, "C2": 7, "C3": 101}


def _model(arch: Any) -> ModelConfig:
    return ModelConfig(
        arch=arch, embedding_dim=DIM, dense_arch=(16, DIM), over_arch=(12, 1), dcn_num_layers=2, dcn_low_rank_dim=4
    )


def _torchrec(arch: str, is_model: bool = True) -> Any:
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
        for name, rows in ROWS.items()
    ]
    tables = EmbeddingBagCollection(tables=configs)
    if not is_model:
        return tables
    if arch == "dcnv2":
        return DLRM_DCN(tables, DENSE, [16, DIM], [12, 1], dcn_num_layers=2, dcn_low_rank_dim=4)
    return DLRM(tables, DENSE, [16, DIM], [12, 1])


def _saved(url: Path, arch: str, with_dense: bool = True) -> tuple[SaveCatalog, list[Table], torch.nn.Module]:
    """Tables cut by rows and by columns, a delta above, and the dense part of one trainer."""
    generator = torch.Generator().manual_seed(3)
    tables = [Table.random(name, rows, DIM, "exact_row_wise_adagrad", generator) for name, rows in ROWS.items()]
    dense = build_dense(_model(arch), DENSE, len(ROWS), seed=11)
    specs = {table.name: table.spec for table in tables}
    shards = [[tables[0].cut(piece)] for piece in row_wise(tables[0], 3)]
    shards += [[table.cut(piece)] for table in tables[1:] for piece in column_wise(table, 2)]
    parameters = {f"model.{name}": value.detach() for name, value in dense.named_parameters()}
    state = {**parameters, "optimizer.sum.x": torch.ones(3)}
    states = {"dense/trainer-1": {**state}, "dense/trainer-0": state, "rng": {"torch": torch.get_rng_state()}}
    write_save(url, FULL, specs, shards, states=states)
    ids = torch.tensor([0, 5, 39])
    tables[0].weight[ids] += 1
    delta: list[Rows] = [tables[0].cut(tables[0].piece(0, 40), ids, cut=2)]
    write_save(url, DELTA, specs, [delta], parent=FULL, samples=77, states=states if with_dense else None)
    return SaveCatalog(str(url), run="r"), tables, dense


def _batch() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return torch.rand(64, DENSE, generator=generator), {
        name: torch.randint(0, rows, (64,), generator=generator) for name, rows in ROWS.items()
    }


def _predictions_of_the_service(tables: list[Table], dense: torch.nn.Module) -> torch.Tensor:
    features, ids = _batch()
    pooled = torch.stack([table.weight[ids[table.name]] for table in tables], dim=1)
    logits: torch.Tensor = dense(features, pooled)
    return logits.sigmoid().detach()


def _predictions_of_torchrec(model: Any) -> torch.Tensor:
    features, ids = _batch()
    lengths = torch.ones(64 * len(ids), dtype=torch.int64)
    sparse = KeyedJaggedTensor(keys=list(ids), values=torch.cat(list(ids.values())), lengths=lengths)
    logits: torch.Tensor = model(features, sparse)
    return logits.squeeze(1).sigmoid().detach()


@pytest.mark.parametrize("arch", ["dlrm", "dcnv2"])
@pytest.mark.parametrize("format", ["torchrec", "safetensors"])
def test_torchrec_loads_it_strictly_and_predicts_the_same(tmp_path: Path, arch: str, format: ExportFormat) -> None:
    catalog, tables, dense = _saved(tmp_path, arch)
    out = tmp_path / "deep" / "model"
    report = export(catalog, choose(catalog.list()).chain, out, format=format)
    state = torch.load(out, weights_only=True) if format == "torchrec" else load_file(out)
    model = _torchrec(arch)
    model.load_state_dict(state, strict=True)
    expected = _predictions_of_the_service(tables, dense)
    assert expected.std() > 1e-3
    torch.testing.assert_close(_predictions_of_torchrec(model), expected, rtol=0, atol=1e-6)
    assert (report.save_id, report.samples, report.dense_state) == (DELTA, 77, "dense/trainer-0")
    assert report.bytes == out.stat().st_size
    assert {*report.tables.values(), *report.dense_keys} == state.keys()
    assert [path.name for path in out.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("reason", ["asked", "absent"])
def test_tables_alone_load_into_an_embedding_bag_collection(tmp_path: Path, reason: str) -> None:
    catalog, tables, _ = _saved(tmp_path, "dlrm", with_dense=reason == "asked")
    out = tmp_path / "tables.pt"
    report = export(catalog, choose(catalog.list()).chain, out, tables_only=reason == "asked")
    collection = _torchrec("dlrm", is_model=False)
    collection.load_state_dict(torch.load(out, weights_only=True), strict=True)
    for table in tables:
        assert torch.equal(collection.state_dict()[f"embedding_bags.{table.name}.weight"], table.weight)
    assert report.dense_state is None


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("format", ["torchrec", "safetensors"])
def test_dtype(tmp_path: Path, format: ExportFormat, dtype: ExportDtype, torch_dtype: torch.dtype) -> None:
    catalog, tables, _ = _saved(tmp_path, "dlrm")
    out = tmp_path / "model"
    export(catalog, choose(catalog.list()).chain, out, format=format, dtype=dtype)
    state = torch.load(out, weights_only=True) if format == "torchrec" else load_file(out)
    assert {value.dtype for value in state.values()} == {torch_dtype}
    key = "sparse_arch.embedding_bag_collection.embedding_bags.C3.weight"
    assert torch.equal(state[key], tables[2].weight.to(torch_dtype))


@pytest.mark.parametrize(("format", "passes"), [("torchrec", 1), ("safetensors", 2)])
def test_the_saves_are_not_read_once_for_every_table(tmp_path: Path, format: ExportFormat, passes: int) -> None:
    generator = torch.Generator().manual_seed(3)
    tables = [Table.random(f"C{index}", 500, DIM, "exact_sgd", generator) for index in range(12)]
    shard = [table.cut(table.piece(0, 500)) for table in tables]
    write_save(tmp_path, FULL, {table.name: table.spec for table in tables}, [shard])
    catalog = SaveCatalog(str(tmp_path), run="r")
    chain = choose(catalog.list()).chain
    before = _bytes_read()
    export(catalog, chain, tmp_path / "model", format=format)
    stored = sum(file.bytes for file in chain.newest.files)
    assert _bytes_read() - before < (passes + 0.5) * stored


def _bytes_read() -> int:
    """By this process, from wherever."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "rchar" in line).split()[1])


def test_safetensors_say_what_they_were_made_of(tmp_path: Path) -> None:
    catalog, _, _ = _saved(tmp_path, "dlrm")
    export(catalog, choose(catalog.list()).chain, tmp_path / "m.safetensors", format="safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"save_id": DELTA, "run": "r"}


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    catalog, _, _ = _saved(tmp_path, "dlrm")
    out = tmp_path / "model.pt"
    out.write_text("precious")
    chain = choose(catalog.list()).chain
    with pytest.raises(CheckpointError, match="is there already: name another file, or pass --overwrite"):
        export(catalog, chain, out)
    assert out.read_text() == "precious"
    (tmp_path / "saves" / FULL / "shard-0004.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard-0004\.safetensors is missing"):
        export(catalog, chain, out, overwrite=True)
    assert out.read_text() == "precious"
    assert not list(tmp_path.glob(".model*"))


def test_values_beyond_fp16_are_refused(tmp_path: Path) -> None:
    table = Table.random("t", 4, 4, "exact_sgd", torch.Generator().manual_seed(0))
    table.weight[2, 2] = 7e4
    write_save(tmp_path, FULL, {"t": table.spec}, [[table.cut(table.piece(0, 4))]])
    catalog = SaveCatalog(str(tmp_path), run="r")
    with pytest.raises(CheckpointError, match=r"embedding_bags.t.weight: its largest value, 70000, does not fit fp16"):
        export(catalog, choose(catalog.list()).chain, tmp_path / "m", dtype="fp16")


def test_a_dense_state_without_parameters_is_refused(tmp_path: Path) -> None:
    table = Table.random("t", 4, 4, "exact_sgd", torch.Generator().manual_seed(0))
    states = {"dense": {"weights": torch.ones(3)}}
    write_save(tmp_path, FULL, {"t": table.spec}, [[table.cut(table.piece(0, 4))]], states=states)
    catalog = SaveCatalog(str(tmp_path), run="r")
    with pytest.raises(
        CheckpointError, match=r"has no tensor named model.<parameter>, but weights; pass --tables-only"
    ):
        export(catalog, choose(catalog.list()).chain, tmp_path / "m")


@pytest.mark.parametrize(
    ("format", "group_bytes", "times"),
    [("torchrec", 1, 1.0), ("safetensors", 1, 2.0), ("safetensors", 300_000, 2.0), ("safetensors", 64 << 20, 1.0)],
)
def test_a_file_of_many_tables_is_not_read_for_each(
    tmp_path: Path, format: ExportFormat, group_bytes: int, times: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    tables = [Table.random(f"t{index}", 1000 + index, 24, "exact_sgd", generator) for index in range(26)]
    specs = {table.name: table.spec for table in tables}
    write_save(tmp_path, FULL, specs, [[table.cut(table.piece(0, table.spec.rows)) for table in tables]])
    for table in tables:
        table.weight[::2] += 1
    delta = [table.cut(table.piece(0, table.spec.rows), torch.arange(0, table.spec.rows, 2), cut=2) for table in tables]
    write_save(tmp_path, DELTA, specs, [delta], parent=FULL)
    catalog = SaveCatalog(str(tmp_path), run="r")
    chain = choose(catalog.list()).chain
    seen: list[str] = []
    options: Any = {"format": format, "group_bytes": group_bytes, "on_table": seen.append}
    export(catalog, chain, tmp_path / "warm", **options)  # modules are read as well, the first time
    before = _bytes_read()
    report = export(catalog, chain, tmp_path / "model", **options)
    read = _bytes_read() - before
    held = sum(file.bytes for save in chain.saves for file in save.files)
    assert times * 0.95 * held < read < (times + 0.2) * held
    assert seen == 2 * list(specs)
    state = torch.load(tmp_path / "model") if format == "torchrec" else load_file(tmp_path / "model")
    assert all(torch.equal(state[report.tables[table.name]], table.weight) for table in tables)


@pytest.mark.parametrize("group_bytes", [1, 64 << 20])
@pytest.mark.parametrize("format", ["torchrec", "safetensors"])
def test_a_flipped_bit_is_not_exported(tmp_path: Path, format: ExportFormat, group_bytes: int) -> None:
    catalog, _, _ = _saved(tmp_path, "dlrm")
    path = tmp_path / "saves" / FULL / "shard-0004.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    chain = choose(catalog.list()).chain
    with pytest.raises(CheckpointError, match=r"shard-0004\.safetensors: checksum"):
        export(catalog, chain, tmp_path / "model", format=format, group_bytes=group_bytes)
    assert not list(tmp_path.glob("*model*"))


def _bytes_read() -> int:
    """By this process, from files, cached or not."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
