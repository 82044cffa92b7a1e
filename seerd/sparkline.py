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
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(_bar(value, low, span) for value in picked)


def _bar(value: float | None, low: float, span: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    return BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))]
