"""SEER+: many configurations for a short time, ever fewer for longer, and at the end the best one
on all GPUs.

The one rule: the time that there is, and how long a report takes, decide how deep the search goes.
No length of a training need be known.

The time is divided into windows of equal length, the last one shorter. There are rungs at r, eta r,
eta^2 r, ... reports, one fewer than windows. In the first window a free GPU goes to a trial that is
among the best 1/eta of its rung, else to a new configuration, as in ASHA (Li et al., MLSys '20). In
window k, from 0, trials that have not come to rung k wait; whoever is among the best of a rung goes
on, else the best that waits. In the last window the best trial of the highest rung gets as many
GPUs as are worth a restart; when it has ended, the next. Trials take turns: there may be many more
of them than GPUs.

windows   one more than the rungs that a trial could pass if it had two GPUs for the whole time, and
          at least two; a training that is known to be shorter counts with its length
r         `min_reports`; else 2, or 1 if the first reports rank trials as the second ones do
draws     random at first; once `LEARNS` trials have come to the first rung, by a model of what was
          seen (`seerd.planner.surrogate`), but for one in five

A trial whose last report is not finite is out. One that has stopped improving waits until nobody
else wants its GPUs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from seerd.planner.asha import HOPELESS, TRAINS_S, fixed_outline, places, sizes
from seerd.planner.caching import per_problem
from seerd.planner.draws import draws
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import FORGOTTEN, Memory, recall
from seerd.planner.model import (
    Allocation,
    Compared,
    Impossible,
    Mode,
    NewTrial,
    Outline,
    Plan,
    PolicyParams,
    Problem,
    TrialView,
    Tried,
    View,
)
from seerd.planner.protocol import Policy
from seerd.planner.ranking import Standing, metric_at, standing_at
from seerd.planner.surrogate import RungResult, normal_scores, propose
from seerd.planner.turns import Diary, Turn, read_diary

FIRST, LAST = 2.0, 0.7
"""Lengths of the first and of the last window beside those of the others."""
LOOK = 2
"""Reports until trials are first compared, unless fewer say as much."""
STABLE = 0.6
"""The first report says as much as the second one if their ranks correlate so much or more."""
PAIRS = 6
"""Trials that must have made two reports before their ranks are believed."""
LEARNS = 12
PATIENCE = 5
"""Reports after which a trial may be found to have stopped improving."""
AT_RANDOM = 0.2
"""The share of configurations that are drawn at random even so."""
TURNS = (
    "{count} trials train at a time and take turns: how many there will be depends on how long "
    "their reports take"
)
WORTH = 1.1
"""A finalist gets more GPUs if with them it gets at least this many times as far."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a run.

    start_s  when the first one begins, seconds since the run began
    end_s    when the last one ends, seconds since the run began
    rungs    reports of each rung, ascending
    """

    start_s: float
    end_s: float
    rungs: tuple[int, ...]

    @property
    def last(self) -> int:
        """The last window's number, from 0."""
        return len(self.rungs)

    @property
    def _each_s(self) -> float:
        return (self.end_s - self.start_s) / (FIRST + (self.last - 1) + LAST)

    def at(self, now_s: float) -> int:
        """Return the number of the window at a moment."""
        passed = (now_s - self.start_s) / self._each_s - FIRST
        return 0 if passed < 0 else min(self.last, 1 + int(passed))

    def ends_s(self, number: int) -> float:
        """Return when a window ends, seconds since the run began."""
        if number == self.last:
            return self.end_s
        return self.start_s + self._each_s * (FIRST + number)

    def level(self, trial: TrialView) -> int:
        """Count the rungs that a trial has come to."""
        return sum(trial.reports >= rung for rung in self.rungs)


def windows_of(
    problem: Problem, cluster: FixedCluster, look: int, report_s: float | None, longest: int | None
) -> Windows:
    """Divide the time.

    look      reports until trials are first compared
    report_s  seconds of a report on one GPU; None: not known yet, so that there is one rung
    longest   reports of the longest training that has ended, or `max_reports`; None: not known
    """
    eta, total_s = problem.params.eta, cluster.end_s - cluster.start_s
    speed = problem.scaling.speed(min(2, cluster.gpus))
    reports = look if report_s is None else total_s / report_s * speed
    if longest is not None:
        reports = min(reports, longest)
    count = max(1, math.floor(math.log(max(1.0, reports / look), eta) + 1e-9))
    rungs = tuple(round(look * eta**number) for number in range(count))
    return Windows(cluster.start_s, cluster.end_s, rungs)


def first_look(params: PolicyParams, view: View) -> int:
    """Choose after how many reports trials are first compared."""
    if params.min_reports is not None:
        return params.min_reports
    sign = 1.0 if view.mode == "max" else -1.0
    pairs = []
    seen: Sequence[Tried] = (*params.earlier, *view.trials.values())
    for trial in seen:
        early = [(r.reports, r.metric) for r in trial.history[:2] if r.metric is not None]
        if [reports for reports, _ in early] == [1, 2]:
            pairs.append([sign * metric for _, metric in early])
        if len(pairs) == 20:
            break
    return 1 if len(pairs) >= PAIRS and _rank_correlation(pairs) >= STABLE else LOOK


def _rank_correlation(pairs: Sequence[Sequence[float]]) -> float:
    first, second = (normal_scores([pair[i] for pair in pairs]) for i in (0, 1))
    spread = math.sqrt(float((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread > 0 else 0.0


@dataclass(slots=True)
class _Moment:
    """One question, and what has been decided of the answer so far.

    allocations  who shall train, with how many GPUs and until how many reports
    new          configurations that are asked for
    """

    problem: Problem
    cluster: FixedCluster
    view: View
    diary: Diary
    windows: Windows
    allocations: dict[str, Allocation] = field(default_factory=dict)
    new: list[NewTrial] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The window."""
        return self.windows.at(self.view.now_s)

    @property
    def free(self) -> int:
        """GPUs that nobody has."""
        return self.cluster.gpus - sum(a.gpus for a in self.allocations.values())

    def runnable(self) -> Iterator[TrialView]:
        """Yield the trials that may train on."""
        most = self.problem.params.max_reports or math.inf
        for trial in self.view.trials.values():
            if trial.status == "live" and not _diverged(trial) and trial.reports < most:
                yield trial

    def standing(self, trial: TrialView, level: int) -> Standing:
        """Compute how a trial stands at the rung of a level, from 1; level 0: by what it has."""
        reports = self.windows.rungs[level - 1] if level else trial.reports
        return standing_at(trial, reports, self.view.mode)

    def settled(self, trial: TrialView) -> bool:
        """Tell whether a trial has stopped improving."""
        return settled(trial, self.view.mode)

    def best_first(self, trial: TrialView) -> tuple[int, Standing]:
        """Order trials: those that have come to a higher rung first, then by how they stand."""
        level = self.windows.level(trial)
        return -level, self.standing(trial, level)

    def arrived(self, level: int) -> list[TrialView]:
        """List the trials that have come to the rung of a level, best first."""
        rung = self.windows.rungs[level - 1]
        there = (t for t in self.view.trials.values() if t.reports >= rung)
        return sorted(there, key=lambda trial: self.standing(trial, level))

    def allocate(self, trial: TrialView, gpus: int, until: int | None) -> None:
        """Let a trial train; nobody trains beyond `max_reports`."""
        most = self.problem.params.max_reports
        if most is not None:
            until = most if until is None else min(most, until)
        self.allocations[trial.id] = Allocation(trial.id, gpus, 0, until)


def _diverged(trial: TrialView) -> bool:
    return trial.reports > 0 and trial.metric is None


def settled(trial: Tried, mode: Mode) -> bool:
    """Tell whether a trial has stopped improving: after `PATIENCE` reports or more, none of the
    later half is better than the best of the earlier half.
    """
    count = trial.history[-1].reports if trial.history else 0
    if count < PATIENCE:
        return False
    sign = 1.0 if mode == "max" else -1.0
    early = late = -math.inf
    for report in trial.history:
        value = -math.inf if report.metric is None else sign * report.metric
        if 2 * report.reports <= count:
            early = max(early, value)
        else:
            late = max(late, value)
    return late <= early


def _decide(moment: _Moment) -> None:
    if moment.number == moment.windows.last:
        _finish(moment)
    else:
        _search(moment)


def _search(moment: _Moment) -> None:
    """Fill the GPUs in a window before the last one."""
    size, windows = moment.problem.params.p_min, moment.windows
    runnable = {trial.id: trial for trial in moment.runnable()}
    for name, turn in moment.diary.turns.items():
        trial = runnable.get(name)
        if (
            trial is not None
            and turn.until is not None
            and trial.reports < turn.until
            and windows.level(trial) >= moment.number
            and moment.free >= size
            and not moment.settled(trial)
        ):
            moment.allocate(trial, size, turn.until)
    queue = _Queue(moment, [t for name, t in runnable.items() if name not in moment.allocations])
    room = places(moment.cluster.gpus, size, moment.problem.gpus_per_instance)
    while len(moment.allocations) < room:
        trial = queue.take() or _new(moment) or queue.take_rest()
        if trial is None:
            break
        following = (rung for rung in windows.rungs if rung > trial.reports)
        moment.allocate(trial, size, next(following, None))
    furthest = sorted(moment.allocations.values(), key=lambda a: (-(a.until or math.inf), a.trial))
    moment.allocations = {allocation.trial: allocation for allocation in furthest}


class _Queue:
    """Who goes on next among those that wait, by how far they have come.

    In the first window nobody goes on who is not among the best 1/eta of a rung below the last one,
    as long as there are new configurations.
    """

    def __init__(self, moment: _Moment, waiting: Sequence[TrialView]) -> None:
        windows, eta = moment.windows, moment.problem.params.eta
        still = {trial.id for trial in waiting if not moment.settled(trial)}
        self._settled = sorted((t for t in waiting if t.id not in still), key=moment.best_first)
        waiting = [trial for trial in waiting if trial.id in still]
        self._waiting: dict[int, list[TrialView]] = {}
        self._best: dict[int, set[str]] = {}
        for level in range(windows.last, -1, -1):
            here = [trial for trial in waiting if windows.level(trial) == level]
            self._waiting[level] = sorted(here, key=partial(moment.standing, level=level))
            if 0 < level < windows.last:
                arrived = moment.arrived(level)
                self._best[level] = {t.id for t in arrived[: int(len(arrived) / eta)]}
        self._first = moment.number == 0

    def take(self) -> TrialView | None:
        """Take out the next one that should rather go on than that a new one begins; None if there
        is none.
        """
        for level, waiting in self._waiting.items():
            if waiting and waiting[0].id in self._best.get(level, ()):
                return waiting.pop(0)
        unheard = self._waiting[0]
        if self._first:
            return unheard.pop(0) if unheard else None
        return self._furthest()

    def take_rest(self) -> TrialView | None:
        """Take out the next of all that are left; those that have stopped improving come last."""
        return self._furthest() or (self._settled.pop(0) if self._settled else None)

    def _furthest(self) -> TrialView | None:
        return next((waiting.pop(0) for waiting in self._waiting.values() if waiting), None)


def _finish(moment: _Moment) -> None:
    """Fill the GPUs in the last window: the best trial first."""
    waiting = sorted(moment.runnable(), key=lambda t: (moment.settled(t), moment.best_first(t)))
    for place, trial in enumerate(waiting):
        most = _most_gpus(moment, trial) if place == 0 else moment.problem.params.p_min
        if most > moment.free:
            return
        moment.allocate(trial, most, None)
    while not waiting and moment.free >= moment.problem.params.p_min:
        made = _new(moment)
        if made is None:
            return
        moment.allocate(made, moment.problem.params.p_min, None)


def _most_gpus(moment: _Moment, trial: TrialView) -> int:
    """Choose the GPUs with which a trial gets furthest, a restart included."""
    speed, left_s = moment.problem.scaling.speed, moment.windows.end_s - moment.view.now_s
    turn = moment.diary.turns.get(trial.id)
    start_s = moment.diary.start_s
    allowed = sizes(moment.problem, moment.cluster.gpus)
    best = turn.gpus if turn is not None and turn.gpus in allowed else allowed[0]
    trained_s = left_s if turn is not None else left_s - start_s
    for gpus in allowed:
        if gpus > best and speed(gpus) * (left_s - start_s) > WORTH * speed(best) * trained_s:
            best, trained_s = gpus, left_s - start_s
    return best


def _new(moment: _Moment) -> NewTrial | None:
    """Ask for a configuration that was not tried before; None if no more are wanted."""
    diary, view, params = moment.diary, moment.view, moment.problem.params
    if params.trials is not None and diary.drawn >= params.trials:
        return None
    heard = any(trial.history for trial in view.trials.values())
    failed = sum(trial.status == "failed" for trial in view.trials.values())
    if not heard and failed >= max(HOPELESS, moment.cluster.gpus // params.p_min):
        return None
    config = draws(moment.problem)[diary.drawn]
    results = _results(moment)
    first = sum(result.rung == 0 for result in results)
    at_random = random.Random(f"{params.seed} {diary.drawn}").random() < AT_RANDOM
    if first >= LEARNS and not at_random and diary.drawn >= len(params.start):
        seen: Sequence[Tried] = (*params.earlier, *view.trials.values(), *moment.new)
        tried = [trial.config for trial in seen]
        chosen, diary.kernel = propose(moment.problem, tried, results, diary.drawn, diary.kernel)
        config = config if chosen is None else chosen
    diary.drawn += 1
    made = NewTrial(diary.name(diary.drawn), config)
    moment.new.append(made)
    return made


def _results(moment: _Moment) -> list[RungResult]:
    """List what the model learns from; a trial that has diverged is last on every rung."""
    sign = 1.0 if moment.view.mode == "max" else -1.0
    found = []
    trials: Sequence[Tried] = (*moment.problem.params.earlier, *moment.view.trials.values())
    for number, trial in enumerate(trials):
        for rung, reports in enumerate(moment.windows.rungs):
            if trial.history and trial.history[-1].reports >= reports:
                metric = metric_at(trial, reports)
                found.append(RungResult(number, rung, None if metric is None else sign * metric))
            elif trial.history and trial.history[-1].metric is None:
                found.append(RungResult(number, rung, None))
    return found


def _compared(moment: _Moment) -> Iterator[Compared]:
    """Yield how those stand whose turn has ended at a rung."""
    windows, eta = moment.windows, moment.problem.params.eta
    for name, turn in moment.diary.turns.items():
        trial = moment.view.trials.get(name)
        if trial is None or turn.until not in windows.rungs or trial.reports < turn.until:
            continue
        level = windows.rungs.index(turn.until) + 1
        order = [one.id for one in moment.arrived(level)]
        metric = metric_at(trial, turn.until)
        best = max(1, int(len(order) / eta)) if level < windows.last else 1
        yield Compared(name, metric, turn.until, order.index(name) + 1, len(order), best)


def _turns(moment: _Moment) -> dict[str, Turn]:
    """Note who trains from now on; whoever keeps its GPUs goes on without a restart."""
    found = {}
    for name, wanted in moment.allocations.items():
        before = moment.diary.turns.get(name)
        same = before is not None and before.gpus == wanted.gpus
        since_s = before.since_s if before is not None and same else moment.view.now_s
        found[name] = Turn(wanted.gpus, since_s, wanted.until)
    return found


def _answer(moment: _Moment) -> Plan:
    """Write the plan down."""
    view, windows = moment.view, moment.windows
    compared = tuple(_compared(moment))
    moment.diary.turns = _turns(moment)
    allocations = tuple(moment.allocations.values())
    if moment.diary.report_s is None:
        allocations = tuple(_asking(one, view) for one in allocations)
    gone = (t.id for t in view.trials.values() if t.status == "live" and _diverged(t))
    ask_at_s = windows.ends_s(moment.number)
    known = moment.diary.report_s is not None and ask_at_s > view.now_s
    return Plan(
        allocations,
        tuple(moment.new),
        tuple(gone),
        ask_at_s=(ask_at_s if known else moment.cluster.ask_at_s),
        hold_gpus=moment.cluster.gpus,
        done=not allocations,
        compared=compared,
    )


def _asking(allocation: Allocation, view: View) -> Allocation:
    """Ask again at the next report, as long as nobody knows how long one takes."""
    trial = view.trials.get(allocation.trial)
    return allocation._replace(until=1 if trial is None else trial.reports + 1)


@per_problem
def _cluster(problem: Problem) -> FixedCluster | Impossible:
    return fixed_cluster(problem)


def outline(problem: Problem) -> Outline | Impossible:
    """Outline one stage on the whole cluster: how long a report takes is not known yet."""
    cluster = _cluster(problem)
    if isinstance(cluster, Impossible):
        return cluster
    beside = places(cluster.gpus, problem.params.p_min, problem.gpus_per_instance)
    made = fixed_outline(problem, cluster, ((LOOK,),), beside, sizes(problem, cluster.gpus))
    return replace(
        made, adjusted=(*made.adjusted, TURNS.format(count=made.stages[0].groups[0].trials))
    )


def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Answer one question; see `seerd.planner.protocol.Policy`."""
    cluster = _cluster(problem)
    if isinstance(cluster, Impossible):
        raise ValueError(cluster.reason)
    if cluster.over(view.now_s):
        return Plan(done=True), memory.after({})
    diary = recall(memory, 1, read_diary)
    forgotten = diary is None and len(view.trials) > 0
    if diary is None:
        beside = places(cluster.gpus, problem.params.p_min, problem.gpus_per_instance)
        diary = Diary.new(view, beside * int(problem.planned.deadline_s / TRAINS_S))
    diary.look(view, problem.scaling)
    ended = [t.reports for t in view.trials.values() if t.status == "finished" and t.reports]
    longest = problem.params.max_reports or max(ended, default=None)
    look = first_look(problem.params, view)
    windows = windows_of(problem, cluster, look, diary.report_s, longest)
    moment = _Moment(problem, cluster, view, diary, windows)
    _decide(moment)
    found = _answer(moment)
    after = diary.remembered(memory)
    return (replace(found, note=FORGOTTEN) if forgotten else found), after


SEER_PLUS = Policy(outline, plan)
