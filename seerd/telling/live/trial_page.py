"""The page of one trial: its curve, its history as `seerd replay --trial` has it, its log's end."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from seerd.errors import SeerdError
from seerd.shell.home import RunFolder
from seerd.telling import logs
from seerd.telling.harmless import config_text, harmless, printable
from seerd.telling.live.board import Board, TrialRow
from seerd.telling.live.look import LiveLook
from seerd.telling.live.table import number, sparkline
from seerd.telling.plan_json import Json
from seerd.units import count

LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class TrialLife:
    """What is known of a trial beside its reports."""

    history: Json | None = None  # what `replay --trial --json` prints; None: it was not read
    # the last lines of its log, empty if there are none here; None: not read
    log: tuple[str, ...] | None = None


def trial_lines(
    board: Board, look: LiveLook, row: TrialRow, width: int, life: TrialLife
) -> list[Text]:
    """Draw the page."""

    def wrapped(text: str) -> list[Text]:
        return list(Text(text).wrap(console, width))

    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    key = look.metric_of(board)
    name = row.metric if key == board.metrics[0] else key
    run, values = printable(board.run), row.values.get(key, ())
    finite = [value for value in values if value is not None]
    head = Text(f"{row.id}  {row.word}", style="bold")
    head.append(f"  {row.why}" if row.why else "")
    where = f"{count(row.reports, 'report')}, last {printable(name)} {number(row.last(key))}"
    where += f", best saved {number(row.saved)}" + (f", on GPU {row.on}" if row.gpus else "")
    curve = Text(f"{printable(name)} by report", style="bold")
    span = f"  {number(min(finite))} to {number(max(finite))}" if finite else "  nothing finite"
    curve.append(span if values else "  no report yet", style="dim not bold")
    lines = [head, *wrapped(where), *wrapped(config_text(row.config)), Text(), curve]
    lines += [Text(sparkline(values, width), style="cyan"), Text()]
    if life.history is None:
        lines += wrapped(f"its history, and why: seerd replay {run} --trial {row.id}")
        lines.append(Text())
    else:
        # no run needs it before a page is opened
        from seerd.telling.explanation.pages import trial_history

        drawn = console.render_lines(Group(*trial_history(life.history)), pad=False)
        parts = ["".join(segment.text for segment in line).rstrip() for line in drawn]
        lines += [*wrapped(f"why: {life.history['why']}"), Text(), *map(Text, parts)]
    if life.log is None:
        return lines
    if not life.log:
        text = f"nothing printed yet that is here: seerd logs {run} {row.id}"
        return [*lines, Text(text, style="dim")]
    log = (Text(f"  {harmless(line)}") for line in life.log)
    return [*lines, Text("the end of its log", style="bold"), *log]


def log_tail(folder: RunFolder, trial: str) -> tuple[str, ...]:
    """Return the last lines of the log of a trial's newest attempt that was written to last."""
    with contextlib.suppress(SeerdError, OSError):
        paths = logs.newest_attempts(logs.log_files(folder, trial), folder)
        if paths:
            newest = max(paths, key=lambda path: path.stat().st_mtime)
            return tuple("".join(logs.tail(newest, LOG_LINES)).splitlines())
    return ()
