"""One job's part of a run: what its policy sees and says, and what it offers for GPU time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.testbed.policy_world import FakeTrial, problem
from seerd.agent.gpu_shares import Claim
from seerd.planner.dividing import FEW, Dividing, Prospect, divided, prospects
from seerd.planner.job_parts import by_job, changes_of, in_the_run, memory_of, own_left
from seerd.planner.memory import Memory
from seerd.planner.model import Allocation, Compared, Limits, Mode, NewTrial, Plan, PlannedJob, View


def job(name: str, mode: Mode = "max", **more: object) -> PlannedJob:
    return PlannedJob(name, problem(), mode, **more)  # type: ignore[arg-type]


def trial(name: str, *metrics: float | None) -> FakeTrial:
    found = FakeTrial(name, {"lr": 0.1})
    for number, metric in enumerate(metrics, 1):
        found.report(number, metric, float(number))
    return found


def view(*trials: FakeTrial, mode: Mode = "max") -> View:
    return View(9.0, mode, {one.id: one for one in trials})


def test_a_policy_sees_its_own_trials_under_its_own_names() -> None:
    seen = by_job(
        view(trial("a.t0001", 0.5), trial("b.t0001"), trial("a.t0002")),
        [job("a"), job("b", "min"), job("c")],
    )
    assert {name: list(one.trials) for name, one in seen.items()} == {
        "a": ["t0001", "t0002"],
        "b": ["t0001"],
        "c": [],
    }
    assert [one.mode for one in seen.values()] == ["max", "min", "max"]
    one = seen["a"].trials["t0001"]
    assert (one.id, one.status, one.config) == ("t0001", "live", {"lr": 0.1})
    assert (one.reports, one.metric, len(one.history)) == (1, 0.5, 1)


def test_what_it_says_is_told_in_the_runs_names() -> None:
    plan = Plan(
        (Allocation("t0001", 2),),
        (NewTrial("t0002", {}),),
        ("t0003",),
        compared=(Compared("t0004", 0.5, 1, 1, 2, 1),),
        note="so it is",
    )
    told = in_the_run("a", plan)
    assert told.allocations == (Allocation("a.t0001", 2),)
    assert [one.id for one in told.new] == ["a.t0002"]
    assert told.eliminated == ("a.t0003",)
    assert [one.trial for one in told.compared] == ["a.t0004"]
    assert told.note == "a: so it is"
    assert in_the_run("a", Plan()) == Plan()


def test_each_remembers_for_itself() -> None:
    memory = Memory({"x": 0, "a:x": 1, "ab:x": 2})
    own = memory_of("a", memory)
    assert own.values == {"x": 1}
    assert changes_of("a", own.after({"x": None, "y": 3})) == {"a:x": None, "a:y": 3}


def rising(name: str, by: float, reports: int = FEW) -> FakeTrial:
    return trial(name, *(by * number for number in range(reports)))


def test_of_who_has_shown_little_as_much_is_expected_as_of_the_most_promising() -> None:
    jobs = [job("a"), job("b"), job("c")]
    seen = by_job(
        view(rising("a.t1", 0.1), rising("b.t1", 0.1, FEW - 1), rising("c.t1", 0.1)), jobs
    )
    found = prospects(jobs, seen, {"a": 10.0, "b": 10.0})
    assert [one.best is None for one in found] == [False, True, True]
    assert {one.regret for one in found} == {found[0].regret}
    assert min(one.spent_gpu_s for one in found) > 0


def test_a_regret_that_falls_like_1_by_t_is_known() -> None:
    """Whatever its results are like, and however much GPU time there was for each."""
    results = [1.0 - 0.3 / number for number in range(1, 101)]
    (found,) = prospects([job("a")], by_job(view(trial("a.t1", *results)), [job("a")]), {"a": 60.0})
    assert found.regret == pytest.approx(0.003)
    assert found.regret_after(60.0) == pytest.approx(0.0015)


def test_weights_count_and_gpu_time_that_was_had_makes_less_of_more() -> None:
    jobs = [job("a"), job("b"), job("c", weight=2.0)]
    seen = by_job(view(*(rising(f"{one.id}.t1", 0.1) for one in jobs)), jobs)
    a, b, c = prospects(jobs, seen, {"a": 10.0, "b": 20.0, "c": 10.0})
    assert a.regret == b.regret == c.regret / 2
    assert a.regret_after(10.0) < b.regret_after(10.0) < c.regret_after(10.0)


def test_less_is_better_where_the_metric_says_so() -> None:
    falls = trial("a.t1", *(1.0 - 0.1 * number for number in range(FEW)))
    jobs = [job("a", "min")]
    (found,) = prospects(jobs, by_job(view(falls, trial("a.t2", None)), jobs), {"a": 10.0})
    assert found.best == -falls.history[-1].metric  # type: ignore[operator]
    assert found.regret > 0


def test_results_of_other_metrics_are_compared_by_how_far_they_spread() -> None:
    """One metric is a hundred times the other; as much is expected of both."""
    jobs = [job("a", metric="accuracy"), job("b", metric="percent")]
    trials = [
        rising(f"{name}.t{number}", by * number)
        for name, by in (("a", 0.01), ("b", 1.0))
        for number in (1, 2, 3)
    ]
    a, b = prospects(jobs, by_job(view(*trials), jobs), {"a": 10.0, "b": 10.0})
    assert a.regret == pytest.approx(b.regret)


def test_the_worst_first_and_the_greatest_gain_first_are_not_the_same() -> None:
    """One has much regret and long had all GPUs, so that more of them change little."""
    claims = [Claim("slow", 8), Claim("young", 8)]
    jobs = [Prospect("slow", 0.5, 0.5, 1e6), Prospect("young", 0.5, 0.2, 100.0)]
    by = Dividing("greedy", left_s=100.0, jobs=jobs)
    assert divided(8, claims, by).given == {"slow": 2, "young": 6}
    assert divided(8, claims, replace(by, sharing="worst-first")).given == {"slow": 6, "young": 2}


def test_a_job_has_what_is_left_of_the_run_and_of_its_own_limits() -> None:
    """Of the run's deadline 7 seconds are set aside: from the job's own they are, too."""
    run, spent = problem(4, 100.0), {"a": 30.0}
    left = Limits(60.0, 300.0)
    now = replace(view(), now_s=33.0, spent=spent)
    for own, expected in (
        (Limits(100.0, 400.0), Limits(60.0, 300.0)),
        (Limits(90.0, 130.0), Limits(50.0, 100.0)),
        (Limits(35.0, 30.0), Limits(0.0, 0.0)),
        (Limits(40.5, 30.5), Limits(0.5, 0.5)),
    ):
        one = PlannedJob("a", replace(run, limits=own), "max")
        assert own_left(run, one, now, left) == expected
