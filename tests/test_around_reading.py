"""What is known of a run while it goes on and afterwards: the best model so far, all trials, the
list, the logs.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.checked_world import Behaviour, World
from seerd.commands import best as best_command
from seerd.errors import NoModelError
from seerd.shell.home import RunFolder
from seerd.telling.logs import (
    PIECE,
    Growing,
    lines,
    log_files,
    newest_attempts,
    newest_last,
    plain,
    tail,
)
from seerd.version import VERSION
from tests.conftest import small_facts
from tests.test_cli import Seerd, seerd  # noqa: F401 - a fixture
from tests.test_summary import told

LONG = {"t_min": "15s", "deadline": "60s", "budget": "320gpu-s"}


def test_the_best_so_far_can_be_had_while_the_run_goes_on(seerd: Seerd) -> None:  # noqa: F811
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.1"', **LONG)
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=30)
    so_far = seerd.json("best", "last")
    assert so_far["so_far"]
    assert Path(so_far["checkpoint"]).parts[-3:-1] == ("store", so_far["trial"])
    # Agents remove checkpoints all the time, each of these copies is whole all the same.
    for _ in range(3):
        copied = seerd.json("best", "last", "--to", str(seerd.folder / "early"))
        checkpoint = Path(copied["checkpoint"])
        assert json.loads(checkpoint.read_text())["epoch"] == copied["epoch"]
        card = json.loads((checkpoint.parent / "config.json").read_text())
        assert card["reports"] == copied["epoch"]
        assert card["metrics"] == {"accuracy": copied["metric"]} == {"accuracy": card["metric"]}
        assert card["versions"] == {"seerd": VERSION}, "this trainer does not say more"
        assert sorted(p.name for p in checkpoint.parent.iterdir()) == [
            "checkpoint.pt",
            "config.json",
        ]
    text = seerd("best", "last")
    assert "so far" in text
    assert "the run goes on" in text
    following = seerd.start("logs", "last", "--follow")
    assert seerd.json("list")["runs"][0]["status"] == "running"
    run.send_signal(signal.SIGINT)
    run.communicate()
    printed, _ = following.communicate()
    assert following.returncode == 0, "it ends with the run"
    assert "training from 0" in printed
    over = seerd.json("best", "last")
    assert not over["so_far"]
    card = json.loads((Path(over["checkpoint"]).parent / "config.json").read_text())
    trial = next(t for t in seerd.json("show", "last")["all_trials"] if t["trial"] == over["trial"])
    assert card["run"] == seerd.run_folder().name
    assert (card["trial"], card["config"]) == (over["trial"], trial["config"])
    assert (card["metric_name"], card["metric"]) == ("accuracy", over["metric"])
    assert card["reports"] == over["epoch"]
    assert isinstance(card["seed"], int)
    assert card["versions"]["seerd"] == VERSION
    (row,) = seerd.json("list")["runs"]
    assert row["metric"]["name"] == "accuracy"
    assert row["deadline_s"] == 60
    assert row["cost_usd"] is None
    assert abs(time.time() - _seconds(row["began"])) < 300
    assert " of 1m" in seerd("list")


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_without_a_checkpoint_there_is_no_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5))
    monkeypatch.setattr(best_command.reading, "read", lambda folder: world.state)
    with pytest.raises(NoModelError, match="no model to hand back yet"):
        best_command.best(RunFolder(tmp_path), None, json=True)


def test_all_trials_are_shown_if_that_is_asked_for() -> None:
    from dataclasses import replace

    from msgspec import structs

    facts = small_facts(budget_gpu_s=480.0)
    params = replace(facts.problem.params, name="hyperband", p_max=8, max_reports=27)
    facts = structs.replace(facts, problem=replace(facts.problem, params=params))
    state = World(facts, Behaviour(metric=lambda config, epoch: config["lr"])).run()
    short, long = told(state), told(state, most=None)
    assert len(state.trials) > 20
    assert f"and {len(state.trials) - 20} more  (seerd show --all)" in short
    assert "more" not in long
    assert all(f"\n{name} " in long for name in state.trials)


def folder_with(tmp_path: Path, logs: dict[str, tuple[str, float]]) -> RunFolder:
    """A run's folder with these logs: where -> (text, when it was written)."""
    folder = RunFolder(tmp_path / "run")
    for where, (text, at) in logs.items():
        path = folder.instances / where
        path.parent.mkdir(parents=True)
        path.write_text(text)
        os.utime(path, (at, at))
    return folder


def test_the_newest_attempt_of_each_trial_and_who_printed_last_comes_last(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        {
            "a/trials/t1/1/logs/launcher.log": ("old", 50.0),
            "b/trials/t1/2/logs/launcher.log": ("new", 20.0),
            "b/trials/t2/9/logs/trials/rank_0.log": ("odd", 10.0),
            "a/trials/t3/1/logs/launcher.log": ("last", 30.0),
        },
    )
    paths = log_files(folder, None)
    shown = newest_last(newest_attempts(paths, folder), folder)
    assert [path.read_text() for path in shown] == ["odd", "new", "last"]
    of_one = newest_last(log_files(folder, "t1"), folder)
    assert [path.read_text() for path in of_one] == ["old", "new"]


def test_folders_that_agents_remove_meanwhile_are_passed_over(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"a/trials/t1/1/logs/launcher.log": ("kept", 50.0)})
    over = threading.Event()

    def save_and_remove() -> None:
        while not over.is_set():
            checkpoint = folder.instances / "a/trials/t1/checkpoints/1/weights"
            checkpoint.mkdir(parents=True)
            shutil.rmtree(checkpoint.parents[1])

    agent = threading.Thread(target=save_and_remove)
    agent.start()
    try:
        found = {tuple(path.read_text() for path in log_files(folder, None)) for _ in range(300)}
    finally:
        over.set()
        agent.join()
    assert found == {("kept",)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab\t\x1b\u20ac", max_size=9), max_size=9), st.integers(0, 12), st.booleans()
)
def test_the_tail_is_the_end_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], most: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    text = "\n".join(rows) + ("\n" if ends and rows else "")
    path.write_text(text)
    last = text.split("\n")[: -1 if text.endswith("\n") or not text else None]
    expected = [plain(row) for row in last[len(last) - min(most, len(last)) :]]
    assert "".join(tail(path, most)) == "".join(f"{row}\n" for row in expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=9))
def test_what_is_followed_is_printed_once_and_whole(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    growing, printed = Growing(path), io.StringIO()
    assert growing.added(whole=True) == "", "it is not there yet"
    for piece in pieces:
        with path.open("ab") as log:
            log.write(piece)
        added = growing.added(whole=True)
        assert added.endswith("\n") or not added
        printed.write(added)
    printed.write(growing.added(whole=False))
    whole = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    expected = plain(whole if whole.endswith("\n") or not whole else f"{whole}\n")
    assert printed.getvalue().replace("\n", "") == expected.replace("\n", "")


def test_a_checkpoint_that_has_gone_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may remove it between the look into the journal and the copy; the journal may name
    it for a while yet.
    """
    import asyncio
    import hashlib

    from seerd.stores.directory import DirectoryStore

    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    state.result.of_jobs.clear()
    trial = next(t for t in state.trials.values() if t.checkpoints)
    first = trial.checkpoints[0]
    data = b"model"
    from msgspec import structs

    later = structs.replace(
        first, name="9999", metric=0.75, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )
    states = iter([state, state, SimpleNamespace()])

    def read(folder: RunFolder) -> object:
        if next(states) is not state:
            trial.checkpoints = (later, *trial.checkpoints)
        return state

    monkeypatch.setattr(best_command.reading, "read", read)
    store = DirectoryStore(tmp_path / "store")
    (store.folder / trial.id).mkdir(parents=True)
    (store.folder / trial.id / "9999.pt").write_bytes(data)
    to = RunFolder(tmp_path / "to")
    told_ = asyncio.run(best_command._fetched(RunFolder(tmp_path), store, to))
    assert told_["metric"] == 0.75
    assert (to.best / "checkpoint.pt").read_bytes() == data


def test_a_log_is_read_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * (3 * PIECE + 7))
    assert [len(piece) for piece in lines(tmp_path / "log")] == [PIECE] * 3 + [7]
