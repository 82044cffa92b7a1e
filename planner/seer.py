"""SEER: sequential elimination with elastic resources (Dunlap et al., SoCC '21, "Elastic Hyperparameter Tuning on the Cloud").

The one rule: everything is exactly as published, in exact arithmetic; what the paper leaves open is said where it is settled.

The paper's symbols and their names here (sections 3.1 to 3.3, Algorithms 1 to 3):

T  deadline      B  budget       eta  of the trials of a bracket 1 in eta goes on to the next round
K  rounds        R* `r_star`     nu   from one bracket to the next a trial gets nu times the GPUs
t1 first_round   B0 `unit`, the budget of the smallest bracket      P, N  GPUs per trial and trials, for each bracket
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, islice

from seerd.planner.draws import draws
from seerd.planner.memo import per_problem
from seerd.planner.memory import Memory
from seerd.planner.model import (
    Allocation,
    Bracket,
    Compared,
    Group,
    Impossible,
    Limits,
    NewTrial,
    Outline,
    Plan,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from seerd.planner.names import trial_name
from seerd.planner.protocol import Policy
from seerd.planner.ranking import compared, rank
from seerd.planner.recall import FORGOTTEN, Values, holding, recall, texts, whole

VERSION = 1
"""Of what is remembered."""
MOST_ROUNDS = 64
WORTH_ROUNDS = Fraction(9, 10)
"""Another round may leave so much of the budget that others would use, see `_lengthened`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What Algorithms 2 and 3 compute. Seconds and GPU-seconds; `budgets`, `gpus` and `trials` have one entry per bracket."""

    rounds: int
    first_round: Fraction
    r_star: Fraction
    unit: Fraction
    eta: Fraction
    budgets: tuple[Fraction, ...]
    gpus: tuple[int, ...]
    trials: tuple[int, ...]
    start: Fraction = Fraction(0)
    adjusted: tuple[str, ...] = ()

    def members(self, bracket: int, stage: int) -> int:
        """How many trials of a bracket run in a stage (from 0): floor(N[i] / eta^k)."""
        return int(self.trials[bracket] / self.eta**stage)

    @property
    def peak_gpus(self) -> int:
        """GPUs of the first round, which has the most."""
        return sum(n * p for n, p in zip(self.trials, self.gpus, strict=True))

    @property
    def gpu_s(self) -> Fraction:
        """What all rounds take."""
        sizes = [
            sum(self.members(i, stage) * p for i, p in enumerate(self.gpus)) * self.eta**stage
            for stage in range(self.rounds)
        ]
        return sum(sizes, Fraction(0)) * self.first_round

    @property
    def ends(self) -> tuple[Fraction, ...]:
        """When each stage ends, seconds since the run began."""
        rounds = (self.first_round * self.eta**stage for stage in range(self.rounds))
        return tuple(accumulate(rounds, initial=self.start))[1:]


@per_problem
def schedule(problem: Problem) -> Schedule | Impossible:
    """Algorithms 2 and 3, and the first round lengthened until `max_gpus` is respected."""
    limits, params = _clamped(problem)
    if impossible := _impossible(limits, params):
        return impossible
    rounds, first_round = _rounds(limits, params)
    made = _brackets(limits, params, rounds, first_round)
    if limits.max_gpus is not None and made.peak_gpus > limits.max_gpus:
        made = _lengthened(limits, params, made, whole=problem.whole)
    return replace(made, start=Fraction(problem.start_s), adjusted=(*problem.adjusted, *made.adjusted))


def _clamped(problem: Problem) -> tuple[Limits, PolicyParams]:
    """No trial can have more GPUs than there may be."""
    limits, params = problem.planned, problem.params
    bounds = [n for n in (params.p_max, limits.max_gpus) if n is not None]
    p_max = max(params.p_min, min(bounds)) if bounds else None
    return limits, replace(params, p_max=p_max)


def _impossible(limits: Limits, params: PolicyParams) -> Impossible | None:
    """Whether not even one trial fits for one round of `t_min`."""
    least_s, least_gpu_s = params.t_min_s, params.t_min_s * params.p_min
    if limits.max_gpus is not None and params.p_min > limits.max_gpus:
        reason = f"a trial needs {params.p_min} GPUs (p_min), and there may be {limits.max_gpus}"
    elif limits.deadline_s < least_s:
        reason = f"the shortest round is {least_s:g}s (t_min), and the deadline is {limits.deadline_s:g}s"
    elif limits.budget_gpu_s < least_gpu_s:
        reason = (
            f"one trial of one round needs {least_gpu_s / 60:g} GPU-min (p_min x t_min), "
            f"and the budget is {limits.budget_gpu_s / 60:g} GPU-min"
        )
    else:
        return None
    return Impossible(reason, least_s, least_gpu_s)


def _rounds(limits: Limits, params: PolicyParams) -> tuple[int, Fraction]:
    """Algorithm 2, lines 2 to 4: K and t1 from the largest R that both conditions allow.

    For each K the conditions bound R on (eta^(K-1), eta^K], where both are monotone; so the largest K with an R is the answer. At R = 1,
    where the paper's K would be 0, one round of one trial fits: K = 1.
    """
    best = 1, Fraction(params.t_min_s)
    for rounds in range(1, MOST_ROUNDS + 1):
        eta, t_min = Fraction(params.eta), Fraction(params.t_min_s)
        low, high = eta ** (rounds - 1), eta**rounds
        r = min(high, _longest_first_round(limits, params, rounds) / t_min * low)
        if r < low or (r == low and rounds > 1):
            break
        best = rounds, t_min * r / low
    return best


def _longest_first_round(limits: Limits, params: PolicyParams, rounds: int) -> Fraction:
    """The longest t1 with which so many rounds fit into the deadline, and one smallest bracket into the budget."""
    eta = Fraction(params.eta)
    by_time = Fraction(limits.deadline_s) * (eta - 1) / (eta**rounds - 1)
    by_budget = Fraction(limits.budget_gpu_s) / (params.p_min * rounds * eta ** (rounds - 1))
    return min(by_time, by_budget)


def _brackets(limits: Limits, params: PolicyParams, rounds: int, first_round: Fraction) -> Schedule:
    """Algorithm 2, lines 5 to 9."""
    eta = Fraction(params.eta)
    r_star = first_round * eta ** (rounds - 1) / Fraction(params.t_min_s)
    unit = params.p_min * first_round * eta ** (rounds - 1) * rounds
    budgets, gpus = _bracket_budgets(Fraction(limits.budget_gpu_s), unit, params)
    trials = [int(budget / (rounds * first_round * p)) for budget, p in zip(budgets, gpus, strict=True)]
    kept = [i for i, n in enumerate(trials) if n > 0]
    return Schedule(
        rounds,
        first_round,
        r_star,
        unit,
        eta,
        tuple(budgets[i] for i in kept),
        tuple(gpus[i] for i in kept),
        tuple(trials[i] for i in kept),
    )


def _bracket_budgets(budget: Fraction, unit: Fraction, params: PolicyParams) -> tuple[list[Fraction], list[int]]:
    """Algorithm 3: B and P. With nu = 1 every bracket has p_min GPUs per trial."""
    p_min, nu, p_max = params.p_min, params.nu, params.p_max
    if p_max == p_min:
        return [budget], [p_min]
    brackets = 1
    while (brackets + 1) * nu**brackets <= budget / unit:
        brackets += 1
    if p_max is None or p_min * nu ** (brackets - 1) < p_max:
        gpus = [p_min * nu**i for i in range(brackets)]
        last = p_min * nu**brackets
        gpus.append(last if p_max is None else min(p_max, last))
        share = unit * nu ** (brackets - 1)
        return [share] * brackets + [budget - share * brackets], gpus
    gpus = []
    while p_min * nu ** len(gpus) < p_max:
        gpus.append(p_min * nu ** len(gpus))
    gpus.append(p_max)
    return [budget / len(gpus)] * len(gpus), gpus


def _lengthened(limits: Limits, params: PolicyParams, made: Schedule, *, whole: bool) -> Schedule:
    """The plan with the most rounds, and among those the shortest first round, whose first round fits on `max_gpus` GPUs.

    The peak is at most B / (K t1), so for given K a first round of B / (K max_gpus) is long enough. If the budget is more than
    `max_gpus` GPUs can use within the deadline, what they can use is planned with; and if that left one round, in which nothing is compared,
    what they can use in more rounds. Where whole instances are paid, as many rounds as still use most of the budget: with GPUs for no more
    trials in the first round, another round would only train fewer of them for as long.
    """
    most_gpus = limits.max_gpus or 0
    usable = min(Fraction(limits.budget_gpu_s), most_gpus * Fraction(limits.deadline_s))
    able = replace(limits, budget_gpu_s=float(usable))
    notes = [] if usable == limits.budget_gpu_s else [_unusable(limits, usable)]
    longer = (one for one in _longer_rounds(able, params, made.rounds) if _proper(one, most_gpus))
    less = _with_less(able, params, made.rounds)
    found = _worth_most(longer, less) if whole else next(longer, None) or next(less, None)
    found = found or _one_round(able, params)
    return replace(found, adjusted=(*notes, _longer(made, found, most_gpus)))


def _worth_most(longer: Iterator[Schedule], less: Iterator[Schedule]) -> Schedule | None:
    """The first for each number of rounds; of those the one with the most rounds that uses nearly as much as any."""
    first: dict[int, Schedule] = {}
    for one in (*longer, *less):
        first.setdefault(one.rounds, one)
    enough = WORTH_ROUNDS * max((one.gpu_s for one in first.values()), default=Fraction(0))
    return next((first[rounds] for rounds in sorted(first, reverse=True) if first[rounds].gpu_s >= enough), None)


def _longer_rounds(able: Limits, params: PolicyParams, most: int) -> Iterator[Schedule]:
    """From the most rounds to two; each with a first round that is just long enough, and with the longest."""
    for rounds in range(most, 1, -1):
        longest = _longest_first_round(able, params, rounds)
        enough = Fraction(able.budget_gpu_s) / (rounds * (able.max_gpus or 1))
        for first_round in (min(longest, max(Fraction(params.t_min_s), enough)), longest):
            yield _brackets(able, params, rounds, first_round)


def _with_less(able: Limits, params: PolicyParams, most: int) -> Iterator[Schedule]:
    """From the most rounds to two, each with so much of the budget that more than one round of all GPUs fits.

    In one bracket, if there are too few trials for several.
    """
    for rounds in range(most, 1, -1):
        longest = _longest_first_round(able, params, rounds)
        less = min(Fraction(able.budget_gpu_s), rounds * longest * (able.max_gpus or 1))
        for p_max in (params.p_max, params.p_min):
            made = _brackets(replace(able, budget_gpu_s=float(less)), replace(params, p_max=p_max), rounds, longest)
            if longest >= Fraction(params.t_min_s) and _proper(made, able.max_gpus or 0):
                yield made


def _one_round(able: Limits, params: PolicyParams) -> Schedule:
    """As many GPUs as there are, as long as the budget pays for them: the longer, the fewer."""
    longest = _longest_first_round(able, params, 1)
    enough = Fraction(able.budget_gpu_s) / (able.max_gpus or 1)
    made = [
        _brackets(able, replace(params, p_max=p_max), 1, first_round)
        for p_max in (params.p_max, params.p_min)
        for first_round in (min(longest, max(Fraction(params.t_min_s), enough)), longest)
    ]
    return max(
        (one for one in made if _proper(one, able.max_gpus or 0)), key=lambda one: one.peak_gpus * one.first_round
    )


def _proper(made: Schedule, most_gpus: int) -> bool:
    """Whether its first round fits, and somebody is left in its last."""
    left = any(made.members(bracket, made.rounds - 1) for bracket in range(len(made.trials)))
    return made.peak_gpus <= most_gpus and left


def _unusable(limits: Limits, usable: Fraction) -> str:
    return (
        f"{limits.max_gpus} GPU{'s' * (limits.max_gpus != 1)} can use at most {_minutes(float(usable))} of the "
        f"{_minutes(limits.budget_gpu_s)} GPU-min in {_minutes(limits.deadline_s)} min"
    )


def _longer(made: Schedule, longer: Schedule, most_gpus: int) -> str:
    lasts, instead = _minutes(float(longer.first_round)), _minutes(float(made.first_round))
    before, after = sum(made.trials), sum(longer.trials)
    trials = f"{after} instead of {before} trials" if after != before else f"as many trials, {after}"
    first = "only round" if made.rounds == 1 else f"first of {made.rounds} rounds"
    return (
        f"the {first} would need {made.peak_gpus} GPUs, and there may be {most_gpus}: "
        + (f"it lasts {lasts} instead of {instead} min, in " if lasts != instead else "there are ")
        + f"{longer.rounds} round{'s' * (longer.rounds > 1)} with {trials}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.4g}"


@dataclass(frozen=True, slots=True)
class Dealt:
    """What is remembered: in which order trials were dealt to the brackets of a stage.

    stage  from 0; the number of rounds when the last one is over
    order  everyone who was left, best first; at first in the order of the ids
    """

    stage: int
    order: list[str]


@dataclass(frozen=True, slots=True)
class _Step:
    """How far one question has come, and what has happened on the way."""

    dealt: Dealt
    new: tuple[NewTrial, ...] = ()
    eliminated: tuple[str, ...] = ()
    compared: tuple[Compared, ...] = ()
    note: str = ""


def outline(problem: Problem) -> Outline | Impossible:
    """The stages as they would be if nothing failed."""
    made = schedule(problem)
    if isinstance(made, Impossible):
        return made
    return Outline(
        brackets=tuple(map(Bracket, made.gpus, made.trials, map(float, made.budgets))),
        stages=tuple(_stages(made)),
        first_round_s=float(made.first_round),
        r_star=float(made.r_star),
        adjusted=made.adjusted,
    )


def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Algorithm 1: who runs now. The view's clock says which stage it is.

    Where whole instances are paid, the last stage has no wall: what rounding has left is used as
    long as the limits allow.
    """
    made = schedule(problem)
    if isinstance(made, Impossible):
        raise ValueError(made.reason)
    walls = made.rounds - 1 if problem.whole else made.rounds
    step = _before(problem, made, walls, memory, view)
    view = view.with_new(step.new)
    while step.dealt.stage < walls and view.now_s >= float(made.ends[step.dealt.stage]):
        step = _next_stage(made, step, view)
    return _wanted(made, walls, step, view), holding(memory, _written(step.dealt))


def _before(problem: Problem, made: Schedule, walls: int, memory: Memory, view: View) -> _Step:
    """Where this question begins."""
    known = recall(memory, VERSION, _read)
    if known is not None:
        return _Step(known)
    return _taken_up(made, walls, view) if view.trials else _begun(problem, made)


def _read(values: Values) -> Dealt:
    return Dealt(whole(values.get("stage"), 0), texts(values.get("order")))


def _written(dealt: Dealt) -> Values:
    return {"version": VERSION, "stage": dealt.stage, "order": [*dealt.order]}


def _begun(problem: Problem, made: Schedule) -> _Step:
    """Lines 1 and 2: sample all trials; their order is that of their ids."""
    count = sum(made.trials)
    drawn, width = draws(problem), len(str(count))
    new = tuple(NewTrial(trial_name(number + 1, width), drawn[number]) for number in range(count))
    return _Step(Dealt(0, [trial.id for trial in new]), new)


def _taken_up(made: Schedule, walls: int, view: View) -> _Step:
    """The stage is the clock's; the best that may run have its places, the others are out."""
    stage = sum(view.now_s >= float(end) for end in made.ends[:walls])
    ranked = rank((trial for trial in view.trials.values() if trial.status == "live"), view.mode)
    ordered = [trial.id for trial in ranked]
    places = sum(made.members(bracket, stage) for bracket in range(len(made.gpus)))
    if stage == made.rounds or len(ordered) <= places:
        return _Step(Dealt(stage, ordered), note=FORGOTTEN)
    out, judged = tuple(ordered[places:]), tuple(compared(ranked, places, 0))
    return _Step(Dealt(stage, ordered[:places]), eliminated=out, compared=judged, note=FORGOTTEN)


def _next_stage(made: Schedule, step: _Step, view: View) -> _Step:
    """Lines 9 and 11: each bracket keeps its best; all that are left are ordered together.

    They are dealt out again in that order.
    """
    stage = step.dealt.stage + 1
    if stage == made.rounds:
        return replace(step, dealt=Dealt(stage, step.dealt.order))
    kept: list[str] = []
    out: list[str] = []
    judged: list[Compared] = []
    for bracket, members in enumerate(_deal(made, step.dealt)):
        ranked = rank((view.trials[name] for name in members), view.mode)
        places = made.members(bracket, stage)
        judged += compared(ranked, places, bracket)
        stay = {trial.id: None for trial in ranked[:places] if trial.status != "failed"}
        kept += stay
        out += [trial.id for trial in ranked if trial.id not in stay]
    order = [trial.id for trial in rank((view.trials[name] for name in kept), view.mode)]
    eliminated, seen = (*step.eliminated, *out), (*step.compared, *judged)
    return replace(step, dealt=Dealt(stage, order), eliminated=eliminated, compared=seen)


def _deal(made: Schedule, dealt: Dealt) -> list[list[str]]:
    """The best trials go to the bracket with the most GPUs per trial."""
    waiting = iter(dealt.order)
    found: dict[int, list[str]] = {}
    for bracket in sorted(range(len(made.gpus)), key=lambda i: -made.gpus[i]):
        found[bracket] = list(islice(waiting, made.members(bracket, dealt.stage)))
    return [found[bracket] for bracket in range(len(made.gpus))]


def _wanted(made: Schedule, walls: int, step: _Step, view: View) -> Plan:
    stage = min(step.dealt.stage, made.rounds - 1)
    done = Plan((), step.new, step.eliminated, stage, done=True, compared=step.compared)
    done = replace(done, note=step.note)
    wanted = _allocations(made, step.dealt)
    running = tuple(a for a in wanted if view.trials[a.trial].status == "live")
    if step.dealt.stage == made.rounds or not running:
        return done
    ask_at_s = float(made.ends[stage]) if stage < walls else None
    return replace(done, allocations=running, ask_at_s=ask_at_s, ask_on_end=False, done=False)


def _allocations(made: Schedule, dealt: Dealt) -> Iterator[Allocation]:
    bracket_of = {name: i for i, members in enumerate(_deal(made, dealt)) for name in members}
    for name in dealt.order:
        if name in bracket_of:
            yield Allocation(name, made.gpus[bracket_of[name]], bracket_of[name])


def _stages(made: Schedule) -> Iterator[Stage]:
    start = made.start
    for number, end in enumerate(made.ends):
        groups = tuple(Group(p, made.members(i, number)) for i, p in enumerate(made.gpus) if made.members(i, number))
        yield Stage(float(start), float(end), groups)
        start = end


SEER = Policy(outline, plan)
