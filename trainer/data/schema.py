"""The columns of a data set: I dense features, F sparse features."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One sparse feature; ``multi_hot`` means a sample may have any number of values, none included.

    ``weighted``: each of its values comes with a weight.
    """

    name: str
    multi_hot: bool
    weighted: bool = False


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """Names of the I dense features and specs of the F sparse ones, in batch order.

    ``labeled=False``: the data has no labels (zeros stand for them) and can only be predicted.
    """

    dense: tuple[str, ...]
    sparse: tuple[FeatureSpec, ...]
    labeled: bool = True

    @property
    def one_hot(self) -> bool:
        """True when every sample has exactly one value in every sparse feature (the fast path)."""
        return not any(spec.multi_hot for spec in self.sparse)

    @property
    def weighted(self) -> bool:
        """True when the values of some feature have weights; batches then carry ``weights``."""
        return any(spec.weighted for spec in self.sparse)
