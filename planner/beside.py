"""What is kept beside a memory to save time, and how a memory that came from elsewhere is read.

The one rule: whatever is kept here could be made again from the problem, the memory and the view,
and is used only for the very objects that it was kept for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from seerd.planner.memory import Json, Memory
from seerd.planner.model import Problem

VERSION = 1
"""Of what the policies by rungs remember, under the key "version"."""

KEPT = 8
"""So many runs can be asked about in turn without making anything again."""

T = TypeVar("T")


class Beside(Generic[T]):
    """Indexes that change with every question, each beside the memory that it belongs to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Problem, Memory, T]] = OrderedDict()

    def take(self, problem: Problem, memory: Memory) -> T | None:
        """What was kept with this memory object. The next question changes it: it is given once."""
        kept = self._kept.pop(id(memory), None)
        return kept[2] if kept is not None and kept[0] is problem else None

    def keep(self, problem: Problem, memory: Memory, index: T) -> None:
        """Keeps the memory alive too, which is what makes its id its name."""
        self._kept[id(memory)] = problem, memory, index
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def whole(value: Json, least: int, most: int | None = None) -> int:
    """A remembered integer. Raises `ValueError` if it cannot be one of this version's."""
    if type(value) is not int or value < least or (most is not None and value > most):
        raise ValueError(value)
    return value


def real(value: Json) -> float:
    """A remembered number. Raises `ValueError` if it is none."""
    if type(value) not in (int, float):
        raise ValueError(value)
    return float(value)  # type: ignore[arg-type]


def text(value: Json) -> str:
    """A remembered string. Raises `ValueError` if it is none."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def items(value: Json, count: int) -> list[Json]:
    """A remembered list of so many values. Raises `ValueError` if it is none."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(value)
    return value
