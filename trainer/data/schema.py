"""The columns of a data set: I dense features, F sparse features."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One sparse feature; ``multi_hot`` means a sample may have any number of values, none included."""

    name: str
    multi_hot: bool


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """Names of the I dense features and specs of the F sparse ones, in batch order."""

    dense: tuple[str, ...]
    sparse: tuple[FeatureSpec, ...]

    @property
    def one_hot(self) -> bool:
        """True when every sample has exactly one value in every sparse feature (the fast path)."""
        return not any(spec.multi_hot for spec in self.sparse)
