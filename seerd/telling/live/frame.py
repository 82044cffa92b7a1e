"""The whole screen: a pure function of the board, the look, the trial's life and the size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from seerd.telling.live.board import Board
from seerd.telling.live.head import head
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

    life  returns what is known of a trial beside its reports
    note  replaces the line of keys; may be empty
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
    """Give trials the rows that the rest leaves, and the latest events what trials leave."""
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
    """Return the keys that the last line names, the most useful first."""
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


KEYS = (
    ("↑ ↓  j k", "one trial, or one line, up or down"),
    ("PgUp PgDn", "a screen up or down"),
    ("g G", "to the first, to the last"),
    ("s r", "sort by the next column; the other way round"),
    ("/", "only trials that have these words in id, state, why or configuration"),
    ("Enter", "open the marked trial: its curve, its history and why, the end of its log"),
    ("Esc", "back; without a page: all trials again"),
    ("m", "the next metric"),
    ("p", "the view stands still, or goes on; the run always goes on"),
)
TIMES = ("← →  [ ]", "back and forth in time; End or 0: the present")
LEAVES = "leave the view; the run goes on"
STOPS = "stop the run, after a question; Ctrl-C does it at once"
COLUMNS = (
    ("last METRIC", "of the trial's last report"),
    ("best saved", "of its best checkpoint in the store; the model that is handed back is the"),
    ("", "best of these, so it may have a better figure than any last report"),
    ("job", "whose trial it is, where jobs share the run: it stands among those of its job, by"),
    ("", "the metric of that job"),
    ("br", "the bracket: trials are compared with those of their own"),
    ("why", "until when it goes on, what it waits for, or how it stood if that decided:"),
    ("", "3rd of 8 at report 4"),
    ("0-3 t7 96%", "GPUs that are lent to t7; of late they computed for so much of the time"),
    ("█ ▒ ·", "used, committed (what giving everything back now would take), left"),
)


def help_lines(look: LiveLook, width: int) -> list[Text]:
    """Draw the page."""
    keys = [*KEYS, ("?", "these keys"), ("q", STOPS if look.owner else LEAVES)]
    keys += [TIMES] if look.journeys else []
    lines = [Text("keys", style="bold"), *(_line(*one) for one in keys), Text()]
    return [*lines, Text("what is shown", style="bold"), *(_line(*one) for one in COLUMNS)]


def _line(what: str, means: str) -> Text:
    return Text(f"  {what:<12}").append(means, style="dim" if not what else "")
