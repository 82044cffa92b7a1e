"""Whether every hyperparameter reaches the script.

The one rule: a spec is refused only where nothing can carry a hyperparameter; else there is a
doubt.
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
from typing import Any

from seerd.agent.arguments import places, text_of
from seerd.planner.space import Space

SEERD = re.compile(rb"\bimport\s+seerd\b|\bfrom\s+seerd\b|[\"']seerd[\"'.]|SEERD_")
"""What a file has that takes part in a run: it imports seerd, or names its variables."""
MOST_FILES, MOST_BYTES = 5_000, 1 << 20
"""How many files of the source are listed, and how long a file is that is read."""


def unplaced(
    space: Space, texts: Iterable[str], source: Path, script: str, *, is_python: bool
) -> tuple[list[str], bool | None]:
    """Return the hyperparameters that are in none of these texts, none if the script itself takes
    part; and whether another file of the source does: None if it has too many files.

    texts      arguments, environment variables and files in which names in braces are filled
    script     a program, relative to the source
    is_python  whether it is Python
    """
    placed = {name for text in texts for name in places(text, space.names)}
    for parameter in reversed(space.parameters):  # what selects others is seen by those
        if parameter.name in placed:
            placed |= {condition.parameter for condition in parameter.when}
    names = [name for name in space.names if name not in placed]
    if not names or _takes_part(source / script):
        return [], None
    return names, _any_takes_part(source, ".py" if is_python else "")


def misread(space: Space, args: Sequence[str], script: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Yield each hyperparameter with a value that the option before its place does not take: its
    name, the option, the type that the script has for argparse, and the value.
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


def _any_takes_part(source: Path, suffix: str) -> bool | None:
    listed = 0
    for top, folders, files in os.walk(source):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(top, name, "pyvenv.cfg").exists()
        ]
        listed += len(files)
        if listed > MOST_FILES:
            return None
        if any(_takes_part(Path(top, name)) for name in files if name.endswith(suffix)):
            return True
    return False


def _takes_part(file: Path) -> bool:
    try:
        return file.stat().st_size <= MOST_BYTES and SEERD.search(file.read_bytes()) is not None
    except OSError:
        return False
