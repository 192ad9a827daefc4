"""Elastic averaging SGD (arXiv 1412.6651) on flat tensors."""

from __future__ import annotations

from torch import Tensor


def exchange_symmetric(center: Tensor, replica: Tensor, alpha: float) -> None:
    """Move centre and replica towards each other by the same amount, in place.

    ``d = alpha (w_i - c)``; ``c += d``; ``replica`` becomes ``d``, which the trainer subtracts from its *current*
    weights (they moved on meanwhile). With equal weights the exchange conserves ``w_i + c``.

    Args:
        center: P float32, the sync server's copy.
        replica: P float32 snapshot of a trainer's weights; overwritten by ``d``.
        alpha: elastic rate in (0, 1).
    """
    replica.sub_(center).mul_(alpha)
    center.add_(replica)
