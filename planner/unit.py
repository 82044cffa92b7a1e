"""Configurations as points of the unit cube, for policies with a model.

The one rule: a point has the same columns for every configuration of a space, whichever parameters
are active.

Parameters have their columns in the order of the space:
- a range or a normal has one: the share of the distribution at which the value lies, so that draws
  of the space are uniform there whatever its scale;
- choices have one for each: 1 for the value, 0 for the others. A fixed value has none, as it tells
  nothing;
- one that has conditions has one more, before its others: 1 if it is active, else 0. If it is not,
  the share is 0.5, and each of n choices is 1 / n, which is nobody's value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seerd.planner.parameter import Config, Parameter, Value
from seerd.planner.space import Space

Floats = NDArray[np.float64]


def unit(space: Space, config: Config) -> Floats:
    """Turn a configuration into a point, of shape (`columns(space)`,) and between 0 and 1.

    What is in no parameter's place is left out, and what is missing counts as inactive. Raises
    `ValueError` for a value that is no choice of its parameter.
    """
    parts = (_part(parameter, config.get(parameter.name)) for parameter in space.parameters)
    return np.array([figure for part in parts for figure in part], dtype=np.float64)


def columns(space: Space) -> int:
    """Count the columns of the space's points."""
    return sum(len(_part(parameter, None)) for parameter in space.parameters)


def _part(parameter: Parameter, value: Value | None) -> list[float]:
    count = len(parameter.choices)
    flag = [float(value is not None)] if parameter.when else []
    if count == 1:
        return flag
    if value is None:
        return flag + ([1 / count] * count if count else [0.5])
    if not count:
        return [*flag, parameter.share(value)]
    place = parameter.place(value)
    return flag + [float(other == place) for other in range(count)]
