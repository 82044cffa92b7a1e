"""The policy of a problem: that of its one job, or the one that shares a run among several. Here
what may be spent and what was spent becomes seconds of slots, and sizes become those that trials
may have (`gpu_parts`).
"""

from __future__ import annotations

from dataclasses import replace

from seerd.planner import policies
from seerd.planner.caching import per_problem
from seerd.planner.gpu_parts import fitting
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Limits, Outline, Plan, Policy, Problem, View


def policy_of(problem: Problem) -> Policy:
    """Return the policy that the problem's parameters name."""
    if problem.params.name != "jobs":
        return policies.named(problem.params.name)
    from seerd.planner.jobs import JOBS  # with numpy, which a run of one job may not need

    return JOBS


def outline_of(problem: Problem) -> Outline | Impossible:
    """Outline the whole run as the problem's policy would have it, or say why it cannot."""
    outline, parts = policy_of(problem).outline(in_slots(problem)), problem.parts
    if parts == 1:
        return outline
    if isinstance(outline, Impossible):
        return replace(outline, min_budget_gpu_s=outline.min_budget_gpu_s / parts)
    brackets = (
        replace(
            bracket,
            gpus_per_trial=fitting(bracket.gpus_per_trial, parts),
            budget_gpu_s=bracket.budget_gpu_s / parts,
        )
        for bracket in outline.brackets
    )
    stages = (
        replace(
            stage,
            groups=tuple(
                replace(group, gpus_per_trial=fitting(group.gpus_per_trial, parts))
                for group in stage.groups
            ),
        )
        for stage in outline.stages
    )
    sizes = tuple(sorted({fitting(size, parts) for size in outline.sizes}))
    return replace(outline, brackets=tuple(brackets), stages=tuple(stages), sizes=sizes)


def plan_of(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the problem's policy what it wants now, and what to remember for the next question."""
    parts = problem.parts
    if parts > 1 and view.spent:
        view = replace(view, spent={job: gpu_s * parts for job, gpu_s in view.spent.items()})
    plan, after = policy_of(problem).plan(in_slots(problem), memory, view)
    if parts > 1:
        wanted = (each._replace(gpus=fitting(each.gpus, parts)) for each in plan.allocations)
        plan = replace(plan, allocations=tuple(wanted))
    return plan, after


@per_problem
def in_slots(problem: Problem) -> Problem:
    """Return the problem with what may be spent in seconds of slots, as policies count."""
    if problem.parts == 1:
        return problem

    def limits(own: Limits) -> Limits:
        return replace(own, budget_gpu_s=own.budget_gpu_s * problem.parts)

    jobs = (replace(job, problem=in_slots(job.problem)) for job in problem.jobs)
    within = None if problem.within is None else limits(problem.within)
    return replace(problem, limits=limits(problem.limits), within=within, jobs=tuple(jobs))
