"""Makes what is sent to instances: the agent and the training side as one zip, and a copy of the
user's source.

The one rule: the same content gives the same bytes, so that an instance can tell by a checksum
whether it has them.
"""

from __future__ import annotations

import importlib.util
import marshal
import re
import shutil
import zipfile
from pathlib import Path

import pathspec

import seerd
from seerd import agent
from seerd.agent.protocol import VERSION
from seerd.errors import UsageError

ALWAYS_IGNORED = (
    ".git/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
)
UNCHECKED = 0b01
WITHOUT_REFERENCES = 2
"""The version of marshal whose bytes do not depend on what else is in memory."""
EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_for(path: Path) -> Path:
    """Return a run's agent that speaks this version's protocol: the zip that was made when the run
    began, or a new one beside it.

    The first zip is never overwritten: agents that are alive read from it.
    """
    if _version_of(path) == VERSION:
        return path
    beside = path.with_name(f"{path.stem}-v{VERSION}{path.suffix}")
    if _version_of(beside) != VERSION:
        build_agent(beside)
    return beside


def _version_of(path: Path) -> int | None:
    """Return the protocol version of this agent; None if it is missing or cannot be read."""
    try:
        with zipfile.ZipFile(path) as bundle:
            source = bundle.read("seerd/agent/protocol.py").decode()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile):
        return None
    found = re.search(r"^VERSION = ([0-9]+)$", source, re.MULTILINE)
    return int(found[1]) if found else None


def build_agent(to: Path) -> None:
    """Write the agent's zip to `to`; `python to` runs it.

    Each of the agent's modules is in it both as source and compiled by this Python. A Python of the
    same version, as many images have, starts the compiled agent in little more than half of the
    time; any other uses the source.
    """
    with zipfile.ZipFile(to, "w") as bundle:
        folder = Path(agent.__file__).parent
        modules = {
            f"seerd/agent/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*.py"))
        }
        modules["__main__.py"] = folder / "__main__.py"
        for name, path in modules.items():
            _add(bundle, name, path.read_bytes())
            _add(bundle, f"{name}c", _compiled(path.read_bytes(), name))
        top = Path(seerd.__file__).parent
        for path in (top / "__init__.py", *sorted((top / "training").glob("*.py"))):
            _add(bundle, str(path.relative_to(top.parent)), path.read_bytes())


def _compiled(source: bytes, name: str) -> bytes:
    """Compile a module to a .pyc that is never compared with its source (PEP 552): both come in one
    zip.
    """
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = (
        importlib.util.MAGIC_NUMBER
        + UNCHECKED.to_bytes(4, "little")
        + importlib.util.source_hash(source)
    )
    return head + marshal.dumps(code, WITHOUT_REFERENCES)


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)


def copy_source(source: Path, to: Path) -> None:
    """Copy the user's source, but not what `.seerdignore` (written like a .gitignore) names, and
    not the home folder. Raises `UsageError` if a file cannot be copied.
    """
    ignore = source / ".seerdignore"
    lines = ignore.read_text().splitlines() if ignore.is_file() else []
    ignored = pathspec.GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *lines])
    home = to.parent.parent.resolve()
    try:
        shutil.copytree(
            source,
            to,
            ignore=lambda folder, names: _ignored(ignored, source, home, Path(folder), names),
        )
    except shutil.Error as error:
        what = "; ".join(f"{path}: {why}" for path, _, why in error.args[0][:5])
        raise UsageError(f"the source {source} cannot be copied: {what}") from error


def _ignored(
    ignored: pathspec.GitIgnoreSpec, source: Path, home: Path, folder: Path, names: list[str]
) -> set[str]:
    def excluded(name: str) -> bool:
        path = folder / name
        if path.resolve() == home or not (path.is_file() or path.is_dir()):
            return True
        if path.is_symlink() and path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
            return True  # it would be copied into itself
        relative = path.relative_to(source).as_posix()
        return ignored.match_file(f"{relative}/" if path.is_dir() else relative)

    return {name for name in names if excluded(name)}
