"""What is known of a program before trials run it: whether they can start it, whether Python has
torch and `import seerd` finds the package (unknown for other machines, except for what is shipped
to them), and whether hyperparameters reach it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Any

from seerd.agent.arguments import interpreter_words, text_of
from seerd.agent.warm.gpu_share import MPS
from seerd.planner.space import Space
from seerd.spec.ignored import ignoring

if TYPE_CHECKING:
    from seerd.spec.spec import Train

ANSWERS_S = 20.0  # seconds that a Python has to say whether it has torch; no answer is no mistake

HAS_TORCH = "import importlib.util as u; print(u.find_spec('torch') is not None)"
# in a file that takes part in a run: it imports seerd, or names its variables
SEERD = re.compile(rb"\bimport\s+(?:[\w., ]+,\s*)?seerd\b|\bfrom\s+seerd\b|[\"']seerd[\"'.]|SEERD_")
# in a file that goes on from a checkpoint
LOADS = re.compile(
    rb"\bload\(|\bload_(?!digits|iris|wine|dataset|data)|from_pretrained|[rR]esum|[rR]estor"
    rb"|ckpt_path|\bopen\([^\n]*['\"]r|read_(?:bytes|text)"
)
# in a file by which trials are held to their share of a GPU's memory: it imports torch or JAX, or a
# package that has one of them train
HELD = re.compile(
    rb"\b(?:import|from)\s+(?:[\w., ]+,\s*)?(?:torch\w*|(?:pytorch_)?lightning|accelerate|peft|timm"
    rb"|transformers|diffusers|fastai|ultralytics|monai|jax|flax|optax|equinox)\b"
)
# what a person can do where HELD is nowhere
TO_HOLD = f'env = {{ {MPS} = "1" }} in [train] holds any program'
# how many files of the source are listed, and how long a file is that is read
MOST_FILES, MOST_BYTES = 5_000, 1 << 20


def why_not(script: str, source: Path, search: str, *, here: bool) -> str:
    """Return why trials cannot start this program; empty if they can, or if this is unknown here.
    Raises `OSError`, `RuntimeError` or `ValueError` for what cannot be a path.

    script  the program, a name or a path
    source  the folder they run in, which is the last folder of their PATH
    search  the folders before it
    here    whether they run on this machine
    """
    is_name = "/" not in script
    path = source / script if is_name else (source / script).resolve()
    if not is_name and not here:
        if script.startswith("/"):
            return ""
        if not path.is_relative_to(source):
            return f"it must lie inside the source folder {source}"
    folders = [str(source / folder) for folder in search.split(":") if folder]
    if is_name and here and shutil.which(script, path=":".join(folders)) is not None:
        return ""
    if path.is_file():
        executable = os.access(path, os.X_OK)
        return "" if executable else f"it is not executable; make it so: chmod +x {path}"
    if is_name and not here:
        return ""
    missing = "there is no such file"
    if is_name:
        missing = "there is no such program here, and no such file in the source folder"
    elif not script.startswith("/"):
        missing = f"there is no such file in the source folder {source}"
    return as_command(script) or missing


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


def misread(space: Space, train: Train) -> Iterator[tuple[str, str, str, Any]]:
    """Yield (parameter, option, argparse's type, value) for values that the option cannot take."""
    if train.launcher == "command":
        return
    kinds: dict[Any, set[str]] = defaultdict(set)
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse((train.source / train.script).read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                types = {ast.unparse(word.value) for word in node.keywords if word.arg == "type"}
                for name in node.args:
                    kinds[getattr(name, "value", None)] |= types or {""}
    words = [word for argument in train.args for word in argument.split("=", 1)]
    options = {place: option for option, place in pairwise(words) if option.startswith("-")}
    for parameter in space.parameters:
        option = options.get(f"{{{parameter.name}}}", "")
        if len(kinds[option]) == 1:
            (kind,) = kinds[option]
            for value in parameter.choices or (parameter.at(0.5),):
                items = value if isinstance(value, tuple) else (value,) if value != "" else ()
                if not all(_is_taken(kind, text_of(item)) for item in items):
                    yield parameter.name, option, kind, value
                    break


def _is_taken(kind: str, text: str) -> bool:
    if kind == "bool":
        return text != "false"
    try:
        {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        return False
    return True


def shown(what: Pattern[bytes], source: Path, suffix: str = "") -> bool | None:
    """Return whether a copied file of the source with this suffix matches; None: too many files."""
    listed, ignored = 0, ignoring(source / ".seerdignore")
    for top, folders, files in os.walk(source):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(top, name, "pyvenv.cfg").exists()
            if not ignored(f"{Path(top, name).relative_to(source).as_posix()}/")
        ]
        listed += len(files)
        if listed > MOST_FILES:
            return None
        for file in (Path(top, name) for name in files if name.endswith(suffix)):
            if shows(what, file) and not ignored(file.relative_to(source).as_posix()):
                return True
    return False


def shows(what: Pattern[bytes], file: Path) -> bool:
    """Return whether a file matches, as far as it is read."""
    try:
        return file.stat().st_size <= MOST_BYTES and what.search(file.read_bytes()) is not None
    except OSError:
        return False
