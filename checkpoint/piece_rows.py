"""PieceRows: the live tensors of one piece, as a save reads them and a restore fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from checkpoint.manifest import TableSpec
from checkpoint.piece import Piece

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class PieceRows:
    """A piece and views of its rows; the memory belongs to somebody else and is never reallocated.

    ``weights`` is rows×dim, float32 or float16. ``states`` is the optimizer's: ``{"sum": rows×dim}`` of exact_adagrad,
    ``{"sum": rows}`` of exact_row_wise_adagrad, empty of exact_sgd; always float32.
    """

    piece: Piece
    weights: Tensor
    states: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        piece, weights = self.piece, self.weights
        if weights.shape != (piece.rows, piece.dim) or weights.dtype not in _DTYPES.values():
            raise ValueError(
                f"{piece}: weights must be {piece.rows}×{piece.dim} float32 or float16, got {tuple(weights.shape)} "
                f"{weights.dtype}"
            )
        for name, state in self.states.items():
            if state.shape not in ((piece.rows, piece.dim), (piece.rows,)) or state.dtype != torch.float32:
                raise ValueError(
                    f"{piece}: state {name!r} must be float32 of {piece.rows} rows, got "
                    f"{tuple(state.shape)} {state.dtype}"
                )
        for name, tensor in (("weights", weights), *self.states.items()):
            if not tensor.is_contiguous():
                raise ValueError(f"{piece}: {name} must be contiguous, got strides {tensor.stride()}")

    @property
    def nbytes(self) -> int:
        """Bytes of rows and state."""
        return self.weights.nbytes + sum(state.nbytes for state in self.states.values())

    def check(self, spec: TableSpec) -> None:
        """Raise ``ValueError`` unless these tensors are a piece of the table that ``spec`` describes."""
        piece = self.piece
        if piece.row_end > spec.rows or piece.col_end > spec.dim:
            raise ValueError(f"{piece} lies outside its table of {spec.rows} rows × {spec.dim} columns")
        if self.weights.dtype != _DTYPES[spec.dtype]:
            raise ValueError(f"{piece}: weights are {self.weights.dtype}, its table is {spec.dtype}")
        expected = state_shapes(spec.optimizer, piece)
        shapes = {name: tuple(state.shape) for name, state in self.states.items()}
        if shapes != expected:
            raise ValueError(f"{piece} under {spec.optimizer}: states must be {expected}, got {shapes}")


def state_shapes(optimizer: str, piece: Piece) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a piece's optimizer state."""
    if optimizer == "exact_sgd":
        return {}
    return {"sum": (piece.rows, piece.dim) if optimizer == "exact_adagrad" else (piece.rows,)}
