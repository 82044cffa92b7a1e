"""Asking a policy, and keeping its memory and order until it is asked again. If an answer is not
adopted, `Asking` is made anew from the run's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from seerd.core.events import NO_OUTLINE, RunFacts
from seerd.core.plans import Order, PlanChange, difference
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Plan, Problem, View
from seerd.planner.policy import outline_of, plan_of

PlanFunction = Callable[[Problem, Memory, View], tuple[Plan, Memory]]
LONGEST = 2000  # how many characters of an exception's text are kept at most


class Answer(msgspec.Struct, frozen=True):
    """The policy's plan and memory, both as changes."""

    plan: PlanChange  # how the plan differs from the one before
    memory: dict[str, Any]  # JSON: see `seerd.planner.memory.Memory.changes`


class ImpossibleRunError(Exception):
    """No plan fits the limits. Raised before a run begins, when its outline is asked for."""

    def __init__(self, impossible: Impossible) -> None:
        super().__init__(impossible.reason)
        self.impossible = impossible


def outlined(facts: RunFacts) -> RunFacts:
    """Return the facts with the policy's outline, if they have none.

    Raises `ImpossibleRunError` if no plan fits the limits, and whatever the policy raises.
    """
    if facts.outline != NO_OUTLINE:
        return facts
    outline = outline_of(facts.problem)
    if isinstance(outline, Impossible):
        raise ImpossibleRunError(outline)
    return msgspec.structs.replace(facts, outline=outline)


class Asking:
    """The policy of one problem, its memory and the order of its plan, which `ask` changes. `plan`:
    the function to ask, for tests; None: the policy that the problem names.
    """

    def __init__(
        self,
        problem: Problem,
        memory_values: Mapping[str, Any],
        order: Order,
        *,
        plan: PlanFunction | None = None,
    ) -> None:
        self._problem = problem
        self._memory = Memory(dict(memory_values))
        self._order = order
        self._plan: PlanFunction = plan or plan_of

    def ask(self, view: View) -> Answer:
        """Return the next plan and memory. Raises what the policy raises, changing nothing."""
        plan, memory = self._plan(self._problem, self._memory, view)
        changes = {} if memory is self._memory else dict(memory.changes)
        answer = Answer(difference(self._order, plan), changes)
        self._order.apply(answer.plan)
        self._memory = memory
        return answer


def why(error: Exception) -> str:
    """Describe what a policy has raised, and where. The text may have several lines."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    text = f"{type(error).__name__}: {error}"[:LONGEST]
    if where is None:
        return text
    file = "/".join(where.tb_frame.f_code.co_filename.split("/")[-2:])
    return f"{text} ({file}, line {where.tb_lineno})"
