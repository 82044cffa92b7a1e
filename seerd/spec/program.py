"""Whether trials can start their program: whether the program exists, Python has torch, and `import
seerd` finds the package. Unknown for other machines, except for what is shipped to them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from seerd.agent.arguments import interpreter_words

ANSWERS_S = 20.0  # seconds that a Python has to say whether it has torch; no answer is no mistake

HAS_TORCH = "import importlib.util as u; print(u.find_spec('torch') is not None)"


def why_not(script: str, source: Path, search: str, *, here: bool) -> str:
    """Return why trials cannot start this program; empty if they can, or if this is unknown here.
    Raises `OSError`, `RuntimeError` or `ValueError` for what cannot be a path.

    script  the program, a name or a path
    source  the folder they run in, which is the last folder of their PATH
    search  the folders before it
    here    whether they run on this machine
    """
    if "/" in script:
        return _why_no_file(script, source, here=here)
    return _why_no_name(script, source, search, here=here)


def hides_seerd(folder: Path) -> str:
    """Return what in a script's folder hides the package seerd; empty if nothing does."""
    package = folder / "seerd"
    if (package / "__init__.py").is_file() and not (package / "training" / "trial.py").is_file():
        return "the folder seerd/"
    return "seerd.py" if (folder / "seerd.py").is_file() else ""


def why_no_python(python: str, folder: Path, env: Mapping[str, str], *, torch: bool) -> str:
    """Return why trials cannot run with this Python on this machine; empty if they can.

    python  a name, a path, or a command of several words, as `[train] python`
    folder  the spec's folder, which a path is relative to, and a command is run in
    env     what is added to their environment
    torch   whether they need torch
    """
    around = {**os.environ, **env}
    words = interpreter_words(python, str(folder))
    program = words[0] if "/" in words[0] else shutil.which(words[0], path=around.get("PATH"))
    if program is None or not (folder / program).is_file():
        return f"there is no program {words[0]} on this machine; train.python names trials' Python"
    if not torch:
        return ""
    try:
        answer = subprocess.run(
            [program, *words[1:], "-c", HAS_TORCH],
            cwd=folder,
            env=around,
            capture_output=True,
            text=True,
            timeout=ANSWERS_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{python} cannot be run: {error}"
    if not answer.stdout.strip().endswith("False"):
        return ""  # it is there, or Python itself says at the start what is wrong
    python = program if len(words) == 1 else python
    return (
        f'torch is not installed for {python}, and launcher = "torchrun" is a part of it: '
        f"{python} -m pip install torch, or name a Python that has it in train.python; a "
        'script without torch has launcher = "python"'
    )


def as_command(script: str) -> str:
    """Return how to write a script that is really a command; empty if it is none."""
    words = script.split()
    if words[:1] == ["-m"]:
        words = ["python", *words]
    if len(words) < 2 or shutil.which(words[0]) is None:
        return ""
    args = "".join(f"{json.dumps(word)}, " for word in words[1:])
    return (
        f'it is a command: write launcher = "command", script = {json.dumps(words[0])}, '
        f"args = [{args}...]"
    )


def _why_no_file(script: str, source: Path, *, here: bool) -> str:
    if script.startswith("/") and not here:
        return ""
    path = (source / script).resolve()
    if not here and not path.is_relative_to(source):
        return f"it must lie inside the source folder {source}"
    if not path.is_file():
        return as_command(script) or "there is no such file" + (
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
    why = "there is no such program here, and no such file in the source folder"
    return as_command(script) or why if here else ""


def _not_executable(path: Path) -> str:
    return f"it is not executable; make it so: chmod +x {path}"
