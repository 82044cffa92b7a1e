"""The decision core as three moves: an event is recorded, what follows is decided, and each
decision is recorded before the next is made.

The one rule: no clock, no network, no randomness, no logging. `step` is for a run that goes on;
`follow` reads one, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from seerd.core.aiming import derive
from seerd.core.commands import AnyCommand, Command
from seerd.core.decide import ask, decide, promises
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceTerminated,
    OrderRefused,
    PolicyAnswered,
    RunResumed,
    TrialCheckpointed,
    TrialReported,
    TrialTraining,
    TrialWaited,
)
from seerd.core.reconcile import reconcile, set_timer
from seerd.core.record import record
from seerd.core.settle import settle
from seerd.core.state import Agenda, State

QUIET = (TrialReported, TrialCheckpointed, TrialTraining, TrialWaited)
"""Most events of a run. They leave nothing to decide unless `record` says so, and deciding and
reconciling twice gives nothing new.
"""
ABOUT_ANY = (InstanceLost, InstanceTerminated, OrderRefused, RunResumed)
"""They do not name the trials whose attempts end with them. One that had saved has finished then.
"""


def step(state: State, event: AnyEvent) -> list[AnyDecision]:
    """Handle one event; what was decided, in order. The commands among it must now be carried out,
    after `RunResumed` behind those of `unfinished` that are still under way.
    """
    take(state, event)
    return list(decisions(state, event))


def take(state: State, event: AnyEvent) -> None:
    """Record an event."""
    state.clock.tick(event.at)
    state.agenda.stirred = False
    state.agenda.because = "room"
    record(state, event)


def decisions(state: State, event: AnyEvent) -> Iterator[AnyDecision]:
    """What follows from the event that was just taken. Each decision is written down when the next
    one is asked for.
    """
    quiet = isinstance(event, QUIET)
    for decision in chain(settle(state), _later(state, quiet=quiet)):
        yield decision
        enact(state, decision)


def _later(state: State, *, quiet: bool) -> Iterator[AnyDecision]:
    """Looked for only when everything is settled."""
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
    """Read one event and what was decided: the state is as it was then."""
    take(state, event)
    for decision in decided:
        enact(state, decision)
    # What was to be looked at has been, by whoever decided.
    if isinstance(event, QUIET):
        state.agenda.saved.clear()
        state.agenda.waited.clear()
        state.agenda.ask = state.agenda.about = None
    else:
        state.agenda = Agenda()


def commands_of(decided: Sequence[AnyDecision]) -> list[AnyCommand]:
    """Those that must be carried out."""
    return [one for one in decided if isinstance(one, Command)]


def unfinished(state: State) -> list[AnyCommand]:
    """Commands whose outcome is not known: after a restart exactly these are carried on."""
    return list(state.under_way.values())


def trials_of(event: AnyEvent, decided: Iterable[AnyDecision]) -> set[str] | None:
    """Trials that may be seen otherwise by a policy after this event than before it; None: any."""
    if isinstance(event, ABOUT_ANY):
        return None
    named = (getattr(what, "trial", None) for what in (event, *decided))
    trials = {trial for trial in named if isinstance(trial, str)}
    if isinstance(event, PolicyAnswered):
        trials.update(event.plan.eliminated)
    return trials
