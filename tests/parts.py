"""Runs whose trials share GPUs."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from seerd.core.events import NO_OUTLINE, RunFacts
from seerd.planner.model import PlannedJob, Problem


def in_parts(facts: RunFacts, parts: int) -> RunFacts:
    """The same run on GPUs of which each has `parts` slots."""
    size = facts.cluster.gpus_per_instance * parts
    cluster = replace(facts.cluster, gpus_per_instance=size, parts=parts)
    return msgspec.structs.replace(
        facts, problem=cut(facts.problem, parts), cluster=cluster, outline=NO_OUTLINE
    )


def job_in_parts(job: PlannedJob, parts: int) -> PlannedJob:
    """The same job on such GPUs."""
    return replace(job, problem=cut(job.problem, parts))


def cut(problem: Problem, parts: int) -> Problem:
    """The same problem with sizes in slots."""
    limits, params = problem.limits, problem.params
    most = None if limits.max_gpus is None else limits.max_gpus * parts
    return replace(
        problem,
        limits=replace(limits, max_gpus=most),
        within=problem.within and replace(problem.within, max_gpus=most),
        params=replace(params, p_max=None if params.p_max is None else params.p_max * parts),
        gpus_per_instance=problem.gpus_per_instance * parts,
        jobs=tuple(job_in_parts(job, parts) for job in problem.jobs),
        parts=parts,
    )
