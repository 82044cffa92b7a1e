"""Every figure by which seerd decides, and what every field of a recorded value means where it is
left out, stand on a page each: no one changes them without seeing it.

`pytest tests/test_figures.py --rewrite` accepts what there is now; review the difference before you
commit it.
"""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from tests.digests import plain

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "figures"
ROOMS = {"core": "seerd/core", "planner": "planner"}
FIGURES = int, float, tuple, frozenset, Mapping, re.Pattern
"""What a constant can be that has figures; texts are for people."""
PLAIN = type(None), bool, int, float, Enum, msgspec.Struct, type, types.FunctionType


def modules(room: str) -> Iterator[types.ModuleType]:
    for path in sorted((ROOT / ROOMS[room]).glob("*.py")):
        if path.stem != "__init__":
            yield importlib.import_module(f"seerd.{room}.{path.stem}")


def constants(module: types.ModuleType) -> Iterator[str]:
    """Yield the constants that the module itself defines and that have figures."""
    source = Path(module.__file__ or "").read_text("utf-8")
    for name, value in vars(module).items():
        own = f"\n{name} = " in source or f"\n{name}: " in source or f"\n{name}, " in source
        of_figures = isinstance(value, FIGURES) or is_dataclass(value)
        if name.isupper() and (own or f", {name} = " in source) and of_figures:
            yield f"{module.__name__}.{name} = {written(value)}"


def written(value: object) -> str:
    """Write a value without its texts for people."""
    match value:
        case str():
            return repr(value) if " " not in value else "a text"
        case Mapping():
            return f"{{{', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(written, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(written, value))})"
        case re.Pattern():
            return repr(value.pattern)
    if isinstance(value, PLAIN) or is_dataclass(value):
        return plain(value)
    return str(getattr(value, "__name__", type(value).__name__))


def defaults(module: types.ModuleType) -> Iterator[str]:
    """Yield what each field of the module's values is if nobody says it."""
    for name, kind in vars(module).items():
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        if issubclass(kind, msgspec.Struct):
            for one in msgspec.structs.fields(kind):
                if one.default is not msgspec.NODEFAULT:
                    yield f"{module.__name__}.{name}.{one.name} = {written(one.default)}"
        elif is_dataclass(kind):
            for each in fields(kind):
                if each.default is not MISSING:
                    yield f"{module.__name__}.{name}.{each.name} = {written(each.default)}"


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("what", [constants, defaults], ids=lambda one: one.__name__)
def test_figures_are_those_of_their_page(
    what: object, room: str, pytestconfig: pytest.Config
) -> None:
    lines = [line for module in modules(room) for line in what(module)]  # type: ignore[operator]
    path = FOLDER / f"{what.__name__}_of_{room}.txt"  # type: ignore[attr-defined]
    if pytestconfig.getoption("rewrite"):
        path.write_text("".join(f"{line}\n" for line in lines))
    assert path.read_text().splitlines() == lines
