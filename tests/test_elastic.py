"""`--minimize`: the plan that costs least by the deadline, or ends first within the cost, and the
run that carries it out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.testbed.checked_world import World, checked_run
from seerd.agent.patterns import ObservedScript
from seerd.backends.base import Quote
from seerd.core.events import RunFacts
from seerd.errors import LimitsError, UsageError
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import BUNDLED, Profile
from seerd.planning.planned import Planned
from seerd.planning.plans import Minimize, elastic_plan, plan_of
from seerd.shell.home import Home
from seerd.sim.curves import synthetic
from seerd.sim.setting import Outcome, alone, behaviour_of
from seerd.spec.experiment import load
from seerd.spec.reader import Override
from seerd.spec.spec import Spec, load_spec

Fetching = Callable[[str], Callable[[Minimize], Planned]]
P3_8XLARGE = ClusterFacts("rented", 4, usd_per_gpu_h=3.06, terminate_s=4.0)
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "trainer.py"
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
name = "sha"
eta = 3
trials = 32
min_reports = 1
max_reports = 50
"""


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    shutil.copy(Path(__file__).parent / "programs" / "trainer.py", tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    return load_spec(tmp_path / "spec.toml")


def profile() -> Profile:
    made = assumed(rented=True)
    return replace(made, job=replace(made.job, scaling=BUNDLED["resnet101"]))


def planned(spec: Spec, minimize: Minimize, **limits: float | None) -> Planned:
    return elastic_plan(
        replace(spec, limits=replace(spec.limits, **limits)), P3_8XLARGE, profile(), minimize
    )  # type: ignore[arg-type]


def test_what_moves_between_stages_must_be_able_to_go_on(spec: Spec) -> None:
    saves_nothing = replace(spec, train=replace(spec.train, observed=ObservedScript({})))
    with pytest.raises(UsageError, match="begin anew: leave --minimize out"):
        planned(saves_nothing, "cost", deadline_s=900.0)


def test_more_time_costs_less(spec: Spec) -> None:
    plans = [planned(spec, "cost", deadline_s=minutes * 60.0) for minutes in (15, 20, 40)]
    costs = [made.forecast.usd.p50 for made in plans]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]
    for made in plans:
        assert made.forecast.time_s.p95 <= made.problem.limits.deadline_s


def test_more_money_is_faster(spec: Spec) -> None:
    plans = [planned(spec, "time", cost_usd=cost) for cost in (5.0, 8.0, 20.0)]
    times = [made.forecast.time_s.p50 for made in plans]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    for made, cost in zip(plans, (5.0, 8.0, 20.0), strict=True):
        assert made.forecast.usd.p95 <= cost
        assert made.problem.limits.cost_usd == cost


@pytest.fixture
def fetching(tmp_path: Path, spec: Spec) -> Fetching:
    """Plan from a spec whose instances fetch 100 GB at this price each, as `seerd plan` does."""

    def of_price(price: str) -> Callable[[Minimize], Planned]:
        extra = [("cluster.ingress_price", price), ("train.ingress", "100GB")] if price else []
        given = [("limits.deadline", "20m"), ("limits.cost", "$40"), ("cluster.provider", "ec2")]
        made = load([spec.folder / "spec.toml"], [Override(*key) for key in [*given, *extra]])
        home, quote = Home(tmp_path / "home"), Quote(P3_8XLARGE, machine_types=("p3.8xlarge",))
        return lambda minimize: plan_of(made, home, quote, minimize=minimize)

    return of_price


def instances(made: Planned) -> int:
    """How many instances are launched in all."""
    held = [0, *(-(-stage.gpus // 4) for stage in made.outline.stages)]
    return sum(max(0, now - before) for before, now in pairwise(held))


def test_every_instance_pays_for_what_it_fetches(fetching: Fetching) -> None:
    free, dear = fetching("")("cost"), fetching("$0.01")("cost")
    assert dear.outline.stages == free.outline.stages
    paid = dear.forecast.usd.p50 - free.forecast.usd.p50
    assert paid == pytest.approx(instances(free) * 100 * 0.01)


def test_the_fastest_plan_within_a_cost_has_fewer_instances_where_data_is_dear(
    fetching: Fetching,
) -> None:
    plans = [fetching(price)("time") for price in ("", "$0.01", "$0.05")]
    launched = [instances(made) for made in plans]
    assert launched == sorted(set(launched), reverse=True)
    assert all(made.forecast.usd.p95 <= 40 for made in plans)


def test_data_that_costs_more_than_there_is_makes_a_plan_impossible(fetching: Fetching) -> None:
    with pytest.raises(LimitsError, match="within the budget"):
        fetching("$1")("time")


def test_stages_have_the_trials_of_sha_and_the_gpus_of_the_plan(spec: Spec) -> None:
    made = planned(spec, "time", cost_usd=20.0)
    assert made.outline.trials == 32
    assert len(made.problem.params.stage_gpus or ()) == len(made.outline.stages) == 4
    for stage, gpus in zip(made.outline.stages, made.problem.params.stage_gpus or (), strict=True):
        assert stage.gpus <= gpus


@pytest.mark.parametrize(
    ("minimize", "limits"), [("cost", {"deadline_s": 1500.0}), ("time", {"cost_usd": 12.0})]
)
def test_a_run_takes_what_was_forecast(
    spec: Spec, minimize: Minimize, limits: dict[str, float]
) -> None:
    made = planned(spec, minimize, **limits)
    curves = synthetic(spec.space, "max", profile().job.report.p50_s)
    setting = alone(curves, made.problem.limits, P3_8XLARGE, profile())
    for seed in range(3):
        outcome = checked_run(setting, replace(made.problem, space=curves.space()), seed)
        assert isinstance(outcome, Outcome)
        assert (outcome.ending, outcome.trials) == ("done", 32)
        assert outcome.within_deadline
        assert outcome.within_budget
        assert 0.8 * made.forecast.time_s.p50 <= outcome.elapsed_s <= 1.1 * made.forecast.time_s.p95
        # The core gives instances back as soon as nobody needs them, the forecast when the stage
        # ends.
        assert 0.5 * made.forecast.gpu_s.p50 <= outcome.gpu_s <= 1.1 * made.forecast.gpu_s.p95


def test_instances_that_the_next_stage_needs_are_not_rented_twice(spec: Spec) -> None:
    made = planned(spec, "cost", deadline_s=1500.0)
    gpus = made.problem.params.stage_gpus or ()
    curves = synthetic(spec.space, "max", 30.0)
    setting = alone(curves, made.problem.limits, P3_8XLARGE, profile())
    problem = replace(made.problem, space=curves.space())
    facts = RunFacts(run="r", name="r", metric="m", mode="max", problem=problem, cluster=P3_8XLARGE)
    world = World(facts, behaviour_of(setting))
    world.run()
    grown = sum(max(0, -(-after // 4) - -(-before // 4)) for before, after in pairwise((0, *gpus)))
    assert len(world.fleet.machines) <= grown


def test_limits_that_no_plan_keeps_say_which_it_would(spec: Spec) -> None:
    with pytest.raises(LimitsError, match="by the deadline") as late:
        planned(spec, "cost", deadline_s=200.0)
    assert planned(spec, "cost", deadline_s=late.value.min_deadline_s * 1.05)
    with pytest.raises(LimitsError, match="within the budget") as dear:
        planned(spec, "time", cost_usd=0.5)
    assert planned(spec, "time", cost_usd=None, budget_gpu_s=dear.value.min_budget_gpu_s * 1.05)
    with pytest.raises(LimitsError, match="costs more than the budget"):
        planned(spec, "cost", deadline_s=1200.0, cost_usd=1.0)
    with pytest.raises(LimitsError, match="ends after the deadline"):
        planned(spec, "time", deadline_s=300.0, cost_usd=5.0)


def test_only_sha_is_planned_by_stages(spec: Spec) -> None:
    with pytest.raises(UsageError, match="--policy sha"):
        elastic_plan(
            replace(spec, policy=replace(spec.policy, name="seer")), P3_8XLARGE, profile(), "cost"
        )
    with pytest.raises(UsageError, match="--cost"):
        planned(spec, "time")
