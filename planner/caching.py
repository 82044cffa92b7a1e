"""Caches of policies: what follows from a problem alone, and indexes that belong to a memory.

The one rule: whatever is kept here could be made again from the problem, the memory and the view.
It is used only for the very objects (not equal ones) for which it was kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Generic, TypeVar

from seerd.planner.memory import Memory
from seerd.planner.model import Problem

T = TypeVar("T")
KEPT = 8
"""The most problems, or runs asked about in turn, that are cached. Each object is kept alive, so
that its id cannot become another object's.
"""


def per_problem(make: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """Cache a function's result for each problem object."""
    values: OrderedDict[int, tuple[Problem, T]] = OrderedDict()

    @wraps(make)
    def made(problem: Problem) -> T:
        if id(problem) not in values:
            values[id(problem)] = problem, make(problem)
            if len(values) > KEPT:
                values.popitem(last=False)
        values.move_to_end(id(problem))
        return values[id(problem)][1]

    return made


class IndexCache(Generic[T]):
    """Keeps indexes, which change with every question, each for the memory that it belongs to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Problem, Memory, T]] = OrderedDict()

    def take(self, problem: Problem, memory: Memory) -> T | None:
        """Take out what was kept with this memory object; None if there is nothing.

        It is given only once, because the next question changes it.
        """
        kept = self._kept.pop(id(memory), None)
        return kept[2] if kept is not None and kept[0] is problem else None

    def keep(self, problem: Problem, memory: Memory, index: T) -> None:
        """Keep an index with its memory; both stay alive, so that the memory's id stays its own."""
        self._kept[id(memory)] = problem, memory, index
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
