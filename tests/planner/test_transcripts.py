"""Readable transcripts of whole runs of every policy: what was planned before the first trial, what
each question was answered with, and what the policy remembers at the end.

`pytest tests/planner --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path

import pytest

from bench.testbed.policy_world import Asked, FakeTrial, World
from seerd.planner.memory import Json, Memory
from seerd.planner.model import (
    EarlierTrial,
    Impossible,
    Limits,
    Mode,
    Outline,
    Plan,
    PlannedJob,
    PolicyParams,
    Problem,
    Report,
    Sharing,
    View,
)
from seerd.planner.policy import policy_of
from seerd.planner.profile import Scaling
from seerd.planner.space import Config, Parameter, Space

FOLDER = Path(__file__).parent / "transcripts"
DEADLINE_S, GPUS = 60.0, 8
MOST_QUESTIONS, MOST_REMEMBERED = 40, 40
SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("width", low=8, high=64, integer=True),
        Parameter("net", ("small", "large")),
    )
)
SCALING = Scaling(((1, 1.0), (2, 1.8), (4, 3.0), (8, 4.0)))
EARLIER = tuple(
    EarlierTrial(
        {"lr": 10.0**-power, "width": 8 * power + 8, "net": "small"},
        tuple(Report(2.0 * n, n, 1 - 1 / (n + power)) for n in range(1, 7)),
    )
    for power in (1, 2, 3)
)


@dataclass(frozen=True, slots=True)
class Case:
    """A run. `problem` are fields of the policy's parameters, `lives_s` how long trials live on
    average until they fail, `forgets_at` the question before which the memory is lost.
    """

    policy: str
    problem: dict[str, object] = field(default_factory=dict)
    mode: Mode = "max"
    lives_s: float = math.inf
    ends_at: int | None = None
    forgets_at: int | None = None
    whole: bool = False
    late_s: float = 0.0
    begins_anew: bool = False
    sharing: Sharing = "fair"
    extended: int = 0


CASES = {
    "seer+": Case("seer+"),
    "seer+ failing": Case("seer+", {"seed": 3}, "min", 25.0, 20),
    "seer+ forgetful": Case("seer+", {"min_reports": 2}, forgets_at=9),
    "seer+ warm": Case("seer+", {"earlier": EARLIER, "trials": 12}, late_s=3.0),
    "seer+ anew": Case("seer+", {"p_max": 2}, begins_anew=True),
    "seer": Case("seer"),
    "seer whole": Case("seer", {"p_min": 2}, "min", 25.0, whole=True),
    "seer extended": Case("seer", {"nu": 3}, extended=1, late_s=5.0, forgets_at=2),
    "random": Case("random", {"trials": 5}),
    "random failing": Case("random", {"p_max": 1}, "min", 20.0, whole=True),
    "grid": Case("grid", {"trials": 6}, lives_s=30.0),
    "sha": Case("sha", {"trials": 9, "eta": 3}),
    "sha failing": Case("sha", {"seed": 1, "p_max": 2}, "min", 12.0, 6),
    "sha forgetful": Case("sha", {"trials": 12}, forgets_at=11),
    "sha of stages": Case(
        "sha", {"trials": 8, "stage_gpus": (8, 4, 4, 8), "stage_s": (9.0, 11.0, 13.0, 17.0)}
    ),
    "hyperband": Case("hyperband", {"eta": 3, "max_reports": 9}),
    "hyperband failing": Case("hyperband", {}, "min", 20.0, forgets_at=14),
    "e-hyperband": Case("e-hyperband"),
    "e-grid": Case("e-grid", {"trials": 6}, "min"),
    "asha": Case("asha"),
    "asha failing": Case("asha", {"p_max": 2, "eta": 3}, "min", 15.0, 7),
    "asha forgetful": Case("asha", {"trials": 14, "p_min": 2}, forgets_at=12),
    "asha anew": Case("asha", begins_anew=True),
    "hypersched": Case("hypersched"),
    "hypersched failing": Case("hypersched", {"p_max": 4, "eta": 3}, "min", 15.0, 9),
    "hypersched forgetful": Case("hypersched", {"trials": 10}, forgets_at=8),
    "gp-ucb": Case("gp-ucb", {"trials": 6}),
    "gp-ucb failing": Case("gp-ucb", {"p_max": 2, "trials": 9}, "min", 25.0, 5),
    "profile": Case("profile", {"trials": 2}),
    "jobs": Case("jobs"),
    "jobs hybrid": Case("jobs", mode="min", lives_s=30.0, sharing="hybrid"),
}


def problem(case: Case) -> Problem:
    """What the case's policy is made from."""
    start = ({"lr": 0.03},)
    params = {"eta": 2, "p_max": 4, "t_min_s": 2.0, "min_reports": 1, "max_reports": 8}
    made = Problem(
        Limits(DEADLINE_S, GPUS * DEADLINE_S, GPUS),
        SPACE,
        PolicyParams(name=case.policy, start=start, **{**params, **case.problem}),
        SCALING,
        gpus_per_instance=4,
        whole=case.whole,
        start_s=case.late_s,
        within=Limits(DEADLINE_S - case.late_s - 2.0, GPUS * 50.0, GPUS),
        added=((3, {"lr": 0.2, "width": 16, "net": "large"}),),
        begins_anew=case.begins_anew,
        extended=case.extended,
    )
    if case.policy != "jobs":
        return made
    shared = replace(made, added=(), within=None)
    jobs = tuple(
        PlannedJob(name, replace(shared, params=replace(made.params, name=one)), mode, "loss", w)
        for name, one, mode, w in (("a", "asha", "max", 1.0), ("b", "seer", case.mode, 2.0))
    )
    return replace(shared, jobs=jobs, sharing=case.sharing)


def metric(trial: FakeTrial, epoch: int) -> float | None:
    """Better with each report, best near a rate of 0.01; now and then none."""
    drawn = random.Random(f"{trial.id} {epoch}").random()
    near = 1 - abs(math.log10(float(trial.config["lr"])) + 2) / 4
    return None if drawn < 0.04 else near * (1 - 0.7**epoch) + 0.05 * drawn


@dataclass
class AskedElsewhere(Asked):
    """A policy that reads what it remembers anew for each question, as after a restart. The memory
    is lost before the question of the number `forgets_at`.
    """

    forgets_at: int | None = None
    asked: int = 0

    def plan(self, view: View) -> Plan:
        self.asked += 1
        written = "{}" if self.asked == self.forgets_at else json.dumps({**self.memory.values})
        self.memory = Memory(json.loads(written))
        return super().plan(view)


def world(case: Case, made: Problem) -> World:
    """The whole run, played."""
    rng = random.Random(5)
    lives_s = (
        (lambda: math.inf)
        if case.lives_s == math.inf
        else (lambda: rng.expovariate(1 / case.lives_s))
    )
    return World(
        AskedElsewhere(policy_of(made), made, forgets_at=case.forgets_at),
        GPUS,
        metric,
        unit_s=lambda trial, until, gpus: (1 + int(trial[-1]) % 3) / SCALING.speed(gpus),
        start_s=0.25,
        lives_s=lives_s,
        most=case.ends_at,
        checks=False,
        mode=case.mode,
        now_s=case.late_s,
    ).run(DEADLINE_S + 5)


def shown_config(config: Config) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in config.items()
    )


def shown_outline(outline: Outline | Impossible) -> Iterator[str]:
    if isinstance(outline, Impossible):
        least = f"{outline.min_deadline_s:.4g}s, {outline.min_budget_gpu_s:.4g} GPU-s"
        yield f"impossible: {outline.reason} (at least {least})"
        return
    r_star = "" if outline.r_star is None else f", R* {outline.r_star:.4g}"
    yield f"first round {outline.first_round_s:.4g}s{r_star}, sizes {outline.allocations}"
    for one in outline.brackets:
        yield f"bracket: {one.trials} x {one.gpus_per_trial} GPUs, {one.budget_gpu_s:.4g} GPU-s"
    for stage in outline.stages:
        groups = ", ".join(f"{group.trials} x {group.gpus_per_trial}" for group in stage.groups)
        yield f"stage: {stage.start_s:.4g}s to {stage.end_s:.4g}s, {groups}"
    yield from outline.adjusted


def shown_plan(at_s: float, plan: Plan) -> Iterator[str]:
    ask = "" if plan.ask_at_s is None else f", asks again at {plan.ask_at_s:.4g}s"
    hold = f", holds {plan.hold_gpus} GPUs" if plan.hold_gpus else ""
    end = "" if plan.ask_on_end else ", not when a trial ends"
    yield f"{at_s:.4g}s: stage {plan.stage}{ask}{hold}{end}{', done' if plan.done else ''}"
    for new in plan.new:
        yield f"  new {new.id}: {shown_config(new.config)}"
    if plan.note:
        yield f"  {plan.note}"
    for one in plan.compared:
        value = "none" if one.metric is None else f"{one.metric:.4g}"
        final = ", final" if one.final else ""
        yield (
            f"  {one.trial}: {value} after {one.reports}, place {one.place} of {one.of}, "
            f"{one.best} go on, bracket {one.bracket}{final}"
        )
    if plan.eliminated:
        yield f"  out: {' '.join(plan.eliminated)}"
    for (gpus, bracket, until), of in groupby(plan.allocations, lambda one: one[1:]):
        names = " ".join(one.trial for one in of)
        ends = "" if until is None else f", until report {until}"
        yield f"  {gpus} GPUs, bracket {bracket}{ends}: {names}"


def shown_memory(values: Mapping[str, Json]) -> Iterator[str]:
    for key, value in islice(values.items(), MOST_REMEMBERED):
        rounded = json.loads(
            json.dumps(value), parse_float=lambda text: float(f"{float(text):.4g}")
        )
        yield f"remembers {key}: {json.dumps(rounded)}"


def transcript(played: World) -> list[str]:
    plans: Sequence[tuple[float, Plan]] = [*zip(played.asked_s, played.plans, strict=True)]
    outline = played.policy.outline()
    lines = list(shown_outline(outline))
    for at_s, plan in plans[:MOST_QUESTIONS]:
        lines += shown_plan(at_s, plan)
    lines += shown_memory(played.policy.memory.values)
    return [*lines, f"{len(plans)} questions"]


@pytest.mark.parametrize("name", CASES)
def test_each_policy_plans_what_its_transcript_says(name: str, pytestconfig: pytest.Config) -> None:
    case = CASES[name]
    shown = "\n".join(transcript(world(case, problem(case)))) + "\n"
    path = FOLDER / f"{name.replace(' ', '_')}.txt"
    if pytestconfig.getoption("rewrite"):
        path.write_text(shown)
    assert path.read_text() == shown


def refusals() -> Iterator[str]:
    """What each policy says of limits from nothing to enough for one trial."""
    for name in dict.fromkeys(case.policy for case in CASES.values()):
        for deadline_s, budget_gpu_s in ((0.5, 100.0), (60.0, 0.5), (60.0, 3.0), (4.0, 16.0)):
            made = problem(Case(name, {"p_min": 2}, late_s=0.25))
            limits = Limits(deadline_s, budget_gpu_s, GPUS)
            made = replace(made, limits=limits, within=None)
            yield f"{name} in {deadline_s:g}s with {budget_gpu_s:g} GPU-s"
            for line in shown_outline(policy_of(made).outline(made)):
                yield f"  {line}"


def test_each_policy_refuses_limits_that_are_too_tight_as_its_transcript_says(
    pytestconfig: pytest.Config,
) -> None:
    shown = "\n".join(refusals()) + "\n"
    path = FOLDER / "too_tight.txt"
    if pytestconfig.getoption("rewrite"):
        path.write_text(shown)
    assert path.read_text() == shown
