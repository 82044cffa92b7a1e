"""What import-linter cannot say: which parts know no clock and no I/O, and which must run anywhere."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = [
    *(ROOT / "planner").glob("*.py"),
    *(ROOT / "seerd" / "core").glob("*.py"),
    *(ROOT / "seerd" / "sim").glob("*.py"),
]
ANYWHERE = [*(ROOT / "agent").glob("*.py"), ROOT / "seerd" / "trial.py"]
IMPURE = {
    "asyncio",
    "datetime",
    "http",
    "io",
    "logging",
    "os",
    "pathlib",
    "secrets",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
}
IMPURE |= {"sys", "tempfile", "threading", "time", "urllib", "uuid", "numpy"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


@pytest.mark.parametrize("path", PURE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_decisions_know_no_clock_and_no_io(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not {name.split(".")[0] for name in imported(tree)} & IMPURE
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr == "Random", "randomness comes from an explicit generator"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}


@pytest.mark.parametrize("path", ANYWHERE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_shipped_needs_only_the_standard_library_of_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    roots = {name.split(".")[0] for name in imported(tree)}
    allowed = set(sys.stdlib_module_names) | ({"agent"} if path.parent.name == "agent" else {"torch"})
    assert roots <= allowed - {"tomllib"} | ({"tomllib"} if path.name == "trial.py" else set())


def test_nothing_names_this_machine() -> None:
    for path in ROOT.rglob("*"):
        hidden = any(part.startswith(".") and part != ".ci" for part in path.relative_to(ROOT).parts)
        if (
            path.is_file()
            and not hidden
            and path.suffix in {".py", ".md", ".toml", ".txt", ""}
            and path != Path(__file__)
        ):
            assert str(ROOT) not in path.read_text(errors="replace"), path
