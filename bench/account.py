"""Where the budget of a simulated run went: what the cloud billed, and why the rest was not used.

The one rule: the bill is the simulated cloud's own; every unused GPU-second has exactly one cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.drawn import Drawn
from bench.testbed.checked_world import SteppedWorld
from seerd.core.events import RunFacts
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import close_at, exhausted_at, release_s
from seerd.core.state import State
from seerd.planner.forecast import forecast_outline
from seerd.planner.model import Limits, Outline, Problem
from seerd.sim.setting import METRIC

TIMERS_S = 0.05
"""A limit counts as the cause of an end so shortly before it."""

CAUSES = ("deadline", "peak", "plan", "margin", "cloud", "finished", "early", "closing")
"""Why budget was left.

deadline  so many GPUs as there may be cannot use more by the deadline
peak      the plan has all those GPUs in its first round, and by its paper fewer and fewer
          afterwards
plan      the plan takes less, whatever happens: whole rounds, whole trainings, `p_max` GPUs per
          trial at most
margin    the plan would take more in the worst of twenty cases
cloud     it had no instances, took them away, or had them late
finished  the policy had nothing more to do before its plan's end: the space or the trainings were
          exhausted
early     the plan ran to its end, and cost less than was forecast
closing   set aside for giving everything back, and not needed
"""


@dataclass(frozen=True, slots=True)
class Account:
    """One run, GPU-seconds and seconds. `unused`: by cause, adding up to `allowed_gpu_s -
    billed_gpu_s`.
    """

    number: int
    policy: str
    tightness: str
    weather: str
    ending: str
    gpus_per_instance: int
    max_gpus: int | None
    deadline_s: float
    elapsed_s: float
    allowed_gpu_s: float
    usable_gpu_s: float
    planned_gpu_s: float
    forecast_gpu_s: float
    billed_gpu_s: float
    ledger_gpu_s: float
    usd_per_gpu_s: float
    instances: int
    refused: int
    lost: int
    closed_s: float
    plan_end_s: float
    unused: dict[str, float]

    @property
    def share(self) -> float:
        """Of the budget that was used."""
        return self.billed_gpu_s / self.allowed_gpu_s

    @property
    def share_of_usable(self) -> float:
        """Of what the GPUs that there may be can use by the deadline."""
        return self.billed_gpu_s / self.usable_gpu_s


@dataclass(frozen=True, slots=True)
class _Closing:
    """How things stood when the run stopped going on. `committed_gpu_s`: what is set aside then is
    counted; `by_limit`: a limit ended it.
    """

    at_s: float
    by_limit: bool
    committed_gpu_s: float


def audited(drawn: Drawn, problem: Problem, outline: Outline) -> Account:
    """One run of a plan, with the real core."""
    limits, cluster = drawn.setting.limits, drawn.setting.cluster
    world = _world(drawn, problem)
    closing = _run_until_closing(world)
    state = world.run_on()
    billed = world.fleet.billed_gpu_s(cluster.minimum_s)
    allowed = allowed_gpu_s(limits, cluster.usd_per_gpu_h)
    usable = usable_gpu_s(limits, allowed, cluster.gpus_per_instance)
    forecast = forecast_outline(outline, cluster, drawn.believed).gpu_s
    refused = sum(i.phase is InstancePhase.REFUSED for i in state.fleet.instances.values())
    lost = sum(
        bool(i.why) and i.phase is InstancePhase.TERMINATED for i in state.fleet.instances.values()
    )
    plan_end_s = outline.stages[-1].end_s
    over = "finished" if closing.at_s < plan_end_s - TIMERS_S else "early"
    run = "cloud" if refused or lost else over
    plan = "peak" if _all_at_once(outline, limits, cluster.gpus_per_instance) else "plan"
    levels = (
        ("closing", closing.committed_gpu_s if closing.by_limit else billed),
        (run, forecast.mean),
        ("margin", forecast.p95),
        (plan, usable),
        ("deadline", allowed),
    )
    return Account(
        number=drawn.number,
        policy=problem.params.name,
        tightness=drawn.tightness,
        weather=_weather(drawn),
        ending=state.end.status or "failed",
        gpus_per_instance=cluster.gpus_per_instance,
        max_gpus=limits.max_gpus,
        deadline_s=limits.deadline_s,
        elapsed_s=max(state.now, world.published_at or 0.0),
        allowed_gpu_s=allowed,
        usable_gpu_s=usable,
        planned_gpu_s=outline.gpu_s,
        forecast_gpu_s=forecast.p50,
        billed_gpu_s=billed,
        ledger_gpu_s=state.ledger.spent_gpu_s(state.now),
        usd_per_gpu_s=cluster.usd_per_gpu_h / 3600,
        instances=len(world.fleet.machines),
        refused=refused,
        lost=lost,
        closed_s=closing.at_s,
        plan_end_s=plan_end_s,
        unused=_unused(billed, allowed, levels),
    )


def _world(drawn: Drawn, problem: Problem) -> SteppedWorld:
    facts = RunFacts(
        run=f"audited-{drawn.number}",
        name="audited",
        metric=METRIC,
        mode=drawn.setting.job.curves.mode,
        problem=problem,
        cluster=drawn.setting.cluster,
    )
    return SteppedWorld(facts, drawn.behaviour, seed=drawn.number)


def allowed_gpu_s(limits: Limits, usd_per_gpu_h: float) -> float:
    """The tighter of GPU time and money, without asking the core, whose idea of it is what is
    audited.
    """
    if limits.cost_usd is None or not usd_per_gpu_h:
        return limits.budget_gpu_s
    return min(limits.budget_gpu_s, limits.cost_usd / usd_per_gpu_h * 3600)


def usable_gpu_s(limits: Limits, allowed: float, size: int) -> float:
    """What all instances that there may be can use from the start to the deadline."""
    if limits.max_gpus is None:
        return allowed
    return min(allowed, limits.max_gpus // size * size * limits.deadline_s)


def _all_at_once(outline: Outline, limits: Limits, size: int) -> bool:
    """Whether one stage takes all GPUs that there may be, and the others do not."""
    most = None if limits.max_gpus is None else limits.max_gpus // size * size
    return (
        most is not None
        and outline.peak_gpus > most - size
        and min(stage.gpus for stage in outline.stages) < most
    )


def _run_until_closing(world: SteppedWorld) -> _Closing:
    world.begin()
    while world.state.phase is RunPhase.RUNNING:
        world.turn()
    state = world.state
    return _Closing(
        state.now, _limited(state), state.ledger.spent_gpu_s(state.now + release_s(state))
    )


def _limited(state: State) -> bool:
    return state.now >= min(close_at(state), exhausted_at(state)) - TIMERS_S


def _weather(drawn: Drawn) -> str:
    if drawn.behaviour.capacity is not None:
        return "scarce"
    return "calm" if drawn.behaviour.lifetime_s is None else "spot"


def _unused(
    billed: float, allowed: float, levels: tuple[tuple[str, float], ...]
) -> dict[str, float]:
    """What lies between the bill and the budget, cut at the levels from below."""
    unused, below = dict.fromkeys(CAUSES, 0.0), min(billed, allowed)
    for cause, level in levels:
        reached = max(below, min(level, allowed))
        unused[cause] += reached - below
        below = reached
    return unused
