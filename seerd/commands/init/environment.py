"""Which Python trials are started with, by what lies beside the script, or above it in its project.

The one rule: files are looked at, and nothing is started.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

OF_CONDA = re.compile(r"^name\s*:\s*['\"]?([\w.-]+)", re.MULTILINE)
MADE = {
    "uv.lock": "uv run python",
    "poetry.lock": "poetry run python",
    "pdm.lock": "pdm run python",
    "pixi.lock": "pixi run python",
    "Pipfile": "pipenv run python",
    **dict.fromkeys(("environment.yml", "environment.yaml", "conda.yaml", "conda.yml"), ""),
}
"""A project's own file -> how its environment is entered; empty: conda's, by the name in it."""
HIGHEST = 2
"""How many folders above the script are looked at, inside its repository."""


def python_lines(folder: Path) -> list[str]:
    """Return the lines of `[train]` for the environment of the script in this folder: the project's
    own, or the one that is active.
    """
    for up, place in enumerate([folder, *folder.parents[:HIGHEST]]):
        if python := _python_of(place, "../" * up):
            return [f"python   = {python} (docs/environments.md)"]
        if (place / ".git").exists():
            break
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or sys.prefix
    if Path(active).resolve() != Path(sys.prefix).resolve():
        return [f'python   = "{active}/bin/python"  # of the environment that is active']
    return []


def _python_of(folder: Path, way: str) -> str:
    for name in (".venv", "venv", "env"):
        if (folder / name / "bin" / "python").exists():
            return f'"{way}{name}/bin/python"  # the project\'s own'
    for name, command in MADE.items():
        if (folder / name).is_file() and (entered := command or _of_conda(folder / name)):
            return f'"{entered}"  # by {name}'
    return ""


def _of_conda(file: Path) -> str:
    found = OF_CONDA.search(file.read_text(encoding="utf-8", errors="replace"))
    return f"conda run -n {found[1]} --no-capture-output python" if found else ""
