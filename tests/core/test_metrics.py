"""Every metric that is reported is kept, and constraints decide which model can be the best."""

from __future__ import annotations

from msgspec.structs import replace

from seerd.core.events import TrialCheckpointed, TrialReported, TrialStarted, TrialTraining
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent, last_value, metrics_of, names_of, value_of, violations_of
from seerd.core.plans import New, PlanChange, Put
from seerd.planner.model import MetricConstraint
from seerd.telling.diagnosis import diagnose
from tests.conftest import small_facts
from tests.core.test_answers import Run

FAST = MetricConstraint("latency_ms", "<", 20.0)


def run_of(*constraints: MetricConstraint, smooth: int = 1) -> Run:
    run = Run(replace(small_facts(smooth=smooth), constraints=constraints))
    new = tuple(New(name, {"lr": 0.5}) for name in ("a", "b"))
    run.answer(PlanChange(new=new, put=(Put("a", 1, 0, None, 0), Put("b", 1, 0, None, 1))))
    run.come()
    for name in ("a", "b"):
        run.fact(TrialStarted, name, pid=7)
        run.fact(TrialTraining, name, reports=0)
    return run


def report(run: Run, name: str, reports: int, metric: float | None, **others: float | None) -> None:
    run.fact(TrialReported, name, reports=reports, metric=metric, unit_s=0.1, others=others)


def save(run: Run, name: str, reports: int, metric: float | None) -> None:
    made = {"name": f"{reports:06d}", "sha256": "0" * 64, "size": 1, "save_s": 0.1}
    run.fact(TrialCheckpointed, name, reports=reports, metric=metric, **made)


def test_every_metric_is_kept_by_its_report() -> None:
    run = run_of()
    report(run, "a", 1, 0.5, loss=0.9)
    report(run, "a", 2, 0.6, loss=None, latency_ms=12.0)
    trial = run.state.trials["a"]
    assert names_of(run.state) == ["accuracy", "loss", "latency_ms"]
    assert [value_of(run.state, trial, one, "loss") for one in trial.history] == [0.9, None]
    assert metrics_of(run.state, trial, 2) == {"accuracy": 0.6, "loss": None, "latency_ms": 12.0}
    assert last_value(run.state, trial, "latency_ms") == 12.0
    assert last_value(run.state, run.state.trials["b"], "loss") is None


def test_what_is_taken_back_is_taken_back_whole() -> None:
    run = run_of()
    for reports in (1, 2, 3):
        report(run, "a", reports, 0.1 * reports, loss=1.0 / reports)
    report(run, "a", 2, 0.7, loss=0.2)
    trial = run.state.trials["a"]
    assert [one.reports for one in trial.history] == [1, 2]
    assert trial.others == {1: {"loss": 1.0}, 2: {"loss": 0.2}}


def test_a_model_that_violates_a_constraint_is_never_the_best() -> None:
    run = run_of(FAST)
    report(run, "a", 1, 0.99, latency_ms=25.0)
    save(run, "a", 1, 0.99)
    assert incumbent(run.state) is None
    report(run, "b", 1, 0.5, latency_ms=19.0)
    save(run, "b", 1, 0.5)
    best = incumbent(run.state)
    assert best is not None
    assert (best.trial, best.metric) == ("b", 0.5)
    assert violations_of(run.state, run.state.trials["a"]) == ["latency_ms < 20"]
    assert violations_of(run.state, run.state.trials["b"]) == []


def test_for_the_policy_it_is_the_worst_there_is_and_people_see_what_was_reported() -> None:
    run = run_of(FAST)
    report(run, "a", 1, 0.99, latency_ms=20.0)
    trial = run.state.trials["a"]
    assert trial.metric is None
    assert last_value(run.state, trial, "accuracy") == 0.99
    assert run.state.signs.finite, "it is not a script that reports nothing finite"


def test_a_constrained_metric_that_is_missing_or_not_finite_does_not_keep_to_it() -> None:
    run = run_of(FAST)
    report(run, "a", 1, 0.9)
    report(run, "b", 1, 0.9, latency_ms=None)
    assert {trial.metric for trial in run.state.trials.values()} == {None}


def test_a_mean_counts_only_if_each_of_its_reports_keeps_to_the_constraint() -> None:
    run = run_of(FAST, smooth=2)
    for reports, latency in ((1, 25.0), (2, 15.0), (3, 16.0)):
        report(run, "a", reports, 0.9, latency_ms=latency)
        save(run, "a", reports, 0.9)
    kept = {one.reports: one.metric for one in run.state.trials["a"].checkpoints}
    assert kept == {3: 0.9, 2: None}


def test_all_signs_are_known_and_the_run_s_own_metric_may_be_constrained() -> None:
    for sign, holds in (("<", False), ("<=", True), (">", False), (">=", True)):
        assert MetricConstraint("m", sign, 2.0).holds({"m": 2.0}) is holds  # type: ignore[arg-type]
    run = run_of(MetricConstraint("accuracy", ">", 0.5))
    report(run, "a", 1, 0.4)
    assert violations_of(run.state, run.state.trials["a"]) == ["accuracy > 0.5"]


def test_a_run_in_which_nobody_kept_to_it_says_how_near_they_came() -> None:
    run = run_of(FAST)
    report(run, "a", 1, 0.9, latency_ms=25.0)
    report(run, "b", 1, 0.9, latency_ms=22.5)
    save(run, "b", 1, 0.9)
    run.state.end.phase, run.state.end.status = RunPhase.OVER, "done"
    found = diagnose(run.state)
    assert found.cause == "constraint"
    assert "no report met latency_ms < 20 (the nearest had 22.5)" in found.text


def test_a_run_without_constraints_is_as_it_was() -> None:
    run = run_of()
    report(run, "a", 1, 0.9, latency_ms=25.0)
    save(run, "a", 1, 0.9)
    best = incumbent(run.state)
    assert best is not None
    assert best.metric == 0.9
    assert run.read().trials["a"].others == run.state.trials["a"].others


def test_a_metric_that_an_observed_script_has_not_printed_yet_violates_nothing() -> None:
    run = run_of(FAST)
    run.state.facts = replace(run.state.facts, patterns={"accuracy": "acc={number}"})
    report(run, "a", 1, 0.5)
    save(run, "a", 1, 0.5)
    report(run, "b", 1, 0.9, latency_ms=None)
    save(run, "b", 1, 0.9)
    found = incumbent(run.state)
    assert found is not None
    assert (found.trial, found.metric) == ("a", 0.5)
    assert violations_of(run.state, run.state.trials["a"]) == []
