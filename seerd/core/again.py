"""Deciding again what was decided, to compare: from the recorded state, one event at a time.

The one rule: the state goes on as it was recorded, whatever would be decided now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seerd.core.aiming import derive
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent
from seerd.core.state import Agenda, State
from seerd.core.step import decisions, take


@dataclass(frozen=True, slots=True)
class Difference:
    """After event number `seq`, `was` was decided, and now `would_be` would be; None: nothing (more)."""

    seq: int
    was: AnyDecision | None
    would_be: AnyDecision | None


def again(state: State, event: AnyEvent, recorded: Sequence[AnyDecision]) -> Difference | None:
    """Read one event, and decide again what follows; the first difference, None if there is none."""
    take(state, event)
    deciding = decisions(state, event)
    for place, was in enumerate(recorded):
        now = next(deciding, None)
        if now != was:
            deciding.close()
            return _go_on(state, recorded[place:], Difference(state.seq, was, now))
    more = next(deciding, None)
    if more is None:
        return None
    deciding.close()
    return _go_on(state, (), Difference(state.seq, None, more))


def _go_on(state: State, recorded: Sequence[AnyDecision], difference: Difference) -> Difference:
    for decision in recorded:
        enact(state, decision)
    state.agenda = Agenda()
    derive(state)
    return difference
