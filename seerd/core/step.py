"""The decision core: an event is recorded, what follows is decided, and each decision is applied
before the next is made. No clock, no network, no randomness, no logging.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from seerd.core import events
from seerd.core.aiming import derive
from seerd.core.commands import AnyCommand, Command
from seerd.core.decide import ask, decide, promises
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent
from seerd.core.reconcile import reconcile, set_timer
from seerd.core.record import record
from seerd.core.settle import settle
from seerd.core.state import Agenda, State

QUIET = (
    events.TrialReported,
    events.TrialCheckpointed,
    events.TrialComplained,
    events.TrialTraining,
    events.TrialWaited,
    events.InstanceComputed,
)
"""Kinds of most events of a run. They leave nothing to decide unless they set `agenda.stirred`."""
ABOUT_ANY = (events.InstanceLost, events.InstanceTerminated, events.OrderRefused, events.RunResumed)
"""Events that do not name the trials whose attempts end with them."""


def step(state: State, event: AnyEvent) -> list[AnyDecision]:
    """Handle one event and return what was decided, in order, for the caller to carry out. After
    `RunResumed` the caller first carries out those of `unfinished` that are still under way.
    """
    take(state, event)
    return list(decisions(state, event))


def take(state: State, event: AnyEvent) -> None:
    """Record an event in the state, without deciding anything."""
    state.clock.tick(event.at)
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
        state.agenda.doubt, state.agenda.quiet = False, None
        state.agenda.ask = state.agenda.about = state.agenda.reported = None
    else:
        state.agenda = Agenda()


def commands_of(decided: Sequence[AnyDecision]) -> list[AnyCommand]:
    """Return the commands among the decisions."""
    return [decision for decision in decided if isinstance(decision, Command)]


def unfinished(state: State) -> list[AnyCommand]:
    """Return the commands without an outcome, which are carried out again after a restart."""
    return list(state.under_way.values())


def trials_of(event: AnyEvent, decided: Iterable[AnyDecision]) -> set[str] | None:
    """Return the trials that a policy may see differently after this event; None: any of them."""
    if isinstance(event, ABOUT_ANY):
        return None
    named = (getattr(what, "trial", None) for what in (event, *decided))
    trials = {trial for trial in named if isinstance(trial, str)}
    if isinstance(event, events.PolicyAnswered):
        trials.update(event.plan.eliminated)
    return trials
