"""Hang and straggler detection: ranks that others wait for, on one instance or on several.

The one rule: a rank hangs only if every instance of its attempt reports that nothing moves there,
the ranks that wait have come at least as far as those that do not, and the latter do nothing. A
slow rank is only reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from seerd.core.events import TrialStalled, TrialWaited
from seerd.core.lifecycle import TrialPhase
from seerd.core.rules import RULES
from seerd.core.state import NodeStall, State, Trial
from seerd.core.verdicts import Slow


def node_stalled(state: State, trial: Trial, event: TrialStalled) -> None:
    """Record that no rank moves on one of the attempt's instances, or that they move again."""
    if event.over:
        trial.stalls.pop(event.instance, None)
        return
    trial.stalls[event.instance] = NodeStall(event.hung, (event.units, event.ticks))
    state.touch(trial.id)


def hangs(trial: Trial) -> bool:
    """Return whether some ranks of the attempt do nothing while all others wait for them."""
    if trial.phase is not TrialPhase.RUNNING or trial.ends or not trial.stalls:
        return False
    if len(trial.stalls) < len(trial.held or ()):
        return False
    hung = [stall.position for stall in trial.stalls.values() if stall.hung]
    waiting = [stall.position for stall in trial.stalls.values() if not stall.hung]
    return bool(hung and waiting) and max(hung) <= min(waiting)


def node_waited(state: State, trial: Trial, event: TrialWaited) -> None:
    """Record how much the ranks on one of the attempt's instances wait for others."""
    trial.waits[event.instance] = dict(zip(event.ranks, event.shares, strict=False))
    state.agenda.waited.append(trial.id)


def newly_slow(trial: Trial, share: float) -> Slow | None:
    """Return the rank that keeps the others waiting (`Rules.slow_share`), if it is a new one."""
    if len(trial.waits) < len(trial.held or ()):
        return None
    slowest = slow_rank({r: w for waits in trial.waits.values() for r, w in waits.items()}, share)
    if slowest is None or slowest[0] in trial.slow:
        return None
    rank, waited = slowest
    node = next(node for node, waits in trial.waits.items() if rank in waits)
    text = f"rank {rank} of {trial.id} on {node} keeps the others waiting {waited:.0%} of the time"
    return Slow(trial=trial.id, rank=rank, detail=text)


def slow_rank(
    shares: Mapping[int, float], least: float = RULES.slow_share
) -> tuple[int, float] | None:
    """Return the rank that keeps all others waiting, and how much more than it they wait on average
    (0 to 1). None unless each of them waits at least `least` more.
    """
    if len(shares) < 2:
        return None
    rank = min(shares, key=lambda each: (shares[each], each))
    others = [share - shares[rank] for each, share in shares.items() if each != rank]
    return (rank, fmean(others)) if min(others) >= least else None
