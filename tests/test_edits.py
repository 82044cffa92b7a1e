"""What is said of edits since a run began."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seerd.commands import beginning, run
from seerd.errors import UsageError
from seerd.runs import clusters, edits
from seerd.shell.home import Home, RunFolder
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
    spec, home = load_spec(Path("spec.toml"), [("policy.seed", 3)]), Home(project.parent / "home")
    place = clusters.place_of(spec, home)
    intended = beginning.intended(spec, place, ideal=False, minimize=None)
    return beginning.create(spec, home, place, intended, 1.8e9, print)[0]


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
    assert "a [2Jb.txt has changed" in capsys.readouterr().err


def test_many_edits_are_counted(project: Path) -> None:
    for number in range(5):
        (project / f"{number}.txt").write_text("1")
    folder = begun(project)
    for number in range(5):
        (project / f"{number}.txt").write_text("2")
    assert "and 2 more have changed" in (edits.note(folder) or "")


def test_what_an_earlier_version_has_begun_is_not_known(project: Path) -> None:
    folder = begun(project)
    setup = folder.setup.read_text()
    folder.setup.write_text(setup.replace('"made_from":', '"other":'))
    (project / "train.py").write_text("print(2)\n")
    assert edits.note(folder) is None
