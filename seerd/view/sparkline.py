"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The values squeezed into `width` characters, from the lowest to the highest bar; a gap where there is no finite number."""
    if width <= 0 or not values:
        return ""
    picked = [values[i * len(values) // min(width, len(values))] for i in range(min(width, len(values)))]
    picked[-1] = values[-1]
    finite = [value for value in picked if value is not None and math.isfinite(value)]
    if not finite:
        return " " * len(picked)
    low, high = min(finite), max(finite)
    return "".join(_bar(value, low, high) for value in picked)


def _bar(value: float | None, low: float, high: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    span = high / 2 - low / 2  # halves, since the distance of two finite numbers need not be finite
    share = (value / 2 - low / 2) / span if span else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]
