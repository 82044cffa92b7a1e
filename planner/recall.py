"""Reading back what a policy remembers, and writing what differs.

The one rule: a memory is believed as a whole or not at all. One of another version, or one whose
values are not what this version writes, counts as none; people are told so in the plan's note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from seerd.planner.memory import Json, Memory

T = TypeVar("T")
Values = Mapping[str, Json]

FORGOTTEN = "what the policy remembered of this run is not known to this version: it goes on from the reports alone"
"""The note of a plan that takes a run up without a memory of it."""


class UnreadableError(Exception):
    """A value is missing, or is not of the type that this version writes."""


def recall(memory: Memory, version: int, read: Callable[[Values], T]) -> T | None:
    """What `read` makes of the values; None if they are of another version, or cannot be read."""
    if memory.values.get("version") != version:
        return None
    try:
        return read(memory.values)
    except UnreadableError:
        return None


def holding(memory: Memory, values: Values) -> Memory:
    """The next memory, with exactly these values: what it had beside them is forgotten."""
    gone: dict[str, Json] = {key: None for key in memory.values if key not in values}
    return memory.after({**gone, **differing(memory, values)})


def differing(memory: Memory, values: Values) -> Values:
    """Those of the values that the memory does not have yet."""
    had = memory.values
    return {key: value for key, value in values.items() if not _same(had.get(key), value)}


def _same(one: Json, other: Json) -> bool:
    """Long lists are mostly the very same ones."""
    return one is other or one == other


def whole(values: Values, key: str) -> int:
    """A whole number."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnreadableError(key)
    return value


def number(values: Values, key: str) -> float:
    """Any number."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableError(key)
    return float(value)


def text(values: Values, key: str) -> str:
    """A text."""
    value = values.get(key)
    if not isinstance(value, str):
        raise UnreadableError(key)
    return value


def names(values: Values, key: str) -> list[str]:
    """Ids of trials, in their order."""
    value = values.get(key)
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise UnreadableError(key)
    return cast("list[str]", value)
