"""The plan for a spec: its cluster, what was measured of its script, and the policy's plan for both."""

from __future__ import annotations

from planner.clouds import assumed
from planner.model import ClusterFacts, Impossible
from planner.profile import Profile
from seerd.facts import Slots, cluster_of, problem_of
from seerd.planning import Planned, others, plan_for
from seerd.shell.home import Home
from seerd.spec import Spec

UNBOUNDED = 8
"""GPUs of an instance where nothing says how many: those of the papers' machines."""


def of_spec(spec: Spec, slots: Slots | None, home: Home, *, ideal: bool) -> Planned:
    """What `run` would start. `slots` None with the local provider: the papers' setting, on as many GPUs as the plan likes."""
    cluster, profile = _setting(spec, slots, home)
    return plan_for(problem_of(spec, cluster, profile), cluster, profile, ideal=ideal)


def others_of(spec: Spec, slots: Slots | None, home: Home, *, ideal: bool) -> dict[str, Planned | Impossible]:
    """What the same limits give under each other policy."""
    cluster, profile = _setting(spec, slots, home)
    return others(problem_of(spec, cluster, profile), cluster, profile, ideal=ideal)


def _setting(spec: Spec, slots: Slots | None, home: Home) -> tuple[ClusterFacts, Profile]:
    rented = spec.cluster.provider == "ec2"
    profile = assumed(rented=rented)
    if slots is None and spec.cluster.provider == "local":
        return ClusterFacts(billing="held", gpus_per_instance=UNBOUNDED), profile
    return cluster_of(spec, slots), profile
