"""Crashes that say nothing of a configuration: something outside was in the way, such as a port, a
lock or a server.

The one rule: they use up no configuration. As many attempts of the job as were not in each other's
way go on side by side; ever more rarely one more is tried, and once that has reported all are. Only
what is in the way of one trial alone, time and again, counts as its crash.
"""

from __future__ import annotations

from collections.abc import Iterator

from seerd.core.placement import Assignment
from seerd.core.provisioning import doubling_s
from seerd.core.state import State, Trial
from seerd.core.verdicts import Blocked
from seerd.planner.trial_ids import job_of


def newly_blocked(state: State) -> Iterator[Blocked]:
    """Yield what follows from the attempts in whose way something was."""
    blocked, state.agenda.blocked = state.agenda.blocked, {}
    for name, (why, gpus) in blocked.items():
        before, most = state.jobs[job_of(name)].block, running(state, job_of(name))
        on = gpus if why == "device" else ()
        if before is not None and state.now < before.again_s:
            most, on = min(most, before.most), tuple(dict.fromkeys((*before.on, *on)))
            times, again_s = before.times, before.again_s
        else:
            times = 1 if before is None else before.times + 1
            again_s = state.now + doubling_s(state, times)
        own = _is_own(state, state.trials[name])
        yield Blocked(trial=name, why=why, most=most, times=times, again_s=again_s, on=on, own=own)


def _is_own(state: State, trial: Trial) -> bool:
    """Return whether an obstacle is in the way of this trial alone, time and again and in a free
    place, while others have reported, or the job has neither reported nor another trial.
    """
    job = job_of(trial.id)
    if len(trial.blocked_s) <= state.rules.max_blocks or (
        state.jobs[job].extra == trial.id and running(state, job)
    ):
        return False
    others = [other for other in _of_job(state, job) if other.attempt and other is not trial]
    if not others:
        return not trial.history
    return any(o.history and o.history[-1].at_s >= trial.blocked_s[0] for o in others)


def running(state: State, job: str) -> int:
    """Return how many attempts of a job hold GPUs."""
    return sum(trial.held is not None for trial in _of_job(state, job))


def _of_job(state: State, job: str) -> list[Trial]:
    return [trial for trial in state.trials.values() if job_of(trial.id) == job]


def is_extra(state: State, trial: str, target: Assignment) -> bool:
    """Return whether an attempt that begins there now may not go on beside the others."""
    block = state.jobs[job_of(trial)].block
    if block is None:
        return False
    if block.on:
        return any((slots.node, gpu) in block.on for slots in target for gpu in slots.gpus)
    return running(state, job_of(trial)) >= block.most


def has_to_wait(state: State, trial: Trial) -> bool:
    """Return whether a trial must not be started now since something is in the way of its job."""
    job = job_of(trial.id)
    block = state.jobs[job].block
    if block is None or not is_extra(state, trial.id, trial.target or ()):
        return False
    return state.now < block.again_s or (not block.on and running(state, job) > block.most)


def always_blocked(state: State, job: str) -> bool:
    """Return whether obstacles stop all configurations of a job that has never reported."""
    block, rules, trials = state.jobs[job].block, state.rules, _of_job(state, job)
    if block is None or block.times < rules.blocked_times or running(state, job):
        return False
    configs = [trial.config for trial in trials if trial.blocked_s]
    if any(trial.history for trial in trials) or all(config == configs[0] for config in configs):
        return False
    patience_s = state.facts.problem.limits.deadline_s / rules.patience_share
    return state.now - state.jobs[job].blocked_s >= min(patience_s, rules.blocked_s)
