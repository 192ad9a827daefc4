"""Figures as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def number(value: float | None, digits: int = 4) -> str:
    """``0.7546``, or a dash for what does not exist."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def count(value: float) -> str:
    """``1,234,567``."""
    return f"{value:,.0f}"


def size(value_bytes: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value_bytes) < 1024:
            return f"{value_bytes:.0f} B" if unit == "B" else f"{value_bytes:.1f} {unit}"
        value_bytes /= 1024
    return f"{value_bytes:.1f} TiB"


def percentages(parts: Mapping[str, float]) -> dict[str, float]:
    """Shares in percent, one decimal, that add up to exactly 100.0 (largest remainder); all 0 without a total."""
    total = math.fsum(parts.values())
    if total <= 0:
        return dict.fromkeys(parts, 0.0)
    exact = {name: value / total * 1000 for name, value in parts.items()}
    tenths = {name: math.floor(value) for name, value in exact.items()}
    missing = 1000 - sum(tenths.values())
    for name in sorted(exact, key=lambda name: tenths[name] - exact[name])[:missing]:
        tenths[name] += 1
    return {name: value / 10 for name, value in tenths.items()}
