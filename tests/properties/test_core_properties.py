"""Whole runs in a simulated world with random faults, from one seed each: the invariants hold after
every event, and the run ends well.

`make soak SEEDS=10000` runs more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import NO_OUTLINE, JobAdded, JobFacts, JobStopAsked, JobWeighed, RunFacts
from seerd.core.limits import budget_gpu_s
from seerd.core.state import State, new_state
from seerd.core.step import again
from seerd.planner.model import Impossible, PlannedJob, PolicyParams, Problem
from seerd.planner.policies import POLICIES
from seerd.planner.policy import outline_of
from seerd.planner.profile import NONE, Latency
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of
from seerd.sim.behaviour import exactly
from tests.parts import in_parts
from tests.recorded import recorded

SEEDS = int(os.environ.get("SEERD_SOAK_SEEDS", "50"))
BOHB_SEEDS = max(4, SEEDS // 50)
ALL_BUT_BOHB = sorted(POLICIES.keys() - {"bohb"})
EXACT = 1e-6
MakeFacts = Callable[..., RunFacts]


def some_facts(rng: random.Random, seed: int, make: MakeFacts, policies: Sequence[str]) -> RunFacts:
    """A run of one of the policies, with limits that fit at least one trial."""
    rented = rng.random() < 0.5
    hosts = rng.choice([1, 1, 4])
    gpus = rng.choice([1, 2, 4, 8]) if rented else 8 // hosts
    made = make(
        billing="rented" if rented else "held",
        gpus=gpus,
        seed=seed,
        usd_per_gpu_h=3.06 if rented else 0.0,
        budget_gpu_s=rng.choice([320.0, 300.0, 1000.0])
        if not rented
        else rng.choice([600.0, 2000.0]),
    )
    params = replace(
        made.problem.params,
        name=rng.choice(policies),
        p_max=rng.choice([1, 2, 2, 4, None]),
        t_min_s=rng.choice([5.0, 15.0]),
        trials=rng.choice([None, None, 3, 12]),
        min_reports=rng.choice([None, 1, 2]),
        max_reports=rng.choice([None, 9, 27]),
    )
    limits = replace(made.problem.limits, max_gpus=rng.choice([None, None, 8]) if rented else 8)
    if rented and rng.random() < 0.2:
        limits = replace(limits, cost_usd=1.0)
    problem = replace(made.problem, limits=limits, params=params, gpus_per_instance=gpus)
    if rented and rng.random() < 0.5:
        problem = replace(problem, within=replace(limits, deadline_s=45.0), start_s=6.0)
    cluster = (
        replace(made.cluster, boot_s=rng.choice([0.0, 6.0]))
        if rented
        else replace(made.cluster, max_instances=hosts)
    )
    facts = msgspec.structs.replace(made, problem=problem, cluster=cluster)
    if seed % 5 == 0:
        problem = replace(
            problem, params=replace(params, p_max=params.p_min), begins_anew=True, saves=False
        )
        facts = msgspec.structs.replace(facts, problem=problem)
    if isinstance(outline_of(problem), Impossible):
        return some_facts(rng, seed, make, policies)
    return facts


def some_group(rng: random.Random, seed: int, make: MakeFacts) -> RunFacts:
    """A run that two to four jobs share, each with a policy, a weight, a target and limits of its
    own.
    """
    facts = some_facts(rng, seed, make, ALL_BUT_BOHB)
    run, names = facts.problem, "abcd"[: rng.choice([2, 2, 3, 4])]
    jobs = tuple(some_job(rng, run, name) for name in names)
    params = PolicyParams(name="jobs", t_min_s=5.0, seed=seed)
    problem = replace(
        run,
        params=params,
        jobs=jobs,
        sharing=rng.choice(["fair", "greedy", "round-robin", "hybrid", "worst-first"]),
    )
    if isinstance(outline_of(problem), Impossible):
        return some_group(rng, seed, make)
    told = tuple(
        JobFacts(id=one.id, metric="accuracy", mode=one.mode, target=rng.choice([None, None, 0.4]))
        for one in jobs
    )
    return msgspec.structs.replace(
        facts, problem=problem, jobs=told, mode=told[0].mode, outline=NO_OUTLINE, target=None
    )


def some_job(rng: random.Random, run: Problem, name: str) -> PlannedJob:
    limits = replace(
        run.limits,
        deadline_s=run.limits.deadline_s * rng.choice([1.0, 1.0, rng.uniform(0.4, 0.9)]),
        budget_gpu_s=run.limits.budget_gpu_s * rng.choice([1.0, 1.0, rng.uniform(0.1, 0.6)]),
        cost_usd=None,
    )
    params = replace(run.params, name=rng.choice(ALL_BUT_BOHB), seed=rng.randrange(99))
    problem = replace(run, limits=limits, params=params, within=None, whole=False, start_s=0.0)
    return PlannedJob(
        name, problem, rng.choice(["max", "min"]), "accuracy", rng.choice([0.5, 1.0, 2.0])
    )


def ask_of_a_job(world: World, rng: random.Random, number: int) -> None:
    """The person ends a job, or weighs it, or wants one more; some of it cannot be."""
    jobs = world.facts.problem.jobs
    name, request = rng.choice([*jobs, None]), f"job-{number}"
    if name is not None and rng.random() < 0.5:
        world.tell(JobStopAsked(at=world.now, request=request, job=name.id))
    elif name is not None:
        weight = rng.choice([0.5, 3.0])
        world.tell(JobWeighed(at=world.now, request=request, job=name.id, weight=weight))
    else:
        new = some_job(rng, world.facts.problem, rng.choice("bef"))
        told = JobFacts(id=new.id, metric="accuracy", mode=new.mode)
        world.tell(JobAdded(at=world.now, request=request, job=new, facts=told))


def some_latency(rng: random.Random, most_s: float) -> Latency:
    """A time that varies, or one that does not."""
    p50_s = rng.uniform(0.1, most_s)
    return Latency(p50_s, p50_s * rng.choice([1.0, 1.0, 2.0]))


def faulty_world(
    seed: int,
    make: MakeFacts,
    policies: Sequence[str] = ALL_BUT_BOHB,
    *,
    several: bool = False,
    parts: int = 1,
) -> World:
    """A run with faults at random moments: crashing, straggling and dropped trials, machines that
    are lost or taken back, with or without notice, or cannot be had, killed daemons, NaN, trials
    that end by themselves or do not listen, or are in each other's way.
    """
    rng = random.Random(seed)
    facts = some_group(rng, seed, make) if several else some_facts(rng, seed, make, policies)
    facts = in_parts(facts, parts) if parts > 1 else facts
    rented = facts.cluster.per_instance
    unlucky = rng.random() * 0.02

    def metric(config: Config, epoch: int) -> float | None:
        return None if rng.random() < 0.05 else float(config["lr"]) * (1 - 0.5**epoch)

    behaviour = Behaviour(
        metric=metric,
        unit_s=lambda config, epoch, gpus: rng.uniform(0.3, 3.0) / gpus,
        crashes=lambda trial, attempt, epoch: rng.random() < unlucky,
        pending=rng.choice([NONE, some_latency(rng, 6.0)]) if rented else NONE,
        boot=some_latency(rng, 8.0 if rented else 1.0),
        start=some_latency(rng, 6.0),
        stop=exactly(rng.choice([0.2, 1.0, 20.0])),
        most_reports=rng.choice([None, None, 30]),
        partial=rng.choice(["lost", "finished", "kept"]),
        deaf=rng.random() < 0.1,
        straggling=rng.choice([0.0, 0.0, 0.5]),
        drop_rate=rng.choice([0.0, 0.0, 0.02]),
        lifetime_s=rng.choice([None, None, 30.0, 120.0]),
        notice_s=rng.choice([None, 1.0, 8.0, 120.0]),
        sudden=rng.choice([0.0, 0.3]),
        capacity=some_capacity(rng) if rented else None,
    )
    kills = frozenset(rng.randrange(1, 400) for _ in range(rng.randrange(4)))
    room, luck = random.Random(f"room {seed}").choice([99, 99, 1, 2, 0]), random.Random(seed)
    blocked = lambda beside: beside >= room and luck.random() < 0.9  # noqa: E731
    world = World(facts, replace(behaviour, blocked=blocked), seed=seed, kill_after=kills)
    world.down_s = rng.choice([0.1, 2.0, 25.0])
    for _ in range(rng.randrange(3)):
        world.at(rng.uniform(0, 60), lambda: lose_one(world, rng))
    for _ in range(rng.choice([0, 0, 1, 4])):
        world.at(rng.uniform(0, 60), lambda: warn_one(world, rng))
    if rng.random() < 0.2:
        world.at(rng.uniform(0, 60), world.interrupt)
    for number in range(rng.choice([0, 1, 3]) if several else 0):
        at_s = rng.uniform(0, 60)
        world.at(at_s, lambda number=number: ask_of_a_job(world, rng, number))  # type: ignore[misc]
    return world


def shared_world(seed: int, make: MakeFacts, policies: Sequence[str]) -> World:
    """The same where other runs come to its machines, and go, at random moments; where it does not
    rent them.
    """
    world, rng = faulty_world(seed, make, policies), random.Random(f"other runs {seed}")
    for _ in range(0 if world.facts.cluster.per_instance else rng.choice([1, 6])):
        world.at(rng.uniform(0, 60), lambda: share_one(world, rng))
    return world


def some_capacity(rng: random.Random) -> Callable[[float], int] | None:
    """A cloud that has few instances, or none until a moment, or none from a moment on."""
    few, turn_s = rng.choice([1, 2, 3]), rng.uniform(0.0, 30.0)
    return rng.choice(
        [None, None, lambda at: few, lambda at: 9 * (at > turn_s), lambda at: few * (at < turn_s)],
    )


def warn_one(world: World, rng: random.Random) -> None:
    """A notice that comes true, or a hint that nothing follows from."""
    alive = [machine.id for machine in world.fleet.machines.values() if machine.alive]
    if not alive:
        return
    name = rng.choice(alive)
    if rng.random() < 0.5:
        world.fleet.notice(name, "rebalance")
        return
    by = world.now + rng.choice([0.5, 6.0, 30.0])
    world.fleet.notice(name, "interruption", by)
    world.at(by, lambda: world.fleet.lose(name))


def share_one(world: World, rng: random.Random) -> None:
    """Other runs come to a machine, or go."""
    alive = [machine for machine in world.fleet.machines.values() if machine.alive]
    if alive:
        chosen = rng.choice(alive)
        world.fleet.share(chosen.id, rng.randint(1, chosen.gpus))


def lose_one(world: World, rng: random.Random) -> None:
    alive = [machine.id for machine in world.fleet.machines.values() if machine.alive]
    if alive and world.up:
        world.fleet.lose(rng.choice(alive))


def check_accounts(world: World, state: State) -> None:
    """The world's own account is within the budget, and is the ledger's.

    The ledger counts more only where nobody could tell it better: a machine that was lost while
    there was no daemon counts until the latest moment that this can have been, and attempts that
    never confirmed their end count until their machine has.
    """
    cluster = state.facts.cluster
    rented = cluster.per_instance
    billed = world.fleet.billed_gpu_s(cluster.minimum_s) if rented else world.fleet.held_gpu_s
    billed /= cluster.parts
    charged = state.ledger.spent_gpu_s(state.now)
    assert billed <= budget_gpu_s(state) + EXACT, (
        f"{billed} GPU-seconds billed of {budget_gpu_s(state)}"
    )
    assert billed <= charged + EXACT, f"{billed} GPU-seconds billed, {charged} charged"
    unseen = any(
        "when the run was resumed" in instance.why for instance in state.fleet.instances.values()
    )
    ends = {instance.ended_at for instance in state.fleet.instances.values()}
    untold = not rented and any(charge.until_s in ends for charge in state.ledger.charges())
    assert unseen or untold or billed == pytest.approx(charged, abs=EXACT)


def check_replay(world: World) -> None:
    """The journal alone gives the state, without a rule, and whoever decides again decides the
    same.
    """
    assert recorded(world.read(rules=None)) == recorded(world.state)
    state = new_state(world.facts)
    for event, decided in world.journal:
        difference = again(state, event, decided)
        assert difference is None, f"decided otherwise at {event}: {difference}"
    assert recorded(state) == recorded(world.state)


def run_well(world: World) -> None:
    """The run ends in time with the best that is confirmed, within its budget, and replays."""
    state = world.run()
    latest = 60.0 + world.kills * (world.down_s + 1.0)
    assert state.now <= latest, f"ends at {state.now}, not by {latest}"
    confirmed = {
        job_of(trial.id)
        for trial in state.trials.values()
        if any(one.metric is not None for one in trial.checkpoints)
    }
    assert state.result.of_jobs.keys() == confirmed
    check_accounts(world, state)
    check_replay(world)


def run_seeds(
    make: MakeFacts,
    seeds: range,
    policies: Sequence[str],
    play: Callable[[int, MakeFacts, Sequence[str]], World] = faulty_world,
) -> None:
    for seed in seeds:
        world = play(seed, make, policies)
        try:
            run_well(world)
        except Exception as error:
            name = world.facts.problem.params.name
            raise AssertionError(f"seed {seed} ({name}) at {world.now:.3f}s: {error}") from error


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_whatever_fails_the_invariants_hold_and_the_run_ends(facts: MakeFacts, first: int) -> None:
    run_seeds(facts, range(first, min(first + 50, SEEDS)), ALL_BUT_BOHB)


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 25))
def test_the_same_where_jobs_share_the_run(facts: MakeFacts, first: int) -> None:
    run_seeds(
        facts,
        range(first, min(first + 25, SEEDS // 2)),
        ALL_BUT_BOHB,
        partial(faulty_world, several=True),
    )


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_the_same_where_others_use_the_machines_too(facts: MakeFacts, first: int) -> None:
    run_seeds(facts, range(first, min(first + 50, SEEDS)), ALL_BUT_BOHB, shared_world)


@pytest.mark.parametrize("parts", [2, 4])
def test_the_same_where_trials_share_gpus(facts: MakeFacts, parts: int) -> None:
    seeds = range(SEEDS // 2)
    run_seeds(facts, seeds, ALL_BUT_BOHB, partial(faulty_world, parts=parts))
    run_seeds(
        facts, range(SEEDS // 5), ALL_BUT_BOHB, partial(faulty_world, several=True, parts=parts)
    )


def test_the_same_with_the_model_of_bohb(facts: MakeFacts) -> None:
    run_seeds(facts, range(BOHB_SEEDS), ["bohb"])
