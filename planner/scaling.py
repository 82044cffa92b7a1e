"""lambda(p): how many times as fast a trial trains on p GPUs as on one (SEER section 3.1,
RubberBand section 4.1), as a table of measured points. Between two points the throughput follows
the power law through both; beyond the last one that of the last two, but never above linear, and
never falling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Scaling:
    """Throughput by number of GPUs. Raises `ValueError` for points other than these."""

    # (GPUs, throughput relative to one GPU), ascending in GPUs, the first (1, 1.0)
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points or tuple(self.points[0]) != (1, 1.0):
            raise ValueError("a scaling begins with 1:1")
        for (before, _), (gpus, speed) in pairwise(self.points):
            if gpus <= before:
                raise ValueError(f"{gpus} GPUs come after {before}: their numbers must grow")
            if not (math.isfinite(speed) and speed > 0):
                raise ValueError(
                    f"the throughput on {gpus} GPUs must be a positive number, not {speed:g}"
                )

    def speed(self, gpus: int) -> float:
        """Return the throughput on `gpus` GPUs, relative to one."""
        for (low, slow), (high, fast) in pairwise(self.points):
            if gpus <= high:
                return float(slow * (gpus / low) ** (math.log(fast / slow) / math.log(high / low)))
        last, speed = self.points[-1]
        if len(self.points) == 1:
            exponent = 1.0
        else:
            low, slow = self.points[-2]
            exponent = min(1.0, max(0.0, math.log(speed / slow) / math.log(last / low)))
        return float(speed * (gpus / last) ** exponent)

    def efficiency(self, gpus: int) -> float:
        """Return the throughput per GPU, relative to one."""
        return self.speed(gpus) / gpus


LINEAR = Scaling(((1, 1.0),))


def _table(*speeds: float) -> Scaling:
    return Scaling(tuple((2**i, speed) for i, speed in enumerate((1.0, *speeds))))


BUNDLED: Mapping[str, Scaling] = {
    "linear": LINEAR,
    "resnet18": _table(1.854, 3.426, 5.398),
    "resnet50": _table(1.870, 3.421, 5.598),
    "resnet101": _table(1.892, 3.632, 6.672),
    "resnet152": _table(1.796, 3.448, 6.541),
    "shufflenet": _table(1.920, 3.605, 6.084),
    "resnet50-imagenet": _table(1.77, 2.93, 4.29),
}
"""Throughput of V100 GPUs on one p3.16xlarge (Liaw et al., HyperSched, SoCC '19)."""


def parse_scaling(text: str) -> Scaling:
    """Read `1:1,2:1.87,4:3.42` or a bundled scaling's name. Raises `ValueError` in words."""
    if text.lower() in BUNDLED:
        return BUNDLED[text.lower()]
    try:
        pairs = [part.split(":") for part in text.split(",")]
        points = tuple((int(gpus), float(speed)) for gpus, speed in pairs)
    except ValueError as error:
        allowed = f"write 1:1,2:1.87,4:3.42, or one of {', '.join(BUNDLED)}"
        raise ValueError(f"{text!r}: {allowed}") from error
    return Scaling(points)
