"""Shows what others have written (metrics' names, configurations, causes of failures) as plain
text.

The one rule: only seerd controls the terminal. Colours and the screen are rich's; everything in
them is printable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line uses the functions, and rich is slow to import
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


def printable(text: str) -> str:
    """Replace every character that a terminal could obey by a blank."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def harmless(text: str) -> str:
    """Replace in each line what a terminal could obey; lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


@dataclass(frozen=True, slots=True)
class Harmless:
    """Something to draw, without what a terminal could obey.

    inner  what to draw
    """

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))
