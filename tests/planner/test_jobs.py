"""Jobs that share a run, in whole simulated runs: whatever their policies are, all limits are kept,
nothing that can be used is left idle, and every job's model is handed back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import pytest
from msgspec import structs

from bench.testbed import checked_world
from bench.testbed.checked_world import World
from seerd.core.commands import StartTrial, StopTrial
from seerd.core.decide import judge
from seerd.core.events import Goal, JobStopAsked, JobWeighed, TrialExited
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent
from seerd.core.plans import New, PlanChange
from seerd.core.state import new_state
from seerd.core.step import DecidingAgain
from seerd.core.verdicts import Declined, JobOver
from seerd.errors import LimitsError
from seerd.planner import jobs
from seerd.planner.job_parts import JobTerms, ShareTable
from seerd.planner.jobs import WHILE_S
from seerd.planner.memory import Memory
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Sharing
from seerd.planner.policies import POLICIES
from seerd.planner.policy import plan_of
from seerd.planner.space import Parameter, Space
from seerd.planner.trial_ids import job_of
from seerd.planning.planned import extended, plan_for
from seerd.sim.curves import Curves, synthetic
from seerd.sim.setting import JobSetting, Setting, problem_of
from tests.sim.hand import profile

PROFILE = profile(report=10.0, start=2.0, save=1.0, pending=4.0, boot=10.0, release=1.0)
HELD = ClusterFacts("held", 8)
RENTED = ClusterFacts("rented", 4, usd_per_gpu_h=3.6, terminate_s=2.0, boot_s=14.0)
DEADLINE_S = 600.0
GPUS = 8
SHARINGS: tuple[Sharing, ...] = ("fair", "greedy", "round-robin", "hybrid", "worst-first")
WITHIN_S = 30.0
"""Shares follow a change within so many seconds."""
EPSILON = 1e-6


SPACE = Space((Parameter("lr", low=1e-4, high=1.0, log=True), Parameter("depth", (2, 4, 6))))


@cache
def curves(seed: int) -> Curves:
    return synthetic(SPACE, "max", 10.0, seed)


def job(
    name: str, policy: str, seed: int = 0, target: float | None = None, **more: Any
) -> JobSetting:
    params = PolicyParams(
        name=policy, eta=3, t_min_s=20.0, seed=seed, min_reports=1, max_reports=9, p_max=4
    )
    goal = Goal(metric="metric", mode="max", target=target)
    return JobSetting(curves(seed), PROFILE, goal, name, params, **more)


def group(
    *jobs: JobSetting, rented: bool = False, gpus: int = GPUS, sharing: Sharing = "fair"
) -> Setting:
    cluster = RENTED if rented else replace(HELD, gpus_per_instance=gpus, max_instances=1)
    limits = Limits(DEADLINE_S, DEADLINE_S * gpus * (0.7 if rented else 1.0), gpus)
    return Setting(jobs, limits, cluster, sharing=sharing)


def world_of(setting: Setting, seed: int = 0) -> World:
    """Before its first event; every invariant is checked after each."""
    problem = plan_for(problem_of(setting), setting.cluster, PROFILE).problem
    world = checked_world.world_of(setting, problem, seed)
    assert isinstance(world, World)
    return world


def changes(world: World) -> Iterator[tuple[float, str, int]]:
    """When a job has so many GPUs more, or fewer."""
    held: dict[str, int] = {}
    for event, decided in world.journal:
        if isinstance(event, TrialExited):
            yield event.at, job_of(event.trial), -held.pop(event.trial, 0)
        for one in decided:
            if isinstance(one, StartTrial):
                held[one.trial] = len(one.gpus)
                yield event.at, job_of(one.trial), len(one.gpus)


def gpu_s(world: World, since: float = 0.0, until: float = math.inf) -> dict[str, float]:
    """What each job has held between two moments, by what was started and what has ended."""
    found = dict.fromkeys(world.state.jobs, 0.0)
    end = min(until, world.state.now)
    for at, name, gpus in changes(world):
        found[name] += gpus * max(0.0, end - max(at, since))
    return found


def most(world: World) -> int:
    """The most GPUs at one moment."""
    now = highest = 0
    for _, _, gpus in sorted(changes(world), key=lambda one: (one[0], one[2])):
        now += gpus
        highest = max(highest, now)
    return highest


def sound(setting: Setting, seed: int = 0) -> World:
    """A whole run that keeps all that is promised for it and for each of its jobs."""
    world = world_of(setting, seed)
    state = world.run()
    used, limits = gpu_s(world), setting.limits
    assert state.now <= limits.deadline_s + EPSILON
    assert most(world) <= GPUS
    assert state.ledger.spent_gpu_s(state.now) <= limits.budget_gpu_s + EPSILON
    for one in setting.jobs:
        own = one.limits or limits
        assert used[one.id] == pytest.approx(state.jobs[one.id].spent_gpu_s(state.now))
        assert used[one.id] <= own.budget_gpu_s + EPSILON
        ends = [at for at, name, gpus in changes(world) if name == one.id and gpus < 0]
        assert max(ends) <= own.deadline_s + EPSILON
        best = incumbent(state, one.id)
        assert best is not None
        assert state.result.of_jobs[one.id].incumbent.metric == best.metric
    return world


NAMES = [name for name in POLICIES if name != "bohb" or find_spec("optuna")]


@pytest.mark.parametrize(
    ("name", "rented"),
    [*((name, number % 2 > 0) for number, name in enumerate(NAMES)), ("seer+", True)],
)
def test_any_policy_is_sound_beside_others(name: str, rented: bool) -> None:
    """With a deadline, a budget and a target of the jobs' own."""
    seed = NAMES.index(name) + rented
    own = Limits(DEADLINE_S * 0.6, DEADLINE_S * GPUS)
    less = Limits(DEADLINE_S, DEADLINE_S * GPUS * 0.15)
    jobs = (
        job("a", name, seed),
        job("b", "asha", seed + 1, limits=own, weight=2.0),
        job("c", name, seed + 2, limits=less if seed % 2 else None, target=0.7),
    )
    sound(group(*jobs, rented=rented, sharing=SHARINGS[seed % len(SHARINGS)]), seed)


@pytest.mark.parametrize("name", ["asha", "seer+"])
def test_a_job_that_is_alone_has_all_gpus(name: str) -> None:
    """One job in a group has all that there is."""
    world = sound(group(job("a", name)))
    busy = gpu_s(world, 60.0, 500.0)["a"]
    assert busy > 0.9 * GPUS * 440.0


@pytest.mark.parametrize("sharing", ["fair", "worst-first"])
def test_what_a_job_that_is_over_had_is_used_by_the_others(sharing: Sharing) -> None:
    world = world_of(group(job("a", "asha"), job("b", "asha", 1), sharing=sharing))
    world.at(200.0, lambda: world.tell(JobStopAsked(at=world.now, request="r", job="a")))
    world.run()
    assert gpu_s(world, 200.0 + WITHIN_S)["a"] == 0.0
    assert gpu_s(world, 200.0 + WITHIN_S, 500.0)["b"] > 0.9 * GPUS * (300.0 - WITHIN_S)
    assert world.state.result.of_jobs.keys() == {"a", "b"}


def test_the_trials_of_a_job_that_is_over_are_stopped_before_the_policy_answers() -> None:
    world = world_of(group(job("a", "asha"), job("b", "asha", 1)))
    world.at(40.0, lambda: world.tell(JobStopAsked(at=world.now, request="r", job="a")))
    world.begin()
    while world.now < 41.0:
        world.turn()
    granted = next(
        [one for one in decided if isinstance(one, StopTrial)]
        for event, decided in world.journal
        if isinstance(event, JobStopAsked)
    )
    assert {job_of(one.trial) for one in granted} == {"a"}


def test_gpus_go_by_weight_soon_after_weights_have_changed() -> None:
    world = world_of(group(job("a", "asha"), job("b", "asha", 1)))
    asked = JobWeighed(at=0.0, request="r", job="a", weight=3.0)
    world.at(200.0, lambda: world.tell(structs.replace(asked, at=world.now)))
    world.run()
    before, after = gpu_s(world, 60.0, 200.0), gpu_s(world, 200.0 + WITHIN_S, 500.0)
    assert before["a"] / before["b"] == pytest.approx(1.0, abs=0.15)
    assert after["a"] / after["b"] == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_who_wants_less_for_a_while_is_looked_at_again_soon(sharing: Sharing) -> None:
    """Whatever is looked at how often otherwise: what it left may be wanted back."""
    world = world_of(group(job("a", "asha"), job("b", "asha", 1), sharing=sharing))
    problem = world.state.facts.problem
    terms = {name: JobTerms(4, 0.0, DEADLINE_S, DEADLINE_S) for name in "ab"}
    calm = ShareTable(divided_s=100.0, terms=terms)
    assert jobs._again_s(problem, calm, problem.jobs) >= 100.0 + WHILE_S
    short = replace(calm, caps={"a": 1})
    assert jobs._again_s(problem, short, problem.jobs) == 100.0 + WHILE_S


def test_fewer_gpus_than_jobs_go_round() -> None:
    jobs = [job(name, "asha", seed) for seed, name in enumerate("abcd")]
    world = sound(group(*jobs, gpus=2))
    used = gpu_s(world)
    assert min(used.values()) > 0.7 * sum(used.values()) / len(jobs)


def test_who_waits_goes_next_however_often_something_changes() -> None:
    """Fewer GPUs than jobs, and the weight of the first one is another each twenty seconds."""
    world = world_of(group(*(job(name, "asha", n) for n, name in enumerate("abc")), gpus=2))
    asked = JobWeighed(at=0.0, request="r", job="a", weight=1.0)

    def weigh(number: int) -> None:
        told = {"at": world.now, "request": str(number), "weight": 1.0 + 0.1 * (number % 2)}
        world.tell(structs.replace(asked, **told))

    for number in range(1, 20):
        world.at(20.0 * number, partial(weigh, number))
    world.run()
    used = gpu_s(world, 0.0, 400.0)
    assert min(used.values()) > 0.7 * sum(used.values()) / len(used)


def test_a_job_whose_own_budget_is_used_up_is_over_and_keeps_it() -> None:
    """In the middle of trainings that nobody would have looked at before they are done."""
    less = job("a", "asha", limits=Limits(DEADLINE_S, 400.0))
    less = replace(less, params=replace(less.params, min_reports=50, max_reports=100))
    world = sound(group(less, job("b", "asha", 1)))
    over = [one for _, decided in world.journal for one in decided if isinstance(one, JobOver)]
    assert [(one.job, one.why) for one in over] == [("a", "budget")]
    assert 200.0 < gpu_s(world)["a"] <= 400.0
    assert gpu_s(world)["b"] > 0.85 * (GPUS * DEADLINE_S - 400.0)
    assert_decided_again(world)


def assert_decided_again(world: World) -> None:
    """Reading the run anew, the core decides and the policies answer what is recorded."""
    state, deciding = new_state(world.facts), DecidingAgain()
    for event, decided in world.journal:
        deciding.follow(state, event, decided)
    assert deciding.difference is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"p_min": GPUS + 1}, f"b: a trial needs {GPUS + 1} GPUs"),
        ({"t_min_s": 2 * DEADLINE_S}, "b: .* the shortest round is 1200s"),
        (Limits(5.0, 1000.0), "b: (its own limits are over|.* the shortest round is 20s)"),
        (Limits(DEADLINE_S, 3.0), "b: .* the shortest round is 20s.*leave the job out"),
    ],
)
@pytest.mark.parametrize("rented", [False, True])
def test_a_job_that_could_never_begin_is_refused_by_its_name(
    change: dict[str, Any] | Limits, told: str, rented: bool
) -> None:
    one = job("b", "asha")
    if isinstance(change, Limits):
        one = replace(one, limits=change)
    else:
        one = replace(one, params=replace(one.params, **change))
    with pytest.raises(LimitsError, match=f"(?s){told}"):
        world_of(group(job("a", "asha"), one, rented=rented))


def test_limits_that_are_extended_leave_a_jobs_own_as_they_are() -> None:
    own = Limits(300.0, DEADLINE_S * GPUS)
    setting = group(job("a", "asha", limits=own), job("b", "asha", 1))
    world = world_of(setting)

    def extend() -> None:
        problem = world.state.facts.problem
        more = replace(problem.limits, deadline_s=900.0, budget_gpu_s=900.0 * GPUS)
        spent = world.state.ledger.spent_gpu_s(world.now)
        facts = world.state.facts
        now = world.now
        world.extend(
            *extended(problem, facts.cluster, more, now_s=now, spent_gpu_s=spent, spent_usd=0.0)
        )

    world.at(100.0, extend)
    world.run()
    limits = {job.id: job.problem.limits.deadline_s for job in world.state.facts.problem.jobs}
    assert limits == {"a": 300.0, "b": 900.0}
    assert world.state.jobs["a"].over == "deadline"
    assert gpu_s(world, 330.0)["a"] == 0.0
    assert gpu_s(world, 620.0)["b"] > 0.0


def test_an_answer_that_wants_a_job_that_is_over_or_unknown_is_no_plan() -> None:
    world = world_of(group(job("a", "asha"), job("b", "asha", 1)))
    world.at(100.0, lambda: world.tell(JobStopAsked(at=world.now, request="r", job="a")))
    world.run()
    state = world.state
    for trial in ("a.t9999", "z.t0001", "t0001"):
        change = PlanChange(new=(New(trial, {"lr": 0.1, "depth": 2}),))
        state.plan.answer = change, {}
        assert isinstance(judge(state), Declined)


@pytest.mark.parametrize(
    ("sharing", "rented"), [("fair", True), ("hybrid", False), ("worst-first", True)]
)
def test_asked_twice_or_by_another_process_the_plan_is_the_same(
    sharing: Sharing, rented: bool
) -> None:
    """Each question of a run is asked again, with what a journal keeps of the memory."""
    jobs = (job("a", "asha"), job("b", "seer", 1), job("c", "seer+", 2))
    world = world_of(group(*jobs, rented=rented, sharing=sharing))
    asked: list[float] = []

    def again() -> None:
        state = world.state
        if state.phase is not RunPhase.RUNNING or not state.plan.asked:
            return
        kept = json.loads(json.dumps(state.plan.memory))
        first, after = plan_of(state.facts.problem, Memory(state.plan.memory), state.view)
        other, elsewhere = plan_of(deepcopy(state.facts.problem), Memory(kept), state.view)
        assert kept == state.plan.memory, "a memory is never changed in place"
        assert other == first
        assert elsewhere.values == after.values
        asked.append(world.now)

    for at_s in range(20, 600, 40):
        world.at(float(at_s), again)
    world.run()
    assert len(asked) > 5
