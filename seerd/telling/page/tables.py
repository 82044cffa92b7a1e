"""What a report shows, as tables. Times are in seconds since the run began, GPU time is in
GPU-seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, zip_longest

import numpy as np

from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.metrics import best_value
from seerd.core.state import State, Trial
from seerd.planner.parameter import Parameter
from seerd.planner.ranking import standing
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.attempts import AttemptHistory, held_gpu_s
from seerd.telling.explanation.timeline import Timeline

TOP = 6
"""So many trials have a colour, a dash and a name of their own."""
MOST_BARS, MOST_LINES, MOST_POINTS = 500, 120, 3000
FINEST = 1 / 400
"""The shortest bar, as a share of the run."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A trial with the best that it has reported."""

    trial: Trial
    metric: float | None  # its best finite metric; None: there is none
    place: int  # 1 is the best


@dataclass(frozen=True, slots=True)
class Bar:
    """GPUs of one instance that a trial has held."""

    low: int  # its first row in the picture
    high: int  # the row after its last
    trial: str  # the trial; empty for several that are too short to be seen
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


@dataclass(frozen=True, slots=True)
class BilledPart:
    """A part of what was billed."""

    what: str
    gpu_s: float


def ranked(state: State, job: str | None = None) -> list[Ranked]:
    """Return all trials, the best first, of this job; None: of each job the best, then each second
    ...
    """
    if job is not None:
        return _ranked(state, job)
    together = zip_longest(*(_ranked(state, name) for name in state.jobs))
    return [one for row in together for one in row if one is not None]


def _ranked(state: State, job: str) -> list[Ranked]:
    published, mode = state.result.of_jobs.get(job), state.facts.goals[job].mode
    winner = published.incumbent.trial if published else ""
    found = []
    for trial in (one for one in state.trials.values() if job_of(one.id) == job):
        top = best_value(state, trial)
        if trial.id == winner and published is not None:
            top = published.incumbent.metric
        found.append((trial, top))
    found.sort(key=lambda one: (one[0].id != winner, standing(one[0].id, one[1], mode)))
    return [Ranked(trial, metric, place) for place, (trial, metric) in enumerate(found, 1)]


# ------------------------------------------------------------ GPUs over time


def rows_of_instances(state: State) -> dict[str, int]:
    """Return the first row of each instance's GPUs, in the order in which instances came."""
    rows, next_row = {}, 0
    for instance in state.fleet.instances.values():
        rows[instance.id] = next_row
        next_row += instance.gpus
    return rows


def bars(timeline: Timeline, state: State) -> list[Bar]:
    """Return who held which GPUs; what is too short to be seen is drawn together."""
    rows = rows_of_instances(state)
    found = [bar for attempt in timeline.attempts.all for bar in _bars(attempt, rows, state.now)]
    least_s = state.now * FINEST
    long = [bar for bar in found if bar.ends_s - bar.starts_s >= least_s]
    if len(long) > MOST_BARS:
        long.sort(key=lambda bar: bar.starts_s - bar.ends_s)
        least_s, long = long[MOST_BARS].ends_s - long[MOST_BARS].starts_s, long[:MOST_BARS]
    kept = set(map(id, long))
    return [*long, *_together((bar for bar in found if id(bar) not in kept), state.now * FINEST)]


def _bars(attempt: AttemptHistory, rows: dict[str, int], now_s: float) -> Iterator[Bar]:
    for held, on in zip(attempt.held, attempt.started.on, strict=False):
        ends_s = now_s if held.until_s is None else held.until_s
        trains_s = ends_s if attempt.training_s is None else attempt.training_s
        trains_s = min(max(trains_s, held.since_s), ends_s)
        for low, high in _runs(sorted(on.gpus)):
            first = rows.get(on.instance, 0)
            times = held.since_s, trains_s, ends_s
            yield Bar(first + low, first + high, attempt.started.trial, *times)


def _runs(gpus: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbours together: [0, 1, 4] is 0 to 2 and 4 to 5."""
    for _, group in groupby(enumerate(gpus), key=lambda pair: pair[1] - pair[0]):
        some = [gpu for _, gpu in group]
        yield some[0], some[-1] + 1


def _together(bars: Iterable[Bar], gap_s: float) -> Iterator[Bar]:
    """Join bars of one row that are next to each other in time."""
    single = [
        Bar(row, row + 1, "", bar.starts_s, bar.starts_s, bar.ends_s)
        for bar in bars
        for row in range(bar.low, bar.high)
    ]
    joined: Bar | None = None
    for bar in sorted(single, key=lambda bar: (bar.low, bar.starts_s)):
        if joined and joined.low == bar.low and bar.starts_s - joined.ends_s <= gap_s:
            joined = replace(joined, ends_s=max(joined.ends_s, bar.ends_s))
            continue
        if joined:
            yield joined
        joined = bar
    if joined:
        yield joined


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
    histories = [(one.trial, list(_values(one.trial, metric))) for one in order]
    total = sum(len(values) for _, values in histories)
    most = max(2, MOST_POINTS * 2 // max(1, len(histories))) if total > MOST_POINTS else total
    points = []
    for trial, values in histories:
        mine, after = attempts.get(trial.id, []), promoted.get(trial.id, set())
        for report, at_s, value in _thinned(values, most, after):
            gpu_s = held_gpu_s(mine, at_s)
            points.append(CurvePoint(trial.id, report, at_s, gpu_s, value, report in after))
    return points


def promotions(timeline: Timeline) -> dict[str, set[int]]:
    """Return by trial the reports after which it went on when others did not, or got more GPUs."""
    found: dict[str, set[int]] = {}
    for one in timeline.explanations:
        if one.kind == "judged" and one.verdict == "goes-on" and one.place and one.best < one.of:
            found.setdefault(one.trial, set()).add(one.reports)
    for trial, attempts in timeline.attempts.by_trial().items():
        for before, after in pairwise(attempts):
            if before.made and after.gpus > before.gpus:
                found.setdefault(trial, set()).add(before.made[-1].reports)
    return found


def _values(trial: Trial, metric: str | None) -> Iterator[tuple[int, float, float]]:
    for report in trial.history:
        others = trial.others.get(report.reports, {})
        value = report.metric if metric is None else others.get(metric)
        if value is not None:
            yield report.reports, report.at_s, value


def _thinned(
    values: list[tuple[int, float, float]], most: int, kept: set[int]
) -> list[tuple[int, float, float]]:
    if len(values) <= most:
        return values
    chosen = set(np.linspace(0, len(values) - 1, most).round().astype(int).tolist())
    return [one for place, one in enumerate(values) if place in chosen or one[0] in kept]


def best_so_far(state: State) -> list[tuple[float, float, float]]:
    """Return each improvement: when, the GPU time that was billed by then, and the metric."""
    reports = sorted(
        (report.at_s, report.metric)
        for trial in state.trials.values()
        for report in trial.history
        if report.metric is not None
    )
    times = spending_at(state, [at_s for at_s, _ in reports])
    found: list[tuple[float, float, float]] = []
    for (at_s, metric), gpu_s in zip(reports, times, strict=True):
        rank = standing("", metric, state.facts.mode)
        if not found or rank < standing("", found[-1][2], state.facts.mode):
            found.append((at_s, gpu_s, metric))
    return found


# ------------------------------------------------------------ money


def spending_at(state: State, times_s: Sequence[float]) -> list[float]:
    """Return the GPU-seconds billed by each of these times; billed minimums count at once."""
    charges = list(state.ledger.charges())
    if not charges or not times_s:
        return [0.0] * len(times_s)
    ends = [state.now if one.until_s is None else one.until_s for one in charges]
    since = np.array([one.since_s for one in charges])
    lasted = np.maximum(np.array(ends) - since, [one.minimum_s for one in charges])
    gpus = np.array([one.gpus for one in charges], dtype=float)
    # The sum of ramps: where each begins and where it ends, its slope is added and taken away.
    at = np.concatenate([since, since + lasted])
    slope = np.concatenate([gpus, -gpus])
    order = np.argsort(at, kind="stable")
    at, slopes = at[order], np.cumsum(slope[order])
    sums = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at))])
    asked = np.asarray(times_s, dtype=float)
    place = np.searchsorted(at, asked, side="right") - 1
    known = np.clip(place, 0, None)
    spent = np.where(place < 0, 0.0, sums[known] + slopes[known] * (asked - at[known]))
    return [float(value) for value in spent]


def shares(timeline: Timeline, state: State) -> list[BilledPart]:
    """Divide the bill: training, starting, leaving; also boot, idle, minimum if rented."""
    rented, ready = state.facts.cluster.per_instance, _ready_s(state)
    charges = list(state.ledger.charges())
    spans = {
        one.what: (max(one.since_s, ready.get(one.what, 0.0)), _until_s(one, state.now))
        for one in charges
    }
    training = starting = leaving = 0.0
    for attempt in timeline.attempts.all:
        for place, held in enumerate(attempt.held):
            key = held.instance if rented else attempt.key_on(place)
            since_s, until_s = spans.get(key, (0.0, 0.0))
            since_s, until_s = max(since_s, held.since_s), min(until_s, _until_s(held, state.now))
            trains_s = until_s if attempt.training_s is None else attempt.training_s
            leaves_s = until_s if attempt.stopped is None else attempt.stopped.at_s
            trains_s = min(max(trains_s, since_s), until_s)
            leaves_s = min(max(leaves_s, trains_s), until_s)
            starting += held.gpus * max(0.0, trains_s - since_s)
            training += held.gpus * max(0.0, leaves_s - trains_s)
            leaving += held.gpus * max(0.0, until_s - leaves_s)
    found = [
        BilledPart("training", training),
        BilledPart("starting: processes, imports, restoring", starting),
        BilledPart("leaving: the last step, saving", leaving),
    ]
    if rented:
        there = sum(one.gpus * max(0.0, _until_s(one, state.now) - one.since_s) for one in charges)
        boot = there - sum(
            one.gpus * max(0.0, spans[one.what][1] - spans[one.what][0]) for one in charges
        )
        idle = there - boot - training - starting - leaving
        short = sum(one.gpu_s(state.now) for one in charges) - there
        found += [BilledPart("boot", boot), BilledPart("no trial on it", max(0.0, idle))]
        found += [BilledPart("shortest time that is billed", short)] if short > 0 else []
    return found


def _until_s(charge: Charge, now_s: float) -> float:
    return now_s if charge.until_s is None else charge.until_s


def _ready_s(state: State) -> dict[str, float]:
    return {
        one.id: math.inf if one.ready_at is None else one.ready_at
        for one in state.fleet.instances.values()
    }


# ------------------------------------------------------------ configurations


def varied(state: State, job: str = "") -> list[Parameter]:
    """Return a job's parameters of which more than one value was tried."""
    shared = (one.problem.space for one in state.facts.problem.jobs if one.id == job)
    space = next(shared, state.facts.problem.space)
    trials = [one for one in state.trials.values() if job_of(one.id) == job]
    return [
        parameter
        for parameter in space.parameters
        if len({str(trial.config.get(parameter.name)) for trial in trials}) > 1
    ]


def share_of(parameter: Parameter, config: Config) -> float | None:
    """Return where a configuration's value is between the ends, 0 to 1; None: it has none."""
    value = config.get(parameter.name)
    return None if value is None else parameter.share(value)


def ready_bars(state: State) -> list[tuple[int, int, float, float]]:
    """Return for each instance its rows, and since when and until when it was there."""
    rows = rows_of_instances(state)
    return [
        (
            rows[one.id],
            rows[one.id] + one.gpus,
            one.ready_at or 0.0,
            state.now if one.ended_at is None else one.ended_at,
        )
        for one in state.fleet.instances.values()
        if one.ready_at is not None or one.phase is not InstancePhase.TERMINATED
    ]


def boundaries(timeline: Timeline) -> list[tuple[float, str]]:
    """Return when stages began, and what each is called; the end of the run too."""
    found = [
        (chapter.start_s, "end" if chapter.end else f"stage {(chapter.stage or 0) + 1}")
        for chapter in timeline.chapters
    ]
    return [now for before, now in pairwise([(0.0, ""), *found]) if now[1] != before[1]]
