"""The plan for a spec: its cluster, what was measured of its script, and the policy's plan for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from seerd.errors import UsageError
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Impossible
from seerd.planner.profile import Profile
from seerd.planning.facts import Machine, MachineSlots, Offer, bundled_offer, cluster_of, price_note, problem_of
from seerd.planning.planned import Planned, others, plan_for
from seerd.planning.profiles import load_profile
from seerd.spec.spec import Spec

UNBOUNDED = 8
"""GPUs of an instance where nothing says how many: those of the papers' machines."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where planning happens.

    home   the folder of all runs
    slots  what trials get of this machine, if they are to run here; offer: what a cloud offers, if it was asked
    """

    home: Path
    machine: Machine
    slots: MachineSlots | None
    offer: Offer | None = None


def of_spec(
    spec: Spec, place: Place, *, ideal: bool = False, minimize: Literal["cost", "time"] | None = None
) -> Planned:
    """What `run` would start. No slots with the local provider: the papers' setting, on as many GPUs as the plan likes."""
    cluster, profile = _setting(spec, place)
    if minimize is not None:
        from seerd.planning.elastic import elastic_plan

        if ideal:
            raise UsageError("--minimize plans with what a cloud takes; --ideal is for the policies as published")
        return elastic_plan(spec, cluster, profile, minimize)
    return plan_for(problem_of(spec, cluster, profile, _notes(spec, place)), cluster, profile, ideal=ideal)


def others_of(spec: Spec, place: Place, *, ideal: bool) -> dict[str, Planned | Impossible]:
    """What the same limits give under each other policy."""
    cluster, profile = _setting(spec, place)
    return others(problem_of(spec, cluster, profile), cluster, profile, ideal=ideal)


def _setting(spec: Spec, place: Place) -> tuple[ClusterFacts, Profile]:
    profile = load_profile(place.home, spec, place.machine) or assumed(rented=spec.cluster.provider == "ec2")
    if place.slots is None and spec.cluster.provider == "local":
        return ClusterFacts(billing="held", gpus_per_instance=UNBOUNDED), profile
    cluster = cluster_of(spec, place.slots, place.offer)
    if cluster.billing == "rented":
        cluster = replace(cluster, boot_s=profile.cloud.pending.p50_s + profile.cloud.boot.p50_s)
    return cluster, profile


def _notes(spec: Spec, place: Place) -> tuple[str, ...]:
    if spec.cluster.provider != "ec2":
        return ()
    return (price_note(spec, place.offer or bundled_offer(spec)),)
