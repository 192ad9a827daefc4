"""What a running job tells the person who watches it."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.placement_report import PlacementReport


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot, about one a second.

    Attributes:
        state: of the run, such as ``STARTING``, ``RUNNING``, ``STOPPING``.
        stage: what is being done now, such as ``train epoch 1/2`` or ``evaluate``.
        samples: trained so far, all epochs and trainers.
        total_samples: to be trained in the whole run; 0 while unknown.
        predicted_rows: of unlabeled files, rejected ones included; 0 before training and evaluation have ended.
        total_predicted_rows: to be predicted after training.
        throughput_samples_per_s: recent; of prediction its mean.
        loss: recent training logloss per sample, in nats.
        ne: recent normalized entropy.
        auc: of the last evaluation.
        phases: shares of the worker threads' recent time, each 0 to 1.
        trainers: alive now.
        shards: alive now.
        messages: what is worth keeping on the screen since the last snapshot, such as a failure or an evaluation.
        placement: where the tables go and what they take, in one snapshot, before anything is allocated.
    """

    state: str
    stage: str
    samples: int = 0
    total_samples: int = 0
    predicted_rows: int = 0
    total_predicted_rows: int = 0
    throughput_samples_per_s: float = 0.0
    loss: float | None = None
    ne: float | None = None
    auc: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    trainers: int = 0
    shards: int = 0
    messages: tuple[str, ...] = ()
    placement: PlacementReport | None = None
