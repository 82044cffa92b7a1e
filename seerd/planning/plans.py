"""The plan for an experiment: its cluster, what was measured of its scripts, and its policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from seerd.backends.base import Quote
from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts, Impossible
from seerd.planner.profile import Profile
from seerd.planning.elastic import elastic_plan
from seerd.planning.facts import problem_of, shared_problem
from seerd.planning.planned import Planned, others, plan_for
from seerd.planning.profiles import profile_for
from seerd.shell.home import Home
from seerd.spec.experiment import Experiment


def plan_of(
    experiment: Experiment,
    home: Home,
    quote: Quote,
    *,
    ideal: bool = False,
    minimize: Literal["cost", "time"] | None = None,
) -> Planned:
    """Plan what `seerd run` would start. `quote`: what the cluster offers.

    Raises `UsageError` for what cannot be planned, `LimitsError` if the limits fit nothing.
    """
    job = experiment.jobs[0]
    profiles = [profile_for(home.path, job, quote.machine_types) for job in experiment.jobs]
    slowest = max(profiles, key=lambda profile: profile.job.start.p50_s)
    cluster = _booting(quote.facts, slowest)
    if experiment.is_shared:
        problem = shared_problem(experiment, cluster, profiles, quote.notes)
        return plan_for(problem, cluster, slowest)
    if minimize is not None:
        if ideal:
            raise UsageError(
                "--minimize plans with what a cloud takes; --ideal is for the policies as published"
            )
        return elastic_plan(job, cluster, slowest, minimize)
    notes = (*quote.notes, *filter(None, [slowest.note]))
    return plan_for(problem_of(job, cluster, slowest, notes), cluster, slowest, ideal=ideal)


def others_of(
    experiment: Experiment, home: Home, quote: Quote, *, ideal: bool
) -> dict[str, Planned | Impossible]:
    """Plan for the same limits with each other policy; with none where jobs share the run."""
    if experiment.is_shared:
        return {}
    job = experiment.jobs[0]
    profile = profile_for(home.path, job, quote.machine_types)
    cluster = _booting(quote.facts, profile)
    return others(problem_of(job, cluster, profile), cluster, profile, ideal=ideal)


def _booting(cluster: ClusterFacts, profile: Profile) -> ClusterFacts:
    """Return the cluster with the seconds that its rented instances take to boot."""
    if not cluster.per_instance:
        return cluster
    return replace(cluster, boot_s=profile.cloud.pending.p50_s + profile.cloud.boot.p50_s)
