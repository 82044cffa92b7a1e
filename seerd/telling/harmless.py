"""Configurations as text, and texts of others (names, errors) without control characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # the command line uses the functions, and rich is slow to import
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from seerd.planner.parameter import Config, Value


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
            # Such characters become blanks: what is drawn has its width already.
            blanked = "".join(c if c.isprintable() or c == "\n" else " " for c in segment.text)
            yield segment if segment.control else segment._replace(text=blanked)


def config_text(config: Config) -> str:
    """Write a configuration on one line."""
    return printable(" ".join(f"{name}={value_text(value)}" for name, value in config.items()))


def value_text(value: Value) -> str:
    """Write one value of a configuration."""
    return printable(f"{value:.4g}" if isinstance(value, float) else str(scalar(value)))


def scalar(value: Any) -> Any:
    """Return a value for programs that have no lists: a list as JSON."""
    from seerd.agent.arguments import text_of

    return text_of(value) if isinstance(value, list | tuple) else value
