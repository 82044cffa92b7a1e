"""The front of a job: no trial on it is dominated, and all that shows a run shows it, where
`metric.objectives` is given and nowhere else.
"""

from __future__ import annotations

import csv
import json
import sys
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from seerd.commands.export import ExportOptions, export
from seerd.core.events import JobFacts
from seerd.core.state import State, Trial
from seerd.export import trackers
from seerd.planner.model import MetricConstraint, Report
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling import run_json
from seerd.telling.explanation.timeline import Timeline, read_history
from seerd.telling.front import FrontPoint, front_of, on_front, points_of, undominated
from seerd.telling.page.run_page import ReadRun, RunReport
from seerd.telling.summary import summary
from tests.by_hand import begun
from tests.conftest import small_facts
from tests.core.test_answers import Run
from tests.core.test_metrics import report, run_of
from tests.examples import few
from tests.mistakes import kit
from tests.mistakes.catalogue import TORCHLESS
from tests.test_metrics_shown import told

NAMES = ("accuracy", "latency_ms", "recall")
FAST = {"latency_ms": "min"}


class Made(NamedTuple):
    """A report: its metrics, None where one is missing, and whether it meets the constraints."""

    metrics: tuple[int | None, ...]
    counts: bool


def state_of(trials: dict[str, list[Made]], modes: list[str]) -> State:
    """A run whose trials have made these reports."""
    objectives = dict(zip(NAMES[1:], modes[1:], strict=True))
    state = begun(replace(small_facts(), mode=modes[0], objectives=objectives))
    for name, reports in trials.items():
        trial = Trial(name, {"lr": 0.5}, 1)
        for number, (metrics, counts) in enumerate(reports, 1):
            metric, *others = metrics
            trial.history.append(Report(0.0, number, metric if counts else None))
            trial.others[number] = dict(zip(NAMES[1:], others, strict=True))
            if not counts:
                trial.others[number]["accuracy"] = metric
        state.trials[name] = trial
    return state


VALUE = st.sampled_from([None, 1, 2, 3, 4])
REPORT = st.builds(Made, st.tuples(VALUE, VALUE, VALUE), st.sampled_from([True, True, False]))
TRIALS = st.lists(st.lists(REPORT, max_size=3), max_size=8)
MODE = st.sampled_from(["max", "min"])


@settings(max_examples=few(300))
@given(TRIALS, st.lists(MODE, min_size=3, max_size=3), st.randoms())
def test_no_trial_on_it_is_dominated_and_all_others_that_count_are(
    reports: list[list[Made]], modes: list[str], rng: Any
) -> None:
    def better(value: int, other: int, mode: str) -> bool:
        return value > other if mode == "max" else value < other

    def dominates(values: Any, others: Any) -> bool:
        worse = any(better(*pair, mode) for *pair, mode in zip(others, values, modes, strict=True))
        return not worse and values != others

    def best_of(made: list[Made]) -> tuple[int, ...] | None:
        whole: list[Any] = [m.metrics for m in made if m.counts and None not in m.metrics]
        signs = [1 if mode == "max" else -1 for mode in modes]
        return max(whole, key=lambda values: list(map(mul, values, signs)), default=None)

    trials = {f"t{number:04}": made for number, made in enumerate(reports)}
    points = {name: best for name, made in trials.items() if (best := best_of(made)) is not None}
    front = front_of(state_of(trials, modes), "")
    assert {point.trial.id: point.values for point in front} == {
        name: values
        for name, values in points.items()
        if not any(dominates(other, values) for other in points.values())
    }
    deciding = [point.values[0] for point in front]
    assert deciding == sorted(deciding, reverse=modes[0] == "max")
    shuffled = list(trials.items())
    rng.shuffle(shuffled)
    again = front_of(state_of(dict(shuffled), modes), "")
    assert [point.trial.id for point in again] == [point.trial.id for point in front]
    assert all(
        trials[point.trial.id][point.report.reports - 1].metrics == point.values for point in front
    )


def test_of_equal_trials_all_are_on_it_and_of_equal_reports_the_first_counts() -> None:
    made = Made((3, 1, 1), counts=True)
    front = front_of(state_of({"b": [made, made], "a": [made]}, ["max", "min", "max"]), "")
    assert [(point.trial.id, point.report.reports) for point in front] == [("a", 1), ("b", 1)]


def test_a_long_chain_is_dominated_by_its_first() -> None:
    trial = Trial("t", {}, 1)
    chain = [FrontPoint(trial, Report(0.0, 1, 0.0), (), (float(n), float(n))) for n in range(5000)]
    assert undominated(reversed(chain)) == chain[:1]


# ------------------------------------------------------------ what is shown


def raced(**objectives: str) -> Run:
    """One trial is exact, one is fast; a third report of the fast one violates a constraint."""
    run = run_of(MetricConstraint("size_mb", "<", 9.0))
    run.state.facts = replace(run.state.facts, objectives=objectives)
    run.journal[0] = (replace(run.journal[0][0], facts=run.state.facts), run.journal[0][1])
    report(run, "a", 1, 0.8, latency_ms=12.0, size_mb=1.0)
    report(run, "a", 2, 0.9, latency_ms=13.5, size_mb=1.0)
    report(run, "b", 1, 0.5, latency_ms=3.25, size_mb=1.0)
    report(run, "b", 2, 0.95, latency_ms=3.0, size_mb=10.0)
    return run


def page_of(run: Run) -> str:
    return RunReport(ReadRun(Timeline(), run.state, "done", "", "")).page()


def test_the_end_of_a_run_and_its_json_have_it_where_objectives_are_given() -> None:
    run = raced(**FAST)
    assert """\
front: 2 of 2 trials by accuracy (max), latency_ms (min)
       a, accuracy 0.9, latency_ms 13.5 at report 2, lr=0.5
       b, accuracy 0.5, latency_ms 3.25 at report 1, lr=0.5
""" in told(summary(run.state))
    details = run_json.details(run.state, "running")
    exact = {"accuracy": 0.9, "latency_ms": 13.5, "size_mb": 1.0}
    assert details["front"][0] == {
        "trial": "a", "config": {"lr": 0.5}, "metric": 0.9, "metrics": exact, "epoch": 2,
    }  # fmt: skip
    assert [row["trial"] for row in details["front"]] == ["a", "b"]
    assert details["metric"]["objectives"] == FAST
    assert run.read().facts.objectives == FAST, "the journal has it"

    plain = raced()
    assert "front" not in told(summary(plain.state))
    assert "front" not in run_json.details(plain.state, "running")
    assert "Front" not in page_of(plain)


def test_of_a_long_front_the_first_are_shown() -> None:
    made = {f"t{n}": [Made((n, n, 1), counts=True)] for n in range(1, 8)}
    state = state_of(made, ["max", "min", "max"])
    text = told(summary(state))
    assert "front: 7 of 7 trials by accuracy (max), latency_ms (min), recall (max)\n" in text
    assert "t4, accuracy 4, latency_ms 4, recall 1 at report 1" in text
    assert "t3, accuracy 3" not in text
    assert "and 3 more: seerd show --json" in text


def test_an_objective_that_no_trial_reports_is_shown_as_missing() -> None:
    run = raced(latency="min")
    why = "no report that meets the constraints has finite values of all of accuracy (max), "
    assert f"front: {why}latency (min)" in told(summary(run.state))
    assert run_json.result(run.state, "done")["front"] == []
    page = page_of(run)
    assert f"<p>{why}latency (min)</p>" in page
    assert "by latency" not in page


def test_the_page_has_a_table_and_a_picture_for_each_objective() -> None:
    run = raced(**FAST, size_mb="min")
    report = RunReport(ReadRun(Timeline(), run.state, "done", "", ""))
    pictures = {picture.name: picture for picture in report.pictures()}
    assert "front-1" in pictures
    assert "accuracy (max) by size_mb (min)" in pictures["front-2"].caption
    line, _, large, names = pictures["front-1"].spec["layer"]
    on_it = [{"trial": "a", "x": 13.5, "y": 0.9}, {"trial": "b", "x": 3.25, "y": 0.5}]
    assert line["data"]["values"] == large["data"]["values"] == names["data"]["values"] == on_it
    (alone,) = pictures["front-2"].spec["layer"][0]["data"]["values"]
    assert alone["trial"] == "a", "by these two metrics alone it dominates"
    part = report.page().partition("<h2>Front</h2>")[2].partition("<h2>")[0]
    assert part.count("<svg") == 2
    assert '<td class="text">b</td><td data-v="0.5">0.5</td><td data-v="3.25">3.25</td>' in part
    assert "copy its configuration to policy.start" in part


def test_each_job_has_its_own() -> None:
    state = begun(small_facts())
    shared: dict[str, Any] = {"metric": "accuracy", "mode": "max"}
    jobs = JobFacts(id="x", objectives=FAST, **shared), JobFacts(id="y", **shared)
    state.facts = replace(state.facts, jobs=jobs)
    state.jobs = {job.id: next(iter(state.jobs.values())) for job in jobs}
    for name, latency in (("x.a", 1.0), ("x.b", 2.0), ("y.a", 0.5)):
        trial = Trial(name, {"lr": 0.5}, 1, history=[Report(0.0, 1, 0.5)])
        trial.others[1] = {"latency_ms": latency}
        state.trials[name] = trial
    assert [point.trial.id for point in front_of(state, "x")] == ["x.a"]
    assert points_of(state, "y") == []
    assert on_front(state) == {"x.a": True, "x.b": False}


# ------------------------------------------------------------ what is exported


def folder_of(run: Run, path: Path) -> RunFolder:
    folder = RunFolder(path / run.state.facts.run)
    folder.path.mkdir()
    with Journal.create(folder.journal, 1_790_000_000.0) as journal:
        journal.append([Entry(seq, *each) for seq, each in enumerate(run.journal, 1)])
    return folder


def test_tables_and_trackers_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = raced(**FAST)
    folder, mlflow = folder_of(run, tmp_path), (tmp_path / "mlruns").as_uri()
    study = f"sqlite:///{tmp_path}/study.db"
    export(folder, ExportOptions(csv=tmp_path, optuna=study))
    tracker, history = trackers.opened("mlflow", mlflow), read_history(folder)
    trackers.bring(tracker, "mlflow", history, last=False)

    def tags() -> dict[str, str]:
        client = MlflowClient(mlflow)
        (id_,) = [
            each.experiment_id for each in client.search_experiments() if each.name == "small"
        ]
        pairs = [each.data.tags for each in client.search_runs([id_])]
        return {each["seerd.trial"]: each["seerd.front"] for each in pairs if "seerd.trial" in each}

    with (tmp_path / "trials.csv").open() as file:
        assert {row["trial"]: row["front"] for row in csv.DictReader(file)} == {
            "a": "True",
            "b": "True",
        }
    assert tags() == {"a": "true", "b": "true"}
    attributes = optuna.load_study(study_name="small", storage=study).user_attrs
    assert attributes["seerd:front"] == ["a", "b"]

    report(run, "b", 3, 0.95, latency_ms=3.0, size_mb=1.0)
    with Journal.open(folder.journal) as journal:
        journal.append([Entry(len(run.journal), *run.journal[-1])])
    history.read_on(folder)
    assert on_front(history.state) == {"a": False, "b": True}
    trackers.bring(tracker, "mlflow", history)
    assert tags() == {"a": "false", "b": "true"}, "also of a trial that has not changed itself"


# ------------------------------------------------------------ a real run

SCRIPT = """\
import json, os
width = int(os.environ["WIDTH"])
with open(os.environ["SEERD_DIR"] + "/out.jsonl", "a") as out:
    for epoch in (1, 2):
        metrics = {"accuracy": width * epoch / 20, "latency_ms": width * 2.5}
        out.write(json.dumps({"kind": "report", "epoch": epoch, "metrics": metrics}) + "\\n")
"""
SPEC = f"""\
name = "mine"
[metric]
name = "accuracy"
mode = "max"
constraint = "latency_ms < 20"
objectives = {{ latency_ms = "min" }}
[train]
script = "train.py"
launcher = "python"
python = "{TORCHLESS}"
env = {{ WIDTH = "{{width}}" }}
[space]
width = [2, 4, 6, 8]
[policy]
name = "grid"
t_min = "2s"
[limits]
deadline = "40s"
budget = "20gpu-min"
[cluster]
gpus = 2
"""


def test_a_real_run_ends_with_it(tmp_path: Path) -> None:
    project, python = tmp_path / "project", tmp_path / "python"
    project.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    (project / "train.py").write_text(SCRIPT)
    (project / "spec.toml").write_text(SPEC.replace(TORCHLESS, str(python)))
    done = kit.seerd(tmp_path, "run", "spec.toml", "--json")
    assert done.returncode == 0, done.stderr
    front = [(row["config"]["width"], row["epoch"]) for row in json.loads(done.stdout)["front"]]
    assert front == [(6, 2), (4, 2), (2, 2)], "8 violates the constraint"
    shown = kit.seerd(tmp_path, "show", "last").stdout
    assert "front: 3 of 4 trials by accuracy (max), latency_ms (min)\n" in shown
    assert "accuracy 0.6, latency_ms 15 at report 2, width=6\n" in shown
