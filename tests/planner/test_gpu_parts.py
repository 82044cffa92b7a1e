"""Counting in parts of a GPU: exact numbers, sizes that trials may have, and throughput below one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seerd.planner.gpu_parts import fitting, gpus_of, gpus_text, whole_or_part
from seerd.planner.memory import Memory
from seerd.planner.model import Limits, Outline, PolicyParams, Problem, View
from seerd.planner.parameter import Parameter
from seerd.planner.policies import POLICIES
from seerd.planner.policy import outline_of, plan_of
from seerd.planner.profile import JobProfile, Latency, Profile, Scaling, parse_scaling
from seerd.planner.space import Space

SPACE = Space((Parameter("lr", low=0.1, high=0.9), Parameter("width", choices=(1, 2, 4))))
DRAWN = sorted(POLICIES.keys() - {"grid", "gp-ucb", "bohb"})


@pytest.mark.parametrize(
    ("slots", "gpus", "text"),
    [(1, 0.25, "1/4 GPU"), (2, 0.5, "1/2 GPU"), (4, 1, "1 GPU"), (6, 1.5, "1.5 GPUs")],
)
def test_slots_are_shown_as_gpus(slots: int, gpus: float, text: str) -> None:
    assert gpus_of(slots, 4) == gpus
    assert type(gpus_of(slots, 4)) is type(gpus)
    assert gpus_text(gpus_of(slots, 4)) == text
    total = whole_or_part(sum([0.25] * slots))
    assert (total, type(total)) == (gpus, type(gpus))


def test_a_trial_has_a_power_of_two_below_a_gpu_and_whole_gpus_above() -> None:
    assert [fitting(slots, 4) for slots in range(1, 10)] == [1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert [fitting(slots, 1) for slots in range(1, 6)] == [1, 2, 3, 4, 5]


def test_throughput_in_slots_is_that_in_gpus_beside_one_slot() -> None:
    table = parse_scaling("1/4:0.6,1/2:0.8,1:1,2:1.8")
    slots = table.in_slots(4)
    for size in (1, 2, 4, 8, 16):
        assert slots.speed(size) == pytest.approx(table.speed(size / 4) / 0.6)


def test_a_part_that_was_not_measured_is_taken_to_do_its_share() -> None:
    assert Scaling(((1, 1.0), (2, 1.5))).in_slots(4).points == ((1, 1), (2, 2), (4, 4), (8, 6))


def test_a_report_takes_longer_on_a_slot_than_on_its_gpu() -> None:
    profile = Profile(JobProfile(Latency(6.0, 9.0), parse_scaling("1/2:0.6,1:1")))
    assert profile.in_slots(2).job.report == Latency(10.0, 15.0)
    assert profile.in_slots(1).job == replace(profile.job, scaling=Scaling(((1, 1.0),)))


@pytest.mark.parametrize("name", DRAWN)
def test_policies_count_in_slots_and_spend_gpu_seconds(name: str) -> None:
    params = PolicyParams(name=name, t_min_s=10.0, max_reports=16)
    problem = Problem(Limits(600.0, 1200.0, 8), SPACE, params, gpus_per_instance=8, parts=4)
    outline = outline_of(problem)
    assert isinstance(outline, Outline)
    assert outline.gpu_s / 4 <= 1200.0 * (1 + 1e-9)
    assert min(outline.allocations) == (8 if name == "random" else 1)
    assert all(size == fitting(size, 4) for size in outline.allocations)
    plan, _ = plan_of(problem, Memory(), View(0.0, "max", {}))
    assert sum(each.gpus for each in plan.allocations) <= 8
    assert all(each.gpus == fitting(each.gpus, 4) for each in plan.allocations)
