"""What is told of a package that is missing: the line installs it, however seerd was installed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from seerd.extras import installing

ROOT = Path(__file__).parent.parent


def installed(path: Path, origin: dict[str, object] | None) -> None:
    """What pip notes of an installed package (packaging.python.org, direct_url.json)."""
    noted = path / "seerd-9.9.9.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: seerd\nVersion: 9.9.9\n")
    if origin is not None:
        (noted / "direct_url.json").write_text(json.dumps(origin))


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, "pip install 'seerd[export]'"),
        ({"url": "file:///wheels/seerd.whl", "archive_info": {}}, "pip install 'seerd[export]'"),
        ({"dir_info": {"editable": True}}, "pip install -e '{clone}[export]'"),
        ({"dir_info": {}}, "pip install '{clone}[export]'"),
        (
            {"url": "file:///no/such/folder", "dir_info": {"editable": True}},
            "pip install '.[export]' in a clone of seerd",
        ),
    ],
)
def test_an_extra_is_installed_as_seerd_was(
    origin: dict[str, object] | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    installed(tmp_path, origin and {"url": clone.as_uri(), **origin})
    monkeypatch.syspath_prepend(tmp_path)
    assert installing("export") == told.format(clone=clone)


def test_seerd_that_was_never_installed_is_in_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert installing("report") == "pip install '.[report]' in a clone of seerd"


def test_the_extras_that_are_named_are_there() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for path in (ROOT / "seerd").rglob("*.py")
        for extra in re.findall(r"installing\([\"'](\w+)[\"']\)", path.read_text())
    }
    assert {"notebook", "plot", "report"} <= named <= there.keys()


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
    assert telling == [Path("seerd/extras.py")]
