"""Programs that a trial is: found where trials will look for them, or told before anything is
started.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seerd.spec.program import as_command, why_not

SEARCH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "bin").mkdir(parents=True)
    for name in ("train", "bin/tool", "../outside"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    (folder / "plain").write_text("")
    return folder


@pytest.mark.parametrize(
    "script", ["./train", "train", "bin/tool", "sh", "/bin/sh", "../outside", "/opt/there"]
)
@pytest.mark.parametrize("here", [True, False])
def test_what_is_there_and_what_may_be_there(source: Path, script: str, here: bool) -> None:
    wrong = why_not(script, source, SEARCH, here=here)
    if script == "../outside" and not here:
        assert "must lie inside the source folder" in wrong, "it would not be shipped"
    elif script == "/opt/there" and here:
        assert wrong == "there is no such file"
    else:
        assert wrong == ""


@pytest.mark.parametrize("here", [True, False])
def test_what_is_not_there(source: Path, here: bool) -> None:
    assert "no such file in the source folder" in why_not("./tarin", source, SEARCH, here=here)
    assert "no such file in the source folder" in why_not("lib/tarin", source, SEARCH, here=here)
    assert "chmod +x" in why_not("./plain", source, SEARCH, here=here)
    assert "chmod +x" in why_not("plain", source, SEARCH, here=here)
    told = why_not("no-such-program", source, SEARCH, here=here)
    assert ("no such program here" in told) == here, "other machines may have it"


def test_folders_of_the_path_are_those_of_trials(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in the source folder, wherever seerd was started."""
    monkeypatch.chdir(source.parent)
    (source.parent / "plain").write_text("")
    (source.parent / "plain").chmod(0o755)
    assert why_not("tool", source, f"bin:{SEARCH}", here=True) == ""
    assert "no such program" in why_not("tool", source, SEARCH, here=True)
    assert "chmod +x" in why_not("plain", source, SEARCH, here=True)
    assert "chmod +x" in why_not("./plain", source, SEARCH, here=True)


@pytest.mark.parametrize(
    ("script", "program", "args"),
    [
        ("-m pkg.train", "python", '"-m", "pkg.train", ...'),
        ("sh train.sh --fast", "sh", '"train.sh", "--fast", ...'),
    ],
)
def test_a_command_that_is_given_as_a_script_is_told_as_a_spec_has_it(
    script: str, program: str, args: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "python").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{source}:{SEARCH}")
    told = f'it is a command: write launcher = "command", script = "{program}", args = [{args}]'
    assert as_command(script) == told
    assert why_not(script, source, SEARCH, here=True) == told


def test_a_file_that_is_missing_is_no_command(source: Path) -> None:
    assert as_command("my train.py") == as_command("train.py") == as_command("") == ""
