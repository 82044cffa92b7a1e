"""A spec that is a Python dict, written as TOML, so that mistakes are reported in the same
words.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from seerd.errors import Mistake, SpecError

BARE = re.compile(r"[A-Za-z0-9_-]+")
THE_DICT = "the spec"  # its name in messages, where a file has its path


def toml_of(document: Mapping[str, Any]) -> str:
    """Write a dict as TOML. Raises `SpecError` for each value that TOML cannot have."""
    wrong: list[Mistake] = []
    plain = _plain(document, "", wrong)
    if wrong:
        raise SpecError(THE_DICT, wrong)
    return "\n".join(_lines(plain)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """Write each table under its header, one value a line: libraries would move inner tables to the
    end, and the order of hyperparameters counts.
    """
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    for key, value in document.items():
        if key not in tables:
            yield f"{_key(key)} = {_inline(value)}"
    for key, table in tables.items():
        yield f"\n[{_key(key)}]"
        yield from (f"{_key(inner)} = {_inline(value)}" for inner, value in table.items())


def _inline(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():  # what JSON leaves as it is and TOML does not: DEL
            return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_inline, value))}]"
        case dict():
            inside = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items())
            return f"{{ {inside} }}" if value else "{}"
        case dt.date() | dt.time():
            return value.isoformat()
        case float():
            return float.__repr__(value)  # numpy's are floats that write themselves otherwise
    return str(int(value))


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _inline(key)


def _plain(value: Any, path: str, wrong: list[Mistake]) -> Any:
    match value:
        case bool() | int() | float() | str() | dt.date() | dt.time():
            return value
        case Path():
            return str(value)
        case Mapping():
            table = {}
            for key, item in value.items():
                inside = f"{path}.{key}" if path else str(key)
                if isinstance(key, str):
                    table[key] = _plain(item, inside, wrong)
                else:
                    wrong.append(Mistake(inside, f"{key!r:.60}", "text is needed as a key"))
            return table
        case Sequence() | range() if not isinstance(value, bytes | bytearray):
            return [_plain(each, path, wrong) for each in value]
    if callable(item := getattr(value, "tolist", None)):
        return _plain(item(), path, wrong)
    allowed = "text, numbers, booleans, lists and dicts are allowed"
    wrong.append(Mistake(path or THE_DICT, f"{value!r:.60}", allowed))
    return None
