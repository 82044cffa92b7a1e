"""A few digits that stand for a value with all that is in it, for transcripts that would be too
long with the whole of it.

The one rule: equal values have equal digits on every machine, so numbers are rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from types import FunctionType

import msgspec
from msgspec import structs

DIGITS = 6


def digest(*values: object) -> str:
    """Return the digits that stand for these values."""
    return hashlib.sha256(plain(values).encode()).hexdigest()[:DIGITS]


def plain(value: object) -> str:
    """Write a value with all that is in it."""
    match value:
        case Enum() | None | bool() | str() | int():
            return repr(value)
        case type() | FunctionType():
            return value.__name__
        case float():
            return f"{value + 0.0:.6g}"
        case Mapping():
            return f"{{{', '.join(f'{plain(k)}: {plain(v)}' for k, v in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(plain, value)))}}}"
        case msgspec.Struct():
            return _written(value, {one.name: one.default for one in structs.fields(value)})
        case _ if is_dataclass(value):
            return _written(value, {one.name: one.default for one in fields(value)})
    return f"({', '.join(map(plain, chain(value)))})"  # type: ignore[call-overload]


def _written(value: object, defaults: Mapping[str, object]) -> str:
    """What has its default is left out, so that a new field changes nothing where nobody sets it."""
    values = {name: getattr(value, name) for name in defaults}
    said = (f"{name}={plain(one)}" for name, one in values.items() if one != defaults[name])
    return f"{type(value).__name__}({', '.join(said)})"
