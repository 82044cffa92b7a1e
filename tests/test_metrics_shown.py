"""Every metric that trials report is shown: in the lines of a run, in `show`, in its JSON and in
`replay`; and who violates a constraint is marked.
"""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from seerd.core.events import TrialReported
from seerd.core.lifecycle import RunPhase
from seerd.core.state import new_state
from seerd.telling import run_json
from seerd.telling.diagnosis import diagnose
from seerd.telling.explanation.as_json import trial_json
from seerd.telling.explanation.pages import trial_page
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from tests.core.test_answers import Run
from tests.core.test_metrics import FAST, report, run_of, save


def told(view: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined]


def two_reports() -> Run:
    run = run_of(FAST)
    report(run, "a", 1, 0.9, latency_ms=25.5)
    report(run, "b", 1, 0.5, latency_ms=17.5)
    save(run, "b", 1, 0.5)
    report(run, "b", 2, 0.6, latency_ms=None)
    return run


def test_the_line_of_a_report_has_all_of_it() -> None:
    run = two_reports()
    lines = [line_of(event, run.state) for event, _ in run.journal if type(event) is TrialReported]
    assert [line.strip().split("  ", 1)[1] for line in lines if line] == [
        "a report 1: accuracy 0.9, latency_ms 25.5  (not latency_ms < 20)",
        "b report 1: accuracy 0.5, latency_ms 17.5  (best)",
        "b report 2: accuracy 0.6, latency_ms not finite  (not latency_ms < 20)",
    ]


def test_show_has_a_column_for_each_and_the_model_s_own() -> None:
    text = told(summary(two_reports().state))
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["trial"][:3] == ["trial", "accuracy", "latency_ms"]
    assert rows["a"][:3] == ["a", "0.9", "25.5"]
    assert "running, not latency_ms < 20" in text
    assert "best: b, accuracy 0.5, latency_ms 17.5, lr=0.5" in text


def test_json_has_the_last_of_each_and_all_of_them_by_report() -> None:
    details = run_json.details(two_reports().state, "running")
    assert details["metrics"] == ["accuracy", "latency_ms"]
    assert details["metric"]["constraints"] == ["latency_ms < 20"]
    assert details["best"]["metrics"] == {"accuracy": 0.5, "latency_ms": 17.5}
    assert details["no_model"] is None
    a, b = details["all_trials"]
    assert (a["metric"], a["metrics"]) == (0.9, {"accuracy": 0.9, "latency_ms": 25.5})
    assert a["violates"] == ["latency_ms < 20"]
    assert [row[1:] for row in b["history"]] == [[1, 0.5], [2, 0.6]]
    assert b["other_histories"] == {"latency_ms": [17.5, None]}


def test_json_says_why_there_is_no_model_and_what_became_of_trials() -> None:
    run = run_of(FAST)
    report(run, "a", 1, 0.9, latency_ms=25.5)
    run.state.end.phase, run.state.end.status = RunPhase.OVER, "done"
    details = run_json.details(run.state, "done")
    found = diagnose(run.state)
    assert details["no_model"] == {"cause": "constraint", "text": found.text}
    run.state.end.phase = RunPhase.RUNNING
    assert run_json.details(run.state, "running")["no_model"] is None


def test_replay_tells_how_each_went() -> None:
    run = two_reports()
    state, timeline = new_state(run.state.facts), Timeline()
    for event, decided in run.journal:
        timeline.read(state, event, decided)
    found = trial_json(state.trials["b"], timeline, state)
    span = {"first": 17.5, "last": 17.5, "lowest": 17.5, "highest": 17.5}
    assert found["other_metrics"] == {"latency_ms": span}
    assert found["violates"] == ["latency_ms < 20"]
    page = told(trial_page(found))
    assert "17.5 to 17.5, from 17.5 to 17.5" in page
    assert "not met" in page


def test_a_run_without_a_model_says_which_configuration_was_best() -> None:
    run = run_of()
    for name, metric in (("a", 0.5), ("b", 0.9)):
        report(run, name, 1, metric, loss=0.1)
    report(run, "b", 2, 0.7)
    details = run_json.details(run.state, "done")
    assert (details["best"], details["best_report"]) == (
        None,
        {
            "trial": "b", "config": {"lr": 0.5}, "metric": 0.9, "epoch": 1,
            "metrics": {"accuracy": 0.9, "loss": 0.1},
        },
    )  # fmt: skip
    assert "best configuration: b, accuracy 0.9 at report 1, lr=0.5" in told(summary(run.state))
