"""What tests of simulations share: settings that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.testbed.checked_world import World
from seerd.core.events import RunFacts
from seerd.planner.model import ClusterFacts, Limits, Mode, PolicyParams, Problem
from seerd.planner.profile import LINEAR, CloudProfile, JobProfile, Latency, Profile, Scaling
from seerd.planning.planned import plan_for
from seerd.sim.curves import Curves
from seerd.sim.setting import Setting, behaviour_of, problem_of

IDEAL = ClusterFacts("held", 8, instant=True)
PER_INSTANCE = ClusterFacts("rented", 4, usd_per_gpu_h=3.6, terminate_s=5.0)


def limits(deadline_s: float = 600.0, budget_gpu_s: float = 2400.0, **more: Any) -> Limits:
    return Limits(deadline_s, budget_gpu_s, **more)


def curves(*rows: list[float], seconds: float = 10.0, mode: Mode = "max", gpus: int = 1) -> Curves:
    """One row for each configuration, every report the same time after the one before."""
    metric = np.array(rows)
    return Curves(metric, np.full(metric.shape, seconds), gpus, mode)


def sure(seconds: float) -> Latency:
    """A time that does not vary."""
    return Latency(seconds, seconds)


def profile(
    scaling: Scaling = LINEAR,
    report: float = 10.0,
    start: float = 0,
    save: float = 0,
    **cloud: float,
) -> Profile:
    """`cloud`: pending, boot, release. All in seconds."""
    job = JobProfile(sure(report), scaling, start=sure(start), save=sure(save))
    return Profile(
        job,
        CloudProfile(**{name: sure(seconds) for name, seconds in cloud.items()}),
        "measured by hand",
    )


def planned(setting: Setting, name: str, *, ideal: bool | None = None, **params: Any) -> Problem:
    """The problem of a policy; ideal if the cluster is, unless told otherwise."""
    problem = problem_of(setting, PolicyParams(**{"name": name, "t_min_s": 30.0, **params}))
    letter = setting.cluster.instant if ideal is None else ideal
    return plan_for(problem, setting.cluster, setting.job.profile, ideal=letter).problem


def play(setting: Setting, problem: Problem, seed: int = 0) -> World:
    """A whole run, with the invariants checked after every event; `journal`, `state` and `fleet` of
    the world tell what happened.
    """
    problem = replace(problem, params=replace(problem.params, seed=seed))
    facts = RunFacts(
        run="by-hand",
        name="by-hand",
        metric="metric",
        mode=setting.job.curves.mode,
        problem=problem,
        cluster=setting.cluster,
    )
    world = World(facts, behaviour_of(setting), seed=seed)
    world.run()
    return world
