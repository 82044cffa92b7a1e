"""Caches of policies: what follows from a problem alone, and indexes that belong to a memory.

The one rule: whatever is kept here could be made again from the problem, the memory and the view,
and is used only for the very objects that it was kept for.
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
"""So many problems, or runs that are asked about in turn; each is kept alive, which is what makes
its id its name.
"""


def per_problem(make: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """Make the answer for a problem object once."""
    known: OrderedDict[int, tuple[Problem, T]] = OrderedDict()

    @wraps(make)
    def made(problem: Problem) -> T:
        if id(problem) not in known:
            known[id(problem)] = problem, make(problem)
            if len(known) > KEPT:
                known.popitem(last=False)
        known.move_to_end(id(problem))
        return known[id(problem)][1]

    return made


class IndexCache(Generic[T]):
    """Keep indexes that change with every question, each for the memory that it belongs to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Problem, Memory, T]] = OrderedDict()

    def take(self, problem: Problem, memory: Memory) -> T | None:
        """Take what was kept with this memory object: the next question changes it, so it is given
        once.
        """
        kept = self._kept.pop(id(memory), None)
        return kept[2] if kept is not None and kept[0] is problem else None

    def keep(self, problem: Problem, memory: Memory, index: T) -> None:
        """Keep an index, and the memory alive, which is what makes its id its name."""
        self._kept[id(memory)] = problem, memory, index
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
