"""What people expect of a project around its code: version, completion, manual page, forge."""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from seerd import cli
from seerd.agent.protocol import VERSION as PROTOCOL
from seerd.core.codec import FORMAT
from seerd.version import VERSION

ROOT = Path(__file__).parent.parent
NAMED = "import sys; sys.argv[0] = 'seerd'; from seerd import cli; cli.main()"
"""The command under its own name, which completion goes by."""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def seerd(*args: str, **environment: str) -> str:
    command = [sys.executable, "-c", NAMED, *args]
    told = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stderr == ""
    return told.stdout


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


def options(command: Any) -> list[str]:
    names = [name for parameter in command.params for name in parameter.opts]
    return [name for name in names if name.startswith("--")]


def test_the_version_is_one_line_with_all_that_a_report_needs() -> None:
    runs = f"Python {platform.python_version()}"
    speaks = f"journal format {FORMAT}, agent protocol {PROTOCOL}"
    assert seerd("--version") == f"seerd {VERSION} ({runs}, {speaks})\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_that_asks_the_command(shell: str) -> None:
    script = seerd(_SEERD_COMPLETE=f"source_{shell}")
    assert f"_SEERD_COMPLETE=complete_{shell}" in script


def test_completion_knows_commands_and_options() -> None:
    asked = {"_SEERD_COMPLETE": "complete_bash", "COMP_WORDS": "seerd si", "COMP_CWORD": "1"}
    assert seerd(**asked).split() == ["simulate"]
    asked |= {"COMP_WORDS": "seerd image build --", "COMP_CWORD": "3"}
    assert set(options(COMMANDS["image", "build"])) <= set(seerd(**asked).split())
    for shell in ("zsh", "fish"):
        asked = {"_SEERD_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "seerd plan --de"}
        told = seerd(**asked, _TYPER_COMPLETE_FISH_ACTION="get-args")
        assert "--deadline" in told
        assert "Until the best model is in hand" in told


def test_bash_completes_with_the_script_that_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "seerd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{NAMED}" "$@"\n')
    program.chmod(0o755)
    script = seerd(_SEERD_COMPLETE="source_bash")
    press_tab = "COMP_WORDS=(seerd plan --de); COMP_CWORD=2; _seerd_completion seerd"
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{press_tab}; echo "${{COMPREPLY[@]}}"'],
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["--deadline"]


@pytest.fixture(scope="module")
def manual() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("SOURCE_DATE_EPOCH", "0")
        return runpy.run_path(str(ROOT / "docs" / "man.py"))["page"]()


def test_the_manual_has_every_command_with_every_option(manual: str) -> None:
    parts = r'^\.SS "seerd ([^"]*)"\n((?:(?!\.S[SH]).*\n)*)'
    sections = dict(re.findall(parts, manual, re.MULTILINE))
    assert sections.keys() == {" ".join(words) for words in COMMANDS}
    for words, command in COMMANDS.items():
        section = sections[" ".join(words)].replace(r"\-", "-")
        assert "`" not in section
        for name in options(command):
            assert re.search(rf"^\\fB(-\w, )?{name}\b", section, re.MULTILINE), (words, name)


def test_the_manual_has_its_date_version_options_and_exit_statuses(manual: str) -> None:
    assert manual.startswith(f'.TH SEERD 1 1970-01-01 "seerd {VERSION}" "seerd manual"\n')
    for name in ("version", r"install\-completion", r"show\-completion"):
        assert rf"\fB\-\-{name}" in manual
    statuses = re.findall(r"^\.TP\n(\d+)$", manual.partition('.SH "EXIT STATUS"')[2], re.MULTILINE)
    assert statuses == ["0", "1", "2", "3", "4", "5", "130"]


def test_the_manual_starts_no_line_that_roff_would_obey(manual: str) -> None:
    requests = {line.split()[0] for line in manual.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".PP", ".TP"}
    escapes = set(re.findall(r"\\.", manual))
    assert escapes <= {r"\-", r"\f", r"\&", r"\e", r"\("}


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == VERSION
    assert all(paper["authors"] and paper["year"] for paper in cited["references"])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in the wheel, built from a copy: what an older build has left here would get in."""
    source = tmp_path_factory.mktemp("wheel") / "source"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    command = [sys.executable, "-I", "-c", build]
    subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    (built,) = source.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


def test_the_wheel_has_types_scripts_licence_and_command_and_no_tests(wheel: list[str]) -> None:
    about = f"seerd-{VERSION}.dist-info"
    wanted = {
        "seerd/py.typed",
        "seerd/__init__.py",
        f"{about}/licenses/LICENSE",
        f"{about}/entry_points.txt",
    }
    assert wanted <= set(wheel)
    assert any(name.endswith("ami/provision.sh") for name in wheel)
    assert not {name.partition("/")[0] for name in wheel} & {"tests", "bench", "docs", "examples"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_only_and_name_what_is_there(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 45
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/none@v0"))
            for script in re.findall(r"\.ci/\w+", step.get("run", "")):
                assert os.access(ROOT / script, os.X_OK), script


def test_python_versions_are_the_same_wherever_they_are_told() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tried = workflow["jobs"]["fast"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project) == tried
    assert f'requires-python = ">={tried[0]}"' in project


def notes_of(tag: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [root / ".ci" / "notes", tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """What the notes of a release are made of."""
    for name in (".ci/notes", "seerd/version.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    sections = {"Unreleased": "not yet", f"{VERSION} (2026-01-31)": "now", "0.0.1": "before"}
    told = "".join(f"\n## {version}\n\n- {text}\n" for version, text in sections.items())
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n{told}")
    return tmp_path


def test_the_notes_of_a_release_are_its_section_of_the_changelog(release: Path) -> None:
    told = notes_of(f"v{VERSION}", release)
    assert (told.returncode, told.stdout.strip(), told.stderr) == (0, "- now", "")


def test_a_tag_that_is_not_the_version_or_has_no_notes_is_refused(release: Path) -> None:
    assert notes_of("v9.9.9", release).returncode == 1
    changelog = release / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("\n- now\n", ""))
    told = notes_of(f"v{VERSION}", release)
    assert (told.returncode, told.stdout) == (1, "")
    assert "has no section" in told.stderr


def test_the_only_name_that_is_installed_is_seerd(wheel: list[str]) -> None:
    names = {name.partition("/")[0] for name in wheel}
    assert names == {"seerd", f"seerd-{VERSION}.dist-info"}


@pytest.mark.parametrize(
    "path",
    [*WORKFLOWS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/release.md"))],
    ids=lambda path: path.name,
)
def test_what_is_said_to_be_made_can_be_made(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    said = re.findall(
        r"\bmake ((?:[a-z][a-z-]*(?: (?=[a-z]))?)+)(?=$|[`A-Z #;)&])",
        path.read_text(),
        re.MULTILINE,
    )
    assert {word for words in said for word in words.split()} <= targets
