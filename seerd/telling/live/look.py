"""What the user has chosen to see, and what each key changes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from seerd.planner.parameter import Value
from seerd.telling.configs import scalar, value_text
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
    asking: bool = False  # True: the person has been asked whether to stop the run
    at_s: float | None = None  # moment that is shown, seconds since the run began; None: now

    def metric_of(self, board: Board) -> str:
        """Return the metric that is shown."""
        return board.metrics[self.metric % len(board.metrics)]


def listed(board: Board, look: LiveLook) -> list[TrialRow]:
    """Return the trials that are shown, in their order."""
    words = look.filter.lower().split()
    rows = [row for row in board.rows if not words or _has(row, words)]
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
        return _typed(look, key), ""
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
    if look.page != "run":
        return _on_a_page(look, key, height), ""
    return _on_the_run(look, key, board, height), ""


TIMES: dict[str, Act] = {
    "left": "back", "[": "back", "right": "forth", "]": "forth", "end": "live", "0": "live",
}  # fmt: skip


def _typed(look: LiveLook, key: str) -> LiveLook:
    if key == "enter":
        return replace(look, typing=False)
    if key == "escape":
        return replace(look, typing=False, filter="", top=0)
    if key == "backspace":
        return replace(look, filter=look.filter[:-1], top=0)
    if key == "clear":
        return replace(look, filter="", top=0)
    return replace(look, filter=look.filter + key, top=0) if len(key) == 1 else look


MOVES: dict[str, Callable[[int, int], int]] = {
    "up": lambda at, page: at - 1,
    "k": lambda at, page: at - 1,
    "down": lambda at, page: at + 1,
    "j": lambda at, page: at + 1,
    "page up": lambda at, page: at - page,
    "page down": lambda at, page: at + page,
    " ": lambda at, page: at + page,
    "g": lambda at, page: 0,
    "home": lambda at, page: 0,
    "G": lambda at, page: 10**9,
    "end": lambda at, page: 10**9,
}
"""Key -> where it leads, from a place, with so many on one screen."""


def _on_a_page(look: LiveLook, key: str, height: int) -> LiveLook:
    if key in ("escape", "enter", "backspace"):
        return replace(look, page="run", down=0)
    if key in MOVES:
        return replace(look, down=max(0, MOVES[key](look.down, max(1, height - 1))))
    return look


def _on_the_run(look: LiveLook, key: str, board: Board, height: int) -> LiveLook:
    if key == "/":
        return replace(look, typing=True)
    if key == "escape":
        return replace(look, filter="", cursor="", top=0)
    if key == "s":
        columns = (*FIXED, *(["job"] if board.jobs else []), *board.weighty)
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
    place = min(max(0, MOVES[key](place, max(1, height - 1))), len(rows) - 1)
    return replace(look, cursor=rows[place].id, top=top_of(place, look, len(rows), height))


def _has(row: TrialRow, words: list[str]) -> bool:
    config = " ".join(f"{name}={scalar(value)}" for name, value in row.config.items())
    text = f"{row.id} {row.word} {row.why} {config}".lower()
    return all(word in text for word in words)


def _key(board: Board, look: LiveLook) -> Callable[[TrialRow], tuple[object, ...]]:
    """Return the sort key: the best, the most and the longest first, missing values last."""
    metric = look.metric_of(board)
    match look.sort:
        case "last" if metric == board.metrics[0]:
            return lambda row: (row.turn, *_number(row.last(metric), _sign(row)), row.place)
        case "last":
            # Whether more of another metric is better is not known: the largest is first.
            return lambda row: (*_number(row.last(metric), -1.0), row.place)
        case "saved":
            return lambda row: (row.turn, *_number(row.saved, _sign(row)), row.place)
        case "job":
            return lambda row: (row.place,)
        case "reports":
            return lambda row: (-row.reports, row.place)
        case "GPUs":
            return lambda row: (-row.gpus, row.place)
        case "state":
            return lambda row: (row.out, row.word, row.place)
        case "trial":
            return lambda row: (len(row.id), row.id)
        case name:
            return lambda row: (*_value(row.config.get(name)), row.place)


def _sign(row: TrialRow) -> float:
    return -1.0 if row.mode == "max" else 1.0


def _number(value: float | None, sign: float) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value


def _value(value: Value | None) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, value_text(value))
