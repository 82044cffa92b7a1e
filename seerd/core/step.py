"""The decision core: an event is recorded, what follows is decided, and each decision is applied
before the next is made. To compare, a recorded event can be decided again, and the policy asked
again; the state goes on as it was recorded, whatever would be decided now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from seerd.core import events
from seerd.core.aiming import derive
from seerd.core.asking import Answer, Asking, why
from seerd.core.commands import AnyCommand, AskPolicy, Command
from seerd.core.decide import ask, decide, promises
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent
from seerd.core.plans import Order
from seerd.core.reconcile import reconcile, set_timer
from seerd.core.record import record
from seerd.core.settle import settle
from seerd.core.state import State
from seerd.core.verdicts import Closing, Declined, Granted, JobOver
from seerd.core.wanted import Agenda

QUIET = (
    events.TrialReported,
    events.TrialCheckpointed,
    events.TrialComplained,
    events.TrialTraining,
    events.TrialWaited,
    events.InstanceComputed,
)
"""Kinds of most events of a run. They leave nothing to decide unless they set `agenda.stirred`."""


def step(state: State, event: AnyEvent) -> list[AnyDecision]:
    """Handle one event and return what was decided, in order, for the caller to carry out. After
    `RunResumed` the caller first carries out those of `unfinished` that are still under way.
    """
    take(state, event)
    return list(decisions(state, event))


def take(state: State, event: AnyEvent) -> None:
    """Record an event in the state, without deciding anything."""
    clock = state.clock
    clock.seq, clock.issued = clock.seq + 1, 0
    clock.previous_s, clock.now = clock.now, max(clock.now, event.at)
    if isinstance(event, events.RunResumed):  # what was left to do is derived anew
        state.agenda = Agenda()
    state.agenda.stirred = False
    state.agenda.because = "room"
    record(state, event)


def decisions(state: State, event: AnyEvent) -> Iterator[AnyDecision]:
    """Decide what follows from the event just taken; each decision is applied before the next."""
    quiet = isinstance(event, QUIET)
    for decision in chain(settle(state), _later(state, quiet=quiet)):
        yield decision
        enact(state, decision)


def _later(state: State, *, quiet: bool) -> Iterator[AnyDecision]:
    """Decide what must wait until `settle` is done."""
    if quiet and not state.agenda.stirred:
        return
    if state.agenda.resumed:
        derive(state)
    yield from decide(state)
    yield from reconcile(state)
    yield from ask(state)
    yield from promises(state)
    yield from set_timer(state)


def follow(state: State, event: AnyEvent, decided: Iterable[AnyDecision]) -> None:
    """Apply one recorded event and its decisions, so that the state is as it was then."""
    take(state, event)
    for decision in decided:
        enact(state, decision)
    # The daemon that decided has already worked off its agenda.
    if isinstance(event, QUIET):
        state.agenda.saved.clear()
        state.agenda.waited.clear()
        state.agenda.doubt, state.agenda.quiet, state.agenda.unstored = False, None, False
        state.agenda.ask = state.agenda.about = state.agenda.reported = None
    else:
        state.agenda = Agenda()


def commands_of(decided: Sequence[AnyDecision]) -> list[AnyCommand]:
    """Return the commands among the decisions."""
    return [decision for decision in decided if isinstance(decision, Command)]


def unfinished(state: State) -> list[AnyCommand]:
    """Return the commands without an outcome, which are carried out again after a restart."""
    return list(state.under_way.values())


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
        if not isinstance(event, events.PolicyAnswered) or event.question != self._question:
            return None
        was, answer = Answer(event.plan, event.memory), self._answer
        self._answer = None
        return None if answer is None or was == answer else Difference(self._seq, was, answer)

    def ask(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """Ask the policy the question that an event has led to, after the event was read."""
        kinds: set[type] = {type(decision) for decision in decided}
        if kinds & {Declined, Closing, Granted, JobOver}:
            self._asking = None
        asked = AskPolicy in kinds or isinstance(event, events.RunResumed)
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
