"""What is said of edits since a run began."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from seerd.agent.workplace import SMALL, lay_out
from seerd.commands import beginning, run
from seerd.errors import UsageError
from seerd.planning.plans import facts_of
from seerd.runs import clusters
from seerd.runs.runs import copy_job
from seerd.shell import edits
from seerd.shell.edits import MOST_BYTES
from seerd.shell.home import Home, RunFolder
from seerd.shell.source_copy import CopyTerms
from seerd.spec.experiment import load
from seerd.spec.reader import Override
from seerd.spec.spec import load_spec

SPEC = """
name = "edited"
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
launcher = "python"
[space]
lr = [0.1, 0.2]
[limits]
deadline = "5m"
budget = "10gpu-min"
[cluster]
provider = "local"
gpus = 2
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    (made / "data").mkdir(parents=True)
    (made / "spec.toml").write_text(SPEC)
    (made / "train.py").write_text("print(1)\n")
    (made / "data" / "train.csv").write_text("1,2\n")
    monkeypatch.chdir(made)
    return made


def begun(project: Path) -> RunFolder:
    home = Home(project.parent / "home")
    experiment = load([Path("spec.toml")], [Override("policy.seed", 3)])
    quote = clusters.unasked_quote(experiment)
    facts = facts_of(experiment, home, quote, ideal=False, minimize=None)
    return beginning.create(experiment, facts, home, quote, 1.8e9, print)[0]


def test_nothing_is_said_where_nothing_was_edited(project: Path) -> None:
    folder = begun(project)
    (folder.source / "__pycache__").mkdir()
    (folder.source / "__pycache__" / "train.cpython-311.pyc").touch()
    (folder.source / "made_by_setup").touch()
    (project / "out.pt").write_text("written by hand")
    os.utime(project / "train.py")
    assert edits.note(folder) is None


def test_script_spec_and_data_are_named_and_how_to_begin_anew(project: Path) -> None:
    folder = begun(project)
    (project / "train.py").write_text("print(2)\n")
    (project / "spec.toml").write_text(SPEC.replace("0.1", "0.3"))
    (project / "data" / "train.csv").write_text("1,3\n")
    assert edits.note(folder) == (
        "train.py, spec.toml and data/train.csv have changed since the run began; it goes on as it "
        f"was; for the edited ones: seerd run spec.toml --like {folder.run}"
    )


def test_a_file_that_is_gone_or_has_another_name_has_changed(project: Path) -> None:
    folder = begun(project)
    (folder.source / "made_by_setup").touch()
    (project / "train.py").rename(project / "training.py")
    (project / "data" / "train.csv").unlink()
    assert (edits.note(folder) or "").startswith("train.py and data/train.csv have changed since")


def test_what_a_terminal_could_obey_in_a_changed_name_is_not_printed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "a\x1b[2Jb.txt").write_text("1")
    folder = begun(project)
    (project / "a\x1b[2Jb.txt").write_text("2")
    with folder.locked(), pytest.raises(UsageError):
        run.resume(folder, run.Shown(plain=True, json=False))
    assert r"a\x1b[2Jb.txt has changed" in capsys.readouterr().err


def test_many_edits_are_counted(project: Path) -> None:
    for number in range(5):
        (project / f"{number}.txt").write_text("1")
    folder = begun(project)
    for number in range(5):
        (project / f"{number}.txt").write_text("2")
    assert "and 2 more have changed" in (edits.note(folder) or "")


def test_a_file_that_trials_share_and_that_is_gone_has_changed(project: Path) -> None:
    (project / "data" / "large.bin").write_bytes(bytes(SMALL + 1))
    folder = begun(project)
    lay_out(folder.source, project.parent / "work")
    (project / "data" / "large.bin").unlink()
    assert (edits.note(folder) or "").startswith("data/large.bin has changed since")


def test_data_that_is_read_where_it_is_is_compared(project: Path) -> None:
    outside = project.parent.resolve()
    for name in ("given.csv", "folder/sub/1.csv"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("1,2\n")
    names = ("given.csv", "folder", "nowhere", "large.bin")
    args = [f"--data={outside / name}" for name in names]
    with (outside / "large.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    (project / "spec.toml").write_text(SPEC.replace("[space]", f"args = {args}\n[space]"))
    folder = begun(project)
    os.utime(outside / "given.csv")
    (outside / "folder" / "output").write_text("of a trial")
    assert edits.note(folder) is None
    (outside / "given.csv").write_text("1,3\n")
    (outside / "folder" / "sub" / "1.csv").unlink()
    os.utime(outside / "large.bin", (1, 1))
    assert (edits.note(folder) or "").partition(" have changed")[0] == (
        f"{outside}/given.csv, {outside}/folder/sub/1.csv and {outside}/large.bin"
    )


def test_the_data_that_a_link_leads_to_is_compared(project: Path) -> None:
    outside = project.parent.resolve() / "outside"
    outside.mkdir()
    (outside / "1.csv").write_text("1")
    (project / "more").symlink_to(outside)
    (project / "spec.toml").write_text(SPEC.replace("[space]", 'follow = ["more"]\n[space]'))
    folder = begun(project)
    (outside / "1.csv").write_text("12")
    assert (edits.note(folder) or "").startswith(f"{outside}/1.csv has changed since")


def test_a_job_that_came_later_is_compared_with_its_own(project: Path) -> None:
    folder = begun(project)
    later = project.parent / "later"
    later.mkdir()
    (later / "spec.toml").write_text(SPEC.replace("edited", "later"))
    (later / "train.py").write_text("print(1)\n")
    copy_job(folder, replace(load_spec(later / "spec.toml"), id="later"), CopyTerms())
    assert edits.note(folder) is None
    (later / "train.py").write_text("print(2)\n")
    (later / "spec.toml").write_text(SPEC.replace("0.1", "0.3"))
    assert edits.note(folder) == (
        "train.py and spec.toml have changed since the run began; it goes on as it was; for the "
        f"edited ones: seerd run spec.toml ../later/spec.toml --like {folder.run}"
    )


@pytest.mark.parametrize("kept", [None, "{"])
def test_a_run_goes_on_where_it_is_not_known_what_it_was_made_from(
    project: Path, kept: str | None
) -> None:
    folder = begun(project)
    folder.made_from("").unlink()
    if kept is not None:
        folder.made_from("").write_text(kept)
    (project / "train.py").write_text("print(2)\n")
    assert edits.note(folder) is None
