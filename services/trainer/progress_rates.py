"""Learning rates that follow the progress of the whole run, of which a trainer knows its own part exactly."""

from __future__ import annotations

from trainer.config import DenseConfig, EmbeddingConfig
from trainer.schedule import learning_rate


class ProgressRates:
    """(dense, embedding) learning rates for the next step.

    The run's progress is this trainer's own samples plus the others' as last reported, extrapolated by this trainer's
    own pace since; with one trainer that is exact, whenever reports happen (deterministic mode relies on it).
    """

    def __init__(
        self,
        dense: DenseConfig,
        embedding: EmbeddingConfig,
        total_samples: int,
        trainers: int,
        trained_samples: int = 0,
    ) -> None:
        """``trained_samples`` of ``total_samples`` were trained before this trainer came."""
        self._dense, self._embedding, self._total = dense, embedding, total_samples
        self._others = trained_samples
        self._own_at_report = 0
        self._pace = trainers - 1

    def reported(self, others_samples: int, own_samples: int) -> None:
        """The others have trained ``others_samples`` when this one has begun ``own_samples``, says the coordinator."""
        self._others, self._own_at_report = others_samples, own_samples

    def __call__(self, started_samples: int) -> tuple[float, float]:
        """Rates for a step before which this trainer began ``started_samples``."""
        samples = started_samples + self._others + self._pace * max(0, started_samples - self._own_at_report)
        dense, embedding = self._dense, self._embedding
        return (
            learning_rate(dense.learning_rate, samples, self._total, dense.warmup_samples, dense.decay),
            learning_rate(embedding.learning_rate, samples, self._total, 0, embedding.decay),
        )
