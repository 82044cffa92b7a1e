"""From the terms of a simulation (limits, cluster, profile, curves) to a world: what the core is
told, and how everything behaves.

The one rule: a setting and a seed determine the run to the last bit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from seerd.core.events import RunFacts
from seerd.core.incumbent import incumbent
from seerd.core.state import State
from seerd.planner.model import ClusterFacts, Impossible, Limits, PolicyParams, Problem
from seerd.planner.policy import outline_of
from seerd.planner.profile import NONE, Profile
from seerd.planner.scaling import Scaling
from seerd.planner.space import Config
from seerd.sim.behaviour import Behaviour
from seerd.sim.curves import Curves
from seerd.sim.world import World

METRIC = "metric"
SAVES_EVERY_S = 10.0
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on purpose, see `Behaviour`."""

    straggling: float = 0.0  # standard deviation of the slowness of attempts
    drop_rate: float = 0.0  # share of attempts that crash, for each minute of training
    lifetime_s: float | None = None  # mean seconds until an instance is interrupted; None: never
    # seconds between the notice and an interruption (two minutes: Amazon EC2 User Guide, Spot
    # Instance interruption notices)
    notice_s: float | None = 120.0
    sudden: float = 0.1  # share of interruptions without a notice


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that determines a simulated run but the policy and the seed."""

    curves: Curves  # the recorded curves that trials replay
    limits: Limits  # what the run may take
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    profile: Profile  # how long things take; `profile.job.scaling` is lambda(p)
    faults: Faults = Faults()  # what goes wrong on purpose
    target: float | None = None  # the run ends when a saved model is as good as this; None: never
    smooth: int = 1  # models are compared by the mean of so many last reports

    @property
    def scaling(self) -> Scaling:
        """lambda(p)."""
        return self.profile.job.scaling


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one simulated run came to."""

    metric: float | None  # metric of its model at its last report; None: there is no model
    regret: float | None  # its distance from the best metric of the curves; None: there is no model
    gpu_s: float  # GPU-seconds billed, by the world's own account and not by the core's ledger
    elapsed_s: float  # seconds from the start until the model was published, or the run ended
    trials: int  # how many configurations were tried
    events: int  # how many events the core has handled
    ending: str  # how the run ended
    within_deadline: bool  # whether it kept the deadline
    within_budget: bool  # whether it kept the budget


def problem_of(setting: Setting, params: PolicyParams) -> Problem:
    """Make the policy's problem, before the cloud's costs are set aside."""
    most = setting.curves.epochs
    asked = params.max_reports
    params = replace(params, max_reports=most if asked is None else min(asked, most))
    cluster = setting.cluster
    return Problem(
        setting.limits, setting.curves.space(), params, setting.scaling, cluster.gpus_per_instance
    )


def run(
    setting: Setting, problem: Problem, seed: int, *, checked: bool = False
) -> Outcome | Impossible:
    """Simulate one run of a problem's policy; `Impossible` if the limits fit nothing. `checked`:
    check the core's invariants after every step.
    """
    world = world_of(setting, problem, seed, checked=checked)
    if isinstance(world, Impossible):
        return world
    with _uncollected():
        return outcome_of(setting, world, world.run())


def world_of(
    setting: Setting, problem: Problem, seed: int, *, checked: bool = False
) -> World | Impossible:
    """Make the world of one run, before it begins."""
    problem = replace(problem, params=replace(problem.params, seed=seed))
    outline = outline_of(problem)
    if isinstance(outline, Impossible):
        return outline
    facts = RunFacts(
        run=f"simulated-{seed}",
        name="simulated",
        metric=METRIC,
        mode=setting.curves.mode,
        problem=problem,
        cluster=setting.cluster,
        target=setting.target,
        smooth=setting.smooth,
    )
    return World(facts, behaviour_of(setting), seed=seed, checked=checked)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn off the garbage collector during a run. A run makes no cyclic garbage until it is over,
    and the collector would look at all of its trials again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def behaviour_of(setting: Setting) -> Behaviour:
    """Derive how trials and the cloud behave; on an instant cluster nothing takes time and no work
    is lost.
    """
    job, cloud, faults = setting.profile.job, setting.profile.cloud, setting.faults
    instant = setting.cluster.instant
    return Behaviour(
        metric=setting.curves.at,
        unit_s=_UnitTime(setting.curves, setting.scaling),
        most_reports=setting.curves.epochs,
        saves_every_s=0.0 if instant else SAVES_EVERY_S,
        pending=NONE if instant else cloud.pending,
        boot=NONE if instant else cloud.boot,
        start=NONE if instant else job.start,
        stop=NONE if instant else job.save,
        release=NONE if instant else cloud.release,
        release_most_s=setting.cluster.terminate_s,
        partial="kept" if instant else "finished",
        straggling=faults.straggling,
        drop_rate=faults.drop_rate / 60,
        lifetime_s=faults.lifetime_s,
        notice_s=faults.notice_s,
        sudden=faults.sudden,
    )


class _UnitTime:
    """The seconds of a recorded curve, scaled from the file's number of GPUs to another one. They
    are lambda(gpus of the file) / lambda(gpus) times as long.
    """

    def __init__(self, curves: Curves, scaling: Scaling) -> None:
        self._curves = curves
        self._scaling = scaling
        self._recorded = scaling.speed(curves.gpus)
        self._factors: dict[int, float] = {}

    def __call__(self, config: Config, report: int, gpus: int) -> float:
        factor = self._factors.get(gpus)
        if factor is None:
            factor = self._factors[gpus] = self._recorded / self._scaling.speed(gpus)
        return self._curves.unit_s(config, report) * factor


def outcome_of(setting: Setting, world: World, state: State) -> Outcome:
    """Summarise a run that is over."""
    best = state.result.published.incumbent if state.result.published else incumbent(state)
    metric = (
        setting.curves.at(state.trials[best.trial].config, best.checkpoint.reports)
        if best
        else None
    )
    cluster, limits = setting.cluster, setting.limits
    per_instance = cluster.per_instance
    billed = world.fleet.billed_gpu_s(cluster.minimum_s) if per_instance else world.fleet.held_gpu_s
    elapsed_s = world.published_at if world.published_at is not None else state.now
    allowed = limits.gpu_s(cluster.usd_per_gpu_h)
    return Outcome(
        metric=metric,
        regret=None if metric is None else setting.curves.regret(metric),
        gpu_s=billed,
        elapsed_s=elapsed_s,
        trials=len(state.trials),
        events=world.events,
        ending=state.end.status or "failed",
        within_deadline=elapsed_s <= limits.deadline_s + TOLERANCE,
        within_budget=billed <= allowed * (1 + 1e-9) + TOLERANCE,
    )
