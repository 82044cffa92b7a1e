"""RubberBand's model: figures that can be worked out by hand, and what must hold of any plan
(EuroSys '21, sections 4.1 and 4.2).
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.planner.forecast import (
    Crowd,
    Forecast,
    WorkStage,
    forecast_outline,
    forecast_stages,
    moments,
    slowest,
    together,
)
from seerd.planner.model import ClusterFacts, Group, Outline, Stage
from seerd.planner.profile import BUNDLED, Z95, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.stages import Lanes, Rental, instances_for, lanes, rentals, share
from tests.examples import few

PER_INSTANCE = ClusterFacts("rented", 4, usd_per_gpu_h=3.6)
PER_TRIAL = replace(PER_INSTANCE, billing="held")


def sure(seconds: float) -> Latency:
    return Latency(seconds, seconds)


def profile(**cloud: float) -> Profile:
    job = JobProfile(sure(100.0), start=sure(3.0), save=sure(2.0))
    return Profile(job, CloudProfile(**{name: sure(seconds) for name, seconds in cloud.items()}))


class TestStagesOfWork:
    STAGES = WorkStage(8, 1, 8), WorkStage(2, 3, 4)

    def test_time_is_arrival_and_each_stage_with_its_start_and_save(self) -> None:
        made = forecast_stages(self.STAGES, PER_INSTANCE, profile(pending=10, boot=20, release=5))
        assert made.time_s.p50 == pytest.approx(30 + 105 + (5 + 300 / 2))
        assert made.time_s.p95 == pytest.approx(made.time_s.p50)

    def test_rented_instances_are_paid_from_running_until_released(self) -> None:
        made = forecast_stages(self.STAGES, PER_INSTANCE, profile(pending=10, boot=20, release=5))
        one_stage, both = 20 + 105 + 5, 20 + 105 + 155 + 5
        assert made.gpu_s.mean == pytest.approx(4 * (one_stage + both))
        assert made.usd.mean == pytest.approx(made.gpu_s.mean / 1000)

    def test_per_function_only_what_trials_hold_is_paid(self) -> None:
        made = forecast_stages(self.STAGES, PER_TRIAL, profile(pending=10, boot=20))
        assert made.gpu_s.mean == pytest.approx(8 * 105 + 4 * 155)

    def test_giving_back_takes_no_time_where_it_is_instant(self) -> None:
        made = forecast_stages(self.STAGES, replace(PER_INSTANCE, instant=True), profile(release=5))
        assert made.gpu_s.mean == pytest.approx(4 * (103 + 103 + 153))

    def test_a_later_stage_that_needs_more_waits_for_it(self) -> None:
        made = forecast_stages(
            (WorkStage(4, 1, 4), WorkStage(4, 1, 8)), PER_INSTANCE, profile(pending=10, boot=20)
        )
        assert made.time_s.mean == pytest.approx(30 + 105 + 30 + 55)
        assert made.gpu_s.mean == pytest.approx(4 * (20 + 105 + 30 + 55) + 4 * (20 + 55))

    def test_fewer_gpus_than_trials_take_turns(self) -> None:
        made = forecast_stages((WorkStage(10, 1, 4),), PER_TRIAL, profile())
        assert made.time_s.mean == pytest.approx(3 * 105)
        assert made.gpu_s.mean == pytest.approx(10 * 105)

    def test_groups_run_side_by_side_and_the_slowest_counts(self) -> None:
        stage = WorkStage(3, 4, groups=(Group(4, 1), Group(1, 2)))
        made = forecast_stages((stage,), PER_INSTANCE, profile())
        assert made.time_s.mean == pytest.approx(405)
        assert made.gpu_s.mean == pytest.approx(8 * 405)

    def test_less_than_a_minute_is_paid_as_one(self) -> None:
        job = Profile(JobProfile(sure(10.0)))
        assert forecast_stages(
            (WorkStage(4, 1, 4),), PER_INSTANCE, job
        ).gpu_s.mean == pytest.approx(4 * 60)
        assert forecast_stages((WorkStage(4, 1, 4),), PER_TRIAL, job).gpu_s.mean == pytest.approx(
            4 * 10
        )

    def test_every_new_instance_fetches_its_data(self) -> None:
        facts = profile()
        fetching = replace(
            facts,
            job=replace(facts.job, ingress_gb=150),
            cloud=replace(facts.cloud, usd_per_ingress_gb=0.01),
        )
        plain, priced = (
            forecast_stages(self.STAGES, PER_INSTANCE, one).usd.mean for one in (facts, fetching)
        )
        assert priced - plain == pytest.approx(2 * 1.5)

    def test_stragglers_cost_what_the_others_wait(self) -> None:
        even, uneven = (
            Profile(JobProfile(Latency(100.0, p95), BUNDLED["resnet50"]), CloudProfile())
            for p95 in (100.0, 200.0)
        )
        waiting = forecast_stages((WorkStage(64, 4, 64),), PER_INSTANCE, uneven)
        assert (
            waiting.time_s.mean
            > 1.5 * forecast_stages((WorkStage(64, 4, 64),), PER_INSTANCE, even).time_s.mean
        )
        assert (
            waiting.gpu_s.mean
            > 1.4 * forecast_stages((WorkStage(64, 4, 64),), PER_TRIAL, uneven).gpu_s.mean
        )

    def test_a_straggler_is_slow_in_all_of_its_iterations(self) -> None:
        """Section 6.1.1: drawn once for a TRAIN node, 64 iterations spread as widely as one."""
        facts = Profile(JobProfile(Latency(100.0, 200.0), BUNDLED["resnet50"]))
        one, many = (
            forecast_stages((WorkStage(64, count, 64),), PER_INSTANCE, facts) for count in (1, 64)
        )
        assert many.time_s.mean == pytest.approx(64 * one.time_s.mean)
        assert many.time_s.p95 == pytest.approx(64 * one.time_s.p95)

    def test_figure_9_grows_as_much_in_an_independent_simulation(self) -> None:
        """SHA(64, 4, 508, 2) on a GPU per trial, an iteration of 4 s, deviation 10 s (section
        6.1.1): paid by the instance and by the function.
        """
        square = math.log1p((10 / 4) ** 2)
        median_s, sigma = 4 * math.exp(-square / 2), math.sqrt(square)
        facts = Profile(JobProfile(Latency(median_s, median_s * math.exp(Z95 * sigma))))
        counts = [(64 >> stage, 4 << stage) for stage in range(7)]
        stages = [WorkStage(trials, iterations, trials) for trials, iterations in counts]
        rng = np.random.default_rng(0)
        held, used = np.zeros(4000), np.zeros(4000)
        for trials, iterations in counts:
            took = iterations * rng.lognormal(math.log(median_s), sigma, (trials, 4000))
            held += -(-trials // 4) * 4 * took.max(axis=0)
            used += took.sum(axis=0)
        whole, each = (
            forecast_stages(stages, cluster, facts, samples=4000).gpu_s.mean
            for cluster in (PER_INSTANCE, PER_TRIAL)
        )
        assert whole / each == pytest.approx(held.mean() / used.mean(), rel=0.1)
        assert 4 < whole / each < 8

    def test_five_stages_take_few_milliseconds_however_many_trials(self) -> None:
        stages = [WorkStage(500, 1, 500), *(WorkStage(n, 10, n) for n in (250, 100, 20, 4))]
        facts = Profile(
            JobProfile(Latency(100, 120), start=Latency(5, 9)), CloudProfile(boot=Latency(30, 50))
        )
        forecast_stages(stages, PER_INSTANCE, facts)
        took = []
        for _ in range(10):
            before = time.perf_counter()
            forecast_stages(stages, PER_INSTANCE, facts)
            took.append(time.perf_counter() - before)
        assert min(took) < 0.02


class TestOutlines:
    OUTLINE = Outline(
        (),
        (
            Stage(0.0, 100.0, (Group(1, 8), Group(2, 4))),
            Stage(100.0, 400.0, (Group(1, 2), Group(2, 1))),
        ),
        first_round_s=100.0,
    )

    def test_walls_stand_and_boot_is_billed(self) -> None:
        made = forecast_outline(
            self.OUTLINE, PER_INSTANCE, profile(pending=10, boot=20, release=5), start_s=40.0
        )
        assert made.time_s.mean == pytest.approx(442)
        assert made.gpu_s.mean == pytest.approx(4 * (3 * (140 + 2 + 5 - 10) + (440 + 2 + 5 - 10)))

    def test_instances_that_boot_in_the_first_round_are_billed_no_earlier_than_they_run(
        self,
    ) -> None:
        made = forecast_outline(self.OUTLINE, PER_INSTANCE, profile(pending=10, boot=20))
        assert made.time_s.mean == pytest.approx(402)
        assert made.gpu_s.mean == pytest.approx(4 * (3 * 92 + 392))

    def test_per_function_the_groups_are_paid_while_trials_hold_gpus(self) -> None:
        made = forecast_outline(self.OUTLINE, PER_TRIAL, profile(pending=10, boot=20), start_s=40.0)
        assert made.gpu_s.mean == pytest.approx(self.OUTLINE.gpu_s + 16 * 2)
        late = forecast_outline(self.OUTLINE, PER_TRIAL, profile(pending=10, boot=20))
        assert late.gpu_s.mean == pytest.approx(self.OUTLINE.gpu_s - 16 * 30 + 16 * 2)

    def test_a_round_that_needs_more_asks_at_the_wall(self) -> None:
        growing = Outline((), (Stage(0, 100, (Group(4, 1),)), Stage(100, 300, (Group(4, 2),))), 100)
        made = forecast_outline(growing, PER_INSTANCE, profile(pending=10, boot=20))
        assert made.gpu_s.mean == pytest.approx(4 * ((302 - 10) + (302 - 110)))


class TestCounting:
    def test_a_trial_is_not_split_so_three_gpus_of_four_hold_one_of_three(self) -> None:
        assert share(10, 30, 4) == 2
        assert share(10, 40, 4) == 4
        assert share(1, 24, 4) == 24
        assert share(1, 24, 4, p_max=8) == 8
        assert share(10, 4, 4) == 0

    def test_lanes_share_the_trials_evenly(self) -> None:
        assert lanes(WorkStage(10, 1, 4), 4) == (Lanes(2, 1, 3), Lanes(2, 1, 2))

    def test_small_trials_go_into_what_larger_ones_leave(self) -> None:
        assert instances_for((Group(1, 5), Group(3, 2), Group(8, 1)), 4) == 5
        assert instances_for((Group(2, 5), Group(1, 2)), 4) == 3

    def test_what_was_rented_last_is_given_back_first(self) -> None:
        assert set(rentals([4, 2, 3])) == {Rental(2, 0, 0), Rental(1, 2, 2), Rental(2, 0, 2)}

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    def test_rentals_add_up_to_what_each_stage_holds(self, held: list[int]) -> None:
        made = rentals(held)
        for stage, count in enumerate(held):
            assert sum(r.instances for r in made if r.first <= stage <= r.last) == count

    @given(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=4),
        st.integers(1, 8),
    )
    def test_instances_have_room_for_all(self, pairs: list[tuple[int, int]], size: int) -> None:
        groups = tuple(Group(gpus, trials) for gpus, trials in pairs)
        used = instances_for(groups, size)
        assert used * size >= sum(group.gpus_per_trial * group.trials for group in groups)
        assert used <= sum(-(-group.gpus_per_trial // size) * group.trials for group in groups)


@pytest.mark.parametrize("count", [1, 2, 30, 500])
def test_the_slowest_and_the_sum_are_those_of_that_many_draws(count: int) -> None:
    latency = Latency(10.0, 30.0)
    rng, plain = np.random.default_rng(1), random.Random(2)
    crowd = [Crowd(count, moments(latency))]
    longest = slowest(crowd, rng.random((1, 20000)))
    whole = together(crowd, longest, rng.standard_normal((1, 20000)))
    drawn = [[latency.draw(plain) for _ in range(count)] for _ in range(200000 // count)]
    assert longest.mean() == pytest.approx(np.mean([max(one) for one in drawn]), rel=0.08)
    assert whole.mean() == pytest.approx(np.mean([sum(one) for one in drawn]), rel=0.04)
    assert whole.std() == pytest.approx(np.std([sum(one) for one in drawn]), rel=0.25)


latencies = st.builds(
    lambda p50, more: Latency(p50, p50 * more), st.floats(0, 300), st.floats(1, 3)
)
profiles = st.builds(
    Profile,
    st.builds(JobProfile, latencies, st.sampled_from(list(BUNDLED.values())), latencies, latencies),
    st.builds(CloudProfile, latencies, latencies, latencies),
)
work = st.lists(
    st.builds(WorkStage, st.integers(1, 500), st.integers(1, 50), st.integers(1, 600)),
    min_size=1,
    max_size=5,
)


@given(work, profiles, st.integers(0, 5))
@settings(max_examples=few(60), deadline=None)
def test_rented_is_no_less_than_held_and_the_same_seed_gives_the_same(
    stages: list[WorkStage], facts: Profile, seed: int
) -> None:
    def made(cluster: ClusterFacts) -> Forecast:
        return forecast_stages(stages, cluster, facts, samples=50, seed=seed)

    rented, held = made(PER_INSTANCE), made(PER_TRIAL)
    assert rented == made(PER_INSTANCE)
    assert rented.time_s.p50 <= rented.time_s.p95
    assert held.gpu_s.p50 <= held.gpu_s.p95
    for of in ("p50", "p95", "mean"):
        assert getattr(rented.gpu_s, of) >= getattr(held.gpu_s, of) * (1 - 1e-9)


groups = st.lists(
    st.builds(Group, st.integers(1, 8), st.integers(1, 30)), min_size=1, max_size=3
).map(tuple)


@given(
    st.lists(st.tuples(st.floats(1, 500), groups), min_size=1, max_size=4),
    profiles,
    st.floats(0, 300),
)
@settings(max_examples=few(60), deadline=None)
def test_so_it_is_between_walls(
    rounds: list[tuple[float, tuple[Group, ...]]], facts: Profile, start_s: float
) -> None:
    stages, now = [], 0.0
    for length, some in rounds:
        stages.append(Stage(now, now + length, some))
        now += length
    outline = Outline((), tuple(stages), rounds[0][0])
    rented, held = (
        forecast_outline(outline, c, facts, start_s=start_s, samples=50)
        for c in (PER_INSTANCE, PER_TRIAL)
    )
    assert rented.gpu_s.mean >= held.gpu_s.mean * (1 - 1e-9)
    assert rented.time_s.p50 <= rented.time_s.p95
