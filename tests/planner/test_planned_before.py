"""What runs of every policy come to whose problems are drawn: on one cluster or on rented machines
with prices, any space, any limits, with guesses and earlier trials. A line for each, in whose
digits all that was planned and remembered stands.

`pytest tests/planner --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.testbed.policy_world import FakeTrial, World
from seerd.planner.budget_margin import Terms, with_margin
from seerd.planner.model import ClusterFacts, Impossible, Limits, PlannedJob, PolicyParams, Problem
from seerd.planner.policies import POLICIES
from seerd.planner.policy import outline_of, policy_of
from seerd.planner.profile import BUNDLED, LINEAR, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.space import Parameter, Space
from tests.digests import digest
from tests.planner.test_transcripts import EARLIER, SPACE, AskedElsewhere, shown_memory, shown_plan

FILE = Path(__file__).with_name("planned.txt")
NAMES = (*sorted(POLICIES.keys() - {"bohb"}), "jobs")
SEEDS = {"gp-ucb": range(1, 4), "jobs": range(6), "seer+": range(7), "hypersched": range(9)}
"""The runs of the slowest policies; of any other, `OTHERS`. Those of gp-ucb are the same on every
processor: in others what is almost equal is decided by how it adds.
"""
OTHERS = range(14)
FEW = Space((Parameter("lr", choices=(0.001, 0.01, 0.1)), Parameter("net", ("small", "large"))))
MANY = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("momentum", low=0.5, high=0.99),
        Parameter("layers", low=1, high=6, integer=True),
        Parameter("drop", low=0.0, high=0.5, step=0.1),
        Parameter("decay", mean=1e-4, std=3.0, low=1e-6, high=1e-2, log=True),
    ),
    constraints=("lr * layers <= 1",),
)
PROFILE = Profile(
    JobProfile(Latency(2.0, 3.0), start=Latency(1.0, 2.0), save=Latency(0.5, 0.8), ingress_gb=2.0),
    CloudProfile(Latency(2.0, 4.0), Latency(6.0, 9.0), Latency(1.0, 2.0), 0.02),
)
GPUS, DEADLINE_S = 8, 90.0


def problem(policy: str, seed: int) -> tuple[Problem | Impossible, random.Random]:
    """Draw a problem; two of three are on rented machines."""
    rng = random.Random(f"{policy} {seed}")
    is_rented = seed % 3 > 0
    params = PolicyParams(
        name=policy,
        eta=rng.choice([2, 3, 4]),
        nu=rng.choice([2, 2, 3]),
        p_min=rng.choice([1, 1, 2]),
        p_max=rng.choice([None, 2, 4]),
        t_min_s=rng.choice([2.0, 6.0]),
        seed=seed,
        trials=rng.choice([None, None, 5, 12]),
        min_reports=rng.choice([None, 1, 2]),
        max_reports=rng.choice([None, 9, 16]),
        start=rng.choice([(), ({"lr": 0.01},), ({"lr": 0.01}, {"lr": 0.1})]),
        earlier=rng.choice([(), (), EARLIER]) if seed % 4 == 0 else (),
    )
    size = rng.choice([1, 2, 4, 8])
    made = Problem(
        Limits(
            DEADLINE_S,
            GPUS * DEADLINE_S * rng.choice([0.6, 1.0]),
            GPUS,
            rng.choice([None, 0.4]) if is_rented else None,
        ),
        SPACE if seed % 4 == 0 else rng.choice([SPACE, FEW, MANY]),
        params,
        rng.choice([LINEAR, BUNDLED["resnet50"]]),
        gpus_per_instance=size,
        whole=is_rented,
        begins_anew=rng.random() < 0.1,
    )
    if policy == "jobs":
        made = replace(made, sharing=rng.choice(["fair", "greedy", "round-robin", "worst-first"]))
        jobs = tuple(job(made, name, rng) for name in "abc"[: rng.choice([2, 3])])
        made = replace(made, jobs=jobs)
    if not is_rented:
        return made, rng
    cluster = ClusterFacts("rented", size, minimum_s=10.0, usd_per_gpu_h=3.06, terminate_s=1.0)
    return with_margin(made, Terms(cluster, PROFILE, 3.0), outline_of), rng


def job(run: Problem, name: str, rng: random.Random) -> PlannedJob:
    """Draw one of several jobs, whose metrics may be worth more or less."""
    limits = replace(run.limits, deadline_s=rng.choice([DEADLINE_S, 60.0]), cost_usd=None)
    params = replace(run.params, name=rng.choice(["asha", "seer", "sha", "random", "hypersched"]))
    mine = replace(run, limits=limits, params=replace(params, earlier=()), whole=False)
    return PlannedJob(name, mine, rng.choice(["max", "min"]), "loss", rng.choice([1.0, 2.0]))


def line(policy: str, seed: int) -> str:
    made, rng = problem(policy, seed)
    if isinstance(made, Impossible):
        return f"{made.reason} (at least {made.min_deadline_s:.4g}s)"
    mode, away = rng.choice(["max", "min"]), rng.choice([1.0, 2.0])

    def metric(trial: FakeTrial, epoch: int) -> float | None:
        drawn = random.Random(f"{trial.id} {epoch}").random()
        near = 1 - abs(math.log10(float(trial.config["lr"])) + away) / 4
        value = near * (1 - 0.7**epoch) + 0.05 * drawn
        return None if drawn < 0.03 else value if mode == "max" else 1 - value

    lives_s, slow = rng.choice([math.inf, 40.0]), rng.choice([0.5, 1.0])
    played = World(
        AskedElsewhere(policy_of(made), made, forgets_at=rng.choice([None, None, 5])),
        GPUS,
        metric,
        unit_s=lambda trial, until, gpus: slow * (1 + int(trial[-1]) % 3) / gpus,
        start_s=0.25,
        lives_s=lambda: lives_s if math.isinf(lives_s) else rng.expovariate(1 / lives_s),
        most=rng.choice([None, None, 14]),
        checks=False,
        mode=mode,
        now_s=made.start_s,
    ).run(DEADLINE_S + 5)
    plans = list(zip(played.asked_s, played.plans, strict=True))
    said = [[*shown_plan(at_s, plan)] for at_s, plan in plans]
    held = sum(len(trial.history) for trial in played.trials.values())
    kept = json.dumps([*shown_memory(played.policy.memory.values)])
    return (
        f"{len(plans)} questions, {len(played.trials)} trials, {held} reports, "
        f"done at {played.now_s:.2f}s; {digest(played.policy.outline(), made.adjusted)} "
        f"{digest(said)} {digest(kept)}"
    )


def by_seed(row: tuple[str, str]) -> tuple[str, int]:
    policy, seed = row[0].split()
    return policy, int(seed)


@pytest.mark.parametrize("policy", NAMES)
def test_runs_are_planned_as_they_were(policy: str, pytestconfig: pytest.Config) -> None:
    now = {f"{policy} {seed}": line(policy, seed) for seed in SEEDS.get(policy, OTHERS)}
    lines = dict(row.split(": ", 1) for row in FILE.read_text().splitlines())
    if pytestconfig.getoption("rewrite"):
        lines = dict(sorted({**lines, **now}.items(), key=by_seed))
        FILE.write_text("".join(f"{name}: {rest}\n" for name, rest in lines.items()))
    assert now == {name: lines.get(name) for name in now}
