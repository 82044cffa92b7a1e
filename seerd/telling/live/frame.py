"""The whole screen.

The one rule: a pure function of the board, the look, the trial's life and the size. It never has
more rows or columns than fit, and can be read without colours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from seerd.telling.live.board import Board
from seerd.telling.live.head import head
from seerd.telling.live.help_page import help_lines
from seerd.telling.live.look import LiveLook
from seerd.telling.live.strip import strip
from seerd.telling.live.table import table
from seerd.telling.live.trial_page import TrialLife, trial_lines

ROOMY = 20
"""With so many rows there are lines between the parts."""


@dataclass(frozen=True, slots=True)
class Screenful:
    """A screen."""

    lines: list[Text]  # its lines, none wider than the screen
    height: int  # how many trials, or lines of a page, it has room for
    down: int = 0  # how many lines of a page are above: no more than there are


def frame(
    board: Board,
    look: LiveLook,
    size: tuple[int, int],
    life: Callable[[str], TrialLife] = lambda trial: TrialLife(),
    note: str = "",
) -> Screenful:
    """Draw the screen of `size` (columns, rows).

    life  gives what is known of a trial beside its reports
    note  what is to be said in place of the keys; may be empty
    """
    width, height = size
    room, down = max(1, height - 1), 0
    if look.page != "run":
        page = help_lines(look, width) if look.page == "help" else _trial(board, look, width, life)
        down = max(0, min(look.down, len(page) - room))
        lines, shown = page[down : down + room], room
    else:
        lines, shown = _run(board, look, width, room)
    lines = [*lines[:room], *[Text()] * (room - len(lines)), _foot(look, width, note)]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Screenful(lines, shown, down)


def _trial(
    board: Board, look: LiveLook, width: int, life: Callable[[str], TrialLife]
) -> list[Text]:
    row = board.row(look.cursor)
    if row is None:
        return [Text(f"{look.cursor}  not there yet at this moment", style="bold")]
    return trial_lines(board, look, row, width, life(row.id))


def _run(board: Board, look: LiveLook, width: int, room: int) -> tuple[list[Text], int]:
    """Give trials the rows that the rest leaves, and the latest events those that trials leave."""
    roomy = room + 1 >= ROOMY
    gap = [Text()] if roomy else []
    top = head(board, look, width, roomy=roomy)
    machines = strip(board, width, max(1, room // 8))
    free = room - len(top) - len(machines) - 2 * len(gap)
    few = 1 if free < 8 else 3 if free < 16 else 6
    trials = table(board, look, width, max(3, free - few))
    told = board.told[-max(1, free - len(trials)) :]
    events = [Text(line, style="dim") for line in told]
    return [*top, *gap, *trials, *gap, *machines, *events], max(1, free - few - 2)


def _foot(look: LiveLook, width: int, note: str) -> Text:
    if look.asking:
        told = "stop the run? Trials save, and the best model is kept.  y yes  any other key no"
        return Text(told, style="bold reverse")
    if look.typing:
        return Text(f"/{look.filter}_  Enter to keep it, Esc for all trials", style="bold")
    if note:
        return Text(note, style="bold yellow")
    keys = _keys(look)
    text = Text(style="reverse")
    for key, what in keys:
        if len(text) + len(key) + len(what) + 4 > width:
            break
        text.append(f" {key}", style="bold")
        text.append(f" {what} ")
    text.append(" " * max(0, width - len(text)))
    return text


def _keys(look: LiveLook) -> list[tuple[str, str]]:
    """Return the keys that the last line names, the most useful ones first."""
    first = [("p", "PAUSED, GO ON")] if look.paused else []
    first += [("Esc", "all trials")] if look.filter and look.page == "run" else []
    leave = [("?", "keys"), ("q", "stop" if look.owner else "leave")]
    times = [("←→", "time")] if look.journeys else []
    times += [("end", "present")] if look.at_s is not None else []
    last = [("m", "metric"), *([] if look.paused else [("p", "pause")])]
    if look.page == "help":
        return [("Esc", "back"), ("↑↓", "scroll"), *leave[1:]]
    if look.page == "trial":
        return [*first, ("Esc", "back"), ("↑↓", "scroll"), *times, *leave, *last]
    moves = [("↑↓", "scroll"), ("Enter", "open"), ("s", "sort"), ("/", "filter")]
    return [*first, *moves, *times, *leave, *last]
