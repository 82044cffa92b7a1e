"""Draw docs/lifecycle.md from the tables of legal moves in seerd/core/lifecycle.py.

`make docs` runs it.

The one rule: nothing in that page is written by hand, so it cannot say anything else than the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from inspect import getdoc, getsource
from pathlib import Path
from typing import TypeVar

from seerd.core.lifecycle import INSTANCE_MOVES, RUN_MOVES, TRIAL_MOVES

PAGE = Path(__file__).with_name("lifecycle.md")
OPENING = """# Phases

Every phase that a run, a trial or an instance can be in, and every way from one to another.
Anything else is a bug of the core and stops it. `make docs` draws this page from
`seerd/core/lifecycle.py`.
"""


Phase = TypeVar("Phase", bound=StrEnum)


def page() -> str:
    """Draw the whole page as Markdown; GitHub shows the diagrams."""
    return "\n".join(
        [
            OPENING,
            _section("A run", RUN_MOVES),
            _section("A trial", TRIAL_MOVES),
            _section("An instance", INSTANCE_MOVES),
        ]
    )


def _section(title: str, moves: Mapping[Phase, frozenset[Phase]]) -> str:
    first = next(iter(moves))
    lines = [f"    [*] --> {first}"]
    for old, ways in moves.items():
        lines += [f"    {old} --> {new}" for new in sorted(ways)] or [f"    {old} --> [*]"]
    diagram = ["```mermaid", "stateDiagram-v2", *lines, "```", ""]
    meanings = re.findall(r'= "(\w+)"  # (.+)', getsource(type(first)))
    phases = [f"- `{phase}`: {meaning}" for phase, meaning in meanings]
    return "\n".join([f"## {title}", "", getdoc(type(first)) or "", "", *phases, "", *diagram])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
