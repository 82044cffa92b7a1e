"""The decision core as one function: an event in, commands out.

The one rule: no clock, no network, no randomness, no logging. The same events give the same commands, for real, in simulation and in replay.
"""

from __future__ import annotations

from seerd.core.apply import apply
from seerd.core.commands import AnyCommand
from seerd.core.decide import decide
from seerd.core.events import AnyEvent, RunResumed, TrialCheckpointed, TrialReported, TrialTraining, TrialWaited
from seerd.core.reconcile import reconcile
from seerd.core.state import State

QUIET = (TrialReported, TrialCheckpointed, TrialTraining, TrialWaited)
"""Most events of a run. They leave nothing to decide unless `apply` says so, and deciding and reconciling twice gives nothing new."""


def step(state: State, event: AnyEvent) -> list[AnyCommand]:
    """Handle one event; the commands that must now be carried out.

    After `RunResumed` these are all commands whose outcome is not known, under their old ids, and the new ones behind them.
    """
    state.seq += 1
    state.heard_at = state.now
    state.now = max(state.now, event.at)
    state.stirred = False
    apply(state, event)
    if isinstance(event, QUIET) and not state.stirred:
        return []
    decide(state)
    before = list(state.under_way.values()) if isinstance(event, RunResumed) else []
    new = reconcile(state)
    return [command for command in before if command.id in state.under_way] + new
