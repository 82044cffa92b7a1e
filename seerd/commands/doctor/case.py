"""What is examined: the spec, and how much its plan wants at its peak.

The one rule: a spec whose limits fit no plan is examined all the same, as if it wanted one
instance.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.commands.doctor.finding import Finding
from seerd.errors import LimitsError, SeerdError, UsageError
from seerd.planner.stages import instances_for
from seerd.planning import plans
from seerd.planning.facts import Machine, Place, Quote
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.spec.clusters import Ec2Cluster
from seerd.spec.spec import Spec, require_limits


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a plan wants at a time."""

    instances: int
    largest: int  # GPUs of its largest trial


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined."""

    spec: Spec  # a spec that could be read
    home: Home  # the folder of all runs
    machine: Machine


@dataclass(frozen=True, slots=True)
class Ec2Case(Case):
    """What is examined in AWS."""

    cluster: Ec2Cluster  # the spec's cluster, known to be one of EC2


def peak_of(case: Case, quote: Quote | None = None) -> tuple[Peak | None, Finding]:
    """Plan for the spec; return its peak (None: there is no plan), and the finding about it.

    `quote`: what the cloud offers, if it was asked.
    """
    spec, kind = case.spec, clusters.of(case.spec)
    try:
        require_limits(spec)
    except UsageError as error:
        return None, Finding("plan", "warning", f"no plan was looked at: {error}", cloud=False)
    try:
        quote = quote or kind.unasked_quote(case.machine)
        place = Place(case.home.path, kind.machine_types(case.machine), quote)
        made = plans.of_spec(spec, place)
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


def runnable(spec: Spec, home: Home) -> Finding:
    """Check whether what the spec asks for can be run."""
    doubts: list[str] = []
    try:
        clusters.of(spec).check(spec)
        clusters.check_source(spec, home, doubts.append)
    except SeerdError as error:
        return Finding("spec", "problem", str(error), cloud=False)
    if doubts:
        return Finding("spec", "warning", "; ".join(doubts), cloud=False)
    return Finding(
        "spec", "ok", f"{spec.name}: {spec.train.script}, on {spec.cluster.provider}", cloud=False
    )
