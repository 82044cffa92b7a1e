"""Scripts that save nothing: their reports are the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from seerd.core.events import TrialReported
from seerd.core.limits import close_at, grace_s, terminate_s
from seerd.telling.complaints import notes_of
from tests.core.test_alike import crash, ended, run_of
from tests.core.test_answers import Run


def training(*, begins_anew: bool = True, **facts: Any) -> Run:
    """Two trials train."""
    run = run_of("a", "b", **facts)
    problem = replace(run.state.facts.problem, begins_anew=begins_anew, saves=not begins_anew)
    run.state.facts = msgspec.structs.replace(run.state.facts, problem=problem)
    return run


def report(run: Run, name: str, metric: float | None) -> list[Any]:
    reports = run.trial(name).reports + 1
    return run.fact(TrialReported, name, reports=reports, metric=metric, unit_s=0.1)


@pytest.mark.parametrize(("mode", "metric"), [("max", 0.7), ("min", 0.5)])
def test_a_report_that_reaches_the_target_ends_the_run(mode: str, metric: float) -> None:
    run = training(mode=mode, target=0.6)
    report(run, "a", None)
    report(run, "b", 1.2 - metric)
    assert ended(run) is None
    report(run, "b", metric)
    assert (run.state.end.status, ended(run)) == ("target", "target")
    assert notes_of(run.state)[-1] == (
        f"the target was reached: b has accuracy {metric:g} after 2 reports, and 0.6 was wanted"
    )


def test_where_models_are_saved_a_report_alone_does_not_end_it() -> None:
    run = training(target=0.6, begins_anew=False)
    report(run, "a", 0.7)
    crash(run, "b")
    assert ended(run) is None


def test_the_mean_of_the_last_reports_counts_if_the_person_wants_it() -> None:
    run = training(target=0.6, smooth=2)
    for metric in (0.4, 0.7, None, 0.8):
        report(run, "a", metric)
        assert ended(run) is None
    report(run, "a", 0.5)
    assert notes_of(run.state)[-1] == (
        "the target was reached: a has accuracy (mean of the last 2 reports) 0.65 after 5 reports, "
        "and 0.6 was wanted"
    )


def test_no_time_is_set_aside_for_a_save_that_never_comes() -> None:
    saves, none = (training(begins_anew=anew, deadline_s=600.0) for anew in (False, True))
    for run in (saves, none):
        run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=12.0)
    assert grace_s(saves.state) == 26.0
    assert grace_s(none.state) == 0.0
    rules = none.state.rules
    assert close_at(none.state) == 600.0 - rules.kill_s - rules.publish_s - terminate_s(none.state)
