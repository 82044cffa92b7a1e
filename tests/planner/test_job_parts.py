"""One job's part of a run: what its policy sees and says, and what it offers for GPU time."""

from __future__ import annotations

from bench.testbed.policy_world import FakeTrial, problem
from seerd.planner.job_offers import FEW, offers
from seerd.planner.job_views import by_job, changes_of, in_the_run, memory_of
from seerd.planner.memory import Memory
from seerd.planner.model import Allocation, Compared, Mode, NewTrial, Plan, PlannedJob, View


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


def test_who_has_shown_little_offers_as_much_as_any_other() -> None:
    jobs = [job("a"), job("b"), job("c")]
    seen = by_job(
        view(rising("a.t1", 0.1), rising("b.t1", 0.1, FEW - 1), rising("c.t1", 0.1)), jobs
    )
    found = offers(jobs, seen, {"a": 10.0, "b": 10.0})
    assert [one.best is None for one in found] == [False, True, True]


def test_who_gains_more_for_its_gpu_time_offers_more() -> None:
    jobs = [job("a"), job("b"), job("c", weight=2.0)]
    seen = by_job(view(*(rising(f"{one.id}.t1", 0.1) for one in jobs)), jobs)
    a, b, c = offers(jobs, seen, {"a": 10.0, "b": 20.0, "c": 10.0})
    assert a.gain == 2 * b.gain
    assert c.gain == 2 * a.gain


def test_less_is_better_where_the_metric_says_so() -> None:
    falls = trial("a.t1", *(1.0 - 0.1 * number for number in range(FEW)))
    jobs = [job("a", "min")]
    (found,) = offers(jobs, by_job(view(falls, trial("a.t2", None)), jobs), {"a": 10.0})
    assert found.best == -falls.history[-1].metric  # type: ignore[operator]
    assert found.gain > 0


def test_results_of_other_metrics_are_compared_by_how_far_they_spread() -> None:
    """One metric is a hundred times the other; they offer the same."""
    jobs = [job("a", metric="accuracy"), job("b", metric="percent")]
    trials = [
        rising(f"{name}.t{number}", by * number)
        for name, by in (("a", 0.01), ("b", 1.0))
        for number in (1, 2, 3)
    ]
    a, b = offers(jobs, by_job(view(*trials), jobs), {"a": 10.0, "b": 10.0})
    assert abs(a.gain - b.gain) < 1e-9
