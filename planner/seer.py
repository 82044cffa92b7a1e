"""SEER: sequential elimination with elastic resources (Dunlap et al., SoCC '21, "Elastic
Hyperparameter Tuning on the Cloud"), exactly as published, in exact arithmetic. Where the paper
leaves something open, the function that decides it says so.

The paper's symbols (sections 3.1 to 3.3, Algorithms 1 to 3): T deadline, B budget, K `rounds`, R*
`r_star`, t1 `first_round`, B0 `unit`, P `gpus`, N `trials`; 1 in eta of a bracket's trials goes on,
and from one bracket to the next a trial gets nu times the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, islice

from msgspec import convert

from seerd.planner.caching import prepared
from seerd.planner.draws import draws
from seerd.planner.memory import FORGOTTEN, Count, Memory, Values, holding, recall
from seerd.planner.model import (
    Allocation,
    Bracket,
    Group,
    Impossible,
    Limits,
    NewTrial,
    Outline,
    Plan,
    Policy,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from seerd.planner.ranking import compared, rank
from seerd.planner.trial_ids import trial_name

VERSION = 1  # of what is remembered
MOST_ROUNDS = 64
TOLERANCE = Fraction(1, 10**9)  # a deadline, a float, may be off its sum of rounds by this share


@dataclass(frozen=True, slots=True)
class Schedule:
    """What Algorithms 2 and 3 compute."""

    rounds: int  # K
    first_round: Fraction  # t1, seconds
    r_star: Fraction  # R*
    unit: Fraction  # B0, GPU-seconds
    eta: Fraction  # of the trials of a bracket 1 in eta goes on
    budgets: tuple[Fraction, ...]  # B, GPU-seconds, one per bracket
    gpus: tuple[int, ...]  # P, GPUs per trial, one per bracket
    trials: tuple[int, ...]  # N, one per bracket
    start: Fraction = Fraction(0)  # when the first round begins, seconds since the run began
    adjusted: tuple[str, ...] = ()  # what was changed to respect the limits, one sentence each

    def members(self, bracket: int, stage: int) -> int:
        """Return a bracket's trials in a stage (from 0): floor(N[i] / eta^k)."""
        return int(self.trials[bracket] / self.eta**stage)

    @property
    def peak_gpus(self) -> int:
        """GPUs of the first round, which has the most."""
        return sum(n * p for n, p in zip(self.trials, self.gpus, strict=True))

    @property
    def gpu_s(self) -> Fraction:
        """GPU-seconds of all rounds."""
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


def bracket_parameters(
    limits: Limits, params: PolicyParams, parts: int = 1
) -> Schedule | Impossible:
    """Return K, t1, N and P (Algorithm 2). `parts`: how many of the GPUs here are one GPU, for
    people.
    """
    least_s, least_gpu_s = params.t_min_s, params.t_min_s * params.p_min
    if limits.deadline_s < least_s:
        reason = (
            f"the shortest round is {least_s:g}s (--set policy.t_min=5s makes it 5s), "
            f"and the deadline is {limits.deadline_s:g}s"
        )
    elif limits.budget_gpu_s < least_gpu_s:
        reason = (
            f"one trial of one round needs {least_gpu_s / parts / 60:g} GPU-min (p_min x t_min), "
            f"and the budget is {limits.budget_gpu_s / parts / 60:g} GPU-min"
        )
    else:
        return brackets(limits, params, *_rounds(limits, params))
    return Impossible(reason, least_s, least_gpu_s)


def _rounds(limits: Limits, params: PolicyParams) -> tuple[int, Fraction]:
    """Find K and t1 from the largest R that both conditions allow (Algorithm 2, lines 2 to 4).

    For each K the conditions bound R on (eta^(K-1), eta^K], where both are monotone; so the largest
    K with an R is the answer. At R = 1, where the paper's K would be 0, one round of one trial
    fits: K = 1. An R that is eta^(K-1) but for `TOLERANCE` belongs to one round less, as ceil
    (log_eta R) says.
    """
    best = 1, Fraction(params.t_min_s)
    for rounds in range(1, MOST_ROUNDS + 1):
        eta, t_min = Fraction(params.eta), Fraction(params.t_min_s)
        low, high = eta ** (rounds - 1), eta**rounds
        r = min(high, longest_first_round(limits, params, rounds) / t_min * low)
        if r < low or (r <= low * (1 + TOLERANCE) and rounds > 1):
            break
        best = rounds, t_min * r / low
    return best


def longest_first_round(limits: Limits, params: PolicyParams, rounds: int) -> Fraction:
    """Return the longest t1, in seconds, that keeps both limits (Algorithm 2, line 2)."""
    eta = Fraction(params.eta)
    by_time = Fraction(limits.deadline_s) * (eta - 1) / (eta**rounds - 1)
    by_budget = Fraction(limits.budget_gpu_s) / (params.p_min * rounds * eta ** (rounds - 1))
    return min(by_time, by_budget)


def brackets(limits: Limits, params: PolicyParams, rounds: int, first_round: Fraction) -> Schedule:
    """Return B, P and N for K and t1 (Algorithm 2, lines 5 to 9), without brackets of no trial."""
    eta = Fraction(params.eta)
    r_star = first_round * eta ** (rounds - 1) / Fraction(params.t_min_s)
    unit = params.p_min * first_round * eta ** (rounds - 1) * rounds
    budgets, gpus = _bracket_budgets(Fraction(limits.budget_gpu_s), unit, params)
    trials = [
        int(budget / (rounds * first_round * p)) for budget, p in zip(budgets, gpus, strict=True)
    ]
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


def _bracket_budgets(
    budget: Fraction, unit: Fraction, params: PolicyParams
) -> tuple[list[Fraction], list[int]]:
    """Return B and P (Algorithm 3). With nu = 1 every bracket has p_min GPUs per trial."""
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


@dataclass(frozen=True, slots=True)
class Dealt:
    """What is remembered: in which order trials were dealt to the brackets of a stage."""

    stage: Count  # from 0; the number of rounds when the last one is over
    order: list[str]  # all trials that were left, best first; at first in the order of the ids


Step = tuple[Dealt, Plan]  # how far an answer has come: what to remember, and the plan so far


def seer(schedule_of: Callable[[Problem], Schedule | Impossible]) -> Policy:
    """Make the policy that follows these schedules (Algorithm 1)."""

    def outline(problem: Problem, made: Schedule) -> Outline:
        stages, start = [], made.start
        for number, end in enumerate(made.ends):
            groups = (Group(p, made.members(i, number)) for i, p in enumerate(made.gpus))
            running = tuple(group for group in groups if group.trials)
            stages.append(Stage(float(start), float(end), running))
            start = end
        return Outline(
            brackets=tuple(map(Bracket, made.gpus, made.trials, map(float, made.budgets))),
            stages=tuple(stages),
            first_round_s=float(made.first_round),
            r_star=float(made.r_star),
            adjusted=made.adjusted,
        )

    def plan(problem: Problem, made: Schedule, memory: Memory, view: View) -> tuple[Plan, Memory]:
        dealt = recall(memory, VERSION, lambda values: convert(values, Dealt))
        plan = Plan()
        if dealt is None and view.trials:
            dealt, plan = _taken_up(made, view)
        elif dealt is None:  # all trials, in the order of their ids (Algorithm 1, lines 1 and 2)
            drawn, count = draws(problem), sum(made.trials)
            ids = [trial_name(number, len(str(count))) for number in range(1, count + 1)]
            plan = Plan(new=tuple(NewTrial(name, drawn[n]) for n, name in enumerate(ids)))
            dealt = Dealt(0, ids)
        view = view.with_new(plan.new)
        while dealt.stage < made.rounds and view.now_s >= float(made.ends[dealt.stage]):
            dealt, plan = _next_stage(made, dealt, plan, view)
        values: Values = {"version": VERSION, "stage": dealt.stage, "order": [*dealt.order]}
        return _wanted(made, dealt, plan, view), holding(memory, values)

    return prepared(schedule_of, outline, plan)


def _taken_up(made: Schedule, view: View) -> Step:
    """Go on without a memory: the clock tells the stage, whose places the best live trials get."""
    stage = sum(view.now_s >= float(end) for end in made.ends)
    ranked = rank((trial for trial in view.trials.values() if trial.status == "live"), view.mode)
    ordered = [trial.id for trial in ranked]
    places = sum(made.members(bracket, stage) for bracket in range(len(made.gpus)))
    if stage == made.rounds or len(ordered) <= places:
        return Dealt(stage, ordered), Plan(note=FORGOTTEN)
    out, judged = tuple(ordered[places:]), tuple(compared(ranked, places, 0))
    plan = Plan(eliminated=out, compared=judged, note=FORGOTTEN)
    return Dealt(stage, ordered[:places]), plan


def _next_stage(made: Schedule, dealt: Dealt, plan: Plan, view: View) -> Step:
    """Keep each bracket's best, and order all that are left (Algorithm 1, lines 9 and 11)."""
    stage = dealt.stage + 1
    if stage == made.rounds:
        return Dealt(stage, dealt.order), plan
    kept: list[str] = []
    out, judged = [*plan.eliminated], [*plan.compared]
    for bracket, members in enumerate(_deal(made, dealt)):
        ranked = rank((view.trials[name] for name in members), view.mode)
        places = made.members(bracket, stage)
        judged += compared(ranked, places, bracket)
        stay = {trial.id: None for trial in ranked[:places] if trial.status != "failed"}
        kept += stay
        out += [trial.id for trial in ranked if trial.id not in stay]
    order = [trial.id for trial in rank((view.trials[name] for name in kept), view.mode)]
    return Dealt(stage, order), replace(plan, eliminated=tuple(out), compared=tuple(judged))


def _deal(made: Schedule, dealt: Dealt) -> list[list[str]]:
    """Deal trials to brackets, the best where a trial has most GPUs (Algorithm 1, lines 5 to 7)."""
    waiting = iter(dealt.order)
    dealt_out: dict[int, list[str]] = {}
    for bracket in sorted(range(len(made.gpus)), key=lambda i: -made.gpus[i]):
        dealt_out[bracket] = list(islice(waiting, made.members(bracket, dealt.stage)))
    return [dealt_out[bracket] for bracket in range(len(made.gpus))]


def _wanted(made: Schedule, dealt: Dealt, plan: Plan, view: View) -> Plan:
    stage = min(dealt.stage, made.rounds - 1)
    done = replace(plan, stage=stage, done=True)
    bracket_of = {name: i for i, members in enumerate(_deal(made, dealt)) for name in members}
    running = tuple(
        Allocation(name, made.gpus[bracket_of[name]], bracket_of[name])
        for name in dealt.order
        if name in bracket_of and view.trials[name].status == "live"
    )
    if dealt.stage == made.rounds or not running:
        return done
    ask_at_s = float(made.ends[stage])
    return replace(done, allocations=running, ask_at_s=ask_at_s, ask_on_end=False, done=False)
