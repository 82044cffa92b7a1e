"""Hang and straggler detection: ranks that others wait for, of attempts on one instance or on
several: those that hang, and those that are slow.

The one rule: that a rank hangs is known only if all instances of its attempt say that nothing moves
there, those that wait have come at least as far as those that do not, and these do nothing; who is
slow is told, and nothing follows.
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
    """Nothing moves on one of its instances, or it does again."""
    if event.over:
        trial.stalls.pop(event.instance, None)
        return
    trial.stalls[event.instance] = NodeStall(event.hung, (event.units, event.ticks))
    state.touch(trial.id)


def hangs(trial: Trial) -> bool:
    """Whether some ranks of its attempt do nothing, and all others wait for them."""
    if trial.phase is not TrialPhase.RUNNING or trial.ends or not trial.stalls:
        return False
    if len(trial.stalls) < len(trial.held or ()):
        return False
    hung = [stall.position for stall in trial.stalls.values() if stall.hung]
    waiting = [stall.position for stall in trial.stalls.values() if not stall.hung]
    return bool(hung and waiting) and max(hung) <= min(waiting)


def node_waited(state: State, trial: Trial, event: TrialWaited) -> None:
    """How much the ranks on one of its instances wait for others."""
    trial.waits[event.instance] = dict(zip(event.ranks, event.shares, strict=False))
    state.agenda.waited.append(trial.id)


def newly_slow(trial: Trial, share: float) -> Slow | None:
    """The rank that is known only now to keep the others waiting, if there is one. `share`: see
    `Rules.slow_share`.
    """
    if len(trial.waits) < len(trial.held or ()):
        return None
    found = slow_rank(
        {rank: share for waits in trial.waits.values() for rank, share in waits.items()}, share
    )
    if found is None or found[0] in trial.slow:
        return None
    rank, waited = found
    node = next(node for node, waits in trial.waits.items() if rank in waits)
    text = f"rank {rank} of {trial.id} on {node} keeps the others waiting {waited:.0%} of the time"
    return Slow(trial=trial.id, rank=rank, detail=text)


def slow_rank(
    shares: Mapping[int, float], least: float = RULES.slow_share
) -> tuple[int, float] | None:
    """The rank that keeps all others waiting, and for which part of their time more than its own
    they do; None if there is none.
    """
    if len(shares) < 2:
        return None
    rank = min(shares, key=lambda each: (shares[each], each))
    others = [share - shares[rank] for each, share in shares.items() if each != rank]
    return (rank, fmean(others)) if min(others) >= least else None
