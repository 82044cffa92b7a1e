"""From a spec to a run that can begin: what `seerd run` and `seerd.run` check, say and plan.

The one rule: what can be refused is refused before anything is started. So that a mistake is told
at once, only what looks for it is imported before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from seerd.telling.working import working
from seerd.units import format_duration

if TYPE_CHECKING:
    from seerd.commands.common import Minimize
    from seerd.core.state import State
    from seerd.errors import LimitsError
    from seerd.planning.facts import Intended, Place
    from seerd.shell.home import Home, RunFolder
    from seerd.spec.group import JobGroup
    from seerd.spec.spec import Spec

Say = Callable[[str], object]
"""Tells the person one line that is not a mistake."""


def latest_s(deadline_s: float) -> float:
    """Return how many seconds before the deadline the last trials are started in a new run."""
    from seerd.core.closing import closing_s, shortest_s
    from seerd.planner.model import ClusterFacts

    return shortest_s(deadline_s) + closing_s(deadline_s, 0.0, ClusterFacts("held", 1))


def too_late(deadline_s: float, spent_s: float) -> LimitsError:
    """Return what to raise where so many seconds have passed before a run is made."""
    from seerd.errors import LimitsError

    return LimitsError(
        f"{spent_s:.1f}s of a deadline of {format_duration(deadline_s)} had passed before a run "
        f"was planned and made, and no trial is started later than {latest_s(deadline_s):.2g}s "
        "before the deadline",
        *(0.0, 0.0),
        "This machine is busy: try again when it is less so, or with a longer --deadline",
    )


def _check_time(intended: Intended, origin: float) -> None:
    from seerd.clock import wall

    deadline_s, spent_s = intended.problem.limits.deadline_s, wall() - origin
    if not intended.cluster.instant and spent_s > deadline_s - latest_s(deadline_s):
        raise too_late(deadline_s, spent_s)


def placed(spec: Spec, home: Home, say: Say) -> tuple[Spec, Place]:
    """Return the spec with what earlier runs tell, and where it will run.

    Raises `SeerdError` if it cannot be run.
    """
    from seerd.runs import clusters, earlier
    from seerd.spec import project_paths
    from seerd.spec.doubts import doubts

    if spec.export:
        from seerd.commands import exporting

        exporting.check(spec.export)
    spec = earlier.informed(spec, home)
    notes = [*doubts(spec), *project_paths.doubts(spec, os.environ)]
    for line in (*notes, *offered(spec, home)):
        say(line)
    with working("looking at where it will run"):
        place = clusters.quoted(spec, home)
    if spec.cluster.rented:
        from seerd.commands import sweep

        with working("looking for what earlier runs have left in the cloud"):
            left = sweep.before_a_run(home, spec.cluster.region, place.quote.owner)
        for line in left:
            say(line)
    return spec, place


def offered(spec: Spec, home: Home) -> list[str]:
    """Say that there are runs to learn from; nothing if there are none, or some are named."""
    from seerd.runs import earlier

    found = [] if spec.like or spec.policy.name == "grid" else earlier.alike(spec, home)
    if not found:
        return []
    runs = "1 earlier run" if len(found) == 1 else f"{len(found)} earlier runs"
    return [f"{runs} of this script; to learn from the newest: --like {found[-1]}"]


def intended(spec: Spec, place: Place, *, ideal: bool, minimize: Minimize | None) -> Intended:
    """Plan a run. Raises `LimitsError` if the limits cannot be met."""
    from seerd.planning import plans
    from seerd.planning.facts import Intended

    planned = plans.of_spec(spec, place, ideal=ideal, minimize=minimize)
    parts = planned.problem, planned.outline, planned.cluster
    return Intended(*parts, minimize=minimize, ideal=ideal)


def create(
    spec: Spec, home: Home, place: Place, intended: Intended, origin: float, say: Say
) -> tuple[RunFolder, State]:
    """Make the run's folder, ready to begin.

    origin  when the run began, wall clock, seconds since 1970

    Raises `CloudError` if the cloud does not allow the plan's peak, and `LimitsError` if the
    deadline leaves too little time to copy the source, or to start a trial.
    """
    from seerd.runs import clusters, runs

    _check_time(intended, origin)
    clusters.check_quota(spec, intended)
    return runs.create(spec, intended, home, origin, place.quote, say=say)


def placed_group(group: JobGroup, home: Home, say: Say) -> tuple[JobGroup, Place]:
    """Return the group with what earlier runs tell its jobs, and where it will run.

    Raises `SeerdError` if it cannot be run.
    """
    from seerd.runs import clusters, earlier
    from seerd.spec import project_paths
    from seerd.spec.doubts import doubts
    from seerd.spec.spec import require_report

    jobs = []
    for job in group.jobs:
        require_report(job.spec)
        spec = earlier.informed(job.spec, home)
        for line in (*doubts(spec), *project_paths.doubts(spec, os.environ)):
            say(f"{job.id}: {line}")
        clusters.of(spec).check(spec)
        jobs.append(replace(job, spec=spec))
    _, place = placed(group.lead, home, say)
    return replace(group, jobs=tuple(jobs)), place


def intended_group(group: JobGroup, place: Place) -> Intended:
    """Plan a run that jobs share. Raises `LimitsError` if the limits cannot be met."""
    from seerd.planning import plans
    from seerd.planning.facts import Intended

    planned = plans.of_group(group, place)
    return Intended(planned.problem, planned.outline, planned.cluster)


def create_group(
    group: JobGroup, home: Home, place: Place, intended: Intended, origin: float, say: Say
) -> tuple[RunFolder, State]:
    """Make the folder of a run that jobs share, ready to begin. Raises what `create` raises."""
    from seerd.runs import clusters, runs

    _check_time(intended, origin)
    clusters.check_quota(group.lead, intended)
    return runs.create(group.lead, intended, home, origin, place.quote, group.jobs, say)
