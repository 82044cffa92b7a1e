"""Shows what others have written (metrics' names, configurations, causes of failures) as text.

The one rule: a terminal is told what to do by us alone; colours and the screen are rich's,
everything inside is printable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs the functions before it can afford rich
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


def printable(text: str) -> str:
    """Replace what a terminal would obey by blanks: nothing paints over anything."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def harmless(text: str) -> str:
    """Make each line printable; lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


@dataclass(frozen=True, slots=True)
class Harmless:
    """`inner`, without what a terminal would obey."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))
