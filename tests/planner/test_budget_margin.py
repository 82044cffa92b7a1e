"""What is set aside before a policy plans: what is billed fits the limits, what fits as published
is left alone, and every change is said.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seerd.planner.budget_margin import SAMPLES, Terms, fits, with_margin
from seerd.planner.clouds import EC2, JOB
from seerd.planner.fixed_cluster import whole_instances
from seerd.planner.forecast import Forecast, Spread, forecast_outline
from seerd.planner.model import ClusterFacts, Impossible, Limits, Outline, PolicyParams, Problem
from seerd.planner.policy import outline_of
from seerd.planner.profile import NONE, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.space import Parameter, Space
from tests.examples import few

LR = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
PER_INSTANCE = ClusterFacts("rented", 4, usd_per_gpu_h=3.06, terminate_s=4.0)
PER_TRIAL = ClusterFacts("held", 8, max_instances=1)
AT_ONCE = Profile(JobProfile(Latency(30.0, 33.0)), CloudProfile(), "measured")
ASSUMED = Profile(JOB, EC2)
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
    minutes: float,
    gpu_minutes: float,
    *,
    max_gpus: int | None = None,
    cost_usd: float | None = None,
    **params: object,
) -> Problem:
    size = params.pop("per_instance", 4)
    limits = Limits(minutes * 60, gpu_minutes * 60, max_gpus, cost_usd)
    return Problem(limits, LR, PolicyParams(**params), gpus_per_instance=size)  # type: ignore[arg-type]


def found(
    problem: Problem, cluster: ClusterFacts, profile: Profile, closing_s: float = 0.0
) -> Problem:
    candidate = with_margin(problem, Terms(cluster, profile, closing_s), outline_of)
    assert isinstance(candidate, Problem)
    return candidate


@given(
    name=st.sampled_from(NAMES),
    size=st.sampled_from([1, 4, 8]),
    minutes=st.floats(4, 120),
    gpu_minutes=st.floats(10, 2000),
    max_gpus=st.one_of(st.none(), st.integers(8, 64)),
    cost_usd=st.one_of(st.none(), st.floats(1, 50)),
)
@settings(max_examples=30, deadline=None)
def test_what_is_billed_fits_whatever_the_limits(
    name: str,
    size: int,
    minutes: float,
    gpu_minutes: float,
    max_gpus: int | None,
    cost_usd: float | None,
) -> None:
    cluster = replace(PER_INSTANCE, gpus_per_instance=size)
    made = problem(
        minutes, gpu_minutes, max_gpus=max_gpus, cost_usd=cost_usd, name=name, per_instance=size
    )
    candidate = with_margin(made, Terms(cluster, ASSUMED, 20.0), outline_of)
    assume(isinstance(candidate, Problem))
    assert isinstance(candidate, Problem)
    outline = outline_of(candidate)
    assert isinstance(outline, Outline)
    forecast = forecast_outline(outline, cluster, ASSUMED, samples=SAMPLES)
    assert forecast.gpu_s.p95 <= made.limits.budget_gpu_s * (1 + 1e-9)
    assert forecast.usd.p95 <= (cost_usd or 1e9)
    assert candidate.limits == made.limits
    assert outline.stages[0].start_s == candidate.start_s
    assert outline.stages[-1].end_s <= made.limits.deadline_s - 20.0 + 1e-6
    assert outline.peak_gpus <= (max_gpus or 1e9)
    assert candidate.adjusted


@given(name=st.sampled_from(NAMES), minutes=st.floats(2, 120), gpu_minutes=st.floats(5, 900))
@settings(max_examples=few(40), deadline=None)
def test_held_machines_that_take_no_time_are_planned_with_as_published(
    name: str, minutes: float, gpu_minutes: float
) -> None:
    made = problem(minutes, gpu_minutes, max_gpus=8, name=name, per_instance=8)
    published = outline_of(made)
    assume(isinstance(published, Outline))
    candidate = found(made, PER_TRIAL, AT_ONCE)
    assert candidate == made
    assert outline_of(candidate) == published


def test_stages_begin_when_instances_are_ready_and_end_before_the_closing() -> None:
    """A median request of 12 s at half of its spread, and the 95th percentile of a boot of 50 to 90
    s.
    """
    candidate = found(problem(60, 960), PER_INSTANCE, ASSUMED, closing_s=40.0)
    boot_s = (12.0 * 25.0) ** 0.5 + 90.0
    assert candidate.start_s == pytest.approx(boot_s)
    assert candidate.planned.deadline_s == pytest.approx(3600 - boot_s - 40)
    assert (
        f"stages begin after {boot_s:.0f}s, when instances are ready, and end 40s before the "
        "deadline" in candidate.adjusted
    )


def test_a_smaller_budget_that_is_planned_with_is_said_with_its_reason() -> None:
    """480 GPU-min in 30 min are all spent by the published plan: 5% and more go to boot and idle
    GPUs.
    """
    candidate = found(problem(30, 480), PER_INSTANCE, ASSUMED)
    assert candidate.planned.budget_gpu_s < 480 * 60
    note = candidate.adjusted[-1]
    assert note.startswith(
        f"planned with {candidate.planned.budget_gpu_s / 60:.4g} of 480 GPU-min: "
    )
    assert "boot, whole instances, their minimum and moves are billed too" in note


def test_no_smaller_budget_than_needed_is_planned_with() -> None:
    candidate = found(problem(30, 480), PER_INSTANCE, ASSUMED)
    more = replace(
        candidate,
        within=replace(candidate.planned, budget_gpu_s=candidate.planned.budget_gpu_s * 1.002),
    )
    outline = outline_of(more)
    assert isinstance(outline, Outline)
    assert forecast_outline(outline, PER_INSTANCE, ASSUMED, samples=SAMPLES).gpu_s.p95 > 480 * 60


def test_money_limits_what_is_planned_with() -> None:
    """3.06 USD is one hour of one GPU."""
    candidate = found(problem(30, 480, cost_usd=3.06 * 4), PER_INSTANCE, ASSUMED)
    assert candidate.planned.budget_gpu_s <= 4 * 3600


def test_gpus_come_in_whole_instances() -> None:
    candidate = found(problem(60, 960, max_gpus=10, p_max=6), PER_INSTANCE, ASSUMED)
    assert candidate.params.p_max == 4
    assert candidate.planned.max_gpus == 8
    assert (
        "a trial has at most 4 instead of 6 GPUs: beyond 4 it takes whole instances"
        in candidate.adjusted
    )
    assert "8 instead of 10 GPUs at most: they come in instances of 4" in candidate.adjusted


def test_no_more_instances_than_there_are() -> None:
    candidate = found(problem(60, 960), replace(PER_INSTANCE, max_instances=2), ASSUMED)
    assert candidate.planned.max_gpus == 8


@given(st.integers(1, 100), st.integers(1, 16))
def test_whole_instances_are_the_most_that_a_trial_can_use(gpus: int, size: int) -> None:
    whole = whole_instances(gpus, size)
    assert whole == max(n for n in range(1, gpus + 1) if n <= size or n % size == 0)


@pytest.mark.parametrize(
    ("made", "cluster", "reason"),
    [
        (
            problem(60, 960, max_gpus=3),
            PER_INSTANCE,
            "the smallest cluster has 4 GPUs, and there may be 3",
        ),
        (problem(1.5, 960), PER_INSTANCE, "one trial for 60s (t_min) takes"),
        (problem(60, 2), PER_INSTANCE, "of 4 billed GPUs"),
        (
            problem(0.5, 100, per_instance=8),
            PER_TRIAL,
            "the shortest round is 60s (--set policy.t_min=5s",
        ),
    ],
)
def test_what_fits_nothing_is_said(made: Problem, cluster: ClusterFacts, reason: str) -> None:
    impossible = with_margin(made, Terms(cluster, ASSUMED, 10.0), outline_of)
    assert isinstance(impossible, Impossible)
    assert reason in impossible.reason


@pytest.mark.parametrize(
    ("gpu_s", "usd", "cost", "good"),
    [
        (100.0, 5.0, None, True),
        (100.1, 5.0, None, False),
        (99.0, 5.0, 5.0, True),
        (99.0, 5.1, 5.0, False),
    ],
)
def test_it_is_the_95th_percentile_that_has_to_fit(
    gpu_s: float, usd: float, cost: float | None, good: bool
) -> None:
    forecast = Forecast(Spread(1, 1, 1), Spread(1.0, gpu_s, 1.0), Spread(1.0, usd, 1.0))
    assert (
        fits(forecast, Limits(60.0, 100.0, cost_usd=cost), Terms(PER_INSTANCE, AT_ONCE, 0.0))
        is good
    )


def test_time_that_nothing_takes_is_not_set_aside() -> None:
    """A cloud without latencies and with instances of one GPU: the published plan, from the first
    second on.
    """
    cluster = ClusterFacts("rented", 1, minimum_s=0.0)
    made = problem(30, 480, per_instance=1, p_max=1)
    at_once = Profile(JobProfile(save=NONE), CloudProfile())
    candidate = found(made, cluster, at_once)
    assert candidate.start_s == 0.0
    assert outline_of(candidate) == replace(outline_of(made), adjusted=candidate.adjusted)  # type: ignore[type-var]
