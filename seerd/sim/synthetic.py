"""Made-up learning curves, shaped as real ones are, to compare plans before a script was run.

A configuration's final value falls with its distance from a hidden best point of the space. One
with a large value of its first parameter diverges, as with too large a learning rate. The way to
the final value is a power law with noise (Domhan et al., IJCAI '15).
"""

from __future__ import annotations

import random

import numpy as np

from seerd.planner.model import Mode
from seerd.planner.space import Config, Parameter, Space
from seerd.sim.curves import Curves

CONFIGS = 400
EPOCHS = 100
NOISE = 0.004
DIVERGES = 0.85


def synthetic(space: Space, mode: Mode, report_s: float, seed: int = 0) -> Curves:
    """Make `CONFIGS` curves, with metrics from 0 to 1. `report_s`: of a report on one GPU."""
    rng = random.Random(f"synthetic {seed}")
    configs = tuple(space.sample(rng) for _ in range(CONFIGS))
    at = np.array([[_share(p, config) for p in space.parameters] for config in configs])
    draw = np.random.default_rng(seed)
    best = draw.uniform(0.3, 0.7, len(space.parameters))
    weight = draw.dirichlet(np.ones(len(space.parameters)) * 2)
    distance = np.sqrt((((at - best) / 0.5) ** 2 * weight).sum(axis=1))
    final = 0.95 - 0.5 * distance**1.5
    slope = draw.uniform(0.4, 1.1, CONFIGS)
    epoch = np.arange(1, EPOCHS + 1)
    value = final[:, None] - (final[:, None] - 0.1) * (1 + epoch) ** -slope[:, None]
    value += draw.normal(0, NOISE, value.shape)
    value[at[:, 0] > DIVERGES] = 0.1 + np.abs(
        draw.normal(0, NOISE, value[at[:, 0] > DIVERGES].shape)
    )
    value = np.clip(value, 0.0, 1.0)
    seconds = np.full(value.shape, report_s)
    return Curves(value if mode == "max" else 1 - value, seconds, 1, mode, configs)


def _share(parameter: Parameter, config: Config) -> float:
    """Return where a value lies, 0 to 1; an inactive one is in the middle."""
    return parameter.share(config[parameter.name]) if parameter.name in config else 0.5
