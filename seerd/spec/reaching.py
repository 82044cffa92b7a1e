"""Whether every hyperparameter reaches the script. A spec is refused only where nothing can carry
one.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from re import Pattern
from typing import Any

from seerd.agent.arguments import places, text_of
from seerd.planner.space import Space
from seerd.spec.ignored import ignoring

# in a file that takes part in a run: it imports seerd, or names its variables
SEERD = re.compile(rb"\bimport\s+(?:[\w., ]+,\s*)?seerd\b|\bfrom\s+seerd\b|[\"']seerd[\"'.]|SEERD_")
# in a file that goes on from a checkpoint
LOADS = re.compile(
    rb"\bload\(|\bload_(?!digits|iris|wine|dataset|data)|from_pretrained|[rR]esum|[rR]estor"
    rb"|ckpt_path|\bopen\([^\n]*['\"]r|read_(?:bytes|text)"
)
# how many files of the source are listed, and how long a file is that is read
MOST_FILES, MOST_BYTES = 5_000, 1 << 20


def unplaced(space: Space, texts: Iterable[str]) -> list[str]:
    """Return the hyperparameters that are in none of these arguments, variables and files."""
    placed = {name for text in texts for name in places(text, space.names)}
    for parameter in reversed(space.parameters):  # what selects others is seen by those
        if parameter.name in placed:
            placed |= {condition.parameter for condition in parameter.when}
    return [name for name in space.names if name not in placed]


def misread(space: Space, args: Sequence[str], script: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Yield (parameter, option, argparse's type, value) for values that the option does not
    take.
    """
    kinds: dict[Any, set[str]] = defaultdict(set)
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(script.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                types = {ast.unparse(word.value) for word in node.keywords if word.arg == "type"}
                for name in node.args:
                    kinds[getattr(name, "value", None)] |= types or {""}
    words = [word for argument in args for word in argument.split("=", 1)]
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
