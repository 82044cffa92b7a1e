"""Deciding again what was decided, and asking the policy again, to compare. The state goes on as it
was recorded, whatever would be decided now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seerd.core.aiming import derive
from seerd.core.asking import Answer, Asking, why
from seerd.core.commands import AskPolicy
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent, PolicyAnswered, RunResumed
from seerd.core.plans import Order
from seerd.core.state import Agenda, State
from seerd.core.step import decisions, follow, take
from seerd.core.verdicts import Closing, Declined, Granted, JobOver


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which deciding again gives something else."""

    seq: int  # number of the event after which it was decided
    was: AnyDecision | Answer | None  # what was decided or answered then; None: nothing more
    would_be: AnyDecision | Answer | str | None  # the same now; a text: why there is no answer


def again(state: State, event: AnyEvent, recorded: Sequence[AnyDecision]) -> Difference | None:
    """Read one event, decide again what follows, and return the first difference, or None."""
    take(state, event)
    deciding = decisions(state, event)
    for place, was in enumerate(recorded):
        now = next(deciding, None)
        if now != was:
            return _go_on(state, recorded[place:], Difference(state.clock.seq, was, now))
    more = next(deciding, None)
    return None if more is None else _go_on(state, (), Difference(state.clock.seq, None, more))


def _go_on(state: State, recorded: Sequence[AnyDecision], difference: Difference) -> Difference:
    for decision in recorded:
        enact(state, decision)
    state.agenda = Agenda()
    derive(state)
    return difference


class AskingAgain:
    """Asks the policy again what it was asked, beside a run that is read. Memory and order are made
    anew from the record when an answer was not adopted.
    """

    def __init__(self) -> None:
        self._asking: Asking | None = None
        self._question = ""
        self._seq = 0
        self._answer: Answer | str | None = None

    def compare(self, event: AnyEvent) -> Difference | None:
        """Compare a recorded answer, before it is read, with what the policy answers now."""
        if not isinstance(event, PolicyAnswered) or event.question != self._question:
            return None
        was, answer = Answer(event.plan, event.memory), self._answer
        self._answer = None
        return None if answer is None or was == answer else Difference(self._seq, was, answer)

    def ask(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """Ask the policy the question that an event has led to, after the event was read."""
        kinds: set[type] = {type(decision) for decision in decided}
        if kinds & {Declined, Closing, Granted, JobOver}:
            self._asking = None
        asked = AskPolicy in kinds or isinstance(event, RunResumed)
        plan = state.plan
        if plan.question is None or not asked:
            return
        self._question, self._seq = plan.question, state.clock.seq
        # An answer that was not compared is to a question without an outcome.
        if self._answer is not None:
            self._asking = None
        try:
            if self._asking is None:
                self._asking = Asking(state.facts.problem, plan.memory, Order(plan.order))
            self._answer = self._asking.ask(state.view)
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            self._answer, self._asking = why(error), None


class DecidingAgain:
    """Reads a run, and decides and asks again up to the first difference."""

    def __init__(self) -> None:
        self._policy = AskingAgain()
        self.difference: Difference | None = None

    def follow(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """Lead the state on by one event, as `step.follow` does, and compare."""
        if self.difference is None:
            self.difference = self._policy.compare(event)
        if self.difference is not None:
            follow(state, event, decided)
            return
        self.difference = again(state, event, decided)
        if self.difference is None:
            self._policy.ask(state, event, decided)
