"""What a script is run with: its interpreter, arguments and environment variables, in which values
of hyperparameters replace their names in braces. Other braces, and `${name}`, stay as they are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Collection, Iterator, Mapping, Pattern, Sequence

CHECKPOINT = "checkpoint"  # stands for the path of a checkpoint from which a script continues
GPUS = "gpus"  # stands for the number of GPUs of the attempt
NAMED = re.compile(r"\{\{|(?<!\$)\{([^\W\d][\w./-]*)\}")  # what looks like a place in an argument


def named(argument: str) -> Iterator[str]:
    """Yield the names in braces in this argument, known or not."""
    return (place[1] for place in NAMED.finditer(argument) if place[1])


def places(text: str, names: Collection[str]) -> list[str]:
    """Return which of these names the text has in braces."""
    return [place[1] for place in _pattern(names).finditer(text) if place[1]]


def filled(
    arguments: Sequence[str], names: Collection[str], values: Mapping[str, Any]
) -> list[str]:
    """Return the arguments with values in the place of names; `{{` becomes a brace.

    An argument that names what has no value (an inactive hyperparameter) is left out. If it is
    nothing but that name, so is the option before it. An argument that becomes empty is left out.
    One that is nothing but the name of a list becomes an argument for each element. One that
    becomes a negative number is joined to the long option before it by `=`, since parsers take
    `-1e-05` for an option.
    """
    pattern = _pattern(names)
    made: list[str] = []
    for number, argument in enumerate(arguments):
        needed = places(argument, names)
        after_option = number > 0 and bool(made) and _is_option(arguments[number - 1], names)
        whole = values.get(needed[0]) if needed and pattern.fullmatch(argument) else None
        if not all(name in values for name in needed):
            if after_option and pattern.fullmatch(argument):
                made.pop()
        elif isinstance(whole, (list, tuple)):
            made += [_alone(element) for element in whole]
        elif _is_negative(whole) and after_option and made[-1].startswith("--"):
            made[-1] += f"={text_of(whole)}"
        elif whole is not None:
            made += filter(None, [_alone(whole)])
        else:
            text = pattern.sub(lambda at: text_of(values[at[1]]) if at[1] else "{", argument)
            made += [text] if text or not needed else []
    return made


def filled_environment(
    env: Mapping[str, str], names: Collection[str], values: Mapping[str, Any]
) -> dict[str, str]:
    """Return variables with values in the place of names, without those that name what has none."""
    return {
        variable: filled_text(text, names, values)
        for variable, text in env.items()
        if all(name in values for name in places(text, names))
    }


def fixed_environment(env: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the variables that are the same for all attempts."""
    return filled_environment(env, [GPUS, *names], {})


def filled_text(text: str, names: Collection[str], values: Mapping[str, Any]) -> str:
    """Return the text with values in the place of names, `null` without a value; `{{` stays."""
    return _pattern(names).sub(lambda at: text_of(values.get(at[1])) if at[1] else at[0], text)


def text_of(value: Any) -> str:
    """Write a text as it is, all else as JSON; a float with a point, as YAML needs it."""
    return value if isinstance(value, str) else _json(value)


def is_inside(path: str) -> bool:
    """Return whether this is a relative path that stays inside its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def _pattern(names: Collection[str]) -> Pattern[str]:
    alternatives = "|".join(map(re.escape, names)) or r"(?!)"
    return re.compile(r"\{\{|(?<!\$)\{(" + alternatives + r")\}")


def _is_option(argument: str, names: Collection[str]) -> bool:
    is_short_or_long = argument.startswith("-") and argument.strip("-") != ""
    return is_short_or_long and "=" not in argument and not places(argument, names)


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and text_of(value).startswith("-")


def _alone(value: Any) -> str:
    """Write an argument of its own: a negative number without an exponent, for parsers."""
    is_written_out = _is_negative(value) and "e" in repr(value)
    return format(Decimal(repr(value)), "f") if is_written_out else text_of(value)


def _json(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_json, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    is_bare = isinstance(value, float) and "e" in text and "." not in text
    return text.replace("e", ".0e") if is_bare else text


def interpreter_words(python: str, folder: str) -> list[str]:
    """Return the words of `[train] python`, relative to this folder. Raises `ValueError`."""
    words = shlex.split(python)
    if "/" in python and os.path.exists(os.path.join(folder, python)):
        words = [python]
    return [os.path.join(folder, words[0])] if len(words) == 1 and "/" in words[0] else words
