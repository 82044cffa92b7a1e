"""Runs that jobs share, in the simulated world: with metrics and owners of their own."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from bench.testbed.checked_world import World, world_of
from seerd.core.events import Goal, JobAdded, JobStopAsked, JobWeighed, RunFacts
from seerd.planner.model import BillingKind, ClusterFacts, Limits, PolicyParams
from seerd.sim.setting import JobSetting, Setting, behaviour_of, problem_of
from tests.sim.hand import curves, profile

RISING = ([0.1, 0.3, 0.5, 0.7, 0.8, 0.9], [0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
FALLING = ([9.0, 5.0, 3.0, 2.0, 1.0, 0.8], [9.0, 8.0, 7.0, 6.5, 6.0, 6.0])
NAMES = {"a": ("accuracy", "vision"), "b": ("loss", "speech"), "c": ("accuracy", "vision")}


def group_world(billing: BillingKind = "held", *, until_s: float | None = None) -> World:
    """Jobs a and c have an accuracy and are of vision, b has a loss and is of speech. Job a has a
    target; c has a deadline of its own, long before the run's.

    until_s  where it stops; None: at its end
    """
    rates = {"usd_per_gpu_h": 3.6, "terminate_s": 5.0, "boot_s": 20.0}
    cluster = ClusterFacts(billing, 4, max_instances=1, **(rates if billing == "rented" else {}))
    limits = Limits(600.0, 2400.0, 4)
    own = Limits(140.0, 2400.0)
    group = Setting((_job("a", 2.0, 0.85), _job("b"), _job("c", limits=own)), limits, cluster)
    made = world_of(group, problem_of(group), 1)
    assert isinstance(made, World)
    behaviour = behaviour_of(group)
    jobs = {**behaviour.jobs, "d": behaviour.jobs["c"]}
    world = World(_named(made.facts), replace(behaviour, jobs=jobs), seed=1)
    world.begin()
    return on(world, until_s)


def on(world: World, until_s: float | None = None) -> World:
    """Let it go on until then; None: to its end."""
    while not world.state.finished and (until_s is None or world.now < until_s):
        world.turn()
    return world


def asked_world() -> World:
    """The person gives b more weight, wants what cannot be, adds d and ends b."""
    world = group_world(until_s=20.0)
    facts, at_s = world.state.facts, world.now
    job, known = facts.problem.jobs[2], facts.job("c")
    added = replace(job, id="d", weight=0.5), msgspec.structs.replace(known, id="d", owner="ops")
    world.tell(JobWeighed(at=at_s, request="r1", job="b", weight=3.0))
    world.tell(JobWeighed(at=at_s, request="r2", job="z", weight=3.0))
    world.tell(JobAdded(at=at_s, request="r3", job=added[0], facts=added[1]))
    world.tell(JobStopAsked(at=at_s, request="r4", job="b"))
    return on(world)


def _job(
    name: str, weight: float = 1.0, target: float | None = None, limits: Limits | None = None
) -> JobSetting:
    mode = "min" if name == "b" else "max"
    replayed = curves(*(FALLING if mode == "min" else RISING), seconds=8.0, mode=mode)
    params = PolicyParams(name="asha", trials=8, max_reports=6, min_reports=1, eta=2, t_min_s=10.0)
    taken = profile(report=8.0, start=1.0, save=1.0)
    goal = Goal(metric="metric", mode=mode, target=target)
    return JobSetting(replayed, taken, goal, name, params, limits, weight)


def _named(facts: RunFacts) -> RunFacts:
    """Give jobs metrics and owners."""
    jobs = tuple(
        msgspec.structs.replace(job, metric=NAMES[job.id][0], owner=NAMES[job.id][1])
        for job in facts.jobs
    )
    planned = tuple(replace(job, metric=NAMES[job.id][0]) for job in facts.problem.jobs)
    problem = replace(facts.problem, jobs=planned)
    return msgspec.structs.replace(
        facts, run="shared", name="shared", metric="accuracy", jobs=jobs, problem=problem
    )
