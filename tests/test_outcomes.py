"""What became of each trial: one answer, and the same words in every table, file and page."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from bench.testbed.checked_world import Behaviour, World
from seerd.api.notebook import shown
from seerd.commands.export import ExportOptions, export
from seerd.commands.replay import replay
from seerd.commands.report import RunReader
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import State
from seerd.shell.home import RunFolder
from seerd.telling.explanation.as_json import trial_json
from seerd.telling.explanation.pages import trial_page
from seerd.telling.outcomes import TrialOutcome, outcome_text, outcomes
from seerd.telling.page.run_page import RunReport
from seerd.telling.summary import summary
from tests.conftest import small_facts
from tests.explanation.timelines import write_run
from tests.test_report import told_of


def words(state: State) -> Counter[str]:
    return Counter(outcome.word for outcome in outcomes(state).values())


def test_trials_that_were_left_behind_are_stopped_and_say_how_they_stood() -> None:
    state = told_of("held").state
    found, trials = outcomes(state), state.trials
    assert words(state)["best"] == 1
    stopped = [name for name, one in found.items() if one.why == "compared"]
    assert len(stopped) > len(trials) / 3
    for name in stopped:
        judged = trials[name].judged
        assert judged is not None
        assert trials[name].reports >= judged.reports
        assert not judged.final
    kept = [trials[name] for name, one in found.items() if one == TrialOutcome("kept", "end")]
    assert all(trial.stopped in ("closing", "hard") for trial in kept)


def test_while_the_run_goes_on_a_trial_has_its_phase_and_none_is_the_best() -> None:
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5))
    world.begin()
    while not world.state.signs.reported:
        world.turn()
    found = words(world.state)
    assert found["running"]
    assert not found.keys() & {"best", "kept"}


def test_a_trial_whose_every_report_was_nan_is_not_kept() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    (last,) = [name for name, one in outcomes(state).items() if one == TrialOutcome("kept", "end")][
        -1:
    ]
    trial = state.trials[last]
    trial.history[:] = [report._replace(metric=None) for report in trial.history]
    assert outcomes(state)[last] == TrialOutcome("not-finite")
    trial.history.clear()
    assert outcomes(state)[last] == TrialOutcome("no-report")
    trial.fault, trial.tail = "blocked", ("OSError: [Errno 98] Address already in use",)
    blocked = outcomes(state)[last]
    assert outcome_text(state, trial, blocked) == "no report: an address was in use"
    trial.phase, trial.fault = TrialPhase.ELIMINATED, None
    assert outcomes(state)[last] == TrialOutcome("no-report"), "it was never compared"


def test_the_model_that_is_handed_back_is_the_best_whatever_became_of_its_trial() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    published = state.result.published
    assert published is not None
    trial = state.trials[published.incumbent.trial]
    trial.phase = TrialPhase.FAILED
    assert outcomes(state)[trial.id] == TrialOutcome("best")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: config["lr"]))
    world.run()
    return RunFolder(write_run(tmp_path, "small", world))


def test_every_table_and_file_has_the_same_words(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunReader(folder).read()
    state = run.state
    text = {
        name: outcome_text(state, state.trials[name], one) for name, one in outcomes(state).items()
    }
    assert {"best", "kept to the end"} <= set(text.values())
    console = Console(width=300, file=io.StringIO())
    console.print(summary(state))
    table = console.file.getvalue()  # type: ignore[attr-defined]
    pages = (RunReport(run).page(), shown(run))
    export(folder, ExportOptions(csv=str(tmp_path / "csv")))
    written = (tmp_path / "csv" / "trials.csv").read_text().splitlines()
    rows = {row["trial"]: row for row in csv.DictReader(written)}
    capsys.readouterr()
    for name, became in text.items():
        (line,) = [line for line in table.splitlines() if line.startswith(name)]
        assert f"  {became}  " in line
        assert all(f'<td class="text">{became}</td>' in page for page in pages)
        assert rows[name]["outcome"] == outcomes(state)[name].word
        replay(folder, name, None, json=False)
        assert f"{name} of small: {became.partition(',')[0]}" in capsys.readouterr().out
        replay(folder, name, None, json=True)
        assert json.loads(capsys.readouterr().out)["outcome"] == outcomes(state)[name].word


def test_the_models_own_figure_is_in_the_first_line_of_the_table(folder: RunFolder) -> None:
    state = RunReader(folder).read().state
    published = state.result.published
    assert published is not None
    best = published.incumbent
    trial = state.trials[best.trial]
    trial.history[-1] = trial.history[-1]._replace(metric=0.0)
    console = Console(width=300, file=io.StringIO())
    console.print(summary(state, most=2))
    rows = console.file.getvalue().splitlines()[3:]  # type: ignore[attr-defined]
    assert rows[0].split()[:3] == [best.trial, "0", f"{best.metric:.6g}"]


@pytest.mark.parametrize(
    ("how", "kept", "after", "said"),
    [
        ("saved", 4, 2, "saved"),
        ("saved", 2, 2, "nothing new saved"),
        ("saved", None, 0, "nothing saved"),
        ("crashed", None, 0, "crashed"),
    ],
)
def test_an_attempt_that_saved_nothing_is_not_said_to_have_saved(
    folder: RunFolder, how: str, kept: int | None, after: int, said: str
) -> None:
    run = RunReader(folder).read()
    told = trial_json(run.state.trials["t0001"], run.timeline, run.state)
    told["attempts"] = [
        {**told["attempts"][0], "how": how, "kept": kept, "after_reports": after, "ended_s": 9.0}
    ]
    console = Console(width=300, file=io.StringIO())
    console.print(trial_page(told))
    assert f"; ended at 9s ({said})" in console.file.getvalue()  # type: ignore[attr-defined]
