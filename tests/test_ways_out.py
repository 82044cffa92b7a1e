"""A run whose `setup.json` is damaged, or that was moved: what needs neither goes on to work, and
the rest ends with one sentence that has a way out.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.commands import on_end
from seerd.errors import JournalError
from seerd.runs import wiring
from seerd.runs.runs import Ended
from seerd.shell.home import RunFolder
from tests.conftest import small_facts
from tests.fuzz.test_fuzz_coordinator import setup as a_setup
from tests.test_cli import ROOM, SHORT, Seerd, assert_model, seerd  # noqa: F401 - a fixture

READ = ("show", "best", "ledger", "logs", "replay", "list")
"""The commands that need nothing but the journal and the run's folder."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """That of a run, with a setup that `save` wrote."""
    folder = RunFolder(tmp_path / "mine-1")
    folder.path.mkdir()
    folder.setup.write_bytes(a_setup())
    wiring.save(wiring.load(folder), folder)
    return folder


def test_each_changed_byte_of_a_setup_is_noticed_or_means_nothing(
    folder: RunFolder,
) -> None:
    good, setup = folder.setup.read_bytes(), wiring.load(folder)
    noticed = 0
    for at, byte in enumerate(good):
        for changed in (byte ^ 1, 0xFF):
            folder.setup.write_bytes(good[:at] + bytes([changed]) + good[at + 1 :])
            try:
                assert wiring.load(folder) == setup, good[max(0, at - 20) : at + 20]
            except JournalError:
                noticed += 1
    assert noticed > len(good)


@pytest.mark.parametrize("length", [0, 1, 100, -3])
def test_a_setup_that_is_cut_off_says_what_is_damaged_and_what_to_do(
    folder: RunFolder, length: int
) -> None:
    folder.setup.write_bytes(folder.setup.read_bytes()[:length])
    with pytest.raises(JournalError) as said:
        wiring.load(folder)
    assert str(said.value).startswith(f"{folder.setup} is damaged (")
    assert "show, ledger" in str(said.value), "there is no model here that could be read"
    assert "Put the file back from a copy" in str(said.value)
    assert str(said.value).endswith("seerd run SPEC --like mine-1")


def test_a_result_stands_if_the_setup_is_damaged_at_the_end(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.setup.unlink()
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    assert on_end.result_of(folder, Ended(state))["status"] == "done"
    told = capsys.readouterr().err
    assert "setup.json is damaged (No such file or directory)" in told
    assert "The run's result stands" in told


def test_a_run_whose_setup_is_damaged_is_read_and_resumed_once_it_is_back(
    seerd: Seerd,  # noqa: F811
) -> None:
    seerd.write_spec(env=SHORT, **ROOM)
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=10)
    run.kill()
    run.communicate()
    name, setup = seerd.run_folder().name, seerd.run_folder() / "setup.json"
    copy = shutil.copy(setup, seerd.folder / "copy.json")
    setup.unlink()
    for command in READ:
        seerd(command, *([name] if command != "list" else ()))
    best = seerd.json("best", name)
    assert Path(best["checkpoint"]).is_relative_to(seerd.run_folder() / "store")
    told = seerd("resume", name, code=1)
    assert "Traceback" not in told
    assert f"{setup} is damaged (No such file or directory)" in told
    assert "show, best, ledger" in told
    shutil.copy(copy, setup)
    assert_model(seerd, seerd.json("resume", name))
    moved = seerd.home.rename(seerd.folder / "moved")
    seerd.home = moved
    for command in READ:
        seerd(command, *([name] if command != "list" else ()))
    best, model = seerd.json("best", name), moved / name / "best" / "checkpoint.pt"
    assert (best["checkpoint"], best["so_far"]) == (str(model), False)
    assert str(model) in seerd("show", name)


def test_a_run_of_a_process_that_may_open_too_few_files_is_refused(
    seerd: Seerd,  # noqa: F811
) -> None:
    seerd.write_spec()
    limited = 'ulimit -n 40; exec "$0" -c "from seerd import cli; cli.main()" run "$1"'
    command = ["bash", "-c", limited, sys.executable, str(seerd.spec)]
    run = seerd.begin(command, seerd.folder)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "a process may open 40 files here (`ulimit -n`)" in told
    assert "nothing was started. Run `ulimit -n 4096` first" in told
    assert not list(seerd.home.glob("*/journal.db"))


def test_the_limit_of_files_is_raised_where_that_is_allowed(
    seerd: Seerd,  # noqa: F811
) -> None:
    seerd.write_spec(env=SHORT)
    limited = 'ulimit -Sn 12; exec "$0" -c "from seerd import cli; cli.main()" run "$1" --json'
    command = ["bash", "-c", limited, sys.executable, str(seerd.spec)]
    run = seerd.begin(command, seerd.folder)
    out, told = run.communicate(timeout=60)
    assert run.returncode == 0, told
    assert_model(seerd, json.loads(out))
