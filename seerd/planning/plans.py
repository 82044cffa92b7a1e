"""The plan for a spec: its cluster, what was measured of its script, and the policy's plan for
both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts, Impossible
from seerd.planner.profile import Profile
from seerd.planning.facts import Place, problem_of
from seerd.planning.groups import group_problem
from seerd.planning.planned import Planned, others, plan_for
from seerd.planning.profiles import profile_for
from seerd.spec.group import JobGroup
from seerd.spec.spec import Spec


def of_spec(
    spec: Spec,
    place: Place,
    *,
    ideal: bool = False,
    minimize: Literal["cost", "time"] | None = None,
) -> Planned:
    """Plan what `seerd run` would start.

    Raises `UsageError` for what cannot be planned, and `LimitsError` if the limits fit nothing.
    """
    cluster, profile = _setting(spec, place)
    if minimize is not None:
        from seerd.planning.elastic import elastic_plan

        if ideal:
            raise UsageError(
                "--minimize plans with what a cloud takes; --ideal is for the policies as published"
            )
        return elastic_plan(spec, cluster, profile, minimize)
    notes = (*place.quote.notes, *filter(None, [profile.note]))
    return plan_for(problem_of(spec, cluster, profile, notes), cluster, profile, ideal=ideal)


def of_group(group: JobGroup, place: Place) -> Planned:
    """Plan what `seerd run` would start of a group. Raises what `of_spec` raises."""
    settings = [_setting(job.spec, place) for job in group.jobs]
    profiles = [profile for _, profile in settings]
    cluster, slowest = max(settings, key=lambda one: one[1].job.start.p50_s)
    problem = group_problem(group, cluster, profiles, place.quote.notes)
    return plan_for(problem, cluster, slowest)


def others_of(spec: Spec, place: Place, *, ideal: bool) -> dict[str, Planned | Impossible]:
    """Plan for the same limits with each other policy."""
    cluster, profile = _setting(spec, place)
    return others(problem_of(spec, cluster, profile), cluster, profile, ideal=ideal)


def _setting(spec: Spec, place: Place) -> tuple[ClusterFacts, Profile]:
    profile = profile_for(place.home, spec, place.machine_types)
    cluster = place.quote.facts
    if cluster.per_instance:
        cluster = replace(cluster, boot_s=profile.cloud.pending.p50_s + profile.cloud.boot.p50_s)
    return cluster, profile
