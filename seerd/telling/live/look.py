"""What the user has chosen to see, and what each key changes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from seerd.planner.model import Mode
from seerd.telling.harmless import scalar, value_text
from seerd.telling.live.board import Board, TrialRow

Page = Literal["run", "trial", "help"]
Act = Literal["", "leave", "stop", "back", "forth", "live"]
"""What a key asks for beyond looking: to leave the view, to stop the run, to go back and forth in
time, to go to the present.
"""
FIXED = ("last", "saved", "reports", "GPUs", "state", "trial")  # what can be sorted by


@dataclass(frozen=True, slots=True)
class LiveLook:
    """What is shown."""

    page: Page = "run"  # the run, one trial, or the keys
    owner: bool = False  # True: this process runs the run, so that leaving the view would stop it
    journeys: bool = False  # True: it is possible to go back and forth in time
    cursor: str = ""  # the trial that is marked; empty: the first one that is shown
    top: int = 0  # how many trials are above the first that is shown
    down: int = 0  # how many lines of a page are above the first that is shown
    sort: str = "last"  # what trials are sorted by; one of `FIXED` or a hyperparameter
    reverse: bool = False  # True: the other way round
    filter: str = ""  # text that a trial must have somewhere in its row; all words of it
    typing: bool = False  # True: the filter is being written
    metric: int = 0  # number of the metric, modulo how many there are
    paused: bool = False  # True: what is shown does not change by itself
    asking: bool = False  # True: the user has been asked whether to stop the run
    at_s: float | None = None  # moment that is shown, seconds since the run began; None: now

    def metric_of(self, board: Board) -> str:
        """Return the metric that is shown."""
        return board.metrics[self.metric % len(board.metrics)]


def listed(board: Board, look: LiveLook) -> list[TrialRow]:
    """Return the trials that are shown, in their order."""
    words = look.filter.lower().split()

    def text(row: TrialRow) -> str:
        config = " ".join(f"{name}={scalar(value)}" for name, value in row.config.items())
        return f"{row.id} {row.word} {row.why} {config}".lower()

    rows = [row for row in board.rows if all(word in text(row) for word in words)]
    if look.sort != "last" or look.metric_of(board) != board.metrics[0]:
        rows.sort(key=_key(board, look))
    if look.reverse:
        rows.reverse()
    return rows


def at_cursor(rows: list[TrialRow], look: LiveLook) -> int:
    """Return the place of the marked trial among these; the first one shown if it is not there."""
    place = next((place for place, row in enumerate(rows) if row.id == look.cursor), None)
    return min(look.top, max(0, len(rows) - 1)) if place is None else place


def top_of(place: int, look: LiveLook, rows: int, height: int) -> int:
    """Return how many rows are above the first shown, so that the marked one is among `height`."""
    top = min(max(look.top, place - height + 1), place)
    return max(0, min(top, rows - height))


def press(look: LiveLook, key: str, board: Board, height: int) -> tuple[LiveLook, Act]:
    """Return the look after a key, and what else it asks for; `height`: rows on the screen."""
    if look.asking:
        return replace(look, asking=False), "stop" if key in ("y", "Y") else ""
    if look.typing:
        typed = {"backspace": look.filter[:-1], "clear": "", "escape": ""}
        text = typed.get(key, look.filter + key * (len(key) == 1))
        top = look.top if text == look.filter else 0
        return replace(look, filter=text, top=top, typing=key not in ("enter", "escape")), ""
    if key == "q":
        return (replace(look, asking=True), "") if look.owner else (look, "leave")
    if look.journeys and key in TIMES:
        return look, TIMES[key]
    if key == "?":
        return replace(look, page="run" if look.page == "help" else "help", down=0), ""
    if key == "p":
        return replace(look, paused=not look.paused), ""
    if key == "m":
        return replace(look, metric=(look.metric + 1) % len(board.metrics)), ""
    if look.page == "run":
        return _on_the_run(look, key, board, height), ""
    if key in ("escape", "enter", "backspace"):
        return replace(look, page="run", down=0), ""
    return replace(look, down=_moved(look.down, key, height)) if key in MOVES else look, ""


TIMES: dict[str, Act] = {
    "left": "back", "[": "back", "right": "forth", "]": "forth", "end": "live", "0": "live",
}  # fmt: skip


FAR = 10**9
MOVES = {
    "up": (-1, 0), "k": (-1, 0), "down": (1, 0), "j": (1, 0),
    "page up": (0, -1), "page down": (0, 1), " ": (0, 1),
    "home": (-FAR, 0), "g": (-FAR, 0), "end": (FAR, 0), "G": (FAR, 0),
}  # fmt: skip
"""Key -> how many lines, and how many screens, it leads down."""


def _moved(place: int, key: str, height: int) -> int:
    lines, screens = MOVES[key]
    return max(0, place + lines + screens * max(1, height - 1))


def _on_the_run(look: LiveLook, key: str, board: Board, height: int) -> LiveLook:
    if key == "/":
        return replace(look, typing=True)
    if key == "escape":
        return replace(look, filter="", cursor="", top=0)
    if key == "s":
        columns = (*FIXED, *(["job"] if board.jobs else []), *board.parameters)
        known = look.sort if look.sort in columns else columns[0]
        following = columns[(columns.index(known) + 1) % len(columns)]
        return replace(look, sort=following, reverse=False, cursor="", top=0)
    if key == "r":
        return replace(look, reverse=not look.reverse, cursor="", top=0)
    if key != "enter" and key not in MOVES:
        return look
    rows = listed(board, look)
    if not rows:
        return look
    place = at_cursor(rows, look)
    if key == "enter":
        return replace(look, page="trial", cursor=rows[place].id, down=0)
    place = min(_moved(place, key, height), len(rows) - 1)
    return replace(look, cursor=rows[place].id, top=top_of(place, look, len(rows), height))


def _key(board: Board, look: LiveLook) -> Callable[[TrialRow], tuple[object, ...]]:
    """Return the sort key: the best, the most and the longest first, missing values last."""
    metric = look.metric_of(board)
    own = metric == board.metrics[0]

    def number(value: float | None, mode: Mode) -> tuple[bool, float]:
        return value is None, (value or 0.0) * (1 if mode == "min" else -1)

    def last(row: TrialRow) -> tuple[object, ...]:
        # Whether more of another metric is better is not known: the largest is first.
        mode: Mode = row.mode if own else "max"
        return (row.turn if own else 0, *number(row.last(metric), mode), row.place)

    keys: dict[str, Callable[[TrialRow], tuple[object, ...]]] = {
        "last": last,
        "saved": lambda row: (row.turn, *number(row.saved, row.mode), row.place),
        "job": lambda row: (row.place,),
        "reports": lambda row: (-row.reports, row.place),
        "GPUs": lambda row: (-row.gpus, row.place),
        "state": lambda row: (row.out, row.word, row.place),
        "trial": lambda row: (len(row.id), row.id),
    }

    def parameter(row: TrialRow) -> tuple[object, ...]:
        value = row.config.get(look.sort)
        if isinstance(value, int | float):
            return (0, float(value), "", row.place)
        return (2 - (value is not None), 0.0, value_text(value or ""), row.place)

    return keys.get(look.sort, parameter)
