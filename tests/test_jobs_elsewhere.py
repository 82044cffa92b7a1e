"""A run that jobs share, where others look at it: its report, tables, trackers, a notebook. Each
job's trials are compared with each other, and nothing is told twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from seerd.api.handle import load
from seerd.commands.export import ExportOptions, export
from seerd.commands.report import ReportOptions, RunReader, report
from seerd.errors import UsageError
from seerd.export import rows
from seerd.planner.trial_ids import job_of
from seerd.shell.home import RunFolder
from seerd.telling.explanation.timeline import read_history
from seerd.telling.page import tables
from seerd.telling.page.run_page import JobReport, RunReport
from tests.explanation.timelines import write_run
from tests.groups import group_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = write_run(tmp_path_factory.mktemp("home"), "shared", group_world("rented"))
    (path / "spec.toml").write_text("name = 'shared'\n")
    (path / "specs").mkdir()
    (path / "specs" / "b.toml").write_text("name = 'speech'\n")
    return RunFolder(path)


# ------------------------------------------------------------ the report


def test_trials_have_their_place_among_those_of_their_job(folder: RunFolder) -> None:
    state = RunReader(folder).read().state
    for job in "abc":
        order = tables.ranked(state, job)
        assert {job_of(one.trial.id) for one in order} == {job}
        assert order[0].trial.id == f"{job}.t0001"
    losses = [one.metric for one in tables.ranked(state, "b") if one.metric is not None]
    assert losses == sorted(losses)
    together = tables.ranked(state)
    assert [one.trial.id for one in together[:3]] == ["a.t0001", "b.t0001", "c.t0001"]
    assert sorted(one.trial.id for one in together) == sorted(state.trials)


def test_the_page_has_jobs_with_best_and_bill_and_each_ones_curves(folder: RunFolder) -> None:
    page = RunReport(RunReader(folder).read()).page()
    words = re.sub(
        r"<[^>]*>", " ", re.sub(r"<(svg|style|script).*?</\1>", "", page, flags=re.DOTALL)
    )
    words = " ".join(words.split())
    for said in (
        "a vision 2 asha 7 2.12 0.13 25% accuracy 0.9 a.t0001 over: its target was reached",
        "(shared) 0.18 0.01 2%",
        "b.t0001 won: loss 0.8",
        "policy 3 jobs, fair",
        "Learning curves of b",
        "All trials of c",
        "seerd run group.toml --deadline 600s --budget 40gpu-min",
        "# b.toml name = &#x27;speech&#x27;",
    ):
        assert said in words, said
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert ids.count("b-curves-0-report") == 1


def test_curves_of_a_job_are_those_of_its_metric(folder: RunFolder) -> None:
    found = JobReport(RunReader(folder).read(), "b").curve_pictures
    assert [one.name for one in found] == [f"b-curves-0-{by}" for by in ("at_s", "report", "gpu_s")]
    values = {row["trial"] for row in found[0].spec["layer"][0]["data"]["values"]}
    assert {job_of(trial) for trial in values} == {"b"}
    assert found[0].caption.startswith("loss of 8 of 8 trials")


def test_it_is_not_compared_with_other_runs(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="jobs share shared and shared: only runs of one job"):
        report([folder, folder], ReportOptions(tmp_path / "page.html"))


def test_a_notebook_shows_each_jobs_best(folder: RunFolder) -> None:
    run = load(folder.path)
    shown = run._repr_html_()
    assert "best of b: <b>b.t0001</b>, loss <b>0.8</b>" in shown
    assert "best of c: <b>c.t0001</b>, accuracy <b>0.9</b>" in shown
    points = run.curves("loss").spec["layer"][0]["data"]["values"]
    assert {job_of(row["trial"]) for row in points} == {"b"}
    assert "best of b: b.t0001, loss 0.8" in repr(run)


# ------------------------------------------------------------ other programs


def by(table: rows.Rows) -> list[dict[str, Any]]:
    return [dict(zip(table.names, row, strict=True)) for row in table.rows]


def test_tables_have_each_jobs_metric(folder: RunFolder) -> None:
    run = read_history(folder)
    found = {row["trial"]: row for row in by(rows.trials(run))}
    assert found["b.t0001"]["job"] == "b"
    assert found["b.t0001"]["best.loss"] == 0.8
    assert found["b.t0001"]["best.accuracy"] is None
    assert found["c.t0001"]["best.accuracy"] == 0.9
    back = [trial for trial, row in found.items() if row["handed_back"]]
    assert back == ["a.t0001", "b.t0001", "c.t0001"]
    assert all(row["loss"] is None for row in by(rows.reports(run)) if row["trial"][0] != "b")


def test_optuna_has_a_study_for_each_job(folder: RunFolder, tmp_path: Path) -> None:
    import optuna

    where = f"sqlite:///{tmp_path / 'study.db'}"
    for _ in range(2):
        export(folder, ExportOptions(optuna=where))
    names = optuna.study.get_all_study_names(where)
    assert sorted(names) == ["shared.a", "shared.b", "shared.c"]
    study = optuna.load_study(study_name="shared.b", storage=where)
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert study.best_value == 0.8
    assert study.user_attrs["seerd:metric"] == "loss"
    assert study.user_attrs["seerd:handed_back"] == "b.t0001"
    trials = [one.user_attrs["seerd:trial"] for one in study.trials]
    assert sorted(trials) == [f"b.t000{number}" for number in range(1, 9)]


def test_mlflow_has_the_job_of_each_trial(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = (tmp_path / "mlruns").as_uri()
    export(folder, ExportOptions(mlflow=where))
    from mlflow.tracking import MlflowClient  # here, since every worker reads this file

    client = MlflowClient(where)
    experiment = client.get_experiment_by_name("shared")
    assert experiment is not None
    runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert runs["b.t0001"].data.tags["seerd.job"] == "b"
    assert runs["b.t0001"].data.metrics == {"loss": 0.8}
    assert runs["shared"].data.tags["seerd.handed_back"] == "a.t0001, b.t0001, c.t0001"


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_all_else_takes_it_too(folder: RunFolder, tmp_path: Path, kind: str) -> None:
    export(folder, ExportOptions(**{kind: str(tmp_path)}))
    assert any(tmp_path.iterdir())
