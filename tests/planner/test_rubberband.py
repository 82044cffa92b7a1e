"""RubberBand's planner: its published plan and ratios, and that hardly any plan is better (Misra et
al., EuroSys '21, sections 4.3 and 6.3).
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.exhaustive import exhaustive
from seerd.planner.allocations import AllocationTerms, expected, options
from seerd.planner.forecast import forecast_stages
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import BUNDLED, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.rubberband import (
    Task,
    cheapest,
    fastest,
    forecast_of,
    greedy,
    improved,
    static,
    tables,
)
from seerd.planner.stages import WorkStage, halving_rungs, work_stages
from tests.examples import few

P3_8XLARGE = ClusterFacts("rented", 4, usd_per_gpu_h=12.24 / 4)
MOST_BEYOND = 1.1  # how much more than the best choice the one that is found may take
STATIC_20_S = 19 * 60 + 24


def sure(seconds: float) -> Latency:
    return Latency(seconds, seconds)


def work(stages: tuple[WorkStage, ...]) -> list[tuple[int, int]]:
    return [(stage.trials, stage.iterations) for stage in stages]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((32, 1, 50, 3), [(32, 1), (10, 3), (3, 9), (1, 37)]),
        ((64, 4, 508, 2), [(64, 4), (32, 8), (16, 16), (8, 32), (4, 64), (2, 128), (1, 256)]),
        ((1, 3, 50, 3), [(1, 50)]),
        ((2, 3, 50, 3), [(2, 50)]),
        ((64, 4, 20, 2), [(64, 4), (32, 8), (16, 8)]),
        ((16, 4, 4, 2), [(16, 4)]),
    ],
)
def test_stages_of_successive_halving(
    arguments: tuple[int, int, int, int], wanted: list[tuple[int, int]]
) -> None:
    assert work(work_stages(halving_rungs(*arguments))) == wanted
    assert sum(iterations for _, iterations in wanted) == arguments[2]


class TestTable2:
    """ResNet101, SHA(32, 1, 50, 3), 15 s until an instance is ready, one epoch so long that the
    static 20-minute plan takes 19:24.

    What else is assumed: a trial gets at most 8 GPUs, the last that the bundled scaling was
    measured on; a trial is not split between instances unless it fills them; queued trials run one
    after another, as section 4.2 draws them; and nothing but training and start-up takes time.

    Section 6.3 says that the static 20-minute plan has 6 instances (24 GPUs). With those the plan
    of table 3 comes out GPU for GPU, but static costs 1.79 times as much, not 2.17: 34.00 USD in
    19:24 is 8.6 instances at the price of a p3.8xlarge, so it cannot have been 6. With 8 instances
    the ratio is 2.09, but then table 3's plan would miss the deadline, and ours gives the third
    stage 24 GPUs. At 40 minutes 1.02 was printed, and 1.19 is what comes out, whatever was fitted:
    two instances run ten trials in two turns, eight and then two, where sharing GPUs between
    epochs, which section 4.2 does not model, would leave 1.06. At 30 minutes it is 1.23 against
    1.21.
    """

    STAGES = tuple(replace(stage, p_max=8) for stage in work_stages(halving_rungs(32, 1, 50, 3)))

    def profile(self, gpus: int) -> Profile:
        """That in which so many GPUs all the time take 19:24."""
        cloud = CloudProfile(boot=sure(15.0))
        unit = Profile(JobProfile(sure(1.0), BUNDLED["resnet101"]), cloud)
        made = [replace(stage, gpus=gpus) for stage in self.STAGES]
        epochs = forecast_stages(made, P3_8XLARGE, unit).time_s.mean - 15.0
        return replace(unit, job=replace(unit.job, report=sure((STATIC_20_S - 15.0) / epochs)))

    def ratio(self, minutes: float, facts: Profile) -> float:
        elastic = cheapest(self.STAGES, P3_8XLARGE, facts, minutes * 60)
        task = Task(self.STAGES, AllocationTerms(P3_8XLARGE, facts), minutes * 60)
        warm = static(task)
        assert elastic is not None
        return forecast_of(task, [warm.gpus] * 4).usd.mean / elastic.forecast.usd.mean

    def test_static_has_six_instances_at_20_minutes(self) -> None:
        facts = self.profile(24)
        warm = static(Task(self.STAGES, AllocationTerms(P3_8XLARGE, facts), 20 * 60))
        assert warm.gpus == 24

    def test_the_plan_is_that_of_table_3(self) -> None:
        facts = self.profile(24)
        task = Task(self.STAGES, AllocationTerms(P3_8XLARGE, facts), 20 * 60)
        warm = static(task)
        table = tables(task, warm)
        found = task.best(greedy(task, table, warm))
        plan = cheapest(self.STAGES, P3_8XLARGE, facts, 20 * 60)
        assert plan is not None
        shape = 32 * 1, 10 * 2, 3 * 4, 1 * 8
        assert tuple(row[i].gpus for row, i in zip(table, found[0], strict=True)) == shape
        assert plan.gpus == shape

    def test_ratios_fall_towards_one(self) -> None:
        facts = self.profile(24)
        assert [self.ratio(minutes, facts) for minutes in (20, 30, 40)] == pytest.approx(
            [1.79, 1.23, 1.19], abs=0.01
        )
        assert self.ratio(400, facts) == pytest.approx(1.06, abs=0.01)

    def test_with_eight_instances_the_first_is_as_printed(self) -> None:
        assert self.ratio(20, self.profile(32)) == pytest.approx(34.00 / 15.68, rel=0.05)

    def test_the_second_is_as_printed(self) -> None:
        assert self.ratio(30, self.profile(24)) == pytest.approx(17.73 / 14.70, rel=0.03)


small_stages = st.lists(
    st.builds(WorkStage, st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 6)),
    min_size=1,
    max_size=3,
).map(tuple)
latencies = st.builds(
    lambda p50, more: Latency(p50, p50 * more), st.floats(1, 100), st.sampled_from([1.0, 1.0, 1.5])
)
profiles = st.builds(
    lambda report, scaling, cloud, fetch: Profile(
        JobProfile(report, scaling, sure(2.0), sure(1.0), fetch), cloud
    ),
    latencies,
    st.sampled_from(list(BUNDLED.values())),
    st.builds(CloudProfile, latencies, latencies, latencies, st.just(0.01)),
    st.sampled_from([0.0, 50.0]),
)
clusters = st.builds(
    ClusterFacts,
    st.sampled_from(["rented", "held"]),
    st.sampled_from([1, 2, 4]),
    usd_per_gpu_h=st.sampled_from([0.0, 3.0]),
)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Small ones, with a limit somewhere between what the dearest and the cheapest of their options
    take.
    """
    stages, terms = draw(small_stages), AllocationTerms(draw(clusters), draw(profiles))
    ends = [
        expected([options(stage, [gpus], terms)[0] for stage in stages], terms) for gpus in (1, 12)
    ]
    minimise_time = draw(st.booleans())
    bounds = [figure.cost if minimise_time else figure.time_s for figure in ends]
    limit = min(bounds) + draw(st.floats(0.0, 1.2)) * (max(bounds) - min(bounds))
    return Task(stages, terms, limit, minimise_time, max_gpus=12)


@given(tasks())
@settings(max_examples=few(120), deadline=None)
def test_hardly_any_choice_is_better_than_the_one_that_is_found(task: Task) -> None:
    warm = static(task)
    table = tables(task, warm)
    assume(len(table) < 3 or len(table[0]) * len(table[1]) * len(table[2]) < 1500)
    ends, best = greedy(task, table, warm), exhaustive(task, table)
    by_steps, found = task.best(ends), task.best(improved(task, table, end) for end in ends)
    assert task.good(found[1]) == (best is not None)
    assert task.key(found[1]) <= task.key(by_steps[1])
    if best is not None:
        assert task.key(found[1])[1] <= task.key(best[1])[1] * MOST_BEYOND


@given(tasks())
@settings(max_examples=few(60), deadline=None)
def test_a_plan_keeps_its_limit_and_is_no_worse_than_a_static_one(task: Task) -> None:
    cluster, facts = task.terms.cluster, task.terms.profile
    assume(not task.minimise_time)
    plan = cheapest(task.stages, cluster, facts, task.limit, max_gpus=task.max_gpus)
    warm = static(task)
    if plan is None:
        assert forecast_of(task, [warm.gpus] * len(task.stages)).time_s.mean > task.limit * 0.95
        return
    assert plan.forecast.time_s.mean <= task.limit * (1 + 1e-6)
    assert max(plan.gpus) <= 12
    still = forecast_of(task, [warm.gpus] * len(task.stages))
    of = "usd" if cluster.usd_per_gpu_h else "gpu_s"
    drawn = (facts.job.report, facts.cloud.boot, facts.cloud.release)
    sampling = 1 + 1e-9 if all(latency.sigma == 0 for latency in drawn) else 1.05
    if still.time_s.mean <= task.limit:
        assert getattr(plan.forecast, of).mean <= getattr(still, of).mean * sampling


@pytest.mark.parametrize("report_s", [0.1, 7.3, 60.0])
def test_the_faster_of_equal_costs_is_chosen(report_s: float) -> None:
    """Where GPUs are paid while trials hold them and throughput is linear, any number costs the
    same.
    """
    held = ClusterFacts("held", 4, usd_per_gpu_h=3.06)
    stages = work_stages(halving_rungs(9, 1, 13, 3))
    plan = cheapest(stages, held, Profile(JobProfile(sure(report_s))), 1e6, max_gpus=36)
    assert plan is not None
    assert plan.gpus == (36, 36, 36)


class TestMirror:
    STAGES = work_stages(halving_rungs(32, 1, 50, 3))
    FACTS = Profile(
        JobProfile(Latency(60, 70), BUNDLED["resnet50"]), CloudProfile(sure(10.0), sure(20.0))
    )

    def test_what_the_cheapest_plan_costs_buys_its_time(self) -> None:
        plan = cheapest(self.STAGES, P3_8XLARGE, self.FACTS, 1200)
        assert plan is not None
        back = fastest(self.STAGES, P3_8XLARGE, self.FACTS, cost_usd=plan.forecast.usd.mean * 1.001)
        assert back is not None
        assert back.forecast.usd.mean <= plan.forecast.usd.mean * 1.001
        assert back.forecast.time_s.mean <= plan.forecast.time_s.mean * 1.01

    def test_more_money_is_less_time(self) -> None:
        plans = [
            fastest(self.STAGES, P3_8XLARGE, self.FACTS, cost_usd=usd) for usd in (8.0, 10.0, 20.0)
        ]
        times = [plan.forecast.time_s.mean for plan in plans if plan]
        assert len(times) == 3
        assert times == sorted(times, reverse=True)

    def test_a_budget_of_gpu_time_is_kept_too(self) -> None:
        plan = fastest(
            self.STAGES, replace(P3_8XLARGE, usd_per_gpu_h=0.0), self.FACTS, budget_gpu_s=10000.0
        )
        assert plan is not None
        assert plan.forecast.gpu_s.mean <= 10000.0

    def test_no_limit_is_a_limit_too(self) -> None:
        plan = fastest(self.STAGES, P3_8XLARGE, self.FACTS, budget_gpu_s=float("inf"), max_gpus=64)
        assert plan is not None
        assert max(plan.gpus) <= 64

    def test_exactly_one_limit_and_one_that_limits(self) -> None:
        with pytest.raises(ValueError, match="either"):
            fastest(self.STAGES, P3_8XLARGE, self.FACTS)
        with pytest.raises(ValueError, match="no price"):
            fastest(self.STAGES, replace(P3_8XLARGE, usd_per_gpu_h=0.0), self.FACTS, cost_usd=20.0)

    def test_nothing_fits_nothing(self) -> None:
        assert cheapest(self.STAGES, P3_8XLARGE, self.FACTS, 30.0) is None
        assert fastest(self.STAGES, P3_8XLARGE, self.FACTS, cost_usd=0.01) is None


def test_five_hundred_trials_are_planned_in_less_than_a_second() -> None:
    facts = Profile(
        JobProfile(Latency(12, 15), BUNDLED["resnet50"], Latency(5, 8)),
        CloudProfile(sure(10.0), Latency(10, 20)),
    )
    before = time.process_time()
    plan = cheapest(work_stages(halving_rungs(512, 4, 4096, 2)), P3_8XLARGE, facts, 120 * 60)
    took = time.process_time() - before
    assert plan is not None
    assert took < 1.0
