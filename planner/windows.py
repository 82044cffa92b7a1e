"""How SEER+ divides the time: into windows on a cluster whose size stays the same, of equal length
but for the first and the last one, and one more than there are rungs; or, where instances are
rented and the time is short, into rounds of ever fewer GPUs, fixed by the limits and `t_min`.

The number and lengths of rounds are those of SEER (Dunlap et al., SoCC '21, Algorithm 2) with one
bracket, but the first lasts `FIRST_LOOK` times `t_min`, so every trial reports more than once.
Each may use an equal share of the GPU time that is left, in whole instances. As many trials begin
as there are GPUs; 1 in eta goes on, but no fewer than `FINALISTS` as long as there is room. The
last round has three parts: all, half of them, the best one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from seerd.planner.asha import places, sizes
from seerd.planner.caching import per_problem
from seerd.planner.fixed_cluster import FixedCluster
from seerd.planner.model import (
    Bracket,
    Group,
    Impossible,
    Outline,
    PolicyParams,
    Problem,
    Stage,
    TrialView,
    Tried,
    View,
)
from seerd.planner.seer import bracket_parameters
from seerd.planner.surrogate import normal_scores

FIRST, LAST = 2.0, 0.7  # lengths of the first and of the last window, relative to the others
LOOK = 2  # reports until trials are first compared, unless fewer say as much
STABLE = 0.6  # least correlation of ranks at which the first report says as much as the second
PAIRS = 6  # trials that must have made two reports before their ranks are believed
FINALISTS = 4
PARTS = 3  # in each of so many parts of the last window there are half as many finalists


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a run."""

    start_s: float  # when the first one begins, seconds since the run began
    end_s: float  # when the last one ends, seconds since the run began
    rungs: tuple[int, ...]  # reports of each rung, ascending

    @property
    def last(self) -> int:
        """The last window's number, from 0."""
        return len(self.rungs)

    def at(self, now_s: float) -> int:
        """Return the number of the window at a moment."""
        return sum(now_s >= self.ends_s(number) for number in range(self.last))

    def ends_s(self, number: int) -> float:
        """Return when a window ends, seconds since the run began."""
        if number == self.last:
            return self.end_s
        each_s = (self.end_s - self.start_s) / (FIRST + (self.last - 1) + LAST)
        return self.start_s + each_s * (FIRST + number)

    def finalists(self, now_s: float) -> int:
        """Return how many trials share the GPUs at a moment of the last window."""
        return max(1, FINALISTS >> self._part(now_s))

    def changes_s(self, now_s: float) -> float:
        """Return when the window at a moment, or its part, ends, seconds since the run began."""
        number = self.at(now_s)
        if number < self.last:
            return self.ends_s(number)
        return self._part_ends_s(min(PARTS - 1, self._part(now_s)))

    def _part(self, now_s: float) -> int:
        return sum(now_s >= self._part_ends_s(part) for part in range(PARTS))

    def _part_ends_s(self, part: int) -> float:
        begins_s = self.ends_s(self.last - 1)
        return begins_s + (part + 1) * (self.end_s - begins_s) / PARTS

    def level(self, trial: TrialView) -> int:
        """Return how many rungs a trial has come to."""
        return bisect_right(self.rungs, trial.reports)


def windows_of(
    problem: Problem, cluster: FixedCluster, look: int, report_s: float | None, longest: int | None
) -> Windows:
    """Divide the time.

    look      reports until trials are first compared
    report_s  seconds of a report on one slot; None: not known yet, so that there is one rung
    longest   reports of the longest training that has ended, or `max_reports`; None: not known
    """
    eta, total_s = problem.params.eta, cluster.end_s - cluster.start_s
    speed = problem.scaling.speed(min(2 * problem.parts, cluster.gpus))
    reports = look if report_s is None else total_s / report_s * speed
    if longest is not None:
        reports = min(reports, longest)
    count = max(1, math.floor(math.log(max(1.0, reports / look), eta) + 1e-9))
    rungs = tuple(round(look * eta**number) for number in range(count))
    return Windows(cluster.start_s, cluster.end_s, rungs)


def first_look(params: PolicyParams, view: View) -> int:
    """Return after how many reports trials are first compared."""
    if params.min_reports is not None:
        return params.min_reports
    sign = 1.0 if view.mode == "max" else -1.0
    pairs = []
    trials: Sequence[Tried] = (*params.earlier, *view.trials.values())
    for trial in trials:
        early = [(r.reports, r.metric) for r in trial.history[:2] if r.metric is not None]
        if [reports for reports, _ in early] == [1, 2]:
            pairs.append([sign * metric for _, metric in early])
        if len(pairs) == 20:
            break
    if len(pairs) < PAIRS:
        return LOOK
    first, second = (normal_scores([pair[i] for pair in pairs]) for i in (0, 1))
    spread = math.sqrt(float((first @ first) * (second @ second)))
    return 1 if spread > 0 and float(first @ second) / spread >= STABLE else LOOK


SHORT = 40  # a time of fewer than so many `t_min` is short
FIRST_LOOK = 3
MOST_LOOK = 1 / 3  # most share of the time for the first round, unless SEER's would be longer
# where the parts of the last round begin and end, as shares of it
LAST_ROUND = (0.0, 0.2, 0.5, 1.0)

GOES_ON = (
    "after each stage the best 1 in {eta:g} go on, but at least {least} as long as there is room; "
    "in the last ones they are halved until one is left; whoever waits may take a free place"
)


@dataclass(frozen=True, slots=True)
class ElasticRound:
    """A time with one number of GPUs and of trials."""

    start_s: float  # when it begins, seconds since the run began
    end_s: float  # when it ends, seconds since the run began
    gpus: int
    trials: int  # how many share them

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of all its GPUs."""
        return self.gpus * (self.end_s - self.start_s)

    def groups(self, problem: Problem, began: int) -> tuple[Group, ...]:
        """Return how many trials have how many GPUs: those of this round, and others of the `began`
        ones that wait.
        """
        size, spare = problem.params.p_min, self.gpus - problem.params.p_min * self.trials
        counts: Counter[int] = Counter()
        for _ in range(self.trials):
            most = size + spare
            if self.trials > 1:
                most = min(most, max(size, problem.gpus_per_instance))
            gpus = max(p for p in sizes(problem, self.gpus) if p <= most)
            spare -= gpus - size
            counts[gpus] += 1
        counts[size] += max(0, min(spare // size, began - self.trials))
        return tuple(Group(gpus, counts[gpus]) for gpus in sorted(counts) if counts[gpus])


@per_problem
def rounds_of(problem: Problem) -> tuple[ElasticRound, ...]:
    """Divide time and GPUs into rounds; none where idle GPUs cost nothing, there is much time, the
    budget pays for all GPUs or for hardly any, a job has a part of an instance, or a trial that
    makes room begins anew.
    """
    limits, params, most = problem.planned, problem.params, problem.planned.max_gpus
    enough = most is not None and limits.budget_gpu_s >= most * limits.deadline_s
    part = most is not None and most < problem.gpus_per_instance
    long = limits.deadline_s >= SHORT * params.t_min_s
    if problem.begins_anew or not problem.whole or enough or part or long:
        return ()
    seer = bracket_parameters(limits, params)
    if isinstance(seer, Impossible):
        return ()
    total_s, eta = limits.deadline_s, float(params.eta)
    published_s = float(seer.first_round) if seer.rounds > 1 else 0.0
    first_s = max(published_s, min(FIRST_LOOK * params.t_min_s, total_s * MOST_LOOK))
    later = [eta**number for number in range(1, max(2, seer.rounds))]
    left_s = total_s - first_s
    lengths_s = [first_s, *(left_s * part / sum(later) for part in later)]
    made = tuple(_rounds(problem, lengths_s))
    return made if sum(round_.gpu_s for round_ in made) <= limits.budget_gpu_s else ()


def _rounds(problem: Problem, lengths_s: list[float]) -> Iterator[ElasticRound]:
    params, size, most = problem.params, problem.gpus_per_instance, problem.planned.max_gpus
    begins_s, left_gpu_s, first = problem.start_s, problem.planned.budget_gpu_s, 0
    for number, length_s in enumerate(lengths_s):
        last = number == len(lengths_s) - 1
        exact = left_gpu_s / (len(lengths_s) - number) / length_s / size
        count = max(-(-params.p_min // size), int(exact + (0.0 if last else 0.5)))
        gpus = size * (count if most is None else min(count, most // size))
        room = places(gpus, params.p_min, size)
        if number == 0:
            first = room if params.trials is None else min(room, params.trials)
        trials = max(1, min(first, room, max(FINALISTS, int(first / params.eta**number))))
        round_ = ElasticRound(begins_s, begins_s + length_s, gpus, trials)
        if not last:
            yield round_
        else:  # it is divided: all of its trials, half of them, the best one
            counts, lasts_s = (trials, max(1, trials // 2), 1), round_.end_s - begins_s
            for some, (begin, end) in zip(counts, pairwise(LAST_ROUND), strict=True):
                start_s, end_s = begins_s + begin * lasts_s, begins_s + end * lasts_s
                yield ElasticRound(start_s, end_s, gpus, some)
        begins_s, left_gpu_s = round_.end_s, left_gpu_s - round_.gpu_s


def outlined(problem: Problem, rounds: tuple[ElasticRound, ...]) -> Outline:
    """Outline the rounds as if no trial ended or stopped improving."""
    stages = tuple(Stage(r.start_s, r.end_s, r.groups(problem, rounds[0].trials)) for r in rounds)
    least = min(FINALISTS, rounds[0].trials)
    note = GOES_ON.format(eta=problem.params.eta, least=least)
    return Outline(
        brackets=(Bracket(problem.params.p_min, rounds[0].trials, sum(s.gpu_s for s in stages)),),
        stages=stages,
        first_round_s=rounds[0].end_s - rounds[0].start_s,
        adjusted=(*problem.adjusted, note),
        sizes=sizes(problem, rounds[0].gpus),
    )
