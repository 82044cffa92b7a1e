"""Rounds of ever fewer GPUs, fixed by the limits and `t_min`: SEER+ where instances are rented and
the time is short.

Their number and lengths are those of SEER (Dunlap et al., SoCC '21, Algorithm 2) with one bracket,
but the first round lasts `FIRST_LOOK` times `t_min`, so that every trial reports more than once.
Each may use an equal share of the GPU time that is left, in whole instances. As many trials begin
as there are GPUs; 1 in eta goes on, but no fewer than `FINALISTS` as long as there is room. The
last round has three parts: all, half of them, the best one. What finalists leave of a paid instance
goes to trials that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from seerd.planner.asha import places, sizes
from seerd.planner.caching import per_problem
from seerd.planner.model import Bracket, Group, Impossible, Outline, Problem, Stage
from seerd.planner.seer import bracket_parameters
from seerd.planner.windows import FINALISTS

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


@per_problem
def rounds_of(problem: Problem) -> tuple[ElasticRound, ...]:
    """Divide time and GPUs into rounds; none where idle GPUs cost nothing, there is much time, the
    budget pays for all GPUs or for hardly any, or a trial that makes room begins anew.
    """
    limits, params, most = problem.planned, problem.params, problem.planned.max_gpus
    enough = most is not None and limits.budget_gpu_s >= most * limits.deadline_s
    part = most is not None and most < problem.gpus_per_instance
    long = limits.deadline_s >= SHORT * params.t_min_s
    if problem.begins_anew or not problem.whole or enough or part or long:
        return ()
    lengths = _lengths(problem)
    made = tuple(_rounds(problem, lengths)) if lengths else ()
    return made if sum(round_.gpu_s for round_ in made) <= limits.budget_gpu_s else ()


def _lengths(problem: Problem) -> list[float]:
    """Return the length of each round in seconds; none if the limits do not fit one."""
    limits, params = problem.planned, problem.params
    seer = bracket_parameters(limits, params)
    if isinstance(seer, Impossible):
        return []
    total_s, eta = limits.deadline_s, float(params.eta)
    published_s = float(seer.first_round) if seer.rounds > 1 else 0.0
    first_s = max(published_s, min(FIRST_LOOK * params.t_min_s, total_s * MOST_LOOK))
    later = [eta**number for number in range(1, max(2, seer.rounds))]
    left_s = total_s - first_s
    return [first_s, *(left_s * part / sum(later) for part in later)]


def _rounds(problem: Problem, lengths: list[float]) -> Iterator[ElasticRound]:
    params, size = problem.params, problem.gpus_per_instance
    begins_s, left_gpu_s, first = problem.start_s, problem.planned.budget_gpu_s, 0
    for number, length_s in enumerate(lengths):
        last = number == len(lengths) - 1
        gpus = _whole(problem, left_gpu_s / (len(lengths) - number) / length_s, down=last)
        room = places(gpus, params.p_min, size)
        if number == 0:
            first = room if params.trials is None else min(room, params.trials)
        trials = max(1, min(first, room, max(FINALISTS, int(first / params.eta**number))))
        round_ = ElasticRound(begins_s, begins_s + length_s, gpus, trials)
        yield from _parts(round_) if last else (round_,)
        begins_s, left_gpu_s = round_.end_s, left_gpu_s - round_.gpu_s


def _whole(problem: Problem, gpus: float, *, down: bool) -> int:
    size, most = problem.gpus_per_instance, problem.planned.max_gpus
    count = max(-(-problem.params.p_min // size), int(gpus / size + (0.0 if down else 0.5)))
    return size * (count if most is None else min(count, most // size))


def _parts(last: ElasticRound) -> Iterator[ElasticRound]:
    """Divide the last round: all of its trials, half of them, the best one."""
    length_s = last.end_s - last.start_s
    counts = (last.trials, max(1, last.trials // 2), 1)
    for trials, (begins, ends) in zip(counts, pairwise(LAST_ROUND), strict=True):
        begins_s = last.start_s + begins * length_s
        yield ElasticRound(begins_s, last.start_s + ends * length_s, last.gpus, trials)


def outlined(problem: Problem, rounds: tuple[ElasticRound, ...]) -> Outline:
    """Outline the rounds as if no trial ended or stopped improving."""
    stages = tuple(Stage(r.start_s, r.end_s, tuple(_groups(problem, r, rounds[0]))) for r in rounds)
    least = min(FINALISTS, rounds[0].trials)
    note = GOES_ON.format(eta=problem.params.eta, least=least)
    return Outline(
        brackets=(Bracket(problem.params.p_min, rounds[0].trials, sum(s.gpu_s for s in stages)),),
        stages=stages,
        first_round_s=rounds[0].end_s - rounds[0].start_s,
        adjusted=(*problem.adjusted, note),
        sizes=sizes(problem, rounds[0].gpus),
    )


def _groups(problem: Problem, round_: ElasticRound, first: ElasticRound) -> Iterator[Group]:
    """Yield how many trials have how many GPUs: finalists, and those that wait."""
    size, spare = problem.params.p_min, round_.gpus - problem.params.p_min * round_.trials
    counts: dict[int, int] = {}
    for _ in range(round_.trials):
        most = size + spare
        if round_.trials > 1:
            most = min(most, max(size, problem.gpus_per_instance))
        gpus = max(p for p in sizes(problem, round_.gpus) if p <= most)
        spare -= gpus - size
        counts[gpus] = counts.get(gpus, 0) + 1
    beside = min(spare // size, first.trials - round_.trials)
    if beside > 0:
        counts[size] = counts.get(size, 0) + beside
    yield from (Group(gpus, counts[gpus]) for gpus in sorted(counts))
