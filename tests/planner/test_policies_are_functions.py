"""Any process can ask a policy's next question: with the memory that a journal has, or without."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest

from bench.testbed.policy_world import Asked, FakeTrial, World
from seerd.planner.memory import FORGOTTEN, Json, Memory
from seerd.planner.model import Limits, Plan, PlannedJob, PolicyParams, Problem, View
from seerd.planner.policies import POLICIES
from seerd.planner.policy import policy_of
from seerd.planner.space import Parameter, Space

DEADLINE_S = 36.0
PROFILE_S = 48.0
"""As long as it takes to measure a profile."""
END_S = PROFILE_S + 5
GPUS = 8
SPACE = Space(
    (Parameter("lr", low=1e-4, high=1.0, log=True), Parameter("depth", ((2,), (4, 6), ())))
)
NAMES = [name for name in (*POLICIES, "profile", "jobs") if name != "bohb" or find_spec("optuna")]
TRIALS = {"random": 4}
"""One alone would not show much."""
Values = dict[str, Json]


SHARING = {"a": "asha", "b": "seer", "c": "grid"}
"""Where jobs share the run: the policy of each."""


def problem(name: str, seed: int = 0, *, whole: bool = False) -> Problem:
    """One that shows something of every policy; of "jobs", with three policies beside each other."""
    made = _of_one_job(name, seed, whole=whole)
    if name != "jobs":
        return made
    jobs = (PlannedJob(job, _of_one_job(one, seed), "max") for job, one in SHARING.items())
    return replace(made, jobs=tuple(jobs), sharing="hybrid" if seed % 2 else "fair")


def _of_one_job(name: str, seed: int, *, whole: bool = False) -> Problem:
    params = PolicyParams(
        name=name,
        eta=2,
        nu=2,
        p_max=4,
        t_min_s=2.0,
        seed=seed,
        min_reports=1,
        max_reports=8,
        trials=TRIALS.get(name),
    )
    deadline_s = PROFILE_S if name == "profile" else DEADLINE_S
    limits = Limits(deadline_s, GPUS * deadline_s, GPUS)
    return Problem(limits, SPACE, params, gpus_per_instance=4, whole=whole)


def same_again(memory: Memory) -> Memory:
    """What is read back from a journal."""
    return Memory(json.loads(json.dumps(dict(memory.values))))


@dataclass
class AskedElsewhere(Asked):
    """As if each question came from another process: nothing that is kept beside the memory
    helps.
    """

    def plan(self, view: View) -> Plan:
        before = same_again(self.memory)
        plan, after = self.policy.plan(deepcopy(self.problem), before, view)
        assert before.values == self.memory.values, "a memory is never changed in place"
        assert before.after(after.changes).values == after.values, "the changes tell all"
        assert same_again(after).values == after.values, "all of it is JSON"
        self.memory = after
        return plan


def world(policy: Asked, seed: int, *, most: int | None = None) -> World:
    """Some trials fail, some report NaN, and the same ones whenever it is run again."""
    rng = random.Random(seed)

    def metric(trial: FakeTrial, epoch: int) -> float | None:
        drawn = random.Random(f"{seed}/{trial.id}/{epoch}").random()
        return None if drawn < 0.05 else drawn

    lives_s = (lambda: rng.expovariate(1 / 40)) if seed % 2 else (lambda: 1e9)
    return World(policy, GPUS, metric, start_s=0.1, lives_s=lives_s, most=most)


def asked(made: Problem) -> Asked:
    return Asked(policy_of(made), made)


@pytest.mark.parametrize(("seed", "whole"), [(0, True), (1, False)])
@pytest.mark.parametrize("name", NAMES)
def test_another_process_gives_the_same_plans(name: str, seed: int, whole: bool) -> None:
    made = problem(name, seed, whole=whole)
    here = world(asked(made), seed).run(END_S)
    elsewhere = world(AskedElsewhere(policy_of(made), made), seed).run(END_S)
    assert len(here.plans) > 1 or whole
    assert elsewhere.asked_s == here.asked_s
    assert elsewhere.plans == here.plans
    assert not any(FORGOTTEN in plan.note for plan in here.plans)


def empty(values: Values) -> Values:
    return {}


def of_another_version(values: Values) -> Values:
    return {**values, "version": 0, "left over": [1, 2]}


def unreadable(values: Values) -> Values:
    """Of types that this version does not write."""
    return {key: value if key == "version" else {"was": value} for key, value in values.items()}


@pytest.mark.parametrize(
    ("damaged", "at_s"),
    [
        (empty, 1.3),
        (empty, 0.75 * DEADLINE_S),
        (of_another_version, 0.35 * DEADLINE_S),
        (unreadable, 0.75 * DEADLINE_S),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_without_the_memory_it_goes_on_from_the_reports(
    name: str, at_s: float, damaged: Callable[[Values], Values]
) -> None:
    """The world checks that ids are new and sort last, and that nobody runs who is out."""
    for seed in (2, 3):
        made = problem(name, seed)
        run = world(asked(made), seed, most=20 if seed == 3 else None).run(at_s)
        if not run.plans[-1].allocations:
            continue
        before, already = len(run.plans), set(run.trials)
        out = {trial.id for trial in run.trials.values() if trial.status != "live"}
        values = damaged(dict(run.policy.memory.values))
        run.policy = Asked(policy_of(made), deepcopy(made), Memory(values))
        run.run(END_S)
        assert run.plans[before].note or values.keys() == {"version"}
        assert not any(plan.note == FORGOTTEN for plan in run.plans[before + 1 :])
        wanted = {a.trial for plan in run.plans[before:] for a in plan.allocations}
        assert not wanted & out
        assert wanted or not _live(run, already)
        assert "left over" not in run.policy.memory.values


def _live(run: World, names: set[str]) -> set[str]:
    return {name for name in names if run.trials[name].status == "live"}


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_memory_of_a_run_without_trials_is_as_none(name: str) -> None:
    made, view = problem(name), View(0.0, "max", {})
    policy = policy_of(made)
    fresh, memory = policy.plan(made, Memory(), view)
    again, after = policy.plan(made, Memory({"version": 0, "left over": [1, 2]}), view)
    assert (again, after.values) == (fresh, memory.values)
    assert after.changes["left over"] is None
