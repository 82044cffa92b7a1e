"""The page of one trial: its curve, its history as `seerd replay --trial` has it, its log's end."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console, Group
from rich.text import Text

from seerd.errors import SeerdError
from seerd.shell.home import RunFolder
from seerd.telling import logs
from seerd.telling.harmless import config_text, harmless, printable
from seerd.telling.live.board import Board, TrialRow
from seerd.telling.live.look import LiveLook
from seerd.telling.live.table import BARS, height_of, number, sampled
from seerd.telling.plan_json import Json
from seerd.units import count

PLOT_ROWS = 8
AXIS = 11


@dataclass(frozen=True, slots=True)
class TrialLife:
    """What is known of a trial beside its reports."""

    history: Json | None = None  # what `replay --trial --json` prints, None while it is being read
    # the last lines of its log, empty if there are none here; None: not read
    log: tuple[str, ...] | None = None
    failed: str = ""  # why the trial could not be read, or not read again; may be empty


def trial_lines(
    board: Board, look: LiveLook, row: TrialRow, width: int, life: TrialLife
) -> list[Text]:
    """Draw the page."""
    key = look.metric_of(board)
    name = row.metric if key == board.metrics[0] else key
    head = Text(f"{row.id}  {row.word}", style="bold")
    head.append(f"  {row.why}" if row.why else "")
    where = f"{count(row.reports, 'report')}, last {printable(name)} {number(row.last(key))}"
    where += f", best saved {number(row.saved)}" + (f", on GPU {row.on}" if row.gpus else "")
    return [
        head,
        *_wrapped(where, width),
        *_wrapped(config_text(row.config), width),
        Text(),
        *plot([point.reports for point in row.points], row.values.get(key, ()), name, width),
        Text(),
        *_history(board.run, row.id, life, width),
        *_log(board.run, row.id, life.log),
    ]


def plot(at: Sequence[int], values: Sequence[float | None], name: str, width: int) -> list[Text]:
    """Draw a metric over reports, in `PLOT_ROWS` lines with an axis and a title."""
    title = Text(f"{printable(name)} by report", style="bold")
    room = max(8, width - AXIS - 1)
    picked = sampled(values, room)
    finite = [value for value in picked if value is not None and math.isfinite(value)]
    if not finite:
        return [title, Text("  no report yet" if not values else "  nothing finite", style="dim")]
    low, high = min(finite), max(finite)
    wide = max(1, min(4, room // len(picked)))  # few reports get wide bars
    lines = [title]
    for line in range(PLOT_ROWS - 1, -1, -1):
        axis = {PLOT_ROWS - 1: number(high), 0: number(low)}.get(line, "")
        text = Text(f"{axis:>{AXIS - 2}} ┤", style="dim")
        bars = "".join(_bar(value, low, high, line) * wide for value in picked)
        lines.append(text.append(bars, style="cyan"))
    last = f"{at[-1]}"
    under = f"{at[0]}".ljust(max(1, len(picked) * wide - len(last)))
    return [*lines, Text(" " * AXIS + under + (last if len(picked) > 1 else ""), style="dim")]


def _bar(value: float | None, low: float, high: float, line: int) -> str:
    """Draw the part of a bar that is in a line, 0 the lowest."""
    if value is None or not math.isfinite(value):
        return " "
    eighths = 1 + round(height_of(value, low, high) * (PLOT_ROWS * len(BARS) - 1))
    part = eighths - line * len(BARS)
    return " " if part <= 0 else BARS[min(part, len(BARS)) - 1]


def _wrapped(text: str, width: int) -> list[Text]:
    return list(Text(text).wrap(Console(width=width, file=io.StringIO()), width))


def _history(run: str, trial: str, life: TrialLife, width: int) -> list[Text]:
    failed = []
    if life.failed:
        text = f"its history could not be read: {printable(life.failed)}; try seerd replay"
        failed = [*_wrapped(f"{text} {printable(run)} --trial {trial}", width), Text()]
    if life.history is None:
        return failed or [Text("its history is being read", style="dim"), Text()]
    from seerd.telling.explanation.pages import (
        trial_history,  # no run needs it before a page is opened
    )

    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    lines = console.render_lines(Group(*trial_history(life.history)), pad=False)
    parts = ["".join(segment.text for segment in line).rstrip() for line in lines]
    return [*failed, *_wrapped(f"why: {life.history['why']}", width), Text(), *map(Text, parts)]


def _log(run: str, trial: str, log: Sequence[str] | None) -> list[Text]:
    if log is None:
        return []
    if not log:
        text = f"nothing printed yet that is here: seerd logs {printable(run)} {trial}"
        return [Text(text, style="dim")]
    lines = (Text(f"  {harmless(line)}") for line in log)
    return [Text("the end of its log", style="bold"), *lines]


LOG_LINES = 12
AGAIN_S = 5.0  # how long after one reading the journal is read again for the page that is open


class Lives:
    """Reads the life of the trial whose page is open, in another process."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._histories: dict[str, Json] = {}
        self._failed: dict[str, str] = {}
        self._reading: tuple[str, subprocess.Popen[bytes], IO[bytes]] | None = None
        self._read_at: dict[str, float] = {}

    @property
    def reading(self) -> bool:
        """Whether a process reads."""
        return self._reading is not None

    def of(self, trial: str) -> TrialLife:
        """Return what is known now; it is read again now and then, until that fails once."""
        self._look()
        due = time.monotonic() - self._read_at.get(trial, -AGAIN_S) >= AGAIN_S
        if self._reading is None and due and trial not in self._failed:
            self._read(trial)
        failed = self._failed.get(trial, "")
        return TrialLife(self._histories.get(trial), log_tail(self._folder, trial), failed)

    def close(self) -> None:
        """End the reading that is under way."""
        if self._reading is not None:
            _, process, output = self._reading
            process.kill()
            process.wait()
            output.close()
            self._reading = None

    def _read(self, trial: str) -> None:
        output, nothing = tempfile.TemporaryFile(), subprocess.DEVNULL  # noqa: SIM115
        command = reader(self._folder, trial)
        try:
            process = subprocess.Popen(
                command, stdin=nothing, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            output.close()
            self._failed[trial] = str(error)
        else:
            self._reading = (trial, process, output)

    def _look(self) -> None:
        if self._reading is None or self._reading[1].poll() is None:
            return
        trial, process, output = self._reading
        self._reading, self._read_at[trial] = None, time.monotonic()
        with output:
            output.seek(0)
            lines = output.read().decode(errors="replace").rstrip().split("\n")
        # Python may write beside it, also while it exits.
        history = next((line for line in lines if line.startswith("{")), None)
        if process.returncode == 0 and history is not None:
            self._histories[trial] = json.loads(history)
        else:
            self._failed[trial] = lines[-1] or f"exit status {process.returncode}"


def reader(folder: RunFolder, trial: str) -> list[str]:
    """Return the command that prints the history of a trial."""
    # -P: a numbers.py where the run was started must not take the place of Python's own.
    return [sys.executable, "-P", "-m", "seerd.telling.live.trial_page", str(folder.path), trial]


def log_tail(folder: RunFolder, trial: str) -> tuple[str, ...]:
    """Return the last lines of the log of a trial's newest attempt that was written to last."""
    with contextlib.suppress(SeerdError, OSError):
        paths = logs.newest_attempts(logs.log_files(folder, trial), folder)
        if paths:
            newest = max(paths, key=lambda path: path.stat().st_mtime)
            return tuple("".join(logs.tail(newest, LOG_LINES)).splitlines())
    return ()


def main(path: str, trial: str) -> None:
    """Print the history of a trial, as JSON."""
    from seerd.telling.explanation.as_json import trial_json
    from seerd.telling.explanation.timeline import read_history

    run = read_history(RunFolder(Path(path)))
    print(json.dumps(trial_json(run.state.trials[trial], run.timeline, run.state)))


if __name__ == "__main__":
    main(*sys.argv[1:])
