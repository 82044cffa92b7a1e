"""What a script is given: arguments, in which hyperparameters take the place of their names in
braces, and paths. Pure.

The one rule: only a name in braces counts, so JSON and formats of other programs stay as they are;
`{{` is a brace.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Dict, Iterator, List, Sequence

PLACE = re.compile(r"\{\{|\{([A-Za-z_][A-Za-z0-9_]*)\}")
CHECKPOINT = "checkpoint"
"""The name that stands for the path of a checkpoint where a script is told to go on from it."""


def named(argument: str) -> Iterator[str]:
    """Yield the names in braces in this argument."""
    return (found[1] for found in PLACE.finditer(argument) if found[1])


def filled(arguments: Sequence[str], values: Dict[str, Any]) -> List[str]:
    """Return the arguments with values in the place of names.

    One that names what has no value is left out: a hyperparameter that is inactive, say. If it is
    nothing but that name, so is the option before it. One that becomes empty is left out too.
    """
    made: List[str] = []
    for number, argument in enumerate(arguments):
        names = list(named(argument))
        if all(name in values for name in names):
            text = PLACE.sub(lambda found: _text(values[found[1]]) if found[1] else "{", argument)
            made += [text] if text or not names else []
        elif made and PLACE.fullmatch(argument) and _is_option(arguments[number - 1]):
            made.pop()
    return made


def is_inside(path: str) -> bool:
    """Tell whether this is a relative path that stays inside the folder that it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and "=" not in argument and not any(named(argument))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
