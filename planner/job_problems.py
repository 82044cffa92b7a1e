"""What the policy of one of several jobs plans with: a problem of its own, made from its terms and
from what is left of the run.

The one rule: the same terms make the same object, so that policies find what they have cached.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from seerd.planner.job_table import JobTerms
from seerd.planner.model import Impossible, Limits, PlannedJob, PolicyParams, Problem, View
from seerd.planner.policies import named

WHOLE = 1 - 1e-9
"""A factor that allows for rounding where a round takes all the time that there is."""
KEPT = 64
"""How many problems of jobs are kept, so that policies find what they have cached for them."""
TOO_SHORT = "its own limits are over before anything can train"

_problems: OrderedDict[tuple[int, JobTerms], tuple[PlannedJob, Problem]] = OrderedDict()


def own_left(problem: Problem, job: PlannedJob, view: View, left: Limits) -> Limits:
    """Return what is left for a job, of the run's limits and of its own."""
    own, since_s = job.problem.limits, max(view.now_s, problem.start_s)
    set_aside_s = problem.limits.deadline_s - since_s - left.deadline_s
    return Limits(
        max(0.0, min(left.deadline_s, own.deadline_s - since_s - set_aside_s)),
        max(0.0, min(left.budget_gpu_s, own.budget_gpu_s - view.spent.get(job.id, 0.0))),
    )


def problem_of(job: PlannedJob, terms: JobTerms, problem: Problem) -> Problem | None:
    """Make what a job's policy plans with, the same object for the same terms; None: it has no
    GPUs.
    """
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
    """Have rounds be as short as what is left: what a new job gets may be less than the shortest
    round; it is all that there is.
    """
    most_s = max(0.0, min(left.deadline_s, left.budget_gpu_s / params.p_min)) * WHOLE
    return replace(params, t_min_s=min(params.t_min_s, most_s))


def never_begins(job: PlannedJob, left: Limits, run: Problem) -> Impossible | None:
    """Say why a job could do nothing even if all that is left of a run were its own; None: it
    could.

    left  what is left, within the job's own limits; the deadline counts from the first stage
    run   the problem of the run
    """
    if left.deadline_s <= 0 or left.budget_gpu_s <= 0:
        least_s = job.problem.params.t_min_s
        return Impossible(TOO_SHORT, run.start_s + least_s, least_s)
    own = replace(job.problem, limits=left, within=left, start_s=run.start_s, whole=run.whole)
    outline = named(own.params.name).outline(own)
    return outline if isinstance(outline, Impossible) else None
