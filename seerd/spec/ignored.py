"""Which files of a source are not copied: those that `.seerdignore`, written like a .gitignore,
names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

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
# returns whether a path, relative to the source, is not copied; a folder's ends with a slash
Ignored = Callable[[str], bool]


def is_copied(source: Path, path: Path) -> bool:
    """Return whether this path in the source is in the copies of it."""
    name = path.relative_to(source).as_posix()
    return not is_left_out(name, ignoring(source / ".seerdignore"))


def is_left_out(name: str, ignored: Ignored) -> bool:
    """Return whether a path of the source, or a folder that it is in, is not copied."""
    folders = (name, *map(str, PurePosixPath(name).parents))
    return ignored(name) or any(ignored(f"{folder}/") for folder in folders)


def ignoring(ignore: Path) -> Ignored:
    """Return the rules of this file. Raises `UsageError` if a line of a `.seerdignore` is no
    pattern; in a .gitignore such a line names nothing, as for git.
    """
    if not ignore.is_file():
        return _is_always_ignored
    import pathspec

    patterns = list(pathspec.GitIgnoreSpec.from_lines(ALWAYS_IGNORED).patterns)
    for number, line in enumerate(os.fsdecode(ignore.read_bytes()).splitlines(), 1):
        try:
            patterns += pathspec.GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error) as error:
            if ignore.name == ".seerdignore":
                raise UsageError(
                    f"line {number} of {ignore}, {line!r}, is no pattern of a .gitignore: correct "
                    "or remove it"
                ) from error
    return pathspec.GitIgnoreSpec(patterns).match_file


def _is_always_ignored(path: str) -> bool:
    """Return what a .gitignore of `ALWAYS_IGNORED` says, without the import of `pathspec`."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.endswith(".pyc") or (path.endswith("/") and f"{name}/" in ALWAYS_IGNORED)
