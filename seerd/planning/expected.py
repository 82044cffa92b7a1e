"""What to expect of SEER+ before a run: how many configurations will be tried, and how far the best
one will get, by the seconds of a report and a start. Nothing is decided by these figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from seerd.planner.asha import places, sizes
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.model import Impossible, Outline, Problem, View
from seerd.planner.policy import in_slots
from seerd.planner.profile import JobProfile, Profile
from seerd.planner.windows import Windows, first_look, rounds_of, windows_of
from seerd.units import count, format_duration


@dataclass(frozen=True, slots=True)
class Expectation:
    """What may be expected of a run."""

    trials: int  # configurations that will be tried
    reports: int  # reports that the best one will make


def expectation(problem: Problem, outline: Outline, profile: Profile) -> str:
    """Return the expectation in one sentence."""
    job, likely = profile.job, expected(problem, outline, profile.job)
    start_s, report_s = job.start.p50_s, job.report.p50_s / problem.scaling.speed(problem.parts)
    starting = f" and {format_duration(round(start_s, 1))} to start" if start_s else ""
    assumed = "" if profile.is_measured else ", as assumed,"
    return (
        f"with {format_duration(round(report_s, 1))} for a report on one GPU{starting}"
        f"{assumed} about {count(likely.trials, 'configuration')} will be tried, and the best one "
        f"will make about {count(likely.reports, 'report')}"
    )


def expected(problem: Problem, outline: Outline, job: JobProfile) -> Expectation:
    """Estimate it from median times, for a best trial that is best from its first report on."""
    problem = in_slots(problem)
    cluster = fixed_cluster(problem)
    if rounds_of(problem) or isinstance(cluster, Impossible):
        parts = [
            (max(g.gpus_per_trial for g in stage.groups), stage.end_s - stage.start_s)
            for stage in outline.stages
        ]
        return Expectation(outline.trials, _no_more(problem, _made(problem, parts, job)))
    look = first_look(problem.params, View(0.0, "max", {}))
    windows = windows_of(problem, cluster, look, job.report.p50_s, problem.params.max_reports)
    first_s = windows.ends_s(0)
    first = _made(problem, [(problem.params.p_min, first_s - windows.start_s)], job)
    least, now_s = problem.params.p_min, windows.ends_s(windows.last - 1)
    rest = [(least, now_s - first_s)]
    while now_s < windows.end_s:
        finalists, ends_s = windows.finalists(now_s), windows.changes_s(now_s)
        most = max(least, cluster.gpus - least * (finalists - 1))
        if finalists > 1:
            most = min(most, max(least, problem.gpus_per_instance))
        rest.append((max(p for p in sizes(problem, cluster.gpus) if p <= most), ends_s - now_s))
        now_s = ends_s
    reports = min(windows.rungs[-1], first) + _made(problem, rest, job)
    return Expectation(_tried(problem, cluster, windows, job), _no_more(problem, reports))


def _tried(problem: Problem, cluster: FixedCluster, windows: Windows, job: JobProfile) -> int:
    """Count what the first window has time for, if 1 in eta goes on from each rung."""
    params = problem.params
    beside = places(cluster.gpus, params.p_min, problem.gpus_per_instance)
    report_s = job.report.p50_s / problem.scaling.speed(params.p_min)
    steps = [above - below for below, above in pairwise((0, *windows.rungs))]
    takes_s = sum(
        (job.start.p50_s + step * report_s) / params.eta**rung for rung, step in enumerate(steps)
    )
    tried = max(beside, int(beside * (windows.ends_s(0) - windows.start_s) / takes_s))
    return tried if params.trials is None else min(tried, params.trials)


def _made(problem: Problem, parts: list[tuple[int, float]], job: JobProfile) -> float:
    """Estimate the reports of parts of (GPUs, seconds); a start comes where the GPUs change."""
    made, before = 0.0, 0
    for gpus, lasts_s in parts:
        start_s = job.start.p50_s if gpus != before else 0.0
        trains_s = max(0.0, lasts_s - start_s)
        made += trains_s * problem.scaling.speed(gpus) / job.report.p50_s
        before = gpus
    return made


def _no_more(problem: Problem, reports: float) -> int:
    most = problem.params.max_reports
    return int(reports if most is None else min(most, reports))
