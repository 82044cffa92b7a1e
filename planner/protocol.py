"""What a search policy is.

The one rule: a policy is two functions. What it remembers from one question to the next is a value
that it gets back with the next question; nothing else of it lasts, so any process, and any later
version, can ask the next question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Problem, View


@dataclass(frozen=True, slots=True)
class Policy:
    """A search policy."""

    # returns the whole run as it would go ideally
    outline: Callable[[Problem], Outline | Impossible]
    # returns what is wanted now, and what to remember for the next question. Asking again with the
    # new memory, before anything has changed, gives the same allocations and nothing new. Raises
    # `ValueError` if the limits fit nothing, which `outline` has said before
    plan: Callable[[Problem, Memory, View], tuple[Plan, Memory]]
