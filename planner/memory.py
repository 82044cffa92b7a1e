"""What a policy remembers from one question to the next: a flat value that the journal keeps with
the plan, with which another process, or another version, can ask the next question.

It holds nothing that the view has, no generator's state (draws are numbered) and no library's
object. A memory that this version would not write counts as none; the plan's note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from msgspec import Meta

T = TypeVar("T")
Count = Annotated[int, Meta(ge=0)]  # of what may be remembered: a whole number, at least 0
Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Values = Mapping[str, Json]

FORGOTTEN = (
    "what the policy remembered of this run is not known to this version: "
    "it goes on from the reports alone"
)  # the note of a plan that takes a run up without a memory of it


@dataclass(frozen=True, slots=True)
class Memory:
    """Values by key. Each is JSON, replaced whole and never changed in place."""

    values: Values = field(default_factory=dict)  # what is remembered; empty at the first question
    # how it differs from the memory that it was made `after`; None: that key is gone
    changes: Values = field(default_factory=dict)

    def after(self, changes: Values) -> Memory:
        """Return the next memory. Setting a key to None forgets it."""
        values = {**self.values, **changes}
        for key in [key for key, value in changes.items() if value is None]:
            del values[key]
        return Memory(values, changes)


def recall(memory: Memory, version: int, read: Callable[[Values], T]) -> T | None:
    """Read the memory's values, or return None: another version, or `read` raises `ValueError`."""
    if memory.values.get("version") != version:
        return None
    try:
        return read(memory.values)
    except ValueError:
        return None


def holding(memory: Memory, values: Values) -> Memory:
    """Return the next memory with exactly these values; all others are forgotten."""
    gone: dict[str, Json] = {key: None for key in memory.values if key not in values}
    return memory.after({**gone, **differing(memory, values)})


def differing(memory: Memory, values: Values) -> Values:
    """Return the values that differ from what the memory has."""
    had = memory.values
    # identity first, as long lists are mostly the very same object
    return {k: v for k, v in values.items() if not (had.get(k) is v or had.get(k) == v)}
