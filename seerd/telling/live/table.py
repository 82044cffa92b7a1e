"""The table of trials. What matters most has its place also where there is little room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.text import Text

from seerd.planner.trial_ids import own_id
from seerd.telling.harmless import printable, value_text
from seerd.telling.live.board import Board, TrialRow
from seerd.telling.live.look import LiveLook, at_cursor, listed, top_of

BARS = "▁▂▃▄▅▆▇█"
COLOURS = {
    "waiting": "dim",
    "starting": "yellow",
    "loading": "green",
    "running": "green",
    "saving": "yellow",
    "finished": "cyan",
    "out": "dim",
    "failed": "red",
}
MARK = "›"
WIDEST, WIDEST_METRIC = 12, 16
LEAST_WHY, ENOUGH_WHY, MOST_WHY = 20, 26, 34


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    head: str
    key: str  # what it is called where trials are sorted by it; empty: they cannot be
    cell: Callable[[TrialRow], str]
    right: bool = False  # True: aligned to the right
    most: int = WIDEST


def table(board: Board, look: LiveLook, width: int, height: int) -> list[Text]:
    """Draw a caption, the heads, and at most `height` less two trials."""
    rows = listed(board, look)
    shown = max(1, height - 2)
    place = at_cursor(rows, look)
    top = top_of(place, look, len(rows), shown)
    part = rows[top : top + shown]
    last, name = top + len(part), look.metric_of(board)
    of = f"of {len(rows)}" + (f" (of {len(board.rows)} in all)" if look.filter else "")
    by = printable(f"last {name}" if look.sort == "last" else look.sort)
    caption = Text(f"trials {top + 1 if rows else 0}-{last} {of}, by {by}", style="bold")
    caption.append(", reversed" if look.reverse else "")
    if look.filter and not look.typing:
        caption.append(f", with {look.filter!r}", style="yellow")
    if len(part) < len(board.rows):
        words = Counter(row.word for row in board.rows)
        counts = ", ".join(f"{number} {word}" for word, number in words.most_common())
        caption.append(f": {counts}", style="dim")
    if not part:
        return [caption, Text("no trial has that in its row" if look.filter else "")]
    columns, wide = _fitting(board, look, part, width)
    lines = [_line([column.head for column in columns], columns, wide, " ")]
    lines[0].stylize("bold")
    for at, row in enumerate(part, top):
        mark = MARK if at == place else " "
        line = _line([column.cell(row) for column in columns], columns, wide, mark)
        coloured = None if row.out else wide[0] + wide[1] + 3
        line.stylize("dim" if row.out else COLOURS.get(row.word, "dim"), 1, coloured)
        if at == place:
            line.stylize("bold")
        lines.append(line)
    return [caption, *lines]


def _fitting(
    board: Board, look: LiveLook, part: Sequence[TrialRow], width: int
) -> tuple[list[Column], list[int]]:
    """Choose as many columns as fit, those that matter most first, and their widths."""
    fixed = _fixed(board, look, width)
    why = Column("why", "", lambda row: row.why, most=24 if width < 100 else MOST_WHY)

    def value(name: str, row: TrialRow) -> str:
        return value_text(row.config[name]) if name in row.config else "-"

    params = [Column(printable(name), name, partial(value, name)) for name in board.parameters]
    room = width - 1 - sum(_width(column, part, look) + 2 for column in fixed)
    least = 0 if width < 60 else LEAST_WHY if width < 100 else ENOUGH_WHY
    for_why = min(_width(why, part, look), least)
    chosen: list[Column] = []
    for column in params:
        wanted = _width(column, part, look) + 2
        # Those that matter most come before why, the others after it.
        if room - wanted < (for_why if len(chosen) >= (1 if width < 100 else 2) else 0):
            break
        chosen.append(column)
        room -= wanted
    columns = [*fixed, *chosen, *([why] if room > 6 else [])]
    wide = [_width(column, part, look) for column in columns]
    if columns[-1] is why:
        wide[-1] = min(wide[-1], room)
    for number, (column, size) in enumerate(zip(columns, wide, strict=True)):
        arrow = ("▲" if look.reverse else "▼") if column.key and column.key == look.sort else ""
        columns[number] = replace(column, head=column.head[: size - len(arrow)] + arrow)
    return columns, wide


def _fixed(board: Board, look: LiveLook, width: int) -> list[Column]:
    name = look.metric_of(board)
    columns = [
        *([Column("job", "job", lambda row: row.job)] if board.jobs else []),
        Column("trial", "trial", lambda row: own_id(row.id)),
        Column("state", "state", lambda row: row.word),
        Column("GPU", "GPUs", lambda row: row.on, most=7),
        Column("reports" if width >= 100 else "rep", "reports", lambda row: str(row.reports), True),
        Column(
            f"last {printable(name)}"[: 8 if width < 100 else WIDEST_METRIC],
            "last",
            lambda row: number(row.last(name)),
            True,
            WIDEST_METRIC + 1,
        ),
    ]
    if width >= 120 and name == board.metrics[0]:
        columns.append(Column("best saved", "saved", lambda row: number(row.saved), True))
    if width >= 70:
        curve = 6 if width < 120 else 8 if width < 150 else 16
        values = partial(sparkline, width=curve)
        columns.append(Column("curve", "", lambda r: values(r.values.get(name, ())), most=curve))
    if any(row.bracket > 1 for row in board.rows):
        bracket = Column("bracket" if width >= 150 else "br", "", lambda row: str(row.bracket))
        columns.insert(2 + bool(board.jobs), bracket)
    return columns


def _width(column: Column, part: Sequence[TrialRow], look: LiveLook) -> int:
    longest = max(len(column.cell(row)) for row in part)
    head = min(len(column.head), column.most) + (column.key == look.sort)
    return min(max(longest, head), column.most)


def _line(cells: Sequence[str], columns: Sequence[Column], wide: Sequence[int], mark: str) -> Text:
    padded = []
    for cell, column, size in zip(cells, columns, wide, strict=True):
        left = cell if len(cell) <= size else cell[: size - 1] + "…"
        padded.append(cell[:size].rjust(size) if column.right else left.ljust(size))
    return Text(mark + "  ".join(padded).rstrip())


def number(value: float | None) -> str:
    """Write a metric; None: not finite, or there is none."""
    return "-" if value is None else f"{value:.5g}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw values as bars in `width` characters; a gap where a value is not finite.

    Of more values some are drawn, evenly, the last one always.
    """
    wanted = min(width, len(values))
    picked = [*(values[i * len(values) // wanted] for i in range(wanted - 1)), *values[-1:]]
    finite = [value for value in picked if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # halves, since the distance of two finite numbers need not be finite
    span = (high / 2 - low / 2) or 1.0

    def level(value: float | None) -> str:
        if value is None:
            return " "
        return BARS[min(len(BARS) - 1, int((value / 2 - low / 2) / span * len(BARS)))]

    return "".join(map(level, picked))
