"""What a policy remembers from one question to the next: a flat value that the journal keeps with the plan.

The one rule: nothing else is remembered. Whoever has a problem, a memory and a view can ask the
next question, in another process or with another version; so a memory holds nothing that the view
has, no generator's state (draws are numbered, see `seerd.planner.draws`) and no library's object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Values by key. Each is JSON, replaced whole and never changed in place.

    values   what is remembered; empty before the first question
    changes  how it differs from the memory that it was made `after`; None: that key is gone
    """

    values: Mapping[str, Json] = field(default_factory=dict)
    changes: Mapping[str, Json] = field(default_factory=dict)

    def after(self, changes: Mapping[str, Json]) -> Memory:
        """The next memory. Setting a key to None forgets it."""
        values = {**self.values, **changes}
        for key in [key for key, value in changes.items() if value is None]:
            del values[key]
        return Memory(values, changes)
