"""A best configuration is a result: of scripts that save no model by design, and of no others."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

import seerd as api
from seerd.agent.protocol import Complained
from seerd.api.notebook import shown
from seerd.commands.on_end import in_a_line
from seerd.core.codec import decode_event
from seerd.core.commands import Finish
from seerd.core.events import RunFacts, TrialComplained, TrialReported, TrialTraining
from seerd.core.jobs import target_reached
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent
from seerd.core.results import best_configuration, result_of
from seerd.core.state import State
from seerd.errors import NoModelError
from seerd.planner.model import MetricConstraint
from seerd.telling import run_json
from seerd.telling.complaints import complaint_text, notes_of
from seerd.telling.diagnosis import complaints, diagnose
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.live.board import Recent, board_of
from seerd.telling.live.frame import frame
from seerd.telling.live.look import LiveLook
from seerd.telling.page.run_page import ReadRun, RunReport
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from tests.agent.test_agent_trial_output import REPORT, Trial
from tests.core.test_alike import crash, run_of
from tests.core.test_answers import Run
from tests.core.test_metrics import save
from tests.mistakes import kit
from tests.mistakes.catalogue import HAND, Mistake, by_reports

BARE_TORCH = Path(__file__).parent / "bare_torch"
WHY = "no model was saved: trials reported, and never called trial.running()"


def reported(*metrics: float | None, **facts: Any) -> Run:
    """Two trials run; the first has made these reports."""
    run = run_of("a", "b")
    run.state.facts = replace(run.state.facts, **{"promises": True, **facts})
    for reports, metric in enumerate(metrics, 1):
        made = {"metric": metric, "unit_s": 0.1, "others": {"loss": 0.5}}
        run.fact(TrialReported, "a", reports=reports, **made)
    return run


def over(run: Run, status: str = "done") -> State:
    run.state.end.phase, run.state.end.status = RunPhase.OVER, status
    return run.state


def complain(run: Run, what: str) -> None:
    run.fact(TrialComplained, "a", what=what, why="its script saves checkpoints")


def test_of_a_script_that_saves_none_it_is_the_best_report_once_the_run_is_over() -> None:
    run = reported(0.5, 0.9, 0.7)
    assert result_of(run.state) is None, "a model may still come"
    state = over(run)
    found = best_configuration(state)
    assert found is not None
    assert (found[0].id, found[1].reports, found[1].metric) == ("a", 2, 0.9)
    assert result_of(state) == "configuration"
    assert run_json.exit_code(state) == 0
    assert run_json.exit_code(state, need_model=True) == run_json.EXIT_NO_MODEL
    assert run_json.exit_code(over(run, "interrupted")) == run_json.EXIT_INTERRUPTED


@pytest.mark.parametrize(
    "facts", [{"saves_to": "model.pt"}, {"constraints": (MetricConstraint("loss", "<", 0.1),)}]
)
def test_what_was_to_be_saved_or_does_not_count_is_none(facts: dict[str, Any]) -> None:
    state = over(reported(0.5, **facts))
    assert result_of(state) is None
    assert run_json.exit_code(state) == run_json.EXIT_NO_MODEL
    assert result_of(over(reported(None))) is None


@pytest.mark.parametrize("what", ["promised", "not-stored"])
def test_a_promised_checkpoint_that_never_came_is_a_failure(what: str) -> None:
    run = reported(0.5)
    complain(run, what)
    assert run.read().jobs[""].promised, "the journal has it"
    assert result_of(over(run)) is None
    if what == "promised":
        assert notes_of(run.state) == complaints(run.state) == []
        assert line_of(run.journal[-1][0], run.state) is None


def test_other_complaints_promise_nothing() -> None:
    run = reported(0.5)
    complain(run, "warning")
    assert result_of(over(run)) == "configuration"


def test_a_checkpoint_that_came_is_a_promise_also_if_it_cannot_be_read() -> None:
    run = reported(0.5)
    save(run, "a", 1, 0.5)
    run.state.result.unreadable.add("a/000001")
    assert result_of(over(run)) is None


def test_checkpoints_with_nothing_in_them_are_no_model() -> None:
    run = reported(0.5, 0.9)
    complain(run, "untracked")
    save(run, "a", 1, 0.5)
    assert incumbent(run.state) is None
    read = run.read().jobs[""]
    assert (read.empty, read.saved, read.promised) == (True, True, False), "the journal has it"
    state = over(run)
    assert result_of(state) == "configuration"
    no_model = diagnose(state)
    assert no_model.cause == "no-checkpoint"
    assert (
        "their checkpoints hold no model, since nothing was given to trial.track(" in no_model.text
    )
    assert complaints(state) == []
    state.jobs[""].promised = True
    assert result_of(state) == "model", "an attempt had something to save"


def test_in_journals_of_earlier_versions_they_were_handed_back() -> None:
    run = reported(0.5, promises=False)
    complain(run, "untracked")
    save(run, "a", 1, 0.5)
    assert incumbent(run.state) is not None
    assert result_of(over(run)) == "model"


def test_a_target_is_reached_by_a_report_where_checkpoints_hold_nothing() -> None:
    run = reported(0.5, 0.9)
    run.state.facts = replace(run.state.facts, target=0.8)
    assert target_reached(run.state, "") is None, "a model may still come"
    complain(run, "untracked")
    assert target_reached(run.state, "") is not None
    run.fact(TrialReported, "a", reports=3, metric=0.95, unit_s=0.1, others={})
    assert run.state.end.why == "target", "a report is looked at when it comes"


def test_a_script_that_always_crashes_has_no_result() -> None:
    run = reported(0.5)
    crash(run, "a")
    assert result_of(over(run)) == "configuration", "the other did not crash"
    run.state.end.phase = RunPhase.RUNNING
    crash(run, "b")
    assert result_of(over(run)) is None


def test_in_journals_of_earlier_versions_running_is_the_promise() -> None:
    run = reported(0.5, promises=False)
    run.fact(TrialTraining, "b", reports=0)
    assert result_of(over(run)) is None
    run.state.facts = replace(run.state.facts, patterns={"accuracy": "accuracy {number}"})
    assert result_of(run.state) == "configuration", "what observes a script says that it trains"
    run.state.facts = replace(run.state.facts, patterns={}, promises=True)
    assert result_of(run.state) == "configuration"


def test_to_a_version_that_does_not_know_it_a_promise_reads_well(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.write({**REPORT, "promises": True}, {**REPORT, "epoch": 2, "promises": True})
    (told,) = [fact for fact in trial.all() if isinstance(fact, Complained)]
    assert (told.what, told.why) == ("promised", "its script saves checkpoints")
    run = reported(0.5)
    complain(run, "unknown")
    assert notes_of(run.state) == ["a: its script saves checkpoints"]
    assert complaint_text(run.state, run.state.signs.complaints["unknown"]) in complaints(run.state)


def test_what_lies_in_the_folder_of_checkpoints_is_a_promise(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.write({**REPORT, "promises": "yes"})
    trial.all()
    assert trial.output.promised() == [], "there is no folder"
    (tmp_path / "local").mkdir()
    assert trial.output.promised() == []
    (tmp_path / "local" / ".1.pt").touch()
    (told,) = trial.output.promised()
    assert isinstance(told, Complained)
    assert told.what == "promised"
    assert trial.output.promised() == [], "once"


def test_facts_of_earlier_versions_promise_nothing() -> None:
    recorded = b'{"kind":"run-started","at":0.0,"facts":%s}'
    import msgspec

    facts = msgspec.json.encode(reported().state.facts).replace(b'"promises":true,', b"")
    facts = facts.replace(b',"promises":true', b"")
    event = decode_event(recorded % facts)
    assert isinstance(event.facts, RunFacts)  # type: ignore[union-attr]
    assert not event.facts.promises  # type: ignore[union-attr]


def test_everything_that_tells_of_the_run_tells_of_the_configuration() -> None:
    run = reported(0.5, 0.9)
    state = over(run)
    best = "a, accuracy 0.9 at report 2, lr="
    console = Console(width=300, file=io.StringIO())
    console.print(summary(state))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"best configuration: {best}" in text
    assert WHY in text
    assert f"take the configuration with: seerd best {state.facts.run} --to DIR" in text
    read = ReadRun(Timeline(), state, "done", "", "")
    page = RunReport(read).page()
    assert f"<strong>The best configuration: {best}" in page
    assert WHY in page
    assert f"best configuration: {best}" in shown(read)
    assert WHY in shown(read)
    drawn = frame(board_of(state, 9.0, Recent()), LiveLook(), (200, 40))
    assert f"no model; best configuration: {best}" in "\n".join(map(str, drawn.lines))
    line = line_of(run.journal[-1][0], state, [Finish(id="9", status="done")])
    assert line is not None
    assert f"s  the best configuration is {best}" in line
    assert f"; {WHY}" in line
    told = run_json.result(state, "done")
    config = state.trials["a"].config
    metrics = {"accuracy": 0.9, "loss": 0.5}
    row = {"trial": "a", "config": config, "metric": 0.9, "metrics": metrics, "epoch": 2}
    assert told["best"] == {**row, "mean_of": 1, "checkpoint": None}
    assert (told["result"], told["best_report"]) == ("configuration", row)
    assert told["no_model"]["cause"] == "no-checkpoint"
    assert told["no_model"]["text"].startswith("there is no model: trials reported, and never")
    assert "; best 0.9 (a), no model saved; " in in_a_line(told)


# ------------------------------------------------------------ real runs

TOLD = "    tell(json.dumps({'kind': 'report', 'epoch': epoch, 'metrics': {'accuracy': 0.5}}))\n"
TRACKS = """\
import time, seerd
class Model:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
trial = seerd.trial()
trial.track(model=Model())
for epoch in range(1000):
    time.sleep(0.1)
    trial.report(accuracy=0.5)
"""
ONE = by_reports(2).replace("trials = 3", "trials = 1")
SAVES_NONE = Mistake("saves-none", "", HAND + TOLD, (), policy=ONE)
PROMISES = Mistake(
    *("promises", "", TRACKS, ()),
    quick=False,
    train=f'env = {{ PYTHONPATH = "{BARE_TORCH}" }}\npreload = false',
    policy=ONE,
)


def test_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that saves none, and one whose model was promised and never saved."""
    places = {made.name: (made, tmp_path / made.name) for made in (SAVES_NONE, PROMISES)}
    for made, folder in places.values():
        kit.make(made, folder)

    def ended(name: str, *options: str) -> tuple[int | None, dict[str, Any]]:
        done = kit.seerd(places[name][1], "run", "spec.toml", "--json", *options)
        return done.returncode, json.loads(done.stdout)

    with ThreadPoolExecutor(2) as beside:
        failing = beside.submit(ended, "promises")
        needing = ended("saves-none", "--need-model")
        code, promised = failing.result()
    assert (code, promised["result"], promised["best"]) == (4, None, None)
    assert promised["no_model"]["cause"] == "no-checkpoint"
    assert (needing[0], needing[1]["result"], needing[1]["best"]["metric"]) == (
        4,
        "configuration",
        0.5,
    )

    folder = places["saves-none"][1]
    printed = kit.seerd(folder, "best", "last")
    assert printed.returncode == 0
    assert "no model was saved: trials reported, and " in printed.stdout
    needed = kit.seerd(folder, "best", "last", "--need-model")
    assert (needed.returncode, "there is no model" in needed.stderr) == (4, True)
    copied = kit.seerd(folder, "best", "last", "--to", "out")
    assert copied.returncode == 0
    assert "out/config.json has the configuration, and nothing else" in copied.stdout
    (card,) = (folder / "project" / "out").iterdir()
    held = json.loads(card.read_text())
    assert (held["trial"], held["metric_name"], held["metric"]) == ("t0001", "accuracy", 0.5)
    assert held["metrics"] == {"accuracy": 0.5}
    monkeypatch.setenv("SEERD_HOME", str(folder / "home"))
    run = api.load()
    assert (run.best.config, run.best.metric) == (held["config"], 0.5)
    with pytest.raises(NoModelError, match="there is no model"):
        _ = run.best.path
    with pytest.raises(NoModelError):
        run.best.to(tmp_path / "model")
    assert not (tmp_path / "model").exists()
