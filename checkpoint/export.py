"""Export: the tables and the dense part of a save as one model for one process, without pieces and shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Chain
from checkpoint.errors import CheckpointError, SaveNotFound
from checkpoint.export_file import TensorForm, write_safetensors
from checkpoint.manifest import Manifest
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.read_state import read_state
from checkpoint.restore import restore
from checkpoint.verify import check_rows

ExportFormat = Literal["torchrec", "safetensors"]
ExportDtype = Literal["fp32", "fp16", "bf16"]

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TABLES = "embedding_bags"
_IN_MODEL = "sparse_arch.embedding_bag_collection"
_DENSE = "dense"
_PARAMETER = "model."


class ExportReport(BaseModel):
    """What was written."""

    model_config = ConfigDict(frozen=True)

    path: str
    format: ExportFormat
    dtype: ExportDtype
    bytes: int
    save_id: str
    samples: int
    tables: dict[str, str]
    """Table → key."""
    dense_state: str | None
    """The state whose parameters were written; ``None``: tables only."""
    dense_keys: tuple[str, ...]


def export(
    store: SaveCatalog,
    chain: Chain,
    out: Path,
    *,
    format: ExportFormat = "torchrec",
    dtype: ExportDtype = "fp32",
    tables_only: bool = False,
    overwrite: bool = False,
    on_table: Callable[[str], None] = lambda table: None,
) -> ExportReport:
    """Write the model with the key names of TorchRec.

    With the dense part the keys are those of ``torchrec.models.dlrm.DLRM`` or ``DLRM_DCN`` over an
    ``EmbeddingBagCollection``; without it those of the ``EmbeddingBagCollection`` alone. Either loads with
    ``strict=True``. Optimizer state is left out.

    Args:
        store: of the run.
        chain: from ``choose``.
        out: file to write: ``torch.save`` of a dictionary (``torch.load(out, weights_only=True)``), or safetensors.
            safetensors are written table by table and need memory for the largest one, and the saves are read twice,
            first to compare checksums; ``torch.save`` needs the whole model in memory and reads them once.
        format: of the file.
        dtype: of all weights.
        tables_only: leave the dense part out, if there is one.
        overwrite: replace ``out`` if it is there.
        on_table: called with each table before it is read.

    Raises:
        CheckpointError: ``out`` is there, a save is damaged, or the values do not fit ``dtype``.
    """
    if out.exists() and not overwrite:
        raise CheckpointError(f"{out} is there already: name another file, or pass --overwrite to replace it")
    dense_state = None if tables_only else _dense_state(chain.newest)
    dense = {} if dense_state is None else _parameters(store, chain.newest, dense_state)
    stem = f"{_IN_MODEL}.{_TABLES}" if dense else _TABLES
    keys = {table: f"{stem}.{table}.weight" for table in chain.tables}
    target = _DTYPES[dtype]
    names = {key: table for table, key in keys.items()}

    def tensor(key: str) -> Tensor:
        if key in names:
            on_table(names[key])
        value = dense[key] if key in dense else _tables(store, chain, [names[key]], check=False)[0]
        return _converted(value, target, key)

    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if format == "safetensors":
            check_rows(store, chain)
            forms = {key: TensorForm(target, (chain.tables[t].rows, chain.tables[t].dim)) for t, key in keys.items()}
            forms |= {key: TensorForm(target, tuple(value.shape)) for key, value in dense.items()}
            write_safetensors(temporary, forms, tensor, {"save_id": chain.newest.save_id, "run": chain.newest.run})
        else:
            for table in keys:
                on_table(table)
            whole = dense | dict(zip(keys.values(), _tables(store, chain, list(keys), check=True), strict=True))
            state = {key: _converted(whole.pop(key), target, key) for key in (*keys.values(), *dense)}
            with temporary.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return ExportReport(
        path=str(out),
        format=format,
        dtype=dtype,
        bytes=out.stat().st_size,
        save_id=chain.newest.save_id,
        samples=chain.newest.samples,
        tables=keys,
        dense_state=dense_state,
        dense_keys=tuple(dense),
    )


def _dense_state(save: Manifest) -> str | None:
    """``dense``, or the first of ``dense/…``, replicas of one another."""
    states = [file.state for file in save.files if file.state is not None]
    return _DENSE if _DENSE in states else min((s for s in states if s.startswith(f"{_DENSE}/")), default=None)


def _parameters(store: SaveCatalog, save: Manifest, state: str) -> dict[str, Tensor]:
    tensors = read_state(store, save, state)
    found = {name.removeprefix(_PARAMETER): t for name, t in tensors.items() if name.startswith(_PARAMETER)}
    if not found:
        raise SaveNotFound(
            f"state {state!r} of save {save.save_id} has no tensor named {_PARAMETER}<parameter>, but "
            f"{', '.join(sorted(tensors)) or 'none'}; pass --tables-only to export the tables alone"
        )
    return found


def _tables(store: SaveCatalog, chain: Chain, tables: Sequence[str], *, check: bool) -> list[Tensor]:
    """Weights of whole tables, in one pass over the saves."""
    rows = []
    for table in tables:
        spec = chain.tables[table]
        weights = torch.empty(spec.rows, spec.dim, dtype=_DTYPES[spec.dtype])
        rows.append(PieceRows(Piece(table, 0, spec.rows, 0, spec.dim), weights))
    restore(store, chain, rows, weights_only=True, check=check)
    return [one.weights for one in rows]


def _converted(value: Tensor, dtype: torch.dtype, key: str) -> Tensor:
    converted = value.to(dtype)
    if dtype == torch.float16 and value.dtype != dtype and bool((converted.isinf() & value.isfinite()).any()):
        raise CheckpointError(
            f"{key}: its largest value, {float(value.abs().max()):g}, does not fit fp16 (±65504); use --dtype bf16"
        )
    return converted
