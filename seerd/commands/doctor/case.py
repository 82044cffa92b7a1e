"""What is examined: the spec, and how much its plan wants at its peak.

The one rule: a spec whose limits fit no plan is examined all the same, for one instance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seerd.commands.doctor.finding import Finding
from seerd.errors import LimitsError, SeerdError, UsageError
from seerd.planner.stages import instances_for
from seerd.planning import machine, plans
from seerd.planning.facts import Offer
from seerd.runs import wiring
from seerd.shell.home import Home
from seerd.spec.spec import Spec, require_limits


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a plan wants at a time: `instances`, and the GPUs of its largest trial."""

    instances: int
    largest: int


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined: a spec that could be read, and the folder of all runs."""

    spec: Spec
    home: Home


def peak_of(case: Case, offer: Offer | None = None) -> tuple[Peak | None, Finding]:
    """Say what the plan wants; `offer`: what the cloud offers, if it was asked."""
    spec, home = case.spec, case.home
    try:
        require_limits(spec)
    except UsageError as error:
        return None, Finding("plan", "warning", f"no plan was looked at: {error}", cloud=False)
    try:
        place = machine.place_of(spec, home)
        made = plans.of_spec(spec, replace(place, offer=offer or place.offer))
    except LimitsError as error:
        return None, Finding(
            "plan", "problem", str(error), "seerd plan shows what limits would do", cloud=False
        )
    except SeerdError as error:
        return None, Finding("plan", "problem", f"there is no plan: {error}", cloud=False)
    size, stages = made.cluster.gpus_per_instance, made.outline.stages
    peak = Peak(
        max(instances_for(stage.groups, size) for stage in stages), max(made.outline.allocations)
    )
    found = (
        f"at its peak {peak.instances} instances of {size} GPUs; "
        f"the largest trial takes {peak.largest}"
    )
    if made.warnings:
        return peak, Finding("plan", "warning", f"{found}; {'; '.join(made.warnings)}", cloud=False)
    return peak, Finding("plan", "ok", found, cloud=False)


def runnable(spec: Spec) -> Finding:
    """Say whether what the spec asks for can be run."""
    try:
        wiring.check_runnable(spec)
    except SeerdError as error:
        return Finding("spec", "problem", str(error), cloud=False)
    return Finding(
        "spec", "ok", f"{spec.name}: {spec.train.script}, on {spec.cluster.provider}", cloud=False
    )
