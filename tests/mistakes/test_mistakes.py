"""Every way to be wrong that is on docs/mistakes.md, made for real: what is answered helps, sends
nobody to the wrong place, and is what the page shows.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import pytest

from seerd.core.events import TrialCheckpointed
from seerd.core.verdicts import Warned
from seerd.errors import UsageError
from seerd.shell.source_copy import copy_source
from seerd.telling.complaints import notes_of
from tests.commands import Command
from tests.conftest import small_facts
from tests.core.test_answers import FIRST, Run
from tests.mistakes import kit, page
from tests.mistakes.catalogue import BOUND, HAND, MISTAKES, UNTRACKED, Mistake
from tests.mistakes.reports import REPORTS, PublicReport

Shown = Callable[[str, str], None]
BESIDE = 5
TESTS = Path(__file__).parents[1]


@pytest.fixture
def shown(pytestconfig: pytest.Config) -> Shown:
    """Compares a part of the page with what was answered now, or rewrites it."""

    def compare(title: str, part: str) -> None:
        part = part.rstrip("\n")
        if pytestconfig.getoption("rewrite"):
            page.rewrite(title, part)
        assert page.parts_of(page.PAGE.read_text()).get(title) == part

    return compare


def made_together() -> list[tuple[Mistake, ...]]:
    """The mistakes, five at a time, since their runs wait more than they compute: those that take
    long are made with others that do.
    """
    ordered = sorted(MISTAKES, key=lambda mistake: mistake.deadline != BOUND and not mistake.live)
    return list(zip_longest(*[iter(ordered)] * BESIDE))


@pytest.mark.parametrize(
    "mistakes", made_together(), ids=lambda mistakes: ",".join(one.name for one in mistakes if one)
)
def test_the_answers_help(
    mistakes: tuple[Mistake | None, ...], tmp_path: Path, shown: Shown
) -> None:
    made = [one for one in mistakes if one is not None]
    with ThreadPoolExecutor(len(made)) as beside:
        every = list(beside.map(lambda one: answered_to(one, tmp_path / one.name), made))
    for mistake, (told, answered) in zip(made, every, strict=True):
        assert_helps(mistake, told, answered)
        shown(mistake.title, page.section(mistake, answered))


def answered_to(mistake: Mistake, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """All that was said when this mistake was made, and the part that answers it."""
    kit.make(mistake, folder)
    told = kit.run(mistake, folder)
    return told, kit.answer(mistake, told, folder)


def assert_helps(mistake: Mistake, told: subprocess.CompletedProcess[str], answered: str) -> None:
    everything = f"{told.stdout}\n{told.stderr}"
    assert told.returncode == mistake.code, everything
    for words in mistake.says:
        assert words in answered, everything
    after = told.stdout[told.stdout.find("\n\ntrial ") :]
    for words in mistake.never:
        assert words not in after + told.stderr.removeprefix(UNTRACKED), everything


def test_the_page_has_every_mistake_and_nothing_else() -> None:
    text = page.PAGE.read_text()
    assert text == page.whole(page.parts_of(text))
    assert len(MISTAKES) + len(page.COMMANDS) >= 25


# ------------------------------------------------------------ runs and folders

SOUND = Mistake(
    "sound",
    "",
    HAND
    + "    tell(json.dumps({'kind': 'report', 'epoch': epoch, 'metrics': {'accuracy': 0.5}}))\n",
    (),
    deadline="60s",
)


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Command]:
    """A run that goes on."""
    kit.make(SOUND, tmp_path)
    run = kit.begun(tmp_path, "run", "spec.toml")
    for line in run.stdout:
        if "report 1:" in line:
            break
    yield run
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        run.communicate()


def test_commands_about_a_run_that_goes_on(going: Command, tmp_path: Path, shown: Shown) -> None:
    def asked(*args: str, code: int = 0) -> str:
        told = kit.seerd(tmp_path, *args)
        assert told.returncode == code, told.stdout + told.stderr
        return kit.settled((told.stdout + told.stderr).strip(), tmp_path)

    looked = "\n".join(asked("show", "last").splitlines()[-2:])
    assert "it goes on: seerd watch RUN; end it with: seerd stop RUN" in looked
    assert "resume" not in looked
    shown(page.COMMANDS[0], page.command_section(page.COMMANDS[0], "seerd show last", looked))
    printed = asked("logs", "last", "t0001")
    assert printed == "seerd: t0001 has printed nothing that has come here yet"
    assert "the trials of RUN have printed nothing that has come here yet" in asked("logs", "last")
    shown(
        page.COMMANDS[1], page.command_section(page.COMMANDS[1], "seerd logs last t0001", printed)
    )
    best = asked("best", "last", code=4)
    assert "no model to hand back yet" in best
    shown(page.COMMANDS[2], page.command_section(page.COMMANDS[2], "seerd best last", best))
    resumed = asked("resume", "last", code=2).splitlines()[-1]
    resumed = resumed.replace(str(going.pid), "4711")
    assert "is being run by process" in resumed
    shown(page.COMMANDS[3], page.command_section(page.COMMANDS[3], "seerd resume last", resumed))


def test_a_folder_that_is_removed_is_not_the_script_s_fault(
    going: Command, tmp_path: Path, shown: Shown
) -> None:
    (folder,) = (tmp_path / "home").iterdir()
    shutil.rmtree(folder, ignore_errors=True)
    out, err = going.communicate()
    assert going.returncode == 1, out + err
    answered = kit.settled(err.strip(), tmp_path)
    assert "was removed while it ran" in answered
    assert "The script is not at fault" in answered
    title, command = page.COMMANDS[4], "rm -r ~/.local/state/seerd/RUN"
    shown(title, page.command_section(title, command, answered))


def test_runs_that_cannot_be_read_are_listed(tmp_path: Path, shown: Shown) -> None:
    (tmp_path / "project").mkdir()
    lost, junk = tmp_path / "home" / "mine-a", tmp_path / "home" / "mine-b"
    for folder in (lost, junk):
        folder.mkdir(parents=True)
        (folder / "spec.toml").touch()
        (folder / "setup.json").touch()
    os.utime(lost / "spec.toml", (1.0, 1.0))
    (junk / "journal.db").write_text("junk")
    told = kit.seerd(tmp_path, "list")
    assert told.returncode == 0
    assert "no runs yet" not in told.stdout
    answered = kit.settled(told.stdout.strip(), tmp_path)
    assert "mine-a/journal.db does not exist, so nothing is known of mine-a" in answered
    assert "mine-b/journal.db is not a journal of seerd" in answered
    shown(page.COMMANDS[5], page.command_section(page.COMMANDS[5], "seerd list", answered))


def test_a_disk_that_will_be_too_small_is_told_after_the_first_checkpoint(shown: Shown) -> None:
    run = Run(small_facts())
    run.answer(FIRST)
    run.come()
    run.train("a")
    made = {"reports": 1, "metric": 0.5, "sha256": "0" * 64, "save_s": 0.1}
    size = 1_200_000_000
    trials = run.state.outline.trials
    more = 3 * trials * size
    fits = run.fact(TrialCheckpointed, "a", name="1", size=size, free=more, **made)
    assert not any(isinstance(one, Warned) for one in fits)
    decided = run.fact(TrialCheckpointed, "a", name="2", size=size, free=5_000_000_000, **made)
    (warning,) = (one for one in decided if isinstance(one, Warned))
    assert warning.detail.startswith(
        "the disk may fill up: a checkpoint has 1.2GB, up to 3 of each"
    )
    assert "5GB are free" in warning.detail
    assert warning.detail in notes_of(run.state)
    again = run.fact(TrialCheckpointed, "a", name="3", size=size, free=1, **made)
    assert not any(isinstance(one, Warned) for one in again), "once is enough"
    title = page.COMMANDS[6]
    shown(title, page.command_section(title, "seerd run spec.toml", warning.detail))


def test_a_source_that_is_larger_than_the_disk_is_not_copied(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = tmp_path / "project", tmp_path / "home" / "mine"
    (source / "data").mkdir(parents=True)
    run.mkdir(parents=True)
    (source / "data" / "train.bin").write_bytes(bytes(2_000_000))
    (source / "train.py").write_text("")
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk._replace(free=1_000_000))
    with pytest.raises(UsageError) as refused:
        copy_source(source, run / "source", set())
    assert not (run / "source").exists()
    answered = kit.settled(f"seerd: {refused.value}", tmp_path)
    answered = answered.replace("1MB", "21.5GB").replace("2MB", "70.4GB")
    ignore = str(refused.value).split("do not read: ")[1].split("; what they")[0]
    subprocess.run(["/bin/sh", "-c", ignore], check=True)
    copy_source(source, run / "source", set())
    assert (run / "source" / "train.py").exists()
    title = page.COMMANDS[7]
    shown(title, page.command_section(title, "seerd run spec.toml", answered))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.threads[0])
def test_the_test_of_a_public_report_is_there(report: PublicReport) -> None:
    file, _, function = report.test.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (TESTS / file).read_text(), re.MULTILINE)
