"""Remembering what follows from a problem alone, for those who are asked about the same one again and again.

The one rule: only functions of a problem; whatever depends on what has happened belongs into a `Memory`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from seerd.planner.model import Problem

T = TypeVar("T")
KEPT = 8
"""So many problems; each is kept alive, which is what makes its id its name."""


def per_problem(make: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """The same answer for the same problem object, made once."""
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
