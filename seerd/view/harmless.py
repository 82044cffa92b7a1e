"""Shows what others have written (metrics' names, configurations, causes of failures) as text and nothing else.

The one rule: a terminal is told what to do by us alone; colours and the screen are rich's, everything inside is printable.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from seerd.view.plain import printable


@dataclass(frozen=True, slots=True)
class Harmless:
    """`inner`, without what a terminal would obey."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield (
                segment
                if segment.control
                else segment._replace(text="\n".join(map(printable, segment.text.split("\n"))))
            )
