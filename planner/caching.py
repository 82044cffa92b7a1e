"""Caches of policies, for the very objects (not equal ones) for which they were kept: what follows
from a problem alone, and indexes that could be made again from a memory and a view.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Generic, TypeVar

from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Policy, Problem, View

T = TypeVar("T")
# most problems, or runs asked about in turn: they stay alive, so that their ids stay theirs
KEPT = 8


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


def prepared(
    make: Callable[[Problem], T | Impossible],
    outline: Callable[[Problem, T], Outline],
    plan: Callable[[Problem, T, Memory, View], tuple[Plan, Memory]],
) -> Policy:
    """Make a policy that works with what `make` derives from the problem, if the limits fit."""
    cached = per_problem(make)

    def outlined(problem: Problem) -> Outline | Impossible:
        made = cached(problem)
        return made if isinstance(made, Impossible) else outline(problem, made)

    def planned(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        made = cached(problem)
        if isinstance(made, Impossible):
            raise ValueError(made.reason)
        return plan(problem, made, memory, view)

    return Policy(outlined, planned)


class IndexCache(Generic[T]):
    """Indexes, which change with every question, each with the memory that it belongs to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Problem, Memory, T]] = OrderedDict()

    def take(self, problem: Problem, memory: Memory) -> T | None:
        """Take out what was kept with this memory object, since a question changes it."""
        kept = self._kept.pop(id(memory), None)
        return kept[2] if kept is not None and kept[0] is problem else None

    def keep(self, problem: Problem, memory: Memory, index: T) -> None:
        """Keep an index with its memory."""
        self._kept[id(memory)] = problem, memory, index
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
