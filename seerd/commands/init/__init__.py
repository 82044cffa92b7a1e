"""`seerd init`: a spec for an existing script, or a small spec and script to begin with. No
existing file is ever overwritten.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from seerd.commands.init.reading import read
from seerd.commands.init.writing import written
from seerd.errors import UsageError
from seerd.shell.home import default_home
from seerd.shell.source_copy import CopyTerms, links_out

SPEC = "spec.toml"
OF_CONDA = re.compile(r"^name\s*:\s*['\"]?([\w.-]+)", re.MULTILINE)
# A project's own file -> how its environment is entered; empty: conda's, by the name in it.
MADE = {
    "uv.lock": "uv run python",
    "poetry.lock": "poetry run python",
    "pdm.lock": "pdm run python",
    "pixi.lock": "pixi run python",
    "Pipfile": "pipenv run python",
    **dict.fromkeys(("environment.yml", "environment.yaml", "conda.yaml", "conda.yml"), ""),
}
HIGHEST = 2  # folders above the script that are looked at, inside its repository


def init(what: Path) -> None:
    """Write a spec for the script `what`, or a spec and a script into the folder `what`. Raises
    `UsageError` if that is not possible.
    """
    is_script = what.suffix == ".py" or what.is_file()
    spec = what.with_name(SPEC) if is_script else what / SPEC
    if os.path.lexists(spec):  # a link may lead nowhere
        raise UsageError(f"{spec} is there already, and is not overwritten")
    if is_script:
        _for_script(what, spec)
    else:
        _to_begin_with(what, spec)


def _for_script(script: Path, spec: Path) -> None:
    folder = script.absolute().parent
    try:
        facts = read(script)
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"{script} cannot be read: {getattr(error, 'strerror', error)}") from error
    except SyntaxError as error:
        raise UsageError(f"{script} is no Python: line {error.lineno}, {error.msg}") from error
    follow = links_out(folder / facts.above, default_home(), CopyTerms(), refuse=False)
    text, missing = written(script.name, facts, _python_lines(folder), follow)
    try:
        with spec.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{spec} cannot be written: {error.strerror}") from error
    print(f"{spec}: written for {script.name}; look at what is marked as a guess")
    for todo in missing:
        print(f"to do: {todo}")
    print(f"next: seerd plan {spec}, then seerd run {spec}")


def _to_begin_with(folder: Path, spec: Path) -> None:
    here, script = Path(__file__).parent, folder / "train.py"
    if script.exists():
        hint = f"for a script of yours: seerd init {script}"
        raise UsageError(f"{script} is there already, and is not overwritten; {hint}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(here / "start_train.py", script)
        shutil.copyfile(here / "start_spec.toml", spec)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    print(f"{spec} and {script}: a small script, and what to tune of it")
    print(f"next: seerd run {spec}")


def _python_lines(folder: Path) -> list[str]:
    """Return the line of `[train]` that names the interpreter: of the environment that lies beside
    the script or above it in its project, or of the active one. Nothing is started for it.
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
        if not (folder / name).is_file():
            continue
        if command:
            return f'"{command}"  # by {name}'
        environment = OF_CONDA.search((folder / name).read_text(encoding="utf-8", errors="replace"))
        if environment:
            return f'"conda run -n {environment[1]} --no-capture-output python"  # by {name}'
    return ""
