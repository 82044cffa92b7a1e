"""The backend that a spec names, and what it offers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seerd.backends.backend import Backend, Uncounted
from seerd.backends.base import Quote
from seerd.backends.by_name import by_name
from seerd.core.events import RunFacts
from seerd.errors import UsageError
from seerd.planner.stages import instances_for
from seerd.planning.machine import this_machine
from seerd.registry import BACKENDS, RENTED
from seerd.shell.home import Home
from seerd.shell.source_copy import CopyTerms, Say, links_out
from seerd.spec.clusters import CLUSTERS
from seerd.spec.experiment import Experiment
from seerd.spec.spec import Spec

if TYPE_CHECKING:
    from seerd.planning.planned import Planned


def of(asked: Spec | Experiment) -> Backend[Any]:
    """Return the backend that is asked for."""
    return by_name(asked.cluster.provider)(asked.cluster)


def rented(spec: Spec | None) -> Backend[Any]:
    """Return the spec's backend if it rents instances, else the default one that does."""
    if spec is not None and spec.cluster.rented:
        return of(spec)
    return by_name(RENTED)(CLUSTERS[RENTED]())


def simulated(asked: Experiment | None) -> Backend[Any]:
    """Return the backend to simulate: the one that is asked for, else the papers' instances."""
    return (of(asked) if asked else rented(None)).for_simulation()


def with_command(spec: Spec, command: str) -> Backend[Any]:
    """Return the spec's backend. Raises `UsageError` if it does not have this command."""
    backend = of(spec)
    if command not in backend.commands:
        others = [name for name in BACKENDS if command in by_name(name).commands]
        raise UsageError(
            f"seerd {command} is for rented instances, and the spec says provider = "
            f'"{spec.cluster.provider}"; to rent: provider = "{others[0]}" in [cluster]'
        )
    return backend


def check_source(spec: Spec, home: Home, say: Say) -> None:
    """Check the links of a spec's source, and report doubts. Raises `UsageError`."""
    terms = CopyTerms(say, elsewhere=of(spec).elsewhere, follow=spec.train.follow)
    links_out(spec.train.source, home.path, terms)


def uncounted(experiment: Experiment, planned: Planned) -> Uncounted | None:
    """Return what a plan costs besides what is counted."""
    cluster, stages = planned.cluster, planned.outline.stages
    size = cluster.gpus_per_instance
    peak = max(instances_for(stage.groups, size) for stage in stages)
    hours = planned.forecast.gpu_s.p50 / 3600 / cluster.gpus(size)
    return of(experiment).uncounted(peak, hours)


def check_quota(experiment: Experiment, facts: RunFacts) -> None:
    """Check that the cloud allows the plan's peak. Raises `CloudError` if it does not."""
    size = facts.cluster.gpus_per_instance
    peak = max(instances_for(stage.groups, size) for stage in facts.outline.stages)
    of(experiment).check_quota(peak, size // facts.parts)


def unasked_quote(asked: Spec | Experiment, *, unbounded: bool = False) -> Quote:
    """Return the offer without asking a cloud; `unbounded`: of any number of GPUs."""
    backend, machine = of(asked), this_machine()
    offer = backend.unasked_quote(None if unbounded else machine)
    return replace(offer, machine_types=backend.machine_types(machine))


def quote(asked: Spec | Experiment) -> Quote:
    """Return the backend's offer, after asking its cloud. Raises `CloudError`."""
    backend, machine = of(asked), this_machine()
    offer = backend.quote(machine)
    return replace(offer, machine_types=backend.machine_types(machine))
