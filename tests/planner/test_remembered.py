"""What the policies by rungs remember: enough to go on anywhere, in a form that a journal keeps,
and not needed to go on at all.
"""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.asha import ASHA, asha
from seerd.planner.bohb import BOHB
from seerd.planner.caching import IndexCache
from seerd.planner.hypersched import HYPERSCHED
from seerd.planner.memory import FORGOTTEN, Json, Memory
from seerd.planner.model import Plan, Policy, Problem, View
from seerd.planner.profile import BUNDLED
from seerd.planner.space import Parameter, Space
from seerd.planner.trial_ids import names_after

POLICIES = {"asha": ASHA, "hypersched": HYPERSCHED, "bohb": BOHB}
by_name = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("optimizer", choices=("sgd", "adam")),
    )
)


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)


@dataclass
class Elsewhere(Asked):
    """Every question is asked where nothing was kept: the memory comes from JSON, and the problem
    is made again.
    """

    def plan(self, view: View) -> Plan:
        values = json.loads(json.dumps(dict(self.memory.values)))
        plan, self.memory = self.policy.plan(copy.deepcopy(self.problem), Memory(values), view)
        return plan


def world(asked: Asked, seed: int, gpus: int) -> World:
    rng = random.Random(seed)
    return World(
        asked,
        gpus,
        lambda trial, epoch: (
            None if rng.random() < 0.1 else round(by_lr(trial, epoch), 1 + seed % 3)
        ),
        unit_s=lambda trial, until, gpus: rng.uniform(0.3, 2.0) / gpus,
        start_s=0.5,
        lives_s=(lambda: rng.expovariate(0.05)) if seed % 2 else (lambda: math.inf),
        most=20 if seed % 3 == 0 else None,
        late=lambda: rng.random() < 0.2,
        mode="max" if seed % 5 else "min",
    )


def drawn_problem(seed: int, gpus: int, deadline_s: float) -> Problem:
    rng = random.Random(seed)
    return problem(
        gpus,
        deadline_s,
        scaling=BUNDLED["resnet50"],
        space=SPACE,
        per_instance=rng.choice([2, 4, 8]),
        trials=rng.choice([None, None, 10, 40]),
        eta=rng.choice([2, 3, 4]),
        max_reports=rng.choice([8, 32, 64]),
        p_max=rng.choice([None, 4]),
        seed=seed,
    )


def same_elsewhere(policy: Policy, seed: int, gpus: int, deadline_s: float) -> None:
    made = drawn_problem(seed, gpus, deadline_s)
    here = world(Asked(policy, made), seed, gpus).run()
    there = world(Elsewhere(policy, made), seed, gpus).run()
    assert there.plans == here.plans
    assert there.policy.memory.values == here.policy.memory.values


@pytest.mark.parametrize("policy", [ASHA, HYPERSCHED], ids=["asha", "hypersched"])
@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_that_is_kept_beside_is_needed(policy: Policy, seed: int, gpus: int) -> None:
    same_elsewhere(policy, seed, gpus, 40.0)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_of_the_model_is_needed(seed: int) -> None:
    same_elsewhere(BOHB, seed, 3, 15.0)


@by_name
def test_what_changed_makes_what_is_remembered(policy: Policy) -> None:
    """A journal that has only the changes of each plan has the memory."""
    asked, kept = Asked(policy, drawn_problem(1, 4, 30.0)), dict[str, Json]()
    run = replace(world(asked, 1, 4), checks=False)
    plan = run.ask()
    for until_s in range(1, 40):
        kept |= asked.memory.changes
        kept = {key: value for key, value in kept.items() if value is not None}
        assert kept == asked.memory.values
        assert all(len(json.dumps(value)) < 400 for value in asked.memory.changes.values())
        if plan.done:
            break
        run.now_s = float(until_s)
        for name in run.held:
            run.trials[name].report(run.trials[name].reports + 1, 0.5, float(until_s))
        plan = run.ask()
    assert plan.done


@by_name
def test_asking_an_old_memory_again_gives_the_old_answer(policy: Policy) -> None:
    made = drawn_problem(4, 4, 60.0)
    first, memory = policy.plan(made, Memory(), View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id, new.config) for new in first.new}
    for trial in trials.values():
        trial.report(64, 0.5, 1.0)
    answers = [policy.plan(made, memory, View(1.0, "max", trials)) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


def taken_up(there: dict[str, FakeTrial], policy: Policy, **params: object) -> Plan:
    made = problem(4, 100.0, space=SPACE, max_reports=64, min_reports=1, **params)
    plan, remembered = policy.plan(made, Memory(), View(5.0, "max", there))
    again, _ = policy.plan(
        made,
        Memory(json.loads(json.dumps(dict(remembered.values)))),
        View(5.0, "max", with_new(there, plan)),
    )
    assert (again.allocations, again.new, again.note) == (plan.allocations, (), "")
    return plan


def with_new(trials: dict[str, FakeTrial], plan: Plan) -> dict[str, FakeTrial]:
    return trials | {new.id: FakeTrial(new.id, new.config) for new in plan.new}


def trial(name: str, reports: int, metric: float = 0.5, status: str = "live") -> FakeTrial:
    made = FakeTrial(name, {"lr": 0.1, "optimizer": "adam"}, status)
    for epoch in range(1, reports + 1):
        made.report(epoch, metric, epoch / 10)
    return made


@by_name
def test_a_run_of_which_nothing_is_remembered_goes_on_from_its_reports(policy: Policy) -> None:
    reports = [0, 1, 1, 1, 1, 4, 5, 64, 3]
    trials = {
        f"t{n:04}": trial(f"t{n:04}", count, 0.95 if n == 5 else n / 10)
        for n, count in enumerate(reports, 1)
    }
    trials["t0009"].status = "failed"
    plan = taken_up(trials, policy)
    untils = {allocation.trial: allocation.until for allocation in plan.allocations}
    assert plan.note == FORGOTTEN
    assert untils["t0005"] == 4, "the best quarter of the lowest rung, where seven have been"
    assert untils["t0001"] == 1, "it has come to no rung yet"
    assert [new.id for new in plan.new] == ["t0010", "t0011"]
    assert len(untils) == 4


@by_name
def test_who_is_out_stays_out(policy: Policy) -> None:
    trials = {
        name: trial(name, 4, 0.9, status)
        for name, status in (("t0001", "failed"), ("t0002", "finished"), ("t0003", "eliminated"))
    }
    plan = taken_up(trials, policy)
    assert sorted(allocation.trial for allocation in plan.allocations) == [
        "t0004",
        "t0005",
        "t0006",
        "t0007",
    ]


@by_name
def test_of_more_trials_than_there_are_gpus_some_wait(policy: Policy) -> None:
    trials = {f"t{n:04}": trial(f"t{n:04}", 0) for n in range(1, 10)}
    plan = taken_up(trials, policy)
    assert sorted(allocation.trial for allocation in plan.allocations) == [
        "t0001",
        "t0002",
        "t0003",
        "t0004",
    ]
    assert not plan.new


@by_name
def test_a_run_that_is_taken_up_draws_no_more_than_were_asked_for(policy: Policy) -> None:
    trials = {f"t{n:04}": trial(f"t{n:04}", 0, status="failed") for n in range(1, 10)}
    assert len(taken_up(trials, policy, trials=11).new) == 2
    assert taken_up(trials, policy, trials=9).done


@pytest.mark.parametrize(
    "values",
    [
        {"version": 2},
        {"drawn": [1, 0, 0]},
        {"version": 1},
        {"version": 1, "drawn": "many"},
        {"version": 1, "drawn": [1, 0, -1]},
        {"version": 1, "drawn": [1, 0, 0], "at t0001": [0, 1]},
        {"version": 1, "drawn": [1, 0, 0], "at t0001": [7, 1, 0]},
        {"version": 1, "drawn": [1, 0, 0], "at t0001": [0, 9, 0]},
        {"version": 1, "drawn": [1, 0, 0], "at t0001": [0, 1.5, None]},
        {"version": 1, "drawn": [1, 0, 0], "names": ["t", "0", 4]},
        {"version": 1, "drawn": [1], "run 1": {}, "longest_s": "long"},
        {"version": 1, "drawn": [1], "run x": [1, "t0001", 1, 0.0, 0.0, 0, None]},
        {"version": 1, "drawn": [1], "trained t0001": None},
        {"stages": [[1, 2], None], "at t0001": True},
    ],
)
@by_name
def test_a_memory_of_another_kind_is_none(policy: Policy, values: dict[str, Json]) -> None:
    trials = {"t0001": trial("t0001", 1)}
    made = problem(4, 100.0, space=SPACE, max_reports=64, min_reports=1)
    plan, memory = policy.plan(made, Memory(values), View(5.0, "max", trials))
    fresh, expected = policy.plan(made, Memory(), View(5.0, "max", trials))
    assert plan == fresh
    assert plan.note == FORGOTTEN
    assert memory.values == expected.values, "what was not understood is forgotten"
    assert {
        key for key, value in memory.changes.items() if value is None
    } == values.keys() - expected.values.keys()


@by_name
def test_a_memory_of_another_kind_before_the_first_trial_is_nothing_to_tell(policy: Policy) -> None:
    made = problem(4, 100.0, space=SPACE)
    assert (
        policy.plan(made, Memory({"version": 0}), View(0.0, "max", {}))[0]
        == policy.plan(made, Memory(), View(0.0, "max", {}))[0]
    )


@by_name
@given(
    seed=st.integers(0, 10**6),
    at_s=st.floats(1.0, 25.0),
    other=st.sampled_from([ASHA, HYPERSCHED, asha(most_brackets=1)]),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_can_be_taken_up_at_any_time_from_any_policy(
    policy: Policy, seed: int, at_s: float, other: Policy
) -> None:
    made = drawn_problem(seed, 4, 30.0)
    run = world(Asked(other, made), seed, 4).run(at_s)
    run.policy = Asked(policy, made)
    run.run()
    assert run.plans[-1].done
    assert made.params.trials is None or len(run.trials) <= made.params.trials


@given(
    st.lists(
        st.from_regex(r"t[0-9]{1,7}", fullmatch=True) | st.sampled_from(["mine", "a-7", "t"]),
        min_size=1,
    ),
    st.integers(1, 10**5),
)
def test_new_ids_sort_after_those_that_there_are(there: list[str], more: int) -> None:
    made = names_after(max(there), len(there), more)
    new = [made.of(len(there) + number) for number in (1, 2, more // 2 + 1, more) if number <= more]
    assert new == sorted(new)
    assert all(name > other for name in new for other in there)


def test_ids_go_on_as_they_began() -> None:
    assert names_after("t0012", 12, 100).of(13) == "t0013"
    assert names_after("t000012", 12, 100).of(13) == "t000013"
    assert names_after("t0099", 99, 10**6).of(100) > "t0099"


def test_what_is_beside_a_memory_is_given_once_and_for_the_same_problem() -> None:
    cache, memory, made = IndexCache[str](), Memory(), problem()
    cache.keep(made, memory, "kept")
    assert cache.take(made, Memory()) is None
    assert cache.take(made, memory) == "kept"
    assert cache.take(made, memory) is None
    cache.keep(made, memory, "kept")
    assert cache.take(replace(made), memory) is None
