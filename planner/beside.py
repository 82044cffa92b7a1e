"""What is kept beside a memory to save time.

The one rule: whatever is kept here could be made again from the problem, the memory and the view,
and is used only for the very objects that it was kept for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from seerd.planner.memory import Memory
from seerd.planner.model import Problem

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
