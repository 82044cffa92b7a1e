"""The search space: what may be tried, and how a configuration is drawn from it.

The one rule: randomness comes from the generator that is passed in, one draw per parameter in the order of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = float | int | str | bool
Config = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension: either `choices`, or a range from `low` to `high` (both included) with optional `step` and `log`."""

    name: str
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """All dimensions, in the order of the spec."""

    parameters: tuple[Parameter, ...] = ()
