"""Ranks that others wait for, of attempts on one instance or on several: those that hang, and those that are slow.

The one rule: that a rank hangs is known only if all instances of its attempt say that nothing moves there, those that wait have come at least
as far as those that do not, and these do nothing; who is slow is told, and nothing follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from seerd.core.events import TrialStalled, TrialWaited
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import Stall, State, Trial

SLOW_SHARE = 0.25
"""A rank is slow if each of the others waits for this part of its time more than it does itself."""


def node_stalled(state: State, trial: Trial, event: TrialStalled) -> None:
    """Nothing moves on one of its instances, or it does again."""
    if event.over:
        trial.stalls.pop(event.instance, None)
        return
    trial.stalls[event.instance] = Stall(event.hung, (event.units, event.ticks))
    if trial.phase is TrialPhase.RUNNING and not trial.ends and _hangs(trial):
        trial.hung = True
        state.touch(trial.id)


def _hangs(trial: Trial) -> bool:
    if len(trial.stalls) < len(trial.held or ()):
        return False
    hung = [stall.position for stall in trial.stalls.values() if stall.hung]
    waiting = [stall.position for stall in trial.stalls.values() if not stall.hung]
    return bool(hung and waiting) and max(hung) <= min(waiting)


def node_waited(state: State, trial: Trial, event: TrialWaited) -> None:
    """How much the ranks on one of its instances wait for others."""
    trial.waits[event.instance] = dict(zip(event.ranks, event.shares, strict=False))
    if len(trial.waits) < len(trial.held or ()):
        return
    found = slow_rank({rank: share for waits in trial.waits.values() for rank, share in waits.items()})
    if found is None or found[0] in trial.slow:
        return
    trial.slow[found[0]] = event.at
    trial.note = _slow_text(trial)
    state.notes.append(trial.note)


def _slow_text(trial: Trial) -> str:
    """Who keeps the others waiting; empty if nobody does."""
    found = slow_rank({rank: share for waits in trial.waits.values() for rank, share in waits.items()})
    if found is None:
        return ""
    rank, share = found
    node = next(node for node, waits in trial.waits.items() if rank in waits)
    return f"rank {rank} of {trial.id} on {node} keeps the others waiting {share:.0%} of the time"


def slow_rank(shares: Mapping[int, float]) -> tuple[int, float] | None:
    """The rank that keeps all others waiting, and for which part of their time more than its own they do; None if there is none."""
    if len(shares) < 2:
        return None
    rank = min(shares, key=lambda each: (shares[each], each))
    others = [share - shares[rank] for each, share in shares.items() if each != rank]
    return (rank, fmean(others)) if min(others) >= SLOW_SHARE else None
