"""One job's part of a run: what its own policy sees, remembers, answers and plans with, as if the
run were its own. The same terms make the same problem object, so that caches find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from seerd.planner.job_table import JobTerms
from seerd.planner.memory import Json, Memory
from seerd.planner.model import (
    Impossible,
    Limits,
    Plan,
    PlannedJob,
    PolicyParams,
    Problem,
    TrialView,
    View,
    renamed,
)
from seerd.planner.policies import named
from seerd.planner.trial_ids import in_job, job_of, own_id

BETWEEN = ":"  # separates a job's id from a key of its policy's memory
WHOLE = 1 - 1e-9  # allows for rounding where a round takes all the time that there is
KEPT = 64  # how many problems of jobs are kept
TOO_SHORT = "its own limits are over before anything can train"

_problems: OrderedDict[tuple[int, JobTerms], tuple[PlannedJob, Problem]] = OrderedDict()


def by_job(view: View, jobs: Sequence[PlannedJob]) -> dict[str, View]:
    """Split the view by job; each job sees its own trials, under the ids of its policy."""
    trials: dict[str, dict[str, TrialView]] = {job.id: {} for job in jobs}
    for name, trial in view.trials.items():
        own = own_id(name)
        trials[job_of(name)][own] = renamed(trial, own)
    return {job.id: View(view.now_s, job.mode, trials[job.id]) for job in jobs}


def in_the_run(job: str, plan: Plan) -> Plan:
    """Name the trials of a job's plan as they are called in the run."""
    return replace(
        plan,
        allocations=tuple(a._replace(trial=in_job(job, a.trial)) for a in plan.allocations),
        new=tuple(replace(trial, id=in_job(job, trial.id)) for trial in plan.new),
        eliminated=tuple(in_job(job, name) for name in plan.eliminated),
        compared=tuple(replace(c, trial=in_job(job, c.trial)) for c in plan.compared),
        note=f"{job}: {plan.note}" if plan.note else "",
    )


def memory_of(job: str, memory: Memory) -> Memory:
    """Return a job's part of the run's memory."""
    head = f"{job}{BETWEEN}"
    return Memory({k[len(head) :]: v for k, v in memory.values.items() if k.startswith(head)})


def changes_of(job: str, after: Memory) -> Mapping[str, Json]:
    """Return how the run's memory changes with a job's."""
    return {f"{job}{BETWEEN}{key}": value for key, value in after.changes.items()}


def own_left(problem: Problem, job: PlannedJob, view: View, left: Limits) -> Limits:
    """Return what is left for a job, of the run's limits and of its own."""
    own, since_s = job.problem.limits, max(view.now_s, problem.start_s)
    set_aside_s = problem.limits.deadline_s - since_s - left.deadline_s
    return Limits(
        max(0.0, min(left.deadline_s, own.deadline_s - since_s - set_aside_s)),
        max(0.0, min(left.budget_gpu_s, own.budget_gpu_s - view.spent.get(job.id, 0.0))),
    )


def problem_of(job: PlannedJob, terms: JobTerms, problem: Problem) -> Problem | None:
    """Return what a job's policy plans with; None if it has no GPUs."""
    if not terms.gpus:
        return None
    key = id(job), terms
    if key not in _problems:
        within = Limits(terms.deadline_s, terms.budget_gpu_s, terms.gpus)
        own = replace(
            job.problem,
            params=shortened(job.problem.params, within),
            limits=replace(within, deadline_s=terms.start_s + terms.deadline_s),
            within=within,
            start_s=terms.start_s,
            extended=terms.renewals,
            whole=problem.whole,
            gpus_per_instance=problem.gpus_per_instance,
        )
        _problems[key] = job, own
        if len(_problems) > KEPT:
            _problems.popitem(last=False)
    return _problems[key][1]


def shortened(params: PolicyParams, left: Limits) -> PolicyParams:
    """Shorten the shortest round to what is left: a new job may get less than one."""
    most_s = max(0.0, min(left.deadline_s, left.budget_gpu_s / params.p_min)) * WHOLE
    return replace(params, t_min_s=min(params.t_min_s, most_s))


def never_begins(job: PlannedJob, left: Limits, run: Problem) -> Impossible | None:
    """Return why a job could do nothing even if all that is left of a run were its own, or None;
    `left`: of its own limits too, from the first stage.
    """
    if left.deadline_s <= 0 or left.budget_gpu_s <= 0:
        least_s = job.problem.params.t_min_s
        return Impossible(TOO_SHORT, run.start_s + least_s, least_s)
    own = replace(job.problem, limits=left, within=left, start_s=run.start_s, whole=run.whole)
    outline = named(own.params.name).outline(own)
    return outline if isinstance(outline, Impossible) else None
