"""The demo's faults: one shard process dies, and later one with its rows."""

from __future__ import annotations

from services.faults.plan import FaultPlan

_WARM_AT, _ROWS_GONE_AT = 0.3, 0.6


def demo_faults(total_samples: int) -> FaultPlan:
    """SIGKILL shard 0 in an update; then the keeper, which holds the rows, together with shard 1."""
    later = {"at_samples": int(_ROWS_GONE_AT * total_samples)}
    return FaultPlan.model_validate(
        {
            "faults": [
                {
                    "do": "kill",
                    "whom": {"role": "shard", "index": 0},
                    "when": {"at_samples": int(_WARM_AT * total_samples)},
                },
                {"do": "kill", "whom": {"role": "keeper", "index": 0}, "when": later},
                {"do": "kill", "whom": {"role": "shard", "index": 1}, "when": later},
            ]
        }
    )
