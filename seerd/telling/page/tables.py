"""What a report shows, as tables. Times are in seconds, GPU time is in GPU-seconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from seerd.core.metrics import best_value, sign_of
from seerd.core.state import State, Trial
from seerd.planner.parameter import Parameter
from seerd.planner.ranking import standing
from seerd.planner.space import Config
from seerd.telling.explanation.explanations import held_gpu_s
from seerd.telling.explanation.sentences import neighbours
from seerd.telling.explanation.timeline import Timeline

TOP = 6  # so many trials have a colour, a dash and a name of their own
MOST_BARS, MOST_LINES, MOST_POINTS = 2000, 120, 3000


@dataclass(frozen=True, slots=True)
class Ranked:
    """A trial with the best that it has reported."""

    trial: Trial
    metric: float | None  # its best finite metric; None: there is none


@dataclass(frozen=True, slots=True)
class Bar:
    """GPUs of one instance that a trial has held."""

    low: int  # its first row in the picture
    high: int  # the row after its last
    trial: str
    starts_s: float  # when it was ordered
    trains_s: float  # when it trained
    ends_s: float  # when it was gone


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One report of a trial."""

    trial: str
    report: int  # number of the report
    at_s: float  # when it was made
    gpu_s: float  # GPU time of the trial until then
    value: float  # the metric
    promoted: bool  # whether the trial was promoted after it


def ranked(state: State, job: str | None = None) -> list[Ranked]:
    """Return trials, the best first; of all jobs (None) each one's best, then each one's second."""
    if job is None:
        together = zip_longest(*(ranked(state, name) for name in state.jobs))
        return [one for row in together for one in row if one is not None]
    published, mode = state.result.of_jobs.get(job), state.facts.goals[job].mode
    winner = published.incumbent.trial if published else ""
    tops = {
        trial.id: published.incumbent.metric
        if published and trial.id == winner
        else best_value(state, trial)
        for trial in state.trials_of(job)
    }
    order = sorted(tops, key=lambda name: (name != winner, standing(name, tops[name], mode)))
    return [Ranked(state.trials[name], tops[name]) for name in order]


# ------------------------------------------------------------ GPUs over time


def rows_of_instances(state: State) -> dict[str, int]:
    """Return the first row of each instance's GPUs, in the order in which instances came."""
    rows, next_row = {}, 0
    for instance in state.fleet.instances.values():
        rows[instance.id] = next_row
        next_row += instance.gpus  # slots, where GPUs have parts
    return rows


def bars(timeline: Timeline, state: State) -> tuple[list[Bar], int]:
    """Return who held which GPUs, and of how many attempts that is too short to be drawn."""
    rows, every = rows_of_instances(state), []
    for attempt in timeline.attempts.all:
        for held, slots in (*attempt.smaller, *zip(attempt.held, attempt.slots, strict=False)):
            times = held.since_s, attempt.trains_s(held, state.now), held.end_s(state.now)
            first, trial = rows.get(held.instance, 0), attempt.started.trial
            for low, high in neighbours(slots):
                every.append(Bar(first + low, first + high + 1, trial, *times))
    longest = sorted(every, key=lambda bar: bar.starts_s - bar.ends_s)[:MOST_BARS]
    return longest, len(every) - len(longest)


# ------------------------------------------------------------ curves


def shown(order: Sequence[Ranked], most: int = MOST_LINES) -> list[Ranked]:
    """Choose trials for a picture: the best, and of the others one in so many."""
    if len(order) <= most:
        return list(order)
    best, rest = order[: most // 2], order[most // 2 :]
    return [*best, *rest[:: -(-len(rest) // (most - len(best)))]]


def curves(order: Sequence[Ranked], timeline: Timeline, metric: str | None) -> list[CurvePoint]:
    """Return reports of these trials: of another metric, or of the run's own (None).

    If there are too many, each curve has its ends, some between, and those that promoted its trial.
    """
    attempts, promoted = timeline.attempts.by_trial(), promotions(timeline)
    histories = {
        trial.id: [
            (report, value)
            for report in trial.history
            for others in [trial.others.get(report.reports, {})]
            if (value := report.metric if metric is None else others.get(metric)) is not None
        ]
        for trial in (one.trial for one in order)
    }
    total = sum(map(len, histories.values()))
    most = max(2, MOST_POINTS * 2 // max(1, len(histories))) if total > MOST_POINTS else total
    points = []
    for trial, values in histories.items():
        mine, after = attempts.get(trial, []), promoted.get(trial, set())
        shown = set(range(len(values)))
        if len(values) > most:
            shown = set(np.linspace(0, len(values) - 1, most).round().astype(int).tolist())
        for place, (report, value) in enumerate(values):
            rises = report.reports in after
            if place in shown or rises:
                gpu_s, number = held_gpu_s(mine, report.at_s), report.reports
                points.append(CurvePoint(trial, number, report.at_s, gpu_s, value, rises))
    return points


def promotions(timeline: Timeline) -> dict[str, set[int]]:
    """Return by trial the reports after which it went on when others did not, or got more GPUs."""
    promoted: dict[str, set[int]] = defaultdict(set)
    for one in timeline.explanations:
        if one.kind == "judged" and one.verdict == "goes-on" and one.place and one.best < one.of:
            promoted[one.trial].add(one.reports)
    for trial, attempts in timeline.attempts.by_trial().items():
        for before, after in pairwise(attempts):
            if before.made and after.gpus > before.gpus:
                promoted[trial].add(before.made[-1].reports)
    return promoted


def best_so_far(state: State) -> list[tuple[float, float, float]]:
    """Return each improvement: when, the GPU time that was billed by then, and the metric."""
    reports = sorted(
        (report.at_s, report.metric)
        for trial in state.trials.values()
        for report in trial.history
        if report.metric is not None
    )
    steps: list[tuple[float, float]] = []
    for at_s, metric in reports:
        if not steps or sign_of(state.facts) * (metric - steps[-1][1]) > 0:
            steps.append((at_s, metric))
    billed = billed_gpu_s(state, [at_s for at_s, _ in steps])
    return [(at_s, gpu_s, metric) for (at_s, metric), gpu_s in zip(steps, billed, strict=True)]


# ------------------------------------------------------------ money


def billed_gpu_s(state: State, times_s: Sequence[float]) -> list[float]:
    """Return the GPU-seconds billed up to each moment; a minimum is billed as if it were used."""
    if not times_s:
        return []
    charges = [(c.since_s, c.gpus, c.gpu_s(state.now)) for c in state.ledger.charges()]
    since_s, gpus, most_gpu_s = np.array(charges, dtype=float).reshape(-1, 3).T
    used = (np.array(times_s)[:, None] - since_s) * gpus
    return [float(one) for one in np.clip(used, 0.0, most_gpu_s).sum(axis=1)]


def shares(timeline: Timeline, state: State) -> dict[str, float]:
    """Divide the bill: training, starting, leaving; also boot, idle, minimum if rented."""
    rented, now_s = state.facts.cluster.per_instance, state.now
    ready_s = {
        one.id: math.inf if one.ready_at is None else one.ready_at
        for one in state.fleet.instances.values()
    }
    charges = list(state.ledger.charges())
    spans: dict[str, tuple[float, float]] = {}
    for one in charges:  # an attempt that has grown has several
        since_s, end_s = spans.get(one.what, (math.inf, 0.0))
        since_s = min(since_s, max(one.since_s, ready_s.get(one.what, 0.0)))
        spans[one.what] = since_s, max(end_s, one.end_s(now_s))
    training = starting = leaving = 0.0
    for attempt in timeline.attempts.all:
        smaller = ((0, held) for held, _ in attempt.smaller)
        for place, held in (*smaller, *enumerate(attempt.held)):
            key = held.instance if rented else attempt.key_on(place)
            since_s, until_s = spans.get(key, (0.0, 0.0))
            since_s, until_s = max(since_s, held.since_s), min(until_s, held.end_s(now_s))
            leaves_s = until_s if attempt.stopped is None else attempt.stopped.at_s
            trains_s = min(max(attempt.trains_s(held, now_s), since_s), until_s)
            leaves_s = min(max(leaves_s, trains_s), until_s)
            starting += held.gpus * max(0.0, trains_s - since_s)
            training += held.gpus * max(0.0, leaves_s - trains_s)
            leaving += held.gpus * max(0.0, until_s - leaves_s)
    parts = {
        "training": training,
        "starting: processes, imports, restoring": starting,
        "leaving: the last step, saving": leaving,
    }
    if rented:
        lasted = sum(one.gpus * max(0.0, one.end_s(now_s) - one.since_s) for one in charges)
        ready = sum(one.gpus * max(0.0, spans[one.what][1] - spans[one.what][0]) for one in charges)
        parts["boot"] = lasted - ready
        parts["no trial on it"] = max(0.0, ready - training - starting - leaving)
        if (short := sum(one.gpu_s(now_s) for one in charges) - lasted) > 0:
            parts["shortest time that is billed"] = short
    return parts


# ------------------------------------------------------------ configurations


def varied(state: State, job: str = "") -> list[Parameter]:
    """Return a job's parameters of which more than one value was tried."""
    shared = (one.problem.space for one in state.facts.problem.jobs if one.id == job)
    space = next(shared, state.facts.problem.space)
    configs = [trial.config for trial in state.trials_of(job)]
    return [p for p in space.parameters if len({str(config.get(p.name)) for config in configs}) > 1]


def share_of(parameter: Parameter, config: Config) -> float | None:
    """Return where a configuration's value is between the ends, 0 to 1; None: it has none."""
    value = config.get(parameter.name)
    return None if value is None else parameter.share(value)
