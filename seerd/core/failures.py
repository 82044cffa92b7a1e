"""Whether every trial fails in the same way; crashes that say nothing of a configuration since
something outside was in the way (a port, a lock, a server); and warnings while no trial has
reported.

A job ends only if several trials, and all that were tried, have failed alike, and one of them again
when it was restarted, or by an error that no configuration can avoid. Obstacles use up no
configuration: as many attempts of the job as were not in each other's way go on side by side; ever
more rarely one more is tried, and once that has reported all are. Only what is in the way of one
trial alone, time and again, counts as its crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seerd.core.last_words import error_line, error_place, is_certain, memory_lacked
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.placement import Assignment
from seerd.core.provisioning import doubling_s
from seerd.core.state import State, Trial
from seerd.core.verdicts import Blocked, Warned
from seerd.planner.trial_ids import job_of
from seerd.units import count

LONGEST = 200  # how many characters of a line that a script has written are repeated at most
OVER_TIME = (
    "its epoch takes longer than that: report more often than once an epoch, or give the run a "
    "longer --deadline"
)
DIFFERS = re.compile(r"0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.IGNORECASE)
"""What may differ between two failures that are alike: numbers and addresses."""


def tried(state: State, job: str | None = None) -> list[Trial]:
    """Return the trials that were started at least once, of this job or (None) of all."""
    trials = state.trials.values() if job is None else state.trials_of(job)
    return [trial for trial in trials if trial.attempt]


def alike(state: State, job: str) -> str | None:
    """Describe the way in which all trials of a job fail; None if they do not."""
    trials = tried(state, job)
    if always_blocked(state, job):
        return f"something was always in the way of the trials: {failure_text(trials[0])}"
    # by the same error, or by the same kind of error in the same line
    places = {error_place(trial.tail) for trial in trials}
    same = len(set(map(signature, trials))) == 1 or (len(places) == 1 and "" not in places)
    if _all_crash(state, job, trials, same=same):
        how = f"failed{' alike' * same}: {failure_text(trials[0])}"
        return f"all {len(trials)} trials that were tried {how}"
    if state.jobs[job].finite or len(trials) < state.rules.alike_trials:
        return None
    return _never_finite(state, job, trials)


def hopeless_jobs(state: State) -> dict[str, str]:
    """Return the jobs all trials of which fail, with the way in which they do."""
    open_jobs = (name for name, job in state.jobs.items() if job.over is None)
    return {name: text for name in open_jobs if (text := alike(state, name)) is not None}


def _all_crash(state: State, job: str, trials: list[Trial], *, same: bool) -> bool:
    rules, again = state.rules, any(t.crashes > 1 or t.phase is TrialPhase.FAILED for t in trials)
    if not all(map(has_failed, trials)):
        return False
    if same and is_certain(trials[0].tail) and not any(trial.history for trial in trials):
        enough = len(trials) >= rules.certain_trials and _choices_differ(state, job, trials)
        return enough or len(trials) >= rules.many_trials
    certain = same and _differ(state, job, trials)
    return again and len(trials) >= (rules.alike_trials if certain else rules.many_trials)


def _choices_differ(state: State, job: str, trials: list[Trial]) -> bool:
    """Return whether the trials share no value of a choice, which might be why they fail."""
    for parameter in state.facts.problem_of(job).space.parameters:
        values = [trial.config.get(parameter.name) for trial in trials]
        is_common = len(set(map(repr, values))) == 1 and values[0] is not None
        if len(parameter.choices) > 1 and is_common:
            return False
    return True


def _differ(state: State, job: str, trials: list[Trial]) -> bool:
    """Return whether trials cover both halves of each range: a half that works would be known."""
    for parameter in state.facts.problem_of(job).space.parameters:
        configs = [trial.config for trial in trials if parameter.name in trial.config]
        shares = [parameter.share(config[parameter.name]) for config in configs]
        if len(parameter.choices) != 1 and shares and not min(shares) < 0.5 <= max(shares):
            return False
    return True


def _never_finite(state: State, job: str, trials: list[Trial]) -> str | None:
    """Describe trials without a finite metric, each of two reports or eliminated after one."""
    if not all(trial.reports > 1 or (trial.out and trial.reports) for trial in trials):
        return None
    name, reports = state.facts.goals[job].metric, sum(len(trial.history) for trial in trials)
    made = f"{count(reports, 'report')} of {count(len(trials), 'trial')}"
    return f"none of the {made} had a finite {name}"


def again_is_useless(state: State, trial: Trial) -> bool:
    """Return whether a trial would crash again by an error that no attempt can avoid: of the script
    or, unless it has reported, of its configuration.
    """
    own = tried(state, job_of(trial.id))
    if is_certain(trial.tail):
        return not any(other.history or other.held for other in own)
    if trial.history:
        return False
    lacks = memory_lacked(trial.tail) in ("alone", "share")
    return lacks or any(_came_again(other, trial) for other in own)


def enough_memory(state: State, trial: Trial) -> int:
    """Return how many slots a trial gets that has crashed for lack of memory on a part of a GPU: at
    least twice as many, once; 0 if it is not such a trial, or may have no more.
    """
    if not trial.bound or trial.least or memory_lacked(trial.tail) is None:
        return 0
    slots, most = min(2 * trial.had, state.facts.parts), state.facts.problem.limits.max_gpus
    return slots if most is None or slots <= most else 0


def _came_again(other: Trial, trial: Trial) -> bool:
    """Return whether another trial that was started again has failed by the same traceback."""
    place = error_place(trial.tail)
    again = other is not trial and other.phase is TrialPhase.FAILED and other.in_vain > 1
    return (
        again
        and place != ""
        and place == error_place(other.tail)
        and signature(other) == signature(trial)
    )


def has_failed(trial: Trial) -> bool:
    """Return whether an attempt of the trial has ended by its own fault, and none has saved."""
    return not trial.checkpoints and (trial.crashes > 0 or trial.phase is TrialPhase.FAILED)


def signature(trial: Trial) -> tuple[str, str]:
    """Return what trials that fail alike have in common: how they ended, and by which error."""
    return DIFFERS.sub("#", trial.why), DIFFERS.sub("#", error_line(trial.tail))


def failure_text(trial: Trial) -> str:
    """Write how the trial's last attempt failed, with the line of its error."""
    line = error_line(trial.tail)
    return f"{trial.why}: {line[:LONGEST]}" if line else trial.why


def in_words(seconds: float) -> str:
    """Write a time for people: in seconds up to two minutes, then in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def still_quiet(state: State, name: str) -> Warned | None:
    """Return the warning that no trial has reported yet, or that this one has not, if it is due:
    agents report each trial that is silent, and the warning is repeated when none has reported for
    twice as long.
    """
    began_s, told_s = state.signs.tried_s, state.signs.warned.get("no-report")
    if state.phase is not RunPhase.RUNNING or began_s is None:
        return None
    if state.signs.reported:
        return _late(state, state.trials.get(name))
    if "error" in state.signs.complaints:
        return None
    if told_s is not None and state.now - began_s < 2 * (told_s - began_s):
        return None
    since = in_words(state.now - began_s)
    running = [trial for trial in state.trials.values() if trial.held is not None]
    training = [trial for trial in running if trial.training_s is not None]
    metric = state.facts.metric
    if not running:
        doing = "no trial runs now"
    elif pattern := state.facts.patterns.get(metric):
        doing = (
            f"no line that {_names(running)} printed matched train.report {pattern!r} (`seerd "
            "logs` shows what they print), or no epoch is over yet"
        )
    elif not training:
        doing = (
            "no trial has come to its first trial.running(): they still import, read data or "
            "compile, or the script does not call it"
        )
    else:
        trained = in_words(state.now - min(trial.training_s or 0.0 for trial in training))
        doing = (
            f"{_names(training)} trained for {trained} without a first report: the script does not "
            f"call trial.report({metric}=...), or {OVER_TIME}"
        )
    return Warned(what="no-report", detail=f"{since} and no report yet; {doing}")


def _late(state: State, trial: Trial | None) -> Warned | None:
    if trial is None or trial.history or trial.began_s is None or "late" in state.signs.warned:
        return None
    began_s, doing, why = trial.began_s, "run", "it still imports, reads data or compiles"
    if trial.training_s is not None:
        began_s, doing, why = trial.training_s, "trained", OVER_TIME
    return Warned(
        what="late",
        detail=f"{trial.id} has {doing} for {in_words(state.now - began_s)} without a first "
        f"report, and others have reported: it hangs, or {why}",
    )


def _names(trials: list[Trial]) -> str:
    more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
    return f"{trials[0].id}{more}"


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
    others = [other for other in state.trials_of(job) if other.attempt and other is not trial]
    if not others:
        return not trial.history
    return any(o.history and o.history[-1].at_s >= trial.blocked_s[0] for o in others)


def running(state: State, job: str) -> int:
    """Return how many attempts of a job hold GPUs."""
    return sum(trial.held is not None for trial in state.trials_of(job))


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
    block, rules, trials = state.jobs[job].block, state.rules, state.trials_of(job)
    if block is None or block.times < rules.blocked_times or running(state, job):
        return False
    configs = [trial.config for trial in trials if trial.blocked_s]
    if any(trial.history for trial in trials) or all(config == configs[0] for config in configs):
        return False
    patience_s = state.facts.problem.limits.deadline_s / rules.patience_share
    return state.now - state.jobs[job].blocked_s >= min(patience_s, rules.blocked_s)
