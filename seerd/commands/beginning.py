"""From an experiment to a run that can begin: what `seerd run` and `seerd.run` check, print and
plan. What can be refused is refused before anything is started, and before imports that only a run
needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from seerd.telling.working import working
from seerd.units import format_duration

if TYPE_CHECKING:
    from seerd.backends.base import Quote
    from seerd.core.events import RunFacts
    from seerd.core.state import State
    from seerd.errors import LimitsError
    from seerd.shell.home import Home, RunFolder
    from seerd.spec.experiment import Experiment

Say = Callable[[str], object]  # prints one line that is not a mistake


def latest_s(deadline_s: float) -> float:
    """Return how many seconds before the deadline the last trials are started in a new run."""
    from seerd.core.rules import closing_s, shortest_s
    from seerd.planner.model import ClusterFacts

    return shortest_s(deadline_s) + closing_s(deadline_s, 0.0, ClusterFacts("held", 1))


def too_late(deadline_s: float, spent_s: float) -> LimitsError:
    """Return the error for a run that took so many seconds before it was made."""
    from seerd.errors import LimitsError

    return LimitsError(
        f"{spent_s:.1f}s of a deadline of {format_duration(deadline_s)} had passed before a run "
        f"was planned and made, and no trial is started later than {latest_s(deadline_s):.2g}s "
        "before the deadline",
        *(0.0, 0.0),
        "This machine is busy: try again when it is less so, or with a longer --deadline",
    )


def placed(experiment: Experiment, home: Home, say: Say) -> tuple[Experiment, Quote]:
    """Return the experiment with what its jobs learn from earlier runs, and what its cluster
    offers. Raises `SeerdError` if it cannot be run.
    """
    from seerd.runs import clusters, earlier, runs
    from seerd.spec import project_paths
    from seerd.spec.doubts import doubts

    for kind in experiment.export:
        from seerd.spec.targets import check_installed

        check_installed(kind)
    jobs = [earlier.informed(job, home) for job in experiment.jobs]
    runs.require_secrets((name for job in jobs for name in job.train.secrets), "the command again")
    for job in jobs:
        for line in (*doubts(job), *project_paths.doubts(job, os.environ)):
            say(f"{job.id}: {line}" if job.id else line)
    experiment = replace(experiment, jobs=tuple(jobs))
    with working("looking at where it will run"):
        for job in jobs:
            clusters.of(job).check(job)
        quote = clusters.quote(experiment)
        for line in clusters.of(experiment).doubts(experiment.limits.deadline_s or 0.0):
            say(line)
    if experiment.cluster.rented:
        import asyncio

        from seerd.commands import sweep

        with working("looking for what earlier runs have left in the cloud"):
            left = asyncio.run(sweep.at_start(home, experiment.cluster.region, quote.owner))
        for line in left:
            say(line)
    return experiment, quote


def create(
    experiment: Experiment, facts: RunFacts, home: Home, quote: Quote, origin: float, say: Say
) -> tuple[RunFolder, State]:
    """Make the run's folder, ready to begin; `origin` is when the run began, seconds since 1970.
    Raises `CloudError` if the cloud does not allow the plan's peak, and `LimitsError` if the
    deadline leaves too little time to copy the source, or to start a trial.
    """
    from seerd.clock import wall
    from seerd.runs import clusters, runs

    deadline_s, spent_s = facts.problem.limits.deadline_s, wall() - origin
    if not facts.cluster.instant and spent_s > deadline_s - latest_s(deadline_s):
        raise too_late(deadline_s, spent_s)
    clusters.check_quota(experiment, facts)
    return runs.create(experiment, facts, home, quote, origin, say)
