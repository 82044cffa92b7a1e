"""Asking a policy, and what it remembers until it is asked again.

The one rule: what is kept here is what the run's state has, plan and memory. If an answer is not
adopted, one begins anew from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from seerd.core.events import RunFacts
from seerd.core.plans import Order, PlanChange, difference
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Problem, View

PlanFunction = Callable[[Problem, Memory, View], tuple[Plan, Memory]]
MOST_TOLD = 2000
"""So many characters of an exception's text are told."""


class Answer(msgspec.Struct, frozen=True):
    """What the policy wants, and what it will remember: both by how they differ from before.

    memory  see `seerd.planner.memory.Memory.changes`. JSON, of which msgspec has no type
    """

    plan: PlanChange
    memory: dict[str, Any]


class ImpossibleRunError(Exception):
    """The limits fit nothing; whoever starts a run asks the policy for its outline before."""

    def __init__(self, impossible: Impossible) -> None:
        super().__init__(impossible.reason)
        self.impossible = impossible


def outlined(facts: RunFacts) -> RunFacts:
    """With the outline of the run's policy, if it was not given. Raises `ImpossibleRunError`."""
    if facts.outline is not None:
        return facts
    from seerd.planner.policy import outline_of

    outline = outline_of(facts.problem)
    if isinstance(outline, Impossible):
        raise ImpossibleRunError(outline)
    return msgspec.structs.replace(facts, outline=outline)


def lacking(facts: RunFacts) -> Outline | None:
    """The outline of a run of format 1, which did not record it. None if it is recorded, or the
    policy has none; if that is because the policy fails, it will say so when it is asked for a
    plan.
    """
    if facts.outline is not None:
        return None
    try:
        return outlined(facts).outline
    except Exception:  # noqa: BLE001 - a policy is anybody's code
        return None


class Asking:
    """One problem's policy, what it remembers, and the order of its plan, which it changes.

    plan  what is asked, for tests; None: the policy that the problem names
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
        self._plan = plan or default_plan()

    def ask(self, view: View) -> Answer:
        """The next plan. Raises what the policy raises, and if its answer is none; nothing has
        changed then.
        """
        plan, memory = self._plan(self._problem, self._memory, view)
        changes = {} if memory is self._memory else dict(memory.changes)
        answer = Answer(difference(self._order, plan), changes)
        self._order.apply(answer.plan)
        self._memory = memory
        return answer


def default_plan() -> PlanFunction:
    """Imported when it is asked for: with it come all policies."""
    from seerd.planner.policy import plan_of

    asked: PlanFunction = plan_of
    return asked


def why(error: Exception) -> str:
    """What a policy has raised, and where, in one line or as many as its text has."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    told = f"{type(error).__name__}: {error}"[:MOST_TOLD]
    if where is None:
        return told
    return f"{told} ({_short(where.tb_frame.f_code.co_filename)}, line {where.tb_lineno})"


def _short(path: str) -> str:
    return "/".join(path.split("/")[-2:])
