"""What is told of a package that is missing: the line installs it, however seerd was installed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from seerd.extras import installing

ROOT = Path(__file__).parent.parent


def installed(path: Path, origin: dict[str, object] | None, by: str = "pip") -> None:
    """What an installer notes of an installed package (packaging.python.org, direct_url.json)."""
    noted = path / "seerd-9.9.9.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: seerd\nVersion: 9.9.9\n")
    (noted / "INSTALLER").write_text(f"{by}\n")
    if origin is not None:
        (noted / "direct_url.json").write_text(json.dumps(origin))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which seerd is installed from here on, with a pip of its own on the path."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "pip"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, "pip install 'seerd[export]'"),
        ({"url": "file:///gone.whl", "archive_info": {}}, "pip install 'seerd[export]'"),
        ({"dir_info": {"editable": True}}, "pip install -e '{clone}[export]'"),
        ({"dir_info": {}}, "pip install '{clone}[export]'"),
        (
            {"url": "file:///no/such/folder", "dir_info": {"editable": True}},
            "pip install '.[export]' in a clone of seerd",
        ),
    ],
)
def test_an_extra_is_installed_as_seerd_was(
    origin: dict[str, object] | None, told: str, environment: Path
) -> None:
    clone = environment / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    installed(environment, origin and {"url": clone.as_uri(), **origin})
    assert installing("export") == told.format(clone=clone)


def test_a_wheel_is_taken_from_where_it_was(environment: Path) -> None:
    wheel = environment / "seerd-9.9.9-py3-none-any.whl"
    wheel.touch()
    installed(environment, {"url": wheel.as_uri(), "archive_info": {}})
    assert installing("export") == f"pip install 'seerd[export] @ {wheel.as_uri()}'"


@pytest.mark.parametrize(
    ("receipt", "by", "told"),
    [
        ("uv-receipt.toml", "uv", "uv tool install 'seerd[export]'"),
        ("pipx_metadata.json", "pip", "pipx install --force 'seerd[export]'"),
        ("pyvenv.cfg", "uv", "uv pip install --python {python} 'seerd[export]'"),
    ],
)
def test_an_extra_is_installed_by_the_tool_that_installed_seerd(
    receipt: str, by: str, told: str, environment: Path
) -> None:
    installed(environment, None, by)
    (environment / receipt).touch()
    assert installing("export") == told.format(python=environment / "bin" / "python")


def test_a_pip_of_another_environment_is_not_named(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(environment, None)
    monkeypatch.setenv("PATH", "/no/such/folder")
    python = environment / "bin" / "python"
    assert installing("export") == f"{python} -m pip install 'seerd[export]'"


def test_seerd_that_was_never_installed_is_in_a_clone(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    assert installing("report") == "pip install '.[report]' in a clone of seerd"


def test_the_extras_that_are_named_are_there() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for path in (ROOT / "seerd").rglob("*.py")
        for extra in re.findall(r"installing\([\"'](\w+)[\"']\)", path.read_text())
    }
    assert {"notebook", "report"} <= named <= there.keys()


def test_nobody_is_told_to_take_seerd_from_an_index() -> None:
    """Only the one function knows whether it came from one."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    code = [path for name in ("seerd", "planner") for path in (ROOT / name).rglob("*.py")]
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".ipynb")]
    telling = [
        path.relative_to(ROOT)
        for path in (*pages, *code, *examples)
        if re.search(r"pip install\s+[\"']?seerd\[", path.read_text())
    ]
    assert telling == []
