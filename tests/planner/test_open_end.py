"""What a plan on rented instances has left at the end of its last stage is used: nobody stops at
its wall, no GPU is left over.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.testbed.policy_world import Asked, FakeTrial, World
from bench.testbed.policy_world import problem as fixed_problem
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.hyperband import E_HYPERBAND
from seerd.planner.hypersched import HYPERSCHED
from seerd.planner.model import Impossible, Limits, Outline, PolicyParams, Problem, View
from seerd.planner.policy import policy_of
from seerd.planner.seer import Schedule
from seerd.planner.seer_capped import schedule
from seerd.planner.space import Parameter, Space

LR = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
NAMES = [
    "seer+",
    "seer",
    "random",
    "grid",
    "sha",
    "hyperband",
    "e-hyperband",
    "e-grid",
    "asha",
    "hypersched",
]


def problem(
    name: str,
    minutes: float,
    gpu_minutes: float,
    *,
    whole: bool = True,
    max_gpus: int | None = None,
    size: int = 4,
    p_max: int | None = 4,
) -> Problem:
    limits = Limits(minutes * 60, gpu_minutes * 60, max_gpus)
    return Problem(
        limits, LR, PolicyParams(name=name, p_max=p_max), gpus_per_instance=size, whole=whole
    )


def asked(made: Problem) -> Asked:
    return Asked(policy_of(made), made)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_stage_goes_on_after_its_wall(name: str) -> None:
    policy = asked(problem(name, 60, 480))
    outline = policy.outline()
    assert isinstance(outline, Outline)
    trials: dict[str, FakeTrial] = {}
    plan = policy.plan(View(0.0, "max", trials))
    trials |= {new.id: FakeTrial(new.id) for new in plan.new}
    for now_s in [*(stage.end_s for stage in outline.stages), outline.stages[-1].end_s + 1000.0]:
        plan = policy.plan(View(now_s, "max", trials))
        trials |= {new.id: FakeTrial(new.id) for new in plan.new}
    assert plan.allocations
    assert not plan.done
    assert plan.ask_at_s is None


@pytest.mark.parametrize("name", NAMES)
def test_as_published_everything_ends_at_the_last_wall(name: str) -> None:
    policy = asked(problem(name, 60, 480, whole=False))
    outline = policy.outline()
    assert isinstance(outline, Outline)
    plan = policy.plan(View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id) for new in plan.new}
    assert plan.ask_at_s is not None
    assert policy.plan(View(outline.stages[-1].end_s, "max", trials)).done


@pytest.mark.parametrize(
    ("gpu_minutes", "instances", "minutes"),
    [
        (240, 1, 60),  # exactly one for an hour
        (250, 1, 60),  # 4% of another one is not worth it
        (288, 2, 36),  # 1.2 for an hour are two for 36 minutes
        (8, 1, 2),
    ],
)
def test_a_cluster_has_one_instance_more_rather_than_a_part_unused(
    gpu_minutes: float, instances: int, minutes: float
) -> None:
    cluster = fixed_cluster(problem("asha", 60, gpu_minutes))
    assert isinstance(cluster, FixedCluster)
    assert (cluster.gpus, cluster.end_s / 60) == (instances * 4, pytest.approx(minutes))


@pytest.mark.parametrize(
    ("gpu_minutes", "p_min", "gpus", "minutes"),
    [
        (120, 1, 2, 60),  # exactly two for an hour
        (135, 1, 2, 60),  # a quarter of another one is not worth it
        (160, 1, 3, 53 + 1 / 3),  # 2.67 for an hour are three
        (320, 2, 6, 53 + 1 / 3),
        (320, 4, 5, 60),  # a sixth one would give no trial room
        (30, 1, 1, 30),
    ],
)
def test_a_machine_has_one_gpu_more_rather_than_a_part_unused(
    gpu_minutes: float, p_min: int, gpus: int, minutes: float
) -> None:
    made = problem("asha", 60, gpu_minutes, whole=False)
    cluster = fixed_cluster(replace(made, params=replace(made.params, p_min=p_min)))
    assert isinstance(cluster, FixedCluster)
    assert (cluster.gpus, cluster.end_s / 60) == (gpus, pytest.approx(minutes))


def test_a_second_instance_that_could_not_run_for_the_shortest_round_is_none() -> None:
    made = problem("asha", 60, 288)
    cluster = fixed_cluster(replace(made, params=replace(made.params, t_min_s=40 * 60.0)))
    assert isinstance(cluster, FixedCluster)
    assert cluster.gpus == 4


def planned(made: Problem) -> Schedule:
    found = schedule(made)
    assert not isinstance(found, Impossible)
    return found


def test_rounds_that_would_leave_most_of_the_budget_are_fewer() -> None:
    """Of 16 GPUs for an hour, each of three rounds uses a smaller part than each of two would."""
    made = problem("seer", 60, 960, max_gpus=16)
    published, used = planned(replace(made, whole=False)), planned(made)
    assert used.rounds < published.rounds
    assert used.gpu_s > 1.5 * published.gpu_s
    assert used.peak_gpus <= 16
    assert used.gpu_s <= 960 * 60


def test_rounds_that_use_the_budget_stay_as_many_as_published() -> None:
    made = problem("seer", 60, 480)
    assert planned(made) == planned(replace(made, whole=False))


def test_a_bracket_that_is_too_dear_leaves_its_time_to_the_others() -> None:
    """Two brackets with R = 16 take 60 units, three take 124: with 100, the two go on to R =
    26.7.
    """
    outlines = [
        E_HYPERBAND.outline(problem("e-hyperband", 60, 100, whole=whole, p_max=None))
        for whole in (False, True)
    ]
    published, used = outlines
    assert isinstance(published, Outline)
    assert isinstance(used, Outline)
    assert [b.trials for b in used.brackets] == [b.trials for b in published.brackets]
    assert published.gpu_s == 60 * 60
    assert used.gpu_s == pytest.approx(100 * 60)


def test_gpus_that_no_running_trial_can_use_go_to_the_best_that_waits() -> None:
    """With `p_max` 1 nobody can grow, and near the end nobody may start."""

    def last_gpus(*, whole: bool) -> int:
        made = fixed_problem(8, 300.0, per_instance=1, max_reports=1000, min_reports=4, p_max=1)
        world = World(
            Asked(HYPERSCHED, replace(made, whole=whole)),
            8,
            lambda trial, epoch: float(trial.config["lr"]),
            start_s=1.0,
        ).run(until_s=285.0)
        return sum(allocation.gpus for allocation in world.plans[-1].allocations)

    assert last_gpus(whole=True) == 8
    assert last_gpus(whole=False) < 8
