"""Texts of others (metrics' names, configurations, errors) without control characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line uses the functions, and rich is slow to import
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


def printable(text: str) -> str:
    r"""Write every character that a terminal or a renderer could obey as Python does: `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def harmless(text: str) -> str:
    """Do the same in each line; lines stay lines, tabs become blanks."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


@dataclass(frozen=True, slots=True)
class Harmless:
    """Something to draw, without what a terminal could obey."""

    inner: RenderableType  # what to draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else segment._replace(text=_blanked(segment.text))


def _blanked(text: str) -> str:
    """Blank what a terminal could obey: what is drawn has its width already."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)
