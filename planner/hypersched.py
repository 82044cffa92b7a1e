"""HyperSched: from trying many configurations to training the best on all GPUs as the deadline
nears (Liaw et al., SoCC '19), on a fixed cluster, with ASHA's rungs in one bracket.

The paper knows its training loop and measures it. Here `pace` estimates from the newest reports how
long reports and starts take. When no trial may start and the last one has come to a rung, the best
paused trial goes on: the GPUs are there until the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from msgspec import Struct, convert, to_builtins

from seerd.planner.asha import AtRandom, Search, SearchSetting, policy, setting
from seerd.planner.memory import Count, Json
from seerd.planner.model import Allocation, NewTrial, Plan, View
from seerd.planner.pace import MeasuredPace
from seerd.planner.ranking import rank
from seerd.planner.rungs import rung_reports

WORTH = 1.1  # least times as far as before that a trial must get with more GPUs, to be given them

RESULTS_BETWEEN = 5  # a trial is given more GPUs at most once in this many reports

# begin keys of the memory, before a trial's id: its run, and the seconds that it ran before
RUN, TRAINED = "run ", "trained "


class TrialRun(Struct, frozen=True, array_like=True):
    """A trial's time on one number of GPUs."""

    gpus: Count
    since_s: float  # when it began, seconds since the tuning run began
    grows_at: Count = 0  # the trial may be given more GPUs when it has made this many reports


def worth_starting(
    left_s: float, longest_s: float, pace: MeasuredPace, most_reports: int, eta: float
) -> bool:
    """Return whether a trial that starts now has time to train, or for eta times the longest."""
    as_long_s = (longest_s - pace.start_s) * eta
    return left_s >= (
        as_long_s if pace.report_s is None else min(as_long_s, most_reports * pace.report_s)
    )


def deal(trials: int, gpus: int, p_min: int, p_max: int, gpus_per_instance: int) -> list[int]:
    """Deal out the GPUs, best first: `p_min` each, one more in turn, then empty instances."""
    whole, rest = divmod(gpus, gpus_per_instance)
    if p_min > gpus_per_instance:
        return [p_min] * trials
    free = [gpus_per_instance] * whole + [rest] * (rest > 0)
    homes: list[int] = []  # each trial's instance, evenly; the best share least
    emptiest = [(-unused, 1, node) for node, unused in enumerate(free)]
    heapq.heapify(emptiest)
    for trial in range(trials):
        node = emptiest[0][2]
        free[node] -= p_min
        homes.append(node)
        heapq.heapreplace(emptiest, (-free[node], -trial, node))
    dealt, growing = [p_min] * trials, list(range(trials))

    def grows(trial: int) -> bool:
        """Give a trial one more GPU or instance; return False if it can have no more."""
        if free[homes[trial]] > 0 and dealt[trial] < p_max:
            free[homes[trial]] -= 1
            dealt[trial] += 1
            return True
        empty = next((i for i, n in enumerate(free) if n == gpus_per_instance), None)
        grown = dealt[trial] + gpus_per_instance
        if empty is None or dealt[trial] % gpus_per_instance or grown > p_max:
            return False
        free[empty] = 0
        dealt[trial] = grown
        return True

    while growing:
        growing = [trial for trial in growing if grows(trial)]
    return dealt


class DeadlineSchedule(Search):
    """ASHA's search, with the runs of its trials, how long these have run in all, and how long
    things take.
    """

    def __init__(self, setting: SearchSetting) -> None:
        super().__init__(setting, AtRandom(setting.problem))
        self.pace = MeasuredPace()
        self.present: dict[str, TrialRun] = {}  # runs under way, by trial
        self._trained_s: dict[str, float] = {}
        self._kept: dict[str, Json] = {}
        self._noted: dict[str, Json] = {}

    def recall(self, values: Mapping[str, Json], view: View) -> None:
        """Restore what was remembered. Raises `ValueError` if no schedule can have written it."""
        self._trained_s = convert(_after(TRAINED, values), dict[str, float])
        self.present = convert(_after(RUN, values), dict[str, TrialRun])
        self.pace = convert(values, MeasuredPace)
        self._kept = to_builtins(self.pace)
        super().recall(values, view)

    def take_up(self, view: View) -> None:
        """Go on without a memory: a trial has run from its first report to its last."""
        histories = {name: t.history for name, t in view.trials.items() if t.history}
        self._trained_s = {name: h[-1].at_s - h[0].at_s for name, h in histories.items()}
        self._noted |= {TRAINED + name: seconds for name, seconds in self._trained_s.items()}
        self.pace.heard_s = view.now_s
        super().take_up(view)

    def take_changes(self) -> dict[str, Json]:
        """Return what has changed in the memory since the last call."""
        pace, changes, self._noted = to_builtins(self.pace), self._noted, {}
        changes |= {key: value for key, value in pace.items() if value != self._kept.get(key)}
        self._kept = pace
        return changes | super().take_changes()

    def look(self, view: View) -> None:
        """Note the new reports of the runs under way; trials that were moved start from a
        checkpoint.
        """
        for name in sorted(self.present):  # whatever the memory's order is
            run = self.present[name]
            if (trial := view.trials.get(name)) is not None:
                speed, starts = self._speed(run.gpus), run.grows_at == 0
                self.pace.note(run.since_s, trial.history, speed, starts=starts)
        self.pace.heard(view.now_s)

    def longest_s(self, now_s: float) -> float:
        """Return how many seconds the longest trial has run in all."""
        present = (self._before_s(name) + now_s - run.since_s for name, run in self.present.items())
        return max([0.0, *self._trained_s.values(), *present])

    def worth(self, run: TrialRun, gpus: int, left_s: float) -> bool:
        """Return whether a running trial should be restarted on more GPUs."""
        on_more = self._speed(gpus) * (left_s - self.pace.start_s)
        return on_more > WORTH * self._speed(run.gpus) * left_s

    def usable(self, name: str, left_s: float) -> int:
        """Return the most GPUs that are worth giving to a trial."""
        run, allowed = self.present.get(name), self.setting.sizes
        if run is None:
            return allowed[0]
        larger = (size for size in allowed if size > run.gpus and self.worth(run, size, left_s))
        return max([run.gpus, *larger])

    def begin(self, name: str, gpus: int, now_s: float, grows_at: int = 0) -> TrialRun:
        """Begin a run: a trial is given GPUs."""
        run = self.present[name] = TrialRun(gpus, now_s, grows_at)
        self._noted[RUN + name] = to_builtins(run)
        return run

    def end(self, name: str, now_s: float) -> None:
        """End a run: its trial no longer has its GPUs."""
        ran_s = max(0.0, now_s - self.present.pop(name).since_s)
        self._trained_s[name] = self._before_s(name) + ran_s
        self._noted |= {RUN + name: None, TRAINED + name: self._trained_s[name]}

    def end_idle(self, now_s: float) -> None:
        """End the runs of trials that are not on the way to a rung."""
        for name in [name for name in self.present if name not in self.running]:
            self.end(name, now_s)

    def answer(self, view: View) -> Plan:
        """Run ASHA while there is time; then the running trials share all GPUs."""
        cluster = self.setting.cluster
        self.look(view)
        left_s = cluster.end_s - max(view.now_s, cluster.start_s)
        new = self._next(view, left_s)
        self.end_idle(view.now_s)
        judged = self.take_compared(view.mode)
        if not self.running:
            return Plan(new=new, done=True, compared=judged)
        allocations = tuple(self._allocations(view, left_s))
        return Plan(allocations, new, ask_at_s=cluster.ask_at_s, compared=judged)

    def _next(self, view: View, left_s: float) -> tuple[NewTrial, ...]:
        setting, arrivals = self.setting, self.settle(view)
        longest_s, most = self.longest_s(view.now_s), setting.brackets[0][-1]
        eta = setting.problem.params.eta
        if worth_starting(left_s, longest_s, self.pace, most, eta):
            return self.fill(view)
        self.carry_on(view, arrivals)
        while self._wants_more(left_s) and self.promote_best(view):
            self.learn()
        return () if self.running else self.fill(view)

    def _wants_more(self, left_s: float) -> bool:
        """Return whether no trial runs, or some GPUs that are paid idle are of no use to any."""
        running, pace, setting = self.running, self.pace, self.setting
        if not running or not setting.cluster.idle_paid:
            return not running
        if pace.report_s is None or left_s < pace.start_s + pace.report_s:
            return False
        usable = sum(self.usable(name, left_s) for name in running)
        fits = usable + setting.problem.params.p_min <= setting.cluster.gpus
        return fits and len(running) < setting.places

    def _allocations(self, view: View, left_s: float) -> Iterator[Allocation]:
        """Yield every running trial, best first. Sizes are doubled, as batches have to be split. A
        trial keeps its GPUs, unless some are taken or it is worth restarting on more.
        """
        setting, names = self.setting, self.running
        cluster, problem, params = setting.cluster, setting.problem, setting.problem.params
        ranked = rank((view.trials[name] for name in names if name in view.trials), view.mode)
        last = [trial.id for trial in ranked if trial.reports > 0 and trial.metric is None]
        # new ones stand where those without a report do
        new = [name for name in names if name not in view.trials]
        order = [*(trial.id for trial in ranked if trial.id not in last), *new, *last]
        p_max = cluster.gpus if params.p_max is None else params.p_max
        dealt = deal(len(order), cluster.gpus, params.p_min, p_max, problem.gpus_per_instance)
        now_s = max(view.now_s, cluster.start_s)
        for name, most in zip(order, dealt, strict=True):
            gpus = max((p for p in setting.sizes if p <= most), default=most)
            reports = view.trials[name].reports if name in view.trials else 0
            until = self.running[name].until
            run = self.present.get(name)
            if run is None:
                run = self.begin(name, gpus, now_s)
            elif gpus > run.gpus and reports < run.grows_at and self.worth(run, gpus, left_s):
                until = min(until, run.grows_at)
            elif gpus < run.gpus or (gpus > run.gpus and self.worth(run, gpus, left_s)):
                self.end(name, now_s)
                run = self.begin(name, gpus, now_s, reports + RESULTS_BETWEEN)
            yield Allocation(name, run.gpus, until=until)

    def _before_s(self, name: str) -> float:
        return self._trained_s.get(name, 0.0)

    def _speed(self, gpus: int) -> float:
        return self.setting.problem.scaling.speed(gpus)


def _after(prefix: str, values: Mapping[str, Json]) -> dict[str, Json]:
    return {key.removeprefix(prefix): v for key, v in values.items() if key.startswith(prefix)}


HYPERSCHED = policy(
    lambda problem: setting(
        problem,
        (rung_reports(problem.params),),
        lambda problem, gpus: problem.params.doubled(gpus),
    ),
    DeadlineSchedule,
)
