"""Successive halving and Hyperband: the lists and tables that are printed, whole runs, and trials
that fail, finish or diverge.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.halving import SHA, sha_rungs
from seerd.planner.hyperband import HYPERBAND, course, rungs_of
from seerd.planner.model import Impossible, Limits, Outline, Policy, PolicyParams, View
from seerd.planner.stages import halving_rungs, work_stages
from tests.examples import few


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)


def params(trials: int | None, least: int | None, most: int | None, eta: float) -> PolicyParams:
    return PolicyParams(trials=trials, min_reports=least, max_reports=most, eta=eta)


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ((32, 1, 50, 3), [(32, 1), (10, 4), (3, 13), (1, 50)]),
        ((64, 4, 508, 2), [(64, 4), (32, 12), (16, 28), (8, 60), (4, 124), (2, 252), (1, 508)]),
        ((64, 4, 20, 2), [(64, 4), (32, 12), (16, 20)]),
        ((1, 3, 50, 3), [(1, 50)]),
        ((16, 9, 4, 2), [(16, 4)]),
        ((7, 1, 50, 2.5), [(7, 1), (2, 4), (1, 50)]),
    ],
)
def test_rungs_of_successive_halving(
    given_: tuple[int, int, int, float], wanted: list[tuple[int, int]]
) -> None:
    assert sha_rungs(params(*given_)) == wanted


def test_what_is_not_said_is_as_in_ashas_defaults() -> None:
    """R = 256, eta 4, 5 rungs, and so many trials that one is left."""
    assert sha_rungs(params(None, None, None, 4)) == [
        (256, 1),
        (64, 5),
        (16, 21),
        (4, 85),
        (1, 256),
    ]


shas = st.tuples(
    st.integers(1, 300),
    st.integers(1, 20),
    st.integers(1, 600),
    st.sampled_from([1.5, 2.0, 2.5, 3.0, 4.0, 5.5]),
)


@given(shas)
def test_rungs_follow_the_formula_and_end_at_r(numbers: tuple[int, int, int, float]) -> None:
    trials, _, most, eta = numbers
    rungs = sha_rungs(params(*numbers))
    assert [n for n, _ in rungs] == [int(trials / Fraction(eta) ** i) for i in range(len(rungs))]
    assert rungs[-1][1] == most
    assert rungs[-1][0] >= 1
    untils = [until for _, until in rungs]
    assert untils == sorted(untils)


@given(shas)
def test_rubberband_plans_the_same_stages(numbers: tuple[int, int, int, float]) -> None:
    """Its GPUs per stage are given to this policy's rungs."""
    stages = work_stages(halving_rungs(*numbers))
    done = itertools.accumulate(stage.iterations for stage in stages)
    assert [(s.trials, until) for s, until in zip(stages, done, strict=True)] == sha_rungs(
        params(*numbers)
    )


class TestFigure1:
    """ASHA, figure 1: n = 9, r = 1, R = 9, eta 3."""

    @pytest.mark.parametrize(("bracket", "trials"), [(0, [9, 3, 1]), (1, [9, 3]), (2, [9])])
    def test_trials_of_each_rung(self, bracket: int, trials: list[int]) -> None:
        assert [n for n, _ in halving_rungs(9, 3**bracket, 9, 3)] == trials

    @pytest.mark.parametrize(("bracket", "resources"), [(0, [1, 3, 9]), (1, [3, 9]), (2, [9])])
    def test_resources_of_each_rung(self, bracket: int, resources: list[int]) -> None:
        """Hyperband counts its brackets the other way round."""
        assert [
            until for _, until in rungs_of(2, 2 - bracket, Fraction(9), Fraction(3))
        ] == resources

    def test_brackets_of_hyperband(self) -> None:
        """n = 9, ceil(3/2 * 3) = 5 and 3, again and again."""
        made = problem(gpus=4, eta=3, max_reports=9)
        rungs = [
            [(r.trials, r.until) for r in bracket]
            for bracket in map(course(made).bracket, range(4))
        ]
        assert rungs == [
            [(9, 1), (3, 3), (1, 9)],
            [(5, 3), (1, 9)],
            [(3, 9)],
            [(9, 1), (3, 3), (1, 9)],
        ]

    def test_r_counts_in_smallest_resources(self) -> None:
        made = problem(gpus=4, eta=3, max_reports=18, min_reports=2)
        first = course(made).first
        assert [(r.trials, r.until) for r in first] == [(9, 2), (3, 6), (1, 18)]


def run_sha(gpus: int = 4, **kwargs: object) -> World:
    made = problem(gpus=gpus, eta=3, trials=9, min_reports=1, max_reports=13, **kwargs)  # type: ignore[arg-type]
    return World(Asked(SHA, made), gpus, by_lr).run()


class TestSha:
    def test_the_best_of_each_rung_go_on(self) -> None:
        world = run_sha()
        order = sorted(world.trials.values(), key=lambda trial: -float(trial.config["lr"]))
        assert [trial.reports for trial in order] == [13] + [4] * 2 + [1] * 6
        assert {trial.id for trial in world.trials.values() if trial.status == "eliminated"} == {
            t.id for t in order[1:]
        }
        assert world.plans[-1].done

    def test_trials_take_turns_where_there_are_too_few_gpus(self) -> None:
        world = run_sha(gpus=2)
        first = [a.trial for plan in world.plans for a in plan.allocations if a.until == 1]
        assert list(dict.fromkeys(first)) == sorted(world.trials)
        assert max(len(plan.allocations) for plan in world.plans) == 2

    def test_survivors_share_the_gpus(self) -> None:
        world = run_sha(gpus=9)
        gpus = {a.until: a.gpus for plan in world.plans for a in plan.allocations}
        assert gpus == {1: 1, 4: 3, 13: 8}

    def test_p_max_bounds_their_share(self) -> None:
        assert {a.gpus for plan in run_sha(gpus=9, p_max=2).plans for a in plan.allocations} == {
            1,
            2,
        }

    def test_stage_gpus_are_those_of_each_rung(self) -> None:
        made = problem(gpus=9, eta=3, trials=9, min_reports=1, max_reports=13, stage_gpus=(9, 6, 4))
        world = World(Asked(SHA, made), 9, by_lr).run()
        gpus = {a.until: a.gpus for plan in world.plans for a in plan.allocations}
        assert gpus == {1: 1, 4: 2, 13: 4}
        outline = SHA.outline(made)
        assert isinstance(outline, Outline)
        assert [stage.gpus for stage in outline.stages] == [9, 6, 4]

    def test_there_must_be_one_number_for_each_stage(self) -> None:
        with pytest.raises(ValueError, match="2 stages have GPUs, and there are 3"):
            SHA.outline(
                problem(gpus=9, eta=3, trials=9, min_reports=1, max_reports=13, stage_gpus=(9, 6))
            )

    def test_the_outline_shares_the_time_by_work(self) -> None:
        """Nine GPUs: 1 report on 1 GPU, 3 on 3, 9 on 8."""
        outline = SHA.outline(
            problem(gpus=9, deadline_s=3125.0, eta=3, trials=9, min_reports=1, max_reports=13)
        )
        assert isinstance(outline, Outline)
        assert [s.end_s for s in outline.stages] == pytest.approx([1000.0, 2000.0, 3125.0])
        assert [(g.trials, g.gpus_per_trial) for s in outline.stages for g in s.groups] == [
            (9, 1),
            (3, 3),
            (1, 8),
        ]

    def test_the_deadline_ends_it(self) -> None:
        made = problem(gpus=4, deadline_s=2.5, eta=3, trials=9, min_reports=1, max_reports=13)
        world = World(Asked(SHA, made), 4, by_lr).run()
        assert world.now_s == 2.5
        assert world.plans[-1].done


class TestHyperband:
    def test_brackets_follow_each_other_until_the_deadline(self) -> None:
        """9 + 5 + 3 trials are one round; on one GPU it takes 21 + 20 + 27 reports less what was
        made before.
        """
        world = World(
            Asked(HYPERBAND, problem(gpus=1, deadline_s=200.0, eta=3, max_reports=9)), 1, by_lr
        ).run()
        assert world.now_s == 200.0
        assert world.plans[-1].done
        sizes = [len(plan.new) for plan in world.plans if plan.new]
        assert sizes[:3] == [9, 5, 3]
        assert sizes == (sizes[:3] * len(sizes))[: len(sizes)]
        assert len(sizes) > 6

    def test_trials_of_different_brackets_never_run_together(self) -> None:
        world = World(
            Asked(HYPERBAND, problem(gpus=4, deadline_s=60.0, eta=3, max_reports=9)), 4, by_lr
        ).run()
        born = {new.id: number for number, plan in enumerate(world.plans) for new in plan.new}
        assert all(len({born[a.trial] for a in plan.allocations}) <= 1 for plan in world.plans)


def asked(policy: Asked, trials: dict[str, FakeTrial]) -> list[str]:
    """Who should run now; new trials come into the world."""
    plan = policy.plan(View(0.0, "max", trials))
    trials.update({new.id: FakeTrial(new.id, new.config) for new in plan.new})
    return [allocation.trial for allocation in plan.allocations]


class TestWhoDoesNotReport:
    def small(self) -> tuple[Asked, dict[str, FakeTrial]]:
        """Four trials for one report, then two for three."""
        policy = Asked(SHA, problem(gpus=4, eta=2, trials=4, min_reports=1, max_reports=3))
        trials: dict[str, FakeTrial] = {}
        assert len(asked(policy, trials)) == 4
        return policy, trials

    def test_nan_ranks_below_every_number_and_failed_below_that(self) -> None:
        policy, trials = self.small()
        first, second, third, last = trials.values()
        first.report(1, None)
        second.report(1, 0.1)
        third.report(1, 0.2)
        last.status = "failed"
        assert asked(policy, trials) == [third.id, second.id]

    def test_nan_goes_on_where_nobody_better_is_left(self) -> None:
        policy, trials = self.small()
        first, second, third, last = trials.values()
        first.report(1, None)
        second.report(1, 0.1)
        third.status = last.status = "failed"
        assert asked(policy, trials) == [second.id, first.id]

    def test_a_trial_that_has_finished_keeps_its_place_and_holds_nothing(self) -> None:
        """Its script has ended; the rung waits for the others alone."""
        policy, trials = self.small()
        for metric, trial in enumerate(trials.values()):
            trial.report(1, float(metric))
        best, second = list(trials)[3], list(trials)[2]
        trials[best].status = "finished"
        assert asked(policy, trials) == [second]
        trials[second].report(3, 0.0)
        assert policy.plan(View(0.0, "max", trials)).done

    def test_if_all_that_are_kept_have_finished_the_rung_is_over(self) -> None:
        policy, trials = self.small()
        for metric, trial in enumerate(trials.values()):
            trial.report(1, float(metric))
            trial.status = "finished"
        assert policy.plan(View(0.0, "max", trials)).done

    def test_if_all_fail_the_bracket_is_over(self) -> None:
        policy, trials = self.small()
        for trial in trials.values():
            trial.status = "failed"
        assert policy.plan(View(0.0, "max", trials)).done

    def test_hyperband_goes_on_with_its_next_bracket(self) -> None:
        policy = Asked(HYPERBAND, problem(gpus=9, eta=3, max_reports=9))
        trials: dict[str, FakeTrial] = {}
        assert len(asked(policy, trials)) == 9
        for trial in trials.values():
            trial.status = "failed"
        assert asked(policy, trials) == [f"t{number:04}" for number in range(10, 15)]

    def test_who_has_reported_more_than_asked_for_is_judged_by_the_rungs_report(self) -> None:
        policy, trials = self.small()
        for metric, trial in enumerate(trials.values()):
            trial.report(1, float(metric))
        late = next(iter(trials))
        trials[late].report(2, 100.0)
        assert late not in asked(policy, trials)

    def test_who_is_through_the_next_rung_already_holds_nothing_there(self) -> None:
        policy, trials = self.small()
        for metric, trial in enumerate(trials.values()):
            trial.report(1, float(metric))
        best, second = list(trials)[3], list(trials)[2]
        trials[best].report(3, 0.0)
        assert asked(policy, trials) == [second]


class TestTakenUpWithoutMemory:
    def test_all_that_run_are_on_the_way_to_the_rung_that_none_has_missed(self) -> None:
        """Hyperband's second bracket, trials 10 to 14: two have missed rung 3, so all five are on
        it.
        """
        made = problem(gpus=9, eta=3, max_reports=9)
        trials = {f"t{n:04}": FakeTrial(f"t{n:04}") for n in range(1, 15)}
        for number, trial in enumerate(list(trials.values())[:12]):
            trial.report(3, float(number))
        policy = Asked(HYPERBAND, made)
        assert asked(policy, trials) == ["t0013", "t0014"]
        trials["t0013"].report(3, 100.0)
        trials["t0014"].report(3, -100.0)
        assert asked(policy, trials) == ["t0013"]
        trials["t0013"].report(9, 100.0)
        assert asked(policy, trials) == ["t0015", "t0016", "t0017"]

    def test_whoever_the_rung_has_no_place_for_is_out(self) -> None:
        """Four trials for one report, then two for three."""
        policy = Asked(SHA, problem(gpus=4, eta=2, trials=4, min_reports=1, max_reports=3))
        trials = {f"t{n:04}": FakeTrial(f"t{n:04}") for n in range(1, 5)}
        for number, trial in enumerate(trials.values()):
            trial.report(1, float(number))
        plan = policy.plan(View(0.0, "max", trials))
        assert [allocation.trial for allocation in plan.allocations] == ["t0004", "t0003"]
        assert plan.eliminated == ("t0002", "t0001")
        assert plan.note


def test_a_trial_is_through_with_a_rung_also_if_its_reports_are_taken_back() -> None:
    policy = Asked(SHA, problem(gpus=2, eta=2, trials=4, min_reports=2, max_reports=5))
    trials: dict[str, FakeTrial] = {}
    assert asked(policy, trials) == ["t0001", "t0002"]
    trials["t0001"].report(1, 0.3)
    trials["t0001"].report(2, 0.4)
    assert asked(policy, trials) == ["t0002", "t0003"]
    trials["t0001"].history.pop()
    assert asked(policy, trials) == ["t0002", "t0003"]


@given(
    which=st.sampled_from([SHA, HYPERBAND]),
    gpus=st.integers(1, 20),
    per_instance=st.sampled_from([1, 4, 8]),
    eta=st.sampled_from([1.5, 2.0, 3.0, 4.0]),
    trials=st.one_of(st.none(), st.integers(1, 30)),
    most=st.sampled_from([1, 9, 27]),
    p_max=st.one_of(st.none(), st.integers(1, 9)),
    rng=st.integers(0, 2**32 - 1).map(random.Random),
)
@settings(max_examples=few(40), deadline=None)
def test_a_run_keeps_the_protocol_whoever_fails_or_finishes(
    which: Policy,
    gpus: int,
    per_instance: int,
    eta: float,
    trials: int | None,
    most: int,
    p_max: int | None,
    rng: random.Random,
) -> None:
    """The world checks every plan, and asks for it twice. With somebody left to train, somebody
    trains.
    """
    made = problem(
        gpus,
        60.0,
        per_instance=per_instance,
        eta=eta,
        trials=trials,
        max_reports=most,
        p_max=p_max,
        min_reports=1,
    )
    world = World(
        Asked(which, made),
        gpus,
        lambda trial, epoch: rng.choice([None, rng.random()]),
        lives_s=lambda: rng.expovariate(1 / 30),
        most=rng.choice([None, None, 1, 5]),
        late=lambda: rng.random() < 0.1,
    ).run()
    assert all(plan.allocations or plan.done for plan in world.plans)
    assert world.plans[-1].done
    assert world.now_s <= 60.0


@given(
    budget=st.floats(0.5, 1e4),
    deadline=st.floats(0.5, 1e3),
    most=st.one_of(st.none(), st.integers(1, 40)),
    p_min=st.integers(1, 8),
)
@example(budget=1.999999999998181, deadline=1.0, most=None, p_min=1)
@example(budget=1.999999999998181, deadline=0.5, most=None, p_min=1)
@settings(max_examples=few(100), deadline=None)
def test_limits_are_kept_and_impossible_is_said_exactly_when_nothing_fits(
    budget: float, deadline: float, most: int | None, p_min: int
) -> None:
    made = replace(problem(eta=3, trials=9, p_min=p_min), limits=Limits(deadline, budget, most))
    for policy in (SHA, HYPERBAND):
        outline = policy.outline(made)
        few = most is not None and most < p_min
        if isinstance(outline, Outline):
            assert outline.gpu_s <= budget * (1 + 1e-9)
            assert outline.stages[-1].end_s <= deadline * (1 + 1e-9)
            assert outline.peak_gpus <= (most or 10**9)
            continue
        assert few or deadline < 1.0 or budget < p_min * (1 + 1e-9)
        assume(not few)
        assert isinstance(outline, Impossible)
        enough = Limits(
            max(deadline, outline.min_deadline_s), max(budget, outline.min_budget_gpu_s), most
        )
        assert isinstance(policy.outline(replace(made, limits=enough)), Outline)
