"""The command of the person's that is run when a run is over: `on_end` of the spec.

The one rule: whatever becomes of it, the run's result and exit status stay what they are. It is
begun at most once for each end of a run; a file in the run's folder says so before it begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from seerd.commands.common import say
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.errors import DamagedWarning, JournalError
from seerd.runs import reading, wiring
from seerd.shell.home import RunFolder
from seerd.telling import run_json
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.words import ENDINGS
from seerd.units import format_duration, format_gpu_time

if TYPE_CHECKING:
    from seerd.runs.runs import Ended

LIMIT_S = 60.0
"""Seconds that the command may take; then it is killed, with all that it has started."""
MOST_SAID = 300
"""Characters of what it has printed that are told if it fails."""


def result_of(folder: RunFolder, ended: Ended) -> Json:
    """Return what `seerd run --json` ends with, after the person's command had it."""
    status = run_json.status_of(ended.state, folder.owner() is not None)
    told = {**run_json.result(ended.state, status), **run_json.leftovers(ended.leftovers)}
    try:
        at_end(folder, ended.state, told)
    except JournalError as error:
        say(f"whether the spec has an on_end is not known: {error}. The run's result stands")
    return told


def at_end(folder: RunFolder, state: State, told: Json, limit_s: float = LIMIT_S) -> None:
    """Run the command of the run's spec, if it has one and was not begun for this end before.

    told     the result, which it gets as JSON on its standard input
    limit_s  seconds that it may take
    """
    setup = wiring.load(folder)
    note = folder.path / f"on_end-{state.clock.seq}.json"
    if not setup.on_end or not _claim(note):
        return
    began = time.monotonic()
    why = _run(setup.on_end, Path(setup.spec_folder), folder, told, limit_s)
    took_s = round(time.monotonic() - began, 3)
    note.write_text(json.dumps({"command": setup.on_end, "took_s": took_s, "failed": why or None}))
    if why:
        say(f"on_end {why}; the run's result stands")


def catch_up(folder: RunFolder) -> None:
    """Run the command for an end whose process died before it could. Does nothing while a process
    runs the run. That the journal is damaged is said by what comes after this.
    """
    if folder.owner() is not None:
        return
    with warnings.catch_warnings(action="ignore", category=DamagedWarning):
        state = reading.read(folder)
    if state.phase is RunPhase.OVER:
        at_end(folder, state, run_json.result(state, run_json.status_of(state, alive=False)))


def _claim(note: Path) -> bool:
    """Note that the command begins now; False: that was noted before."""
    try:
        with note.open("x") as file:
            file.write("{}")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _run(command: str, where: Path, folder: RunFolder, told: Json, limit_s: float) -> str:
    """Run it by the shell, in a session of its own; return what went wrong, empty if nothing."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=where if where.is_dir() else folder.path,
            env={**os.environ, "SEERD_RUN": folder.run, "SEERD_TEXT": in_a_line(told)},
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be started: {error.strerror}"
    with process:
        try:
            said, _ = process.communicate(json.dumps(told).encode(), limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {format_duration(limit_s)} and was killed"
        finally:
            # Also what it has left running, and if Ctrl-C ends this process. The errors say that
            # nothing of it is left; the second one is macOS's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if not process.returncode:
        return ""
    last = printable(said.decode(errors="replace").strip()[-MOST_SAID:])
    how = f"ended with exit status {process.returncode}"
    return f"{how}: {last}" if last else how


def in_a_line(told: Json) -> str:
    """Write what has become of the run in one line."""
    models = [row["best"] for row in told.get("jobs", ())] or [told["best"]]
    known = ", ".join(f"{best['metric']:.6g} ({best['trial']})" for best in models if best)
    model = f"best {known}" if known else "no model"
    how = ENDINGS.get(told["status"], told["status"])
    took = format_duration(round(told["elapsed_s"]))
    spent = format_gpu_time(told["gpu_min"] * 60)
    return printable(f"{told['run']}: {how}; {model}; {took}, {spent}")
