"""Deciding again what was decided, to compare: from the recorded state, one event at a time; the policy is asked again as well.

The one rule: the state goes on as it was recorded, whatever would be decided now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.model import View
from seerd.core.aiming import derive
from seerd.core.asking import Answer, Asking, why
from seerd.core.commands import AskPolicy
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent, PolicyAnswered, RunResumed
from seerd.core.plans import Order
from seerd.core.state import Agenda, State
from seerd.core.step import decisions, take


@dataclass(frozen=True, slots=True)
class Difference:
    """After event number `seq`, `was` was decided, and now `would_be` would be; None: nothing (more). Of the policy: what it answered to that
    event's question, and what it would answer; a text: why it would not.
    """

    seq: int
    was: AnyDecision | Answer | None
    would_be: AnyDecision | Answer | str | None


def again(state: State, event: AnyEvent, recorded: Sequence[AnyDecision]) -> Difference | None:
    """Read one event, and decide again what follows; the first difference, None if there is none."""
    take(state, event)
    deciding = decisions(state, event)
    for place, was in enumerate(recorded):
        now = next(deciding, None)
        if now != was:
            return _go_on(state, recorded[place:], Difference(state.seq, was, now))
    more = next(deciding, None)
    return None if more is None else _go_on(state, (), Difference(state.seq, None, more))


def _go_on(state: State, recorded: Sequence[AnyDecision], difference: Difference) -> Difference:
    """As it was recorded. Whoever was deciding is not asked for more, so nothing of theirs is written down."""
    for decision in recorded:
        enact(state, decision)
    state.agenda = Agenda()
    derive(state)
    return difference


class AskingAgain:
    """Asks the policy what it was asked, beside a run that is read."""

    def __init__(self) -> None:
        self._question = ""
        self._seq = 0
        self._answer: Answer | str | None = None

    def compare(self, state: State, event: AnyEvent) -> Difference | None:
        """Before the event is read: whether the policy would have answered as it did."""
        if not isinstance(event, PolicyAnswered) or event.question != self._question or self._answer is None:
            return None
        was = Answer(event.plan, event.memory)
        return None if was == self._answer else Difference(self._seq, was, self._answer)

    def ask(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """After an event was read: ask what it has led to ask."""
        asked = any(isinstance(one, AskPolicy) for one in decided) or isinstance(event, RunResumed)
        plan = state.plan
        if plan.question is None or not asked:
            return
        self._question, self._seq = plan.question, state.seq
        try:
            asking = Asking(state.facts.problem, plan.memory, Order(plan.order))
            self._answer = asking.ask(View(state.now, state.facts.mode, state.trials))
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            self._answer = why(error)
