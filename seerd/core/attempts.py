"""How attempts begin, hang and end, on one instance or on several.

An attempt has started when node 0 has, and has ended when every node has; all ends together decide
the future of the trial. The GPUs of a node are free as soon as that node has ended. A rank hangs
only if every instance reports that nothing moves there, the ranks that wait have come at least as
far as those that do not, and the latter do nothing. A slow rank is only reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from seerd.core.commands import AnyCommand, StopTrial
from seerd.core.events import TrialComplained, TrialExited, TrialStarted
from seerd.core.last_words import memory_lacked
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import AttemptEnd, Complaint, State, Trial
from seerd.core.verdicts import Slow
from seerd.planner.trial_ids import job_of

OFTEN = {9: ["usually out of memory"]}  # signal -> its usual cause on Linux


def current(state: State, name: str, attempt: int, node: str) -> Trial | None:
    """Return the trial whose present attempt has processes on this node; else None."""
    trial = state.trials.get(name)
    if trial is None or trial.held is None or trial.attempt != attempt or node in trial.ends:
        return None
    return trial if any(slots.node == node for slots in trial.held) else None


def node_started(state: State, trial: Trial, event: TrialStarted) -> None:
    """Record that the attempt's processes exist on a node since the moment of this event."""
    node, at = event.instance, event.happened
    assert trial.held is not None
    trial.told[node] = None
    state.signs.complaints.pop("waits", None)  # reported again while another attempt waits
    if state.signs.tried_s is None:
        state.signs.tried_s = at
    _settle_start(state, trial)
    key = trial.key_on(node)
    if key in state.ledger.open:
        _begins(state, trial, key, at)
    if node == trial.held[0].node:
        trial.pid, trial.began_s = event.pid, at
        if trial.phase is TrialPhase.STARTING:
            trial.go(TrialPhase.RUNNING)
            if trial.held != trial.target:  # it may be one that grows on its GPU
                state.touch(trial.id)


def node_waits(state: State, trial: Trial, event: TrialComplained) -> None:
    """Record that an attempt still waits for GPUs on a node: it costs nothing until it has them."""
    key = trial.key_on(event.instance)
    if event.instance not in trial.told and key in state.ledger.open:
        _begins(state, trial, key, event.happened)
        complaint = Complaint("waits", trial.id, event.why)
        state.signs.complaints["waits"] = complaint
        if "waits" not in state.signs.warned:
            state.signs.warned["waits"] = event.at
            state.result.notes.append(complaint)


def _begins(state: State, trial: Trial, key: str, at: float) -> None:
    """Correct when an attempt's GPUs on a node begin to cost, also for its job's limits."""
    charge = state.ledger.open[key]
    state.jobs[job_of(trial.id)].gpu_s -= charge.gpus * (at - charge.since_s)
    state.ledger.begin_at(key, at)


def node_exited(state: State, trial: Trial, event: TrialExited) -> None:
    """Record that no process of the attempt is left on a node."""
    why, cause, obstacle = "", event.cause, event.obstacle
    if event.cause == "crashed" and event.fault:
        why, cause, obstacle = f"{crash_text(event)}; {event.fault}", "lost", None
    elif event.cause == "crashed":
        several = event.rank is None and len(trial.held or ()) > 1
        why = crash_text(event) + (f" on {event.instance}" if several else "")
    elif event.cause == "lost":
        why = "its agent had to be started again"
    if not event.started and (key := trial.key_on(event.instance)) in state.ledger.open:
        _begins(state, trial, key, event.happened)
        state.ledger.void(key)
    if event.happened >= state.clock.resumed_s:  # else no daemon was there to hear of it
        state.end.seen.news.add(max(0.0, state.now - event.happened))
    end = AttemptEnd(cause, _alone(trial), why, event.tail, event.silent, obstacle)
    node_ended(state, trial, event.instance, end, event.happened)


def node_lost(state: State, trial: Trial, node: str, why: str, at: float) -> None:
    """Record that an instance is gone, together with what ran there."""
    node_ended(state, trial, node, AttemptEnd("lost", _alone(trial), why), at)


def node_ended(state: State, trial: Trial, node: str, end: AttemptEnd, at: float) -> None:
    """Free the attempt's GPUs on a node; with its last node the attempt is over."""
    trial.ends[node] = end
    _settle_start(state, trial)
    _release(state, trial, node, at)
    if len(trial.ends) == len(trial.held or ()):
        if trial.stop_command is not None:
            _note_end(state, trial, state.under_way.pop(trial.stop_command, None))
            trial.stop_command = None
        state.under_way.pop(trial.grow_command or "", None)
        trial.grow_command = None
        _conclude(state, trial)
    state.touch(trial.id)


def _note_end(state: State, trial: Trial, command: AnyCommand | None) -> None:
    """Count how long an attempt took that was asked to save and exit, or killed."""
    asked = all(end.cause == "asked" for end in trial.ends.values())
    if not isinstance(command, StopTrial) or not asked:
        return
    seen, took_s = state.end.seen, state.now - trial.asked_s
    if command.checkpoint:
        reported_s = trial.history[-1].at_s if trial.history else 0.0
        seen.ends.add(max(0.0, min(took_s, state.now - reported_s)))
    if took_s > command.grace_s:  # when it is to be killed at once there is none
        seen.kills.add(took_s - command.grace_s)


def _alone(trial: Trial) -> bool:
    """Return whether an end that comes now is unasked, as it is where another node ended first."""
    return trial.phase is not TrialPhase.STOPPING or trial.broken


def crash_text(event: TrialExited) -> str:
    """Describe how an attempt crashed, with its rank and instance if they are known."""
    rank = [] if event.rank is None else [f"rank {event.rank} on {event.instance}"]
    if event.waited_s is not None:
        waited = f"the others waited {event.waited_s:.0f} s for it, and it did nothing"
        return f"hung ({'; '.join([*rank, waited])})"
    signal = event.signal if event.signal is not None else -min(0, event.code or 0)
    notes = [*rank, *OFTEN.get(signal, [])]
    what = f"was killed by signal {signal}" if signal else f"ended with exit status {event.code}"
    if not signal and event.code is None:
        what = "was ended by the agent"
    return f"{what} ({'; '.join(notes)})" if notes else what


def _settle_start(state: State, trial: Trial) -> None:
    if trial.start_command is None or len(trial.told | trial.ends) < len(trial.held or ()):
        return
    state.under_way.pop(trial.start_command, None)
    trial.start_command = None


def _release(state: State, trial: Trial, node: str, at: float) -> None:
    instance = state.fleet.instances[node]
    for slots in trial.held or ():
        for gpu in slots.gpus if slots.node == node else ():
            state.jobs[job_of(trial.id)].hold(-state.facts.gpus(1), at)
            del instance.busy[gpu]
            claimant = instance.claims.get(gpu)
            if claimant is not None:
                state.touch(claimant)
    if not instance.busy:
        state.agenda.idle[node] = None
        state.agenda.refit = True
    key = trial.key_on(node)
    if key in state.ledger.open:
        state.ledger.end(key, at, state.now)


def _conclude(state: State, trial: Trial) -> None:
    """Set phase and fault of a trial whose nodes have all ended, for `settle` to judge."""
    assert trial.held is not None
    saved, ends, first = trial.saved, list(trial.ends.values()), trial.ends[trial.held[0].node]
    on = tuple((slots.node, gpu) for slots in trial.held for gpu in slots.gpus)
    trial.held, trial.pid, trial.training_s = None, None, None
    trial.told, trial.ends = {}, {}
    trial.stalls, trial.hung = {}, False
    trial.waits, trial.slow = {}, {}
    state.fleet.holding -= 1
    guilty = _guilty(ends)
    trial.tail = (guilty or first).tail or trial.tail
    trial.fault = None
    if saved and trial.history:
        trial.go(TrialPhase.FINISHED)
        unwant(state, trial)
    elif trial.out and not saved:
        trial.go(TrialPhase.ELIMINATED)
    else:
        trial.go(TrialPhase.WAITING)
        if saved:
            state.agenda.judge[trial.id], state.agenda.doubt = "silent", True
        elif guilty is not None and guilty.obstacle is not None:
            trial.why, trial.fault = guilty.why, "blocked"
            trial.blocked_s.append(state.now)
            state.agenda.blocked[trial.id], state.agenda.doubt = (guilty.obstacle, on), True
        elif guilty is not None and guilty.cause == "lost":
            trial.why, trial.fault, trial.losses = guilty.why, "lost", trial.losses + 1
            state.agenda.judge[trial.id] = "losses"
        elif guilty is not None:
            trial.why = guilty.why
            count_crash(state, trial)


def count_crash(state: State, trial: Trial) -> None:
    """Count the end of an attempt as a crash, for `settle` to judge."""
    trial.crashes, trial.fault = trial.crashes + 1, "crashed"
    trial.crashed_s.append(state.now)
    trial.crowded = memory_lacked(trial.tail) == "beside"
    saved = trial.checkpoints[0].reports if trial.checkpoints else 0
    came_to = max(trial.reports, trial.came_to[0]), max(saved, trial.came_to[1])
    trial.in_vain = 1 if came_to != trial.came_to else trial.in_vain + 1
    trial.came_to = came_to
    state.agenda.judge[trial.id], state.agenda.doubt = "crashes", True


def unwant(state: State, trial: Trial) -> None:
    """Note that nothing more is wanted of a trial that has ended."""
    state.plan.wanted.pop(trial.id, None)
    state.agenda.ended[trial.id] = trial.gpus
    trial.gpus, trial.until = 0, None


def _guilty(ends: Sequence[AttemptEnd]) -> AttemptEnd | None:
    """Return the end that explains why the attempt ended, None if no fault ended it. A lost node
    takes the others with it. Of crashed nodes it is the one whose log fell silent first: the others
    waited for it.
    """
    for cause in ("lost", "refused"):
        for end in ends:
            if end.cause == cause:
                return end
    crashed = [end for end in ends if end.cause == "crashed" and end.alone]
    return min(
        crashed, key=lambda end: math.inf if end.silent is None else end.silent, default=None
    )


def hangs(trial: Trial) -> bool:
    """Return whether some ranks of the attempt do nothing while all others wait for them."""
    if trial.phase is not TrialPhase.RUNNING or trial.ends or not trial.stalls:
        return False
    if len(trial.stalls) < len(trial.held or ()):
        return False
    hung = [(stall.units, stall.ticks) for stall in trial.stalls.values() if stall.hung]
    waiting = [(stall.units, stall.ticks) for stall in trial.stalls.values() if not stall.hung]
    return bool(hung and waiting) and max(hung) <= min(waiting)


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


def slow_rank(shares: Mapping[int, float], least: float) -> tuple[int, float] | None:
    """Return the rank that keeps all others waiting, and how much more than it they wait on average
    (0 to 1). None unless each of them waits at least `least` more.
    """
    if len(shares) < 2:
        return None
    rank = min(shares, key=lambda each: (shares[each], each))
    others = [share - shares[rank] for each, share in shares.items() if each != rank]
    return (rank, fmean(others)) if min(others) >= least else None
