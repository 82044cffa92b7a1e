"""A run for other programs: tables are those of the journal, trackers are read back by their own
libraries, and what is exported twice is there once.
"""

from __future__ import annotations

import csv
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seerd.commands import beginning, exporting
from seerd.commands.export import ExportOptions, export
from seerd.core.metrics import best_value, value_of
from seerd.core.state import State
from seerd.errors import ExportError, UsageError
from seerd.export import following, rows, trackers
from seerd.extras import installing
from seerd.planning.plans import facts_of
from seerd.runs import clusters
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.spec.experiment import load
from seerd.spec.reader import SECTIONS
from seerd.spec.spec import load_spec
from seerd.spec.targets import check_installed, place_of
from seerd.telling.explanation.timeline import read_history
from seerd.telling.harmless import scalar
from tests.shell.sshd import until
from tests.test_cli import SPEC, Seerd, seerd  # noqa: F401 - a fixture
from tests.test_report import METRIC, world

if TYPE_CHECKING:
    from wandb.proto.wandb_internal_pb2 import Record

BEGAN = 1_790_000_000.0


def run_of(path: Path, events: int | None = None, billing: Any = "rented") -> RunFolder:
    """A run's folder, with its journal up to an event; None: to its end."""
    played = world(billing)
    folder = RunFolder(path / played.facts.run)
    folder.path.mkdir(exist_ok=True)
    with Journal.create(folder.journal, BEGAN) as journal:
        journal.append([Entry(seq, *one) for seq, one in enumerate(played.journal[:events], 1)])
    return folder


def write_on(folder: RunFolder, billing: Any = "rented") -> None:
    """Write the rest of its journal."""
    with Journal.open(folder.journal) as journal:
        there = sum(1 for _ in journal.entries())
        every = [Entry(seq, *one) for seq, one in enumerate(world(billing).journal, 1)]
        journal.append(every[there:])


def by(table: rows.Rows) -> list[dict[str, Any]]:
    return [dict(zip(table.names, row, strict=True)) for row in table.rows]


# ------------------------------------------------------------ tables


def test_rows_of_trials_add_up_to_the_run(tmp_path: Path) -> None:
    run = read_history(run_of(tmp_path, billing="held"))
    found = by(rows.trials(run))
    assert [row["trial"] for row in found] == list(run.state.trials)
    assert sum(row["gpu_s"] for row in found) == pytest.approx(
        run.state.ledger.spent_gpu_s(run.state.now)
    )
    published = run.state.result.published
    assert published is not None
    assert [row["trial"] for row in found if row["handed_back"]] == [published.incumbent.trial]
    for row in found:
        trial = run.state.trials[row["trial"]]
        assert row["config.lr"] == trial.config["lr"]
        assert row[f"last.{METRIC}"] == trial.metric
        assert row[f"best.{METRIC}"] == best_value(run.state, trial)
        assert row["why"]


def test_gpu_time_of_reports_grows_to_what_the_trial_had(tmp_path: Path) -> None:
    run = read_history(run_of(tmp_path))
    had = {row["trial"]: row["gpu_s"] for row in by(rows.trials(run))}
    assert rows.reports(run).rows
    for name, trial in run.state.trials.items():
        mine = [row for row in by(rows.reports(run)) if row["trial"] == name]
        assert [row["report"] for row in mine] == [one.reports for one in trial.history]
        spent = [0.0, *(row["gpu_s"] for row in mine), had[name]]
        assert spent == sorted(spent)


def test_charges_cost_what_the_ledger_says(tmp_path: Path) -> None:
    run = read_history(run_of(tmp_path))
    spent = run.state.ledger.spent_gpu_s(run.state.now)
    assert sum(row["gpu_s"] for row in by(rows.charges(run))) == pytest.approx(spent)
    assert sum(row["usd"] for row in by(rows.charges(run))) == pytest.approx(
        run.state.ledger.usd(spent)
    )


def test_csv_has_the_tables(tmp_path: Path) -> None:
    folder, to = run_of(tmp_path), tmp_path / "tables"
    export(folder, ExportOptions(csv=to))
    assert sorted(path.name for path in to.iterdir()) == [
        "ledger.csv", "reports.csv", "trials.csv"
    ]  # fmt: skip
    for name, made in (("trials", rows.trials), ("reports", rows.reports)):
        table = made(read_history(folder)).of_run(read_history(folder).state.facts.run)
        with (to / f"{name}.csv").open(newline="") as file:
            head, *lines = csv.reader(file)
        assert tuple(head) == table.names
        assert lines == [["" if one is None else str(one) for one in row] for row in table.rows]


def test_the_tables_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    first, second = run_of(tmp_path, billing="held"), run_of(tmp_path, billing="rented")
    to = tmp_path / "tables"
    export(first, ExportOptions(csv=to))
    before = {path: path.read_bytes() for path in to.iterdir()}
    with pytest.raises(UsageError, match=f"of run {first.run}, and stays.*--csv .*{second.run}"):
        export(second, ExportOptions(csv=to))
    assert {path: path.read_bytes() for path in to.iterdir()} == before
    export(first, ExportOptions(csv=to))
    export(second, ExportOptions(csv=to / second.run))


# ------------------------------------------------------------ trackers


Read = Callable[[str, State], dict[str, dict[int, float]]]
"""Reads from a tracker, by trial, the metric of each report; fails if one is there twice."""


def once(pairs: list[tuple[int, float]]) -> dict[int, float]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def from_tensorboard(where: str, state: State) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in (Path(where) / state.facts.run).glob("*"):  # nothing, before it is there
        read = EventAccumulator(str(path), size_guidance={"scalars": 0})
        read.Reload()
        tags = read.Tags()["scalars"]
        scalars = read.Scalars(state.facts.metric) if state.facts.metric in tags else []
        found[path.name] = once([(one.step, one.value) for one in scalars])
    return found


def events_in(where: str) -> list[Path]:
    """The files of TensorBoard there."""
    return list(Path(where).rglob("*tfevents*"))


def from_mlflow(where: str, state: State) -> dict[str, dict[int, float]]:
    from mlflow.tracking import MlflowClient  # here, since every worker reads this file

    client = MlflowClient(where)
    experiment = client.get_experiment_by_name(state.facts.name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "seerd.trial" not in run.data.tags]
    found = {}
    for run in runs:
        if run is not parent:
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            history = client.get_metric_history(
                run.info.run_id, re.sub("[<&>]", "_", state.facts.metric)
            )
            trial = run.data.tags["seerd.trial"]
            assert trial not in found
            found[trial] = once([(one.step, one.value) for one in history])
    return found


def from_optuna(where: str, state: State) -> dict[str, dict[int, float]]:
    import optuna

    study = optuna.load_study(study_name=state.facts.run, storage=where)
    pairs = [(one.user_attrs["seerd:trial"], one.intermediate_values) for one in study.trials]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def from_wandb(where: str, state: State) -> dict[str, dict[int, float]]:
    """Of all files of a trial together: each process that exports makes one more."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in Path(where).glob("wandb/offline-run-*/run-*.wandb"):
        trial = path.stem.rpartition("-")[2]
        for record in records(path.read_bytes()[7:]):
            if record.HasField("history"):
                items = {
                    one.key or one.nested_key[0]: one.value_json for one in record.history.item
                }
                assert BEGAN < float(items["_timestamp"]) <= BEGAN + state.now
                pair = int(items["_step"]), float(items[state.facts.metric])
                found.setdefault(trial, []).append(pair)
            else:
                found.setdefault(trial, [])
    return {trial: once(pairs) for trial, pairs in found.items()}


def records(content: bytes) -> Iterator[Record]:
    """LevelDB's log format: blocks of 32 KiB, with parts of records (github.com/google/leveldb,
    doc/log_format.md).
    """
    from wandb.proto.wandb_internal_pb2 import Record  # here, since every worker reads this file

    at, whole = 0, b""
    while at + 7 <= len(content):
        left = 32768 - (at + 7) % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def address(kind: str, path: Path) -> str:
    """Of MLflow its folder: a database of its takes 10 s to make, and would hide what came twice."""
    if kind == "mlflow":
        return (path / "mlruns").as_uri()
    return str(path / kind) if kind in ("tensorboard", "wandb") else f"sqlite:///{path}/{kind}.db"


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("tensorboard", from_tensorboard),
        ("mlflow", from_mlflow),
        ("optuna", from_optuna),
        ("wandb", from_wandb),
    ],
)
def test_a_tracker_has_every_report_once(
    kind: str, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder, where = run_of(tmp_path, len(world("rented").journal) // 2), address(kind, tmp_path)
    for _ in range(2):
        export(folder, ExportOptions(**{kind: where}))
    half = read_history(folder)
    assert read(where, half.state) == reported(half.state, kind)
    going_on = trackers.opened(kind, where)
    trackers.bring(going_on, kind, half, last=False)
    write_on(folder)
    half.read_on(folder)
    trackers.bring(going_on, kind, half)
    export(folder, ExportOptions(**{kind: where}))
    assert len(reported(half.state)) == 20
    assert read(where, half.state) == reported(half.state, kind)


def reported(state: State, kind: str = "") -> dict[str, Any]:
    """What a tracker of this kind has to have; an Optuna study only what has settled."""
    settled = kind != "optuna" or (state.finished and state.end.status != "interrupted")
    return {
        trial.id: {
            report.reports: pytest.approx(value_of(state, trial, report, state.facts.metric))
            for report in trial.history
        }
        for trial in state.trials.values()
        if trial.attempt and (settled or trial.status != "live")
    }


def test_what_was_left_half_written_is_cut_off(tmp_path: Path) -> None:
    folder, to = run_of(tmp_path), str(tmp_path / "tb")
    export(folder, ExportOptions(tensorboard=to))
    run = read_history(folder).state
    (path, *_) = events_in(to)
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    export(folder, ExportOptions(tensorboard=to))
    assert from_tensorboard(to, run) == reported(run)
    assert path.read_bytes() == content


def test_an_optuna_study_says_what_became_of_trials(tmp_path: Path) -> None:
    import optuna

    folder, where = run_of(tmp_path), f"sqlite:///{tmp_path}/study.db"
    export(folder, ExportOptions(optuna=where))
    state = read_history(folder).state
    study = optuna.load_study(study_name=state.facts.run, storage=where)
    values = {trial.id: best_value(state, trial) for trial in state.trials.values()}
    assert {one.state.name for one in study.trials} <= {"COMPLETE", "PRUNED", "FAIL"}
    for one in study.trials:
        name = one.user_attrs["seerd:trial"]
        config = state.trials[name].config
        assert one.params == {key: scalar(value) for key, value in config.items()}
        assert one.value == values[name]
        assert one.datetime_start is not None
        assert one.datetime_start.timestamp() >= BEGAN
    assert study.best_value == max(value for value in values.values() if value is not None)
    assert study.user_attrs["seerd:handed_back"] in values


def test_what_a_tracker_says_is_told_in_one_line(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    with pytest.raises(ExportError, match=r"^optuna could not be written: [^\n]*$"):
        export(folder, ExportOptions(optuna="sqlite:////proc/no/study.db"))
    with pytest.raises(UsageError, match="sqlite:///study"):
        export(folder, ExportOptions(optuna="study.db"))
    with pytest.raises(UsageError, match="say where to"):
        export(folder, ExportOptions())


def test_a_missing_package_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=re.escape(installing("export"))):
        check_installed("mlflow")
    with pytest.raises(UsageError, match="needs a package"):
        export(run_of(tmp_path), ExportOptions(csv=str(tmp_path / "csv"), mlflow="x"))
    assert not (tmp_path / "csv").exists()


def test_the_spec_knows_the_trackers_that_there_are() -> None:
    assert SECTIONS["export"].keys() == trackers.KINDS.keys()


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ("tb", "tb"),
        ("tb", "./x/../tb/"),
        ("tb", "{here}/tb"),
        ("tb", "link/tb"),
        ("tb", "file://{here}/tb"),
        ("my runs", "file:my%20runs"),
        ("sqlite:///study.db", "sqlite+pysqlite:///{here}/study.db?timeout=5"),
        ("http://127.0.0.1:5000", "HTTP://me:secret@LocalHost:5000/"),
        ("https://host/mlflow", "https://host:443/mlflow/"),
        ("postgresql://host/runs", "postgresql+psycopg2://me@host:5432/runs"),
    ],
)
def test_two_processes_do_not_export_to_one_place_however_it_is_written(
    held: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    folder, target = run_of(tmp_path), ExportOptions(mlflow=asked.format(here=tmp_path))
    with following.alone(folder, "mlflow", held) as had:
        assert had
        with pytest.raises(UsageError, match="another process exports"):
            export(folder, target)


def test_one_relative_path_is_two_places_in_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, to = run_of(tmp_path), ExportOptions(tensorboard="tb")
    monkeypatch.chdir(tmp_path)
    with following.alone(folder, "tensorboard", "tb") as had:
        assert had
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        export(folder, to)
    assert from_tensorboard(str(tmp_path / "elsewhere" / "tb"), read_history(folder).state)


@pytest.mark.parametrize(
    "other", ["http://h:1", "http://h:2/a", "https://h:1/a", "http://h:x/a", "http://["]
)
def test_other_addresses_are_other_places(other: str, tmp_path: Path) -> None:
    assert place_of("http://h:1/a", tmp_path) != place_of(other, tmp_path)


# ------------------------------------------------------------ where to


def begun(project: Path, export: str) -> RunFolder:
    """The folder of a run that could begin, of a spec that exports it."""
    project.mkdir(exist_ok=True)
    (project / "trainer.py").touch()
    (project / "trainer.py").chmod(0o755)
    text = SPEC.format(env="", t_min="6s", deadline="24s", budget="128gpu-s")
    (project / "spec.toml").write_text(f"{text}[export]\n{export}")
    experiment, home = load([project / "spec.toml"]), Home(project.parent / "home")
    quote = clusters.quote(experiment)
    facts = facts_of(experiment, home, quote, ideal=False, minimize=None)
    return beginning.create(experiment, facts, home, quote, time.time(), print)[0]


def test_what_runs_are_exported_to_is_not_shipped_as_source(tmp_path: Path) -> None:
    project = tmp_path / "project"
    ours = ("trainer.py", "spec.toml", "models/net.py", "tb-notes/mine.txt", "study.db.md")
    theirs = ("out/tb/run-1/events", "study.db", "study.db-wal", "ml flow.db-journal", "wb/x.wandb")
    for name in (*ours, *theirs):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    source = begun(
        project,
        f"""
tensorboard = "./out/tb"
mlflow = "sqlite:///{project}/ml flow.db"
optuna = "sqlite:///study.db?timeout=5"
wandb = "wb/"
""",
    ).source
    shipped = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert shipped == set(ours)


@pytest.mark.parametrize("target", ["scripts", ".", "..", "http://127.0.0.1:5000/scripts"])
def test_a_target_that_holds_the_script_takes_nothing_from_the_source(
    target: str, tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / "trainer.py"
    script.parent.mkdir()
    script.touch(0o755)
    text = SPEC.format(env="", t_min="6s", deadline="24s", budget="128gpu-s")
    (tmp_path / "spec.toml").write_text(
        text.replace('"./trainer.py"', '"./scripts/trainer.py"')
        + f'[export]\nmlflow = "{target}"\n'
    )
    assert load_spec(tmp_path / "spec.toml").exported() == frozenset()


# ------------------------------------------------------------ as they come


def test_a_tracker_that_fails_is_tried_again_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, to, over = run_of(tmp_path), tmp_path / "tb", threading.Event()
    to.write_text("a file where a folder should be")
    looks = 0

    class Watched(following.Following):
        def bring(self, *, last: bool = False) -> str:
            nonlocal looks
            looks += 1
            if looks == 3:
                to.unlink()
            if looks == 4:
                over.set()
            return super().bring(last=last)

    watched = Watched(folder, "tensorboard", str(to))
    assert following.follow(watched, over, every_s=0.01, again_s=0.01) == ""
    assert capsys.readouterr().out.count("cannot be written") == 1
    assert from_tensorboard(str(to), read_history(folder).state) == reported(
        read_history(folder).state
    )


def test_a_run_is_exported_as_it_goes_on_and_a_server_that_hangs_holds_nothing_up(
    seerd: Seerd,  # noqa: F811
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seerd.write_spec(
            env='SEERD_TEST_EPOCH_S = "0.5"', t_min="15s", deadline="120s", budget="640gpu-s"
        )
        keys = f"""
[export]
tensorboard = "tb"
mlflow = "http://127.0.0.1:{silent.getsockname()[1]}"
"""
        seerd.spec.write_text(seerd.spec.read_text() + keys)
        run = seerd.start("run", str(seerd.spec), "--plain")
        seerd.wait_for(reports=5)
        for process in seerd.processes():
            if process.pid == run.pid:
                process.kill()
        run.communicate()
        resumed = seerd.start("resume", "last", "--plain")
        seerd.wait_for(seerd.reports() + 5)
        folder, where = RunFolder(seerd.run_folder()), str(seerd.spec.parent / "tb")
        until(lambda: any(b"accuracy" in path.read_bytes() for path in events_in(where)), 90)
        resumed.send_signal(signal.SIGINT)
        _, err = resumed.communicate()
    assert resumed.returncode == 130, "it is the run's own"
    assert "export to mlflow: has not answered within 5 s" in err
    state = read_history(folder).state
    study = f"sqlite:///{seerd.spec.parent}/study.db"
    seerd("export", "last", "--tensorboard", where, "--optuna", study)
    assert from_tensorboard(where, state) == reported(state)
    assert from_optuna(study, state) == reported(state, "optuna")


def test_what_could_not_be_exported_is_told_from_its_beginning_with_the_command_for_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folder = begun(
        tmp_path / "my project",
        f"""
tensorboard = "trainer.py"
optuna = "sqlite:///no/folder/study.db?timeout=5"
mlflow = "http://me:secret@127.0.0.1:{port}"
""",
    )
    write_on(folder)
    with exporting.exporting(folder, end_s=200.0):
        pass
    err = capsys.readouterr().err
    lines = dict(re.findall(r"(?m)^export to (\w+): (.*)$", err))
    assert lines.keys() == {"tensorboard", "optuna", "mlflow"}
    again = f"; add the rest with: seerd export {folder.run}"
    here = tmp_path / "my project"
    assert lines["tensorboard"].endswith(f"{again} --tensorboard '{here}/trainer.py'")
    assert lines["optuna"].startswith("optuna could not be written: ")
    assert lines["optuna"].endswith(f"'sqlite:///{here}/no/folder/study.db?timeout=5'")
    assert lines["mlflow"].startswith("mlflow could not be written: API request to http://me:...@")
    assert lines["mlflow"].endswith(f"...{again} --mlflow ADDRESS")
    assert "secret" not in err
    assert "secret" not in (folder.path / "export-mlflow.log").read_text()
