"""`seerd rm`, `gc`, `pause` and `run --unless-running`, as people use them."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.commands import tidy
from seerd.commands.run import alone
from seerd.commands.tidy import remove, size_of
from seerd.errors import BusyError, UsageError
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.units import format_size
from tests.conftest import small_facts
from tests.test_cli import Seerd, seerd  # noqa: F401 - a fixture

ASKS = tidy.Consent(dry_run=False, yes=False, json=False)
LOOKS = tidy.Consent(dry_run=True, yes=False, json=True)
AGREES = tidy.Consent(dry_run=False, yes=True, json=True)
LONG = {"t_min": "15s", "deadline": "60s", "budget": "320gpu-s"}
WEEK_S = 7 * 86400.0


def ended(
    home: Path, name: str, *, events: int | None = None, age_s: float = 2 * WEEK_S
) -> RunFolder:
    """A run with a journal of so many events (None: to its end), a store and an instance."""
    folder = RunFolder(home / name)
    folder.path.mkdir(parents=True)
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5))
    world.run()
    last = world.journal[:events][-1][0]
    with Journal.create(folder.journal, time.time() - age_s - last.at) as journal:
        journal.append([Entry(seq, *row) for seq, row in enumerate(world.journal[:events], 1)])
    for path, size in ((folder.store / "t1" / "1.pt", 1000), (folder.best / "checkpoint.pt", 300)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    log = folder.instances / "local-1" / "trials" / "t1" / "1" / "logs" / "launcher.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 20)
    # As agents do where they can: the same bytes under two names count once.
    os.link(folder.store / "t1" / "1.pt", log.with_name("linked.pt"))
    folder.spec.write_text("")
    return folder


def told(capsys: pytest.CaptureFixture[str]) -> dict:
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_gc_frees_what_ended_runs_need_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = ended(tmp_path, "old-1")
    young = ended(tmp_path, "young-1", age_s=WEEK_S / 2)
    cut_off = ended(tmp_path, "cut-1", events=9)
    ended(tmp_path, "odd-1").journal.write_bytes(b"no journal")
    tidy.gc(Home(tmp_path), WEEK_S, LOOKS)
    seen = told(capsys)
    assert seen["dry_run"]
    assert [(row["run"], row["bytes"]) for row in seen["runs"]] == [("old-1", 1020)]
    assert old.store.is_dir(), "it only looks"
    tidy.gc(Home(tmp_path), WEEK_S, AGREES)
    assert told(capsys)["bytes"] == 1020
    assert not old.store.exists()
    assert not old.instances.exists()
    assert (old.best / "checkpoint.pt").stat().st_size == 300
    assert old.journal.is_file()
    assert all(folder.store.is_dir() for folder in (young, cut_off))
    tidy.gc(Home(tmp_path), WEEK_S, LOOKS)
    assert told(capsys)["runs"] == []


def test_nothing_is_taken_from_a_run_that_can_go_on_or_lacks_its_model(tmp_path: Path) -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    assert tidy._cannot_go_on(state)
    state.end.status = "interrupted"
    state.clock.now = state.facts.problem.limits.deadline_s - 1
    assert not tidy._cannot_go_on(state)
    state.clock.now += 1
    assert tidy._cannot_go_on(state)
    state.end.status = "done"
    state.result.of_jobs.clear()
    assert not tidy._cannot_go_on(state), "seerd resume fetches its model"


def test_nothing_is_removed_before_somebody_has_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended(tmp_path, "old-1")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="--yes"):
        tidy.rm(folder, ASKS)
    with pytest.raises(UsageError, match="--yes"):
        tidy.rm(folder, tidy.Consent(dry_run=False, yes=False, json=True))
    assert folder.journal.is_file()
    tidy.rm(folder, tidy.Consent(dry_run=False, yes=True, json=False))
    assert "freed " in capsys.readouterr().out
    assert not folder.path.exists()


def test_a_run_that_lives_or_may_live_is_never_removed(tmp_path: Path) -> None:
    living = ended(tmp_path, "living-1")
    with living.locked():
        with pytest.raises(BusyError, match="is being run by process"):
            tidy.rm(living, AGREES)
        tidy.gc(Home(tmp_path), WEEK_S, AGREES)
        assert living.store.is_dir()
    cut_off = ended(tmp_path, "cut-1", events=9, age_s=60.0)
    with pytest.raises(UsageError, match="may still be at work; remove it in 4m"):
        tidy.rm(cut_off, AGREES)
    assert cut_off.journal.is_file()


def test_a_run_without_a_journal_can_be_removed_once_it_is_old(tmp_path: Path) -> None:
    folder = ended(tmp_path, "odd-1")
    folder.journal.unlink()
    with pytest.raises(UsageError, match="may still be at work"):
        tidy.rm(folder, AGREES)
    os.utime(folder.spec, (1e9, 1e9))
    tidy.gc(Home(tmp_path), WEEK_S, AGREES)
    assert folder.store.is_dir(), "nobody knows what it still needs"
    tidy.rm(folder, AGREES)
    assert not folder.path.exists()


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x" * 50)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "linked").symlink_to(tmp_path / "mine")
    assert size_of([tmp_path / "run"]) < 50
    remove([tmp_path / "run", tmp_path / "linked", tmp_path / "gone"])
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "mine" / "file").is_file()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0KB"), (999, "0.999KB"), (1_234_567, "1.23MB"), (2 * 10**12, "2TB")]
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert format_size(count) == text


def test_a_store_of_the_person_s_loses_this_run_s_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    folder = ended(tmp_path, "old-1")
    store = tmp_path / "store"
    for name in ("old-1", "other-1"):
        (store / name / "t1").mkdir(parents=True)
        (store / name / "t1" / "1.pt").write_bytes(b"x" * 7)
    monkeypatch.setattr(
        tidy.wiring, "load", lambda folder: SimpleNamespace(store=str(store / "old-1"))
    )
    tidy.gc(Home(tmp_path), WEEK_S, AGREES)
    assert told(capsys)["bytes"] == 1027
    assert [path.name for path in store.iterdir()] == ["other-1"]
    monkeypatch.setattr(tidy.wiring, "load", lambda folder: SimpleNamespace(store="s3://b/p"))
    tidy.rm(folder, AGREES)
    assert "s3://b/p stay" in told(capsys)["runs"][0]["stays"]


def try_to_begin(home: Path, begin: object, began: object) -> None:
    begin.wait()  # type: ignore[attr-defined]
    with alone(Home(home), "nightly") as other:
        if other is None:
            with began.get_lock():  # type: ignore[attr-defined]
                began.value += 1  # type: ignore[attr-defined]
            time.sleep(1)


def test_of_many_that_begin_at_once_one_does(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    begin, began = spawn.Barrier(8), spawn.Value("i", 0)
    processes = [
        spawn.Process(target=try_to_begin, args=(tmp_path, begin, began)) for _ in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert began.value == 1
    with alone(Home(tmp_path), "nightly") as other:
        assert other is None, "the lock has ended with its process"


def test_a_run_that_did_not_ask_counts_too(tmp_path: Path) -> None:
    folder = ended(tmp_path, "nightly-20261125-010000-00ab")
    ended(tmp_path, "nightly-big-20261125-010000-00ab")
    with alone(Home(tmp_path), "nightly") as other:
        assert other is None
    with folder.locked():
        with alone(Home(tmp_path), "nightly") as other:
            assert other == f"{folder.run} is running (process {os.getpid()})"
        with alone(Home(tmp_path), "nightly-big") as other:
            assert other is None


def test_one_at_a_time_and_a_pause_that_waits(seerd: Seerd) -> None:  # noqa: F811
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.1"', **LONG)
    run = seerd.start("run", str(seerd.spec), "--plain", "--unless-running")
    seerd.wait_for(reports=5)
    again = seerd("run", str(seerd.spec), "--unless-running")
    assert again.startswith("nothing was started: quick-")
    assert len(again.splitlines()) == 1
    assert not seerd.json("run", str(seerd.spec), "--unless-running")["started"]
    assert "is being run by" in seerd("rm", "last", "--yes", code=2)
    assert seerd.json("gc", "--older-than", "0s", "--dry-run")["runs"] == []
    paused = seerd("pause", "last")
    assert "is paused: nothing is held or billed, and its clock stands still" in paused
    assert "seerd resume" in paused
    assert run.wait() == 130
    run.communicate()
    assert not seerd.processes()
    assert "is not running" in seerd("pause", "last", code=2)
    before = seerd.json("show", "last")["elapsed_s"]
    time.sleep(2)
    resumed = seerd.start("resume", "last", "--plain")
    time.sleep(1)
    resumed.send_signal(signal.SIGINT)
    resumed.communicate()
    assert seerd.json("show", "last")["elapsed_s"] < before + 30
    seen = seerd.json("rm", "last", "--dry-run")
    assert seen["bytes"] > 1000
    assert seerd.run_folder().is_dir()
    assert "freed" in seerd("rm", "last", "--yes")
    assert seerd.json("list")["runs"] == []
