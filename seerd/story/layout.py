"""What the pages are made of: text that keeps to its column however narrow the terminal is.

The one rule: no line is wider than the terminal, and nothing is cut without saying so.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

MOST_LINES = 30


def wrapped(text: str, style: str = "") -> Table:
    """Text that is broken between words where the terminal ends."""
    table = Table.grid()
    table.add_column()
    table.add_row(Text(text, style=style))
    return table


def grid(rows: Sequence[tuple[str, str]]) -> Table:
    """Moments and what happened then; the text keeps to its column however narrow the terminal is."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True, min_width=9)
    table.add_column()
    for when, text in rows:
        table.add_row(Text(when), Text(text))
    return table


def shortened(rows: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The first and the last ones, if there are very many."""
    if len(rows) <= 2 * MOST_LINES:
        return rows
    note = ("", f"... {len(rows) - 2 * MOST_LINES} lines left out; --json has them all")
    return [*rows[:MOST_LINES], note, *rows[-MOST_LINES:]]
