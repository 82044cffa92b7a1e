"""Whether the program of `launcher = "command"` exists, as far as that can be told before anything
is started.

The one rule: only what will be shipped to other machines is checked, since it is not known here
what they have.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def why_not(script: str, source: Path, search: str, *, here: bool) -> str:
    """Return why trials cannot start this program; empty if they can, or if that is not known here.

    script  the program, a name or a path
    source  the folder they run in, which is the last folder of their PATH
    search  the folders before it
    here    whether they run on this machine

    Raises `OSError`, `RuntimeError` or `ValueError` for what cannot be a path.
    """
    return (
        _why_no_file(script, source, here=here)
        if "/" in script
        else _why_no_name(script, source, search, here=here)
    )


def _why_no_file(script: str, source: Path, *, here: bool) -> str:
    if script.startswith("/") and not here:
        return ""
    path = (source / script).resolve()
    if not here and not path.is_relative_to(source):
        return f"it must lie inside the source folder {source}"
    if not path.is_file():
        return "there is no such file" + (
            "" if script.startswith("/") else f" in the source folder {source}"
        )
    return "" if os.access(path, os.X_OK) else _not_executable(path)


def _why_no_name(script: str, source: Path, search: str, *, here: bool) -> str:
    path = source / script
    folders = [str(source / folder) for folder in search.split(":") if folder]
    if here and shutil.which(script, path=":".join(folders)) is not None:
        return ""
    if path.is_file():
        return "" if os.access(path, os.X_OK) else _not_executable(path)
    return "there is no such program here, and no such file in the source folder" if here else ""


def _not_executable(path: Path) -> str:
    return f"it is not executable; make it so: chmod +x {path}"
