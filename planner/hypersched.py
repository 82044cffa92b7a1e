"""HyperSched: from trying many configurations to training the best on all GPUs as the deadline
nears (Liaw et al., SoCC '19), on a fixed cluster, with ASHA's rungs in one bracket.

The paper knows its training loop and measures it. Here figures are estimated from the reports of
the latest runs, normalised to one GPU: a report takes the median; a start the 90th percentile, from
being given GPUs to the first report, less one report. When no trial may start and the last one has
come to a rung, the best paused trial goes on: the GPUs are there until the end.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from itertools import takewhile

from seerd.planner.asha import AtRandom, Search, SearchSetting, policy, setting
from seerd.planner.memory import Json, integer, items, real, text
from seerd.planner.model import Allocation, NewTrial, Plan, Problem, Report, TrialView, View
from seerd.planner.profile import Scaling
from seerd.planner.ranking import rank
from seerd.planner.rungs import rung_reports

WORTH = 1.1  # least times as far as before that a trial must get with more GPUs, to be given them

RESULTS_BETWEEN = 5  # a trial is given more GPUs at most once in this many reports

REMEMBERED = 1000  # how many of the latest runs with a report are used for estimates

# begin keys of the memory: a run's, before its slot; a trial's seconds, before its id
RUN, TRAINED = "run ", "trained "


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A trial's time on one number of GPUs."""

    number: int  # later runs have larger ones
    trial: str
    gpus: int
    since_s: float  # when it began, seconds since the tuning run began
    before_s: float = 0.0  # seconds that the trial had run before
    grows_at: int = 0  # the trial may be given more GPUs when it has made this many reports
    ended_at: int | None = None  # reports that the trial had made when this ended; None: it has not


def read_run(remembered: Json) -> TrialRun:
    """Read a run from JSON. Raises `ValueError` if it is none."""
    number, trial, gpus, since_s, before_s, grows_at, ended_at = items(remembered, 7)
    return TrialRun(
        integer(number, 1),
        text(trial),
        integer(gpus, 1),
        real(since_s),
        real(before_s),
        integer(grows_at, 0),
        None if ended_at is None else integer(ended_at, 0),
    )


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """How long things take."""

    report_s: float | None = None  # median seconds per report on one GPU; None: not known yet
    startup_s: float = 0.0  # 90th percentile of the seconds of a start; 0: not known yet


@dataclass(slots=True)
class Seen:
    """What the reports of one run have shown so far."""

    gpus: int  # GPUs of the run
    last: Report | None = None  # its latest report
    first_s: float = 0.0  # seconds until its first report
    # seconds per report on one GPU, for each of the others
    reports_s: list[float] = field(default_factory=list)
    counts: bool = False  # whether it has made a report and is one of the latest runs that have


class Stopwatch:
    """Measures from the reports of runs how long things take."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._seen: dict[int, Seen] = {}
        self._counting: list[int] = []
        self._reports_s: list[float] = []
        self._firsts_s: dict[int, list[float]] = {}

    def observe(self, run: TrialRun, trial: TrialView) -> None:
        """Note a run's new reports; one after a restart of the trial by itself shows no pace."""
        seen = self._seen.get(run.number)
        if seen is None:
            seen = self._seen[run.number] = Seen(run.gpus)
        seen_s = run.since_s if seen.last is None else seen.last.at_s
        latest_first = takewhile(lambda report: report.at_s > seen_s, reversed(trial.history))
        for report in reversed([*latest_first]):
            if run.ended_at is not None and report.reports > run.ended_at:
                break
            self._note(run, seen, report)

    def counts(self, run: TrialRun) -> bool:
        """Return whether a run is used to estimate how long things take."""
        seen = self._seen.get(run.number)
        return seen is not None and seen.counts

    def trim(self) -> list[int]:
        """Drop the oldest runs beyond `REMEMBERED`, and return their numbers."""
        gone = []
        while len(self._counting) > REMEMBERED:
            gone.append(heapq.heappop(self._counting))
            seen = self._seen[gone[-1]]
            for report_s in seen.reports_s:
                del self._reports_s[bisect_left(self._reports_s, report_s)]
            firsts_s = self._firsts_s[seen.gpus]
            del firsts_s[bisect_left(firsts_s, seen.first_s)]
            seen.counts, seen.reports_s = False, []
        return gone

    def forget(self, run: TrialRun) -> None:
        """Forget a run that has ended and does not count."""
        self._seen.pop(run.number, None)

    def _note(self, run: TrialRun, seen: Seen, report: Report) -> None:
        if seen.last is None:
            seen.first_s, seen.counts = report.at_s - run.since_s, True
            insort(self._firsts_s.setdefault(run.gpus, []), seen.first_s)
            heapq.heappush(self._counting, run.number)
        elif seen.counts and report.reports > seen.last.reports:
            each_s = (report.at_s - seen.last.at_s) / (report.reports - seen.last.reports)
            seen.reports_s.append(each_s * self._scaling.speed(run.gpus))
            insort(self._reports_s, seen.reports_s[-1])
        seen.last = report

    def pace(self) -> MeasuredPace:
        """Estimate from all runs that count."""
        if not self._reports_s:
            return MeasuredPace()
        report_s = self._reports_s[math.ceil(0.5 * len(self._reports_s)) - 1]
        count = sum(len(firsts_s) for firsts_s in self._firsts_s.values())
        slowest = count - math.ceil(0.9 * count) + 1
        # of each number of GPUs only the longest first reports can be among the slowest tenth
        startups_s = [
            first_s - report_s / self._scaling.speed(gpus)
            for gpus, firsts_s in self._firsts_s.items()
            for first_s in firsts_s[-slowest:]
        ]
        return MeasuredPace(report_s, max(0.0, sorted(startups_s)[-slowest]))


def worth_starting(
    left_s: float, longest_s: float, pace: MeasuredPace, most_reports: int, eta: float
) -> bool:
    """Return whether a trial that starts now has time to train, or for eta times the longest."""
    as_long_s = (longest_s - pace.startup_s) * eta
    return left_s >= (
        as_long_s if pace.report_s is None else min(as_long_s, most_reports * pace.report_s)
    )


def deal(trials: int, gpus: int, p_min: int, p_max: int, gpus_per_instance: int) -> list[int]:
    """Deal out the GPUs, best first: `p_min` each, one more in turn, then empty instances."""
    whole, rest = divmod(gpus, gpus_per_instance)
    if p_min > gpus_per_instance:
        return [p_min] * trials
    free = [gpus_per_instance] * whole + [rest] * (rest > 0)
    dealt, home = [p_min] * trials, _homes(trials, free, p_min)
    growing = list(range(trials))
    while growing:
        growing = [i for i in growing if _grow(i, dealt, home[i], free, p_max, gpus_per_instance)]
    return dealt


def _homes(trials: int, free: list[int], p_min: int) -> list[int]:
    """Choose each trial's instance, evenly, and take its `p_min` GPUs; the best share least."""
    homes: list[int] = []
    emptiest = [(-gpus, 1, node) for node, gpus in enumerate(free)]
    heapq.heapify(emptiest)
    for trial in range(trials):
        node = emptiest[0][2]
        free[node] -= p_min
        homes.append(node)
        heapq.heapreplace(emptiest, (-free[node], -trial, node))
    return homes


def _grow(
    trial: int, dealt: list[int], node: int, free: list[int], p_max: int, gpus_per_instance: int
) -> bool:
    """Give a trial one more GPU or instance; return False if it can have no more."""
    if free[node] > 0 and dealt[trial] < p_max:
        free[node] -= 1
        dealt[trial] += 1
        return True
    empty = next((i for i, n in enumerate(free) if n == gpus_per_instance), None)
    grown = dealt[trial] + gpus_per_instance
    if empty is None or dealt[trial] % gpus_per_instance or grown > p_max:
        return False
    free[empty] = 0
    dealt[trial] = grown
    return True


class DeadlineSchedule(Search):
    """ASHA's search, with the runs of its trials, and how long things take. It also remembers the
    longest time of a trial that no longer runs, and in slots, the smallest free one first, the
    `TrialRun`s under way and those used for estimates.
    """

    def __init__(self, setting: SearchSetting) -> None:
        super().__init__(setting, AtRandom(setting.problem))
        self.pace = MeasuredPace()
        self._watch = Stopwatch(setting.problem.scaling)
        self.present: dict[str, TrialRun] = {}  # runs under way, by trial
        self._ended: dict[int, TrialRun] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._newest = 0
        self._trained_s: dict[str, float] = {}
        self._longest_s = 0.0
        self._run_changes: dict[str, Json] = {}

    def restore(self, values: Mapping[str, Json], view: View) -> None:
        """Restore what was remembered. Raises `ValueError` if no schedule can have written it."""
        self._trained_s = {name: real(value) for name, value in _after(TRAINED, values)}
        self._longest_s = real(values.get("longest_s", 0.0))
        slots = {int(slot): read_run(value) for slot, value in _after(RUN, values)}
        numbers = {run.number for run in slots.values()}
        if len(numbers) < len(slots):
            raise ValueError(slots)
        self._newest = max(numbers, default=0)
        self._slots = {run.number: slot for slot, run in slots.items()}
        self.present = {run.trial: run for run in slots.values() if run.ended_at is None}
        self._ended = {run.number: run for run in slots.values() if run.ended_at is not None}
        super().restore(values, view)
        self._look(slots.values(), view)
        for run in [run for run in self._ended.values() if not self._watch.counts(run)]:
            self._forget(run)

    def take_up(self, view: View) -> None:
        """Go on without a memory: a trial has run from its first report to its last."""
        began = (trial.history for trial in view.trials.values() if trial.history)
        self._remember_longest(max((h[-1].at_s - h[0].at_s for h in began), default=0.0))
        super().take_up(view)

    def take_changes(self) -> dict[str, Json]:
        """Return what has changed in the memory since the last call."""
        changes, self._run_changes = self._run_changes, {}
        return changes | super().take_changes()

    def look(self, view: View) -> None:
        """Note the new reports of the runs under way."""
        self._look(self.present.values(), view)
        self.pace = self._watch.pace()

    def longest_s(self, now_s: float) -> float:
        """Return how many seconds the longest trial has run in all."""
        runs = self.present.values()
        return max([self._longest_s, *(run.before_s + now_s - run.since_s for run in runs)])

    def worth(self, run: TrialRun, gpus: int, left_s: float) -> bool:
        """Return whether a running trial should be restarted on more GPUs."""
        speed = self.setting.problem.scaling.speed
        on_more = speed(gpus) * (left_s - self.pace.startup_s)
        return on_more > WORTH * speed(run.gpus) * left_s

    def usable(self, name: str, left_s: float) -> int:
        """Return the most GPUs that are worth giving to a trial."""
        run, allowed = self.present.get(name), self.setting.sizes
        if run is None:
            return allowed[0]
        larger = (size for size in allowed if size > run.gpus and self.worth(run, size, left_s))
        return max([run.gpus, *larger])

    def begin(self, name: str, gpus: int, now_s: float, grows_at: int = 0) -> TrialRun:
        """Begin a run: a trial is given GPUs."""
        self._newest += 1
        run = TrialRun(self._newest, name, gpus, now_s, self._trained_s.get(name, 0.0), grows_at)
        self._slots[run.number] = heapq.heappop(self._free) if self._free else len(self._slots)
        self.present[name] = run
        self._remember(run)
        return run

    def end(self, name: str, now_s: float, view: View) -> None:
        """End a run: its trial no longer has its GPUs."""
        before, trial = self.present.pop(name), view.trials.get(name)
        run = replace(before, ended_at=0 if trial is None else trial.reports)
        trained_s = run.before_s + max(0.0, now_s - run.since_s)
        self._trained_s[name] = trained_s
        self._run_changes[TRAINED + name] = trained_s
        self._remember_longest(trained_s)
        self._ended[run.number] = run
        self._remember(run)
        if not self._watch.counts(run):
            self._forget(run)

    def end_idle(self, now_s: float, view: View) -> None:
        """End the runs of trials that are not on the way to a rung."""
        running = self.running
        for name in [name for name in self.present if name not in running]:
            self.end(name, now_s, view)

    def _look(self, runs: Iterable[TrialRun], view: View) -> None:
        for run in runs:
            trial = view.trials.get(run.trial)
            if trial is not None:
                self._watch.observe(run, trial)
        for number in self._watch.trim():
            if number in self._ended:
                self._forget(self._ended[number])

    def _forget(self, run: TrialRun) -> None:
        self._watch.forget(run)
        del self._ended[run.number]
        heapq.heappush(self._free, self._slots.pop(run.number))

    def _remember(self, run: TrialRun) -> None:
        self._run_changes[f"{RUN}{self._slots[run.number]}"] = [*astuple(run)]

    def _remember_longest(self, longest_s: float) -> None:
        if longest_s > self._longest_s:
            self._longest_s = longest_s
            self._run_changes["longest_s"] = longest_s


def _after(prefix: str, values: Mapping[str, Json]) -> list[tuple[str, Json]]:
    return [(key.removeprefix(prefix), v) for key, v in values.items() if key.startswith(prefix)]


def _sizes(problem: Problem, gpus: int) -> tuple[int, ...]:
    params = problem.params
    most = gpus if params.p_max is None else min(gpus, params.p_max)
    return tuple(takewhile(lambda p: p <= most, (params.p_min << doubled for doubled in range(32))))


def _decide(schedule: DeadlineSchedule, view: View) -> Plan:
    """Run ASHA while there is time; then the running trials share all GPUs."""
    cluster = schedule.setting.cluster
    schedule.look(view)
    left_s = cluster.end_s - max(view.now_s, cluster.start_s)
    new = _next(schedule, view, left_s)
    schedule.end_idle(view.now_s, view)
    judged = schedule.take_compared(view)
    if not schedule.running:
        return Plan(new=new, done=True, compared=judged)
    allocations = tuple(_allocations(schedule, view, left_s))
    return Plan(allocations, new, ask_at_s=cluster.ask_at_s, compared=judged)


def _next(schedule: DeadlineSchedule, view: View, left_s: float) -> tuple[NewTrial, ...]:
    setting, arrivals = schedule.setting, schedule.settle(view)
    longest_s, most = schedule.longest_s(view.now_s), setting.brackets[0][-1]
    eta = setting.problem.params.eta
    if worth_starting(left_s, longest_s, schedule.pace, most, eta):
        return schedule.fill(view)
    schedule.carry_on(view, arrivals)
    while _idle(schedule, left_s) and schedule.go_on_with_the_best(view):
        pass
    return () if schedule.running else schedule.fill(view)


def _idle(schedule: DeadlineSchedule, left_s: float) -> bool:
    """Return whether none runs, or, where idle GPUs are paid, some GPUs are of no use to any."""
    running, pace, setting = schedule.running, schedule.pace, schedule.setting
    if not running or not setting.cluster.idle_paid:
        return not running
    if pace.report_s is None or left_s < pace.startup_s + pace.report_s:
        return False
    usable = sum(schedule.usable(name, left_s) for name in running)
    fits = usable + setting.problem.params.p_min <= setting.cluster.gpus
    return fits and len(running) < setting.places


def _allocations(schedule: DeadlineSchedule, view: View, left_s: float) -> list[Allocation]:
    """List every running trial, best first. Sizes are doubled, as batches have to be split."""
    setting, names = schedule.setting, schedule.running
    cluster, problem = setting.cluster, setting.problem
    ranked = rank((view.trials[name] for name in names if name in view.trials), view.mode)
    last = [trial.id for trial in ranked if trial.reports > 0 and trial.metric is None]
    # new ones stand where those without a report do
    new = [name for name in names if name not in view.trials]
    order = [*(trial.id for trial in ranked if trial.id not in last), *new, *last]
    p_max = cluster.gpus if problem.params.p_max is None else problem.params.p_max
    dealt = deal(len(order), cluster.gpus, problem.params.p_min, p_max, problem.gpus_per_instance)
    now_s = max(view.now_s, cluster.start_s)
    halved = [max((p for p in setting.sizes if p <= gpus), default=gpus) for gpus in dealt]
    return [
        _allocate(schedule, view, name, gpus, now_s, left_s)
        for name, gpus in zip(order, halved, strict=True)
    ]


def _allocate(
    schedule: DeadlineSchedule, view: View, name: str, gpus: int, now_s: float, left_s: float
) -> Allocation:
    """Keep a running trial's GPUs, unless some are taken or it is worth restarting on more."""
    reports = view.trials[name].reports if name in view.trials else 0
    until = schedule.running[name].until
    run = schedule.present.get(name)
    if run is None:
        run = schedule.begin(name, gpus, now_s)
    elif gpus > run.gpus and reports < run.grows_at and schedule.worth(run, gpus, left_s):
        until = min(until, run.grows_at)
    elif gpus < run.gpus or (gpus > run.gpus and schedule.worth(run, gpus, left_s)):
        schedule.end(name, now_s, view)
        run = schedule.begin(name, gpus, now_s, reports + RESULTS_BETWEEN)
    return Allocation(name, run.gpus, until=until)


HYPERSCHED = policy(
    lambda problem: setting(problem, (rung_reports(problem.params),), _sizes),
    DeadlineSchedule,
    _decide,
)
