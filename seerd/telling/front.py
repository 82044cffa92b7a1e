"""The front of a job: the trials that no other trial dominates by the deciding metric and all of
`metric.objectives`. It is shown and exported; no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import le

from seerd.core.metrics import value_of
from seerd.core.state import State, Trial
from seerd.planner.model import Mode, Report
from seerd.telling.harmless import printable
from seerd.units import count


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A trial at its best report by the deciding metric, ties broken by the objectives in order."""

    trial: Trial
    report: Report  # the earliest of equal ones
    values: tuple[float, ...]  # the deciding metric, then the objectives
    costs: tuple[float, ...]  # the same with the sign by which less is better


def modes_of(state: State, job: str) -> dict[str, Mode]:
    """Return the modes of a job's deciding metric and its objectives; empty without objectives."""
    goal = state.facts.goals[job]
    return {goal.metric: goal.mode, **goal.objectives} if goal.objectives else {}


def points_of(state: State, job: str) -> list[FrontPoint]:
    """Return the point of each trial that has a report which meets all constraints and has finite
    values of the deciding metric and all objectives; none without objectives.
    """
    modes, points = modes_of(state, job), []
    for trial in state.trials_of(job) if modes else ():
        reported = []
        for report in trial.history:
            every = (value_of(state, trial, report, name) for name in modes)
            values = tuple(value for value in every if value is not None)
            if report.metric is not None and len(values) == len(modes):
                signed = zip(values, modes.values(), strict=True)
                costs = tuple(-value if mode == "max" else value for value, mode in signed)
                reported.append(FrontPoint(trial, report, values, costs))
        if reported:
            points.append(min(reported, key=lambda point: point.costs))
    return points


def undominated(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """Return the points that no other point dominates, the best by the deciding metric first."""
    front: list[FrontPoint] = []
    # What dominates a point comes before it, and is on the front or dominated from there.
    for point in sorted(points, key=lambda point: (point.costs, point.trial.id)):
        better = (member.costs for member in front if member.costs != point.costs)
        if not any(all(map(le, costs, point.costs)) for costs in better):
            front.append(point)
    return front


def front_of(state: State, job: str) -> list[FrontPoint]:
    """Return a job's front, the best by the deciding metric first; none without objectives."""
    return undominated(points_of(state, job))


def on_front(state: State) -> dict[str, bool]:
    """Return of each trial of jobs with objectives whether it is on its job's front."""
    jobs = [job for job in state.jobs if modes_of(state, job)]
    front = {point.trial.id for job in jobs for point in front_of(state, job)}
    return {trial.id: trial.id in front for job in jobs for trial in state.trials_of(job)}


def size_text(state: State, job: str, front: Sequence[FrontPoint]) -> str:
    """Write how many trials are on a job's front, and by which metrics; or why it is empty."""
    labels = ", ".join(f"{printable(name)} ({how})" for name, how in modes_of(state, job).items())
    if not front:
        return f"no report that meets the constraints has finite values of all of {labels}"
    return f"{len(front)} of {count(len(state.trials_of(job)), 'trial')} by {labels}"
