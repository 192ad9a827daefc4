"""One failure in one line, for people."""

from __future__ import annotations

from services.summary import Failure


def failure_line(failure: Failure, what: str) -> str:
    """Who, cause, mode, seconds by part, samples at risk and the budget.

    ``what`` was done, in words.
    """
    seconds = ", ".join(
        f"{part} {value:.2f} s"
        for part, value in (
            ("detect", failure.detect_s),
            ("reschedule", failure.reschedule_s),
            ("load", failure.load_s),
            ("replay", failure.replay_s),
        )
        if value is not None
    )
    parts = [f"{failure.role} {failure.index} died ({failure.cause}): {failure.mode} recovery, {what}", seconds]
    if failure.samples_at_risk:
        parts.append(f"{failure.samples_at_risk:,} samples at risk")
    if failure.pls_spent is not None:
        effective = "not counted" if failure.pls_effective is None else f"{failure.pls_effective:.3g}"
        parts.append(
            f"PLS {failure.pls or 0.0:.3g}, spent {failure.pls_spent:.3g} (effective {effective}), "
            f"left {failure.pls_left:.3g}"
        )
    return "; ".join(part for part in parts if part)
