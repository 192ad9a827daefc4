"""Pairwise dot interaction of DLRM (arXiv 1906.00091, section 2.1.3), at a third of TorchRec's cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class DotInteraction(nn.Module):
    """Dot products of every pair of feature vectors, beside the dense vector.

    Same values in the same order as ``torchrec.models.dlrm.InteractionArch``. TorchRec picks the upper triangle by
    advanced indexing; here its rows are slices of the product that one ``cat`` puts behind the dense vector, and the
    backward pass builds the symmetric gradient directly, so that one matrix product is enough where autograd needs two.

    Args:
        sparse_features: F. With 0 the module returns the dense vector.
    """

    def __init__(self, sparse_features: int) -> None:
        super().__init__()
        self.sparse_features = sparse_features
        vectors = sparse_features + 1
        row, column = torch.triu_indices(vectors, vectors, offset=1)
        pairs = torch.arange(row.numel())
        # Where the gradient of entry (i, j) lies among the pairs; the diagonal, which has none, points anywhere.
        mirror = torch.zeros((vectors, vectors), dtype=torch.int64)
        mirror[row, column] = pairs
        mirror[column, row] = pairs
        self.register_buffer("_mirror", mirror.flatten(), persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Interact.

        Args:
            dense: B×D, the output of the bottom MLP.
            embedded: B×F×D pooled rows, cast to the type of ``dense``.

        Returns:
            B×(D + F + F·(F-1)/2): the dense vector, then pairs (i, j), i < j, row by row; vector 0 is the dense one.
        """
        if self.sparse_features == 0:
            return dense
        output: Tensor = _PairDots.apply(  # type: ignore[no-untyped-call]
            dense, embedded.to(dense.dtype), self._mirror
        )
        return output


class _PairDots(torch.autograd.Function):
    """The product X·Xᵀ of B×V×D vectors, upper triangle only; dL/dX = (G + Gᵀ)·X."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, embedded: Tensor, mirror: Tensor) -> Tensor:
        vectors = torch.cat((dense.unsqueeze(1), embedded), dim=1)
        ctx.save_for_backward(vectors, mirror)
        # The caller chose the type by choosing that of `dense`; autocast must not choose again.
        with torch.autocast(dense.device.type, enabled=False):
            dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        count = vectors.shape[1]
        # Row i of the product: i + 1 entries on and below the diagonal, then the pairs (i, j > i).
        widths = [width for row in range(count) for width in (row + 1, count - 1 - row)]
        return torch.cat((dense, *dots.split_with_sizes(widths, dim=1)[1::2]), dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        vectors, mirror = ctx.saved_tensors
        batch, count, dim = vectors.shape
        places = mirror + dim  # in the whole gradient: a slice of it would be copied first
        if grad.element_size() < 4:  # index_select moves 4 bytes at once, but narrower elements by a call each
            symmetric = grad.float().index_select(1, places).to(grad.dtype)
        else:
            symmetric = grad.index_select(1, places)
        symmetric = symmetric.view(batch, count, count)
        symmetric.diagonal(dim1=1, dim2=2).zero_()
        with torch.autocast(grad.device.type, enabled=False):
            vector_grad = torch.bmm(symmetric, vectors)
        return vector_grad[:, 0] + grad[:, :dim], vector_grad[:, 1:], None
