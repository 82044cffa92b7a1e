"""Jobs that share a run: when one of them is over. What is left then goes to the others. The run
ends by its own limits, or when all its jobs are over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from seerd.core.events import Objective
from seerd.core.failures import running
from seerd.core.limits import affordable_for_job, job_ends, least_s, release_s
from seerd.core.metrics import good_enough, incumbent, mean_name, metric_name, saves_no_model
from seerd.core.state import State
from seerd.core.verdicts import JobOver, OverCause
from seerd.planner.model import PlannedJob
from seerd.planner.trial_ids import job_of
from seerd.units import count


def ending_jobs(state: State, failing: Mapping[str, str]) -> Iterator[JobOver]:
    """Yield the jobs that are over now; `failing`: job -> in which way all its trials fail."""
    for job in state.facts.problem.jobs:
        if job.over:
            continue
        if (detail := target_reached(state, job.id)) is not None:
            yield JobOver(job=job.id, why="target", detail=detail)
        elif job.id in failing:
            yield JobOver(job=job.id, why="alike", detail=failing[job.id])
        elif (why := _own_limit(state, job)) is not None:
            yield JobOver(job=job.id, why=why)


def target_reached(state: State, job: str) -> str | None:
    """Describe the model as good as the job's target, or the trial where none is saved, if any."""
    goal = state.facts.goals[job]
    if goal.target is None:
        return None
    best = incumbent(state, job)
    if best is not None and good_enough(goal, best.metric):
        name, reports = metric_name(state, best), best.checkpoint.reports
        return _reached(goal, best.trial, name, best.metric, reports)
    saves = state.facts.problem_of(job).saves and not saves_no_model(state, job)
    for trial in () if saves else state.trials.values():
        last = [report.metric for report in trial.history[-goal.averages(len(trial.history)) :]]
        finite = [metric for metric in last if metric is not None]
        metric = fmean(finite) if finite and len(finite) == len(last) else None
        if job_of(trial.id) == job and metric is not None and good_enough(goal, metric):
            return _reached(goal, trial.id, mean_name(goal, len(last)), metric, trial.reports)
    return None


def _reached(goal: Objective, trial: str, name: str, metric: float, reports: int) -> str:
    wanted = f"{goal.target:.6g} was wanted"
    return f"{trial} has {name} {metric:.6g} after {count(reports, 'report')}, and {wanted}"


def _own_limit(state: State, job: PlannedJob) -> OverCause | None:
    by_s, exhausted_s = job_ends(state, job)
    due_s = min(by_s, exhausted_s)
    if state.now < due_s - release_s(state):
        wanted = (each.gpus for name, each in state.plan.wanted.items() if job_of(name) == job.id)
        least = min(wanted, default=job.problem.params.p_min)
        if state.jobs[job.id].gpus or affordable_for_job(state, job.id, least):
            return None
    return "deadline" if by_s - state.now <= least_s(state) else "budget"


def open_jobs(state: State) -> list[str]:
    """List the jobs that share the run and are not over."""
    return [job.id for job in state.facts.problem.jobs if not job.over]


def to_publish(state: State) -> list[str]:
    """List the jobs whose model may be published before the run releases what it has."""
    over = [job.id for job in state.facts.problem.jobs if job.over]
    return [name for name in over if not running(state, name)]
