"""The user's command that is run when a run is over: `on_end` of the spec. Whatever becomes of it,
the run's result and exit status stay. It is begun at most once for each end of a run; a file in the
run's folder records that before it begins.
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
from seerd.telling.explanation.sentences import ENDINGS
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.units import format_duration, format_gpu_time

if TYPE_CHECKING:
    from seerd.runs.runs import Ended

LIMIT_S = 60.0  # seconds for the command; then it is killed, with all that it has started
MOST_PRINTED = 300  # characters of its output that are printed if it fails


def result_of(folder: RunFolder, ended: Ended) -> Json:
    """Return what `seerd run --json` ends with, after the user's command has received it."""
    status = run_json.status_of(ended.state, folder.owner() is not None)
    result = {**run_json.result(ended.state, status), **run_json.leftovers(ended.leftovers)}
    try:
        at_end(folder, ended.state, result)
    except JournalError as error:
        say(f"whether the spec has an on_end is not known: {error}. The run's result stands")
    return result


def at_end(folder: RunFolder, state: State, result: Json, limit_s: float = LIMIT_S) -> None:
    """Run the spec's command, if there is one and it was not begun for this end before; it gets the
    result as JSON on its standard input.
    """
    setup = wiring.load(folder)
    note = folder.path / f"on_end-{state.clock.seq}.json"
    if not setup.on_end:
        return
    try:
        with note.open("x") as file:  # it begins now, unless that was recorded before
            file.write("{}")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return
    began = time.monotonic()
    why = _run(setup.on_end, Path(setup.spec_folder), folder, result, limit_s)
    took_s = round(time.monotonic() - began, 3)
    note.write_text(json.dumps({"command": setup.on_end, "took_s": took_s, "failed": why or None}))
    if why:
        say(f"on_end {why}; the run's result stands")


def catch_up(folder: RunFolder) -> None:
    """Run the command for an end whose process died before it could; not while a process runs the
    run. A damaged journal is reported by what comes after this.
    """
    if folder.owner() is not None:
        return
    with warnings.catch_warnings(action="ignore", category=DamagedWarning):
        state = reading.read(folder)
    if state.phase is RunPhase.OVER:
        at_end(folder, state, run_json.result(state, run_json.status_of(state, alive=False)))


def _run(command: str, where: Path, folder: RunFolder, result: Json, limit_s: float) -> str:
    """Run it by the shell, in a session of its own; return what went wrong, empty if nothing."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=where if where.is_dir() else folder.path,
            env={**os.environ, "SEERD_RUN": folder.run, "SEERD_TEXT": in_a_line(result)},
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be started: {error.strerror}"
    with process:
        try:
            output, _ = process.communicate(json.dumps(result).encode(), limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {format_duration(limit_s)} and was killed"
        finally:
            # Also what it has left running, and if Ctrl-C ends this process. The errors say that
            # nothing of it is left; the second one is macOS's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if not process.returncode:
        return ""
    last = printable(output.decode(errors="replace").strip()[-MOST_PRINTED:])
    how = f"ended with exit status {process.returncode}"
    return f"{how}: {last}" if last else how


def in_a_line(result: Json) -> str:
    """Return the end of the run in one line."""
    models = [row["best"] for row in result.get("jobs", ())] or [result["best"]]
    best = ", ".join(f"{one['metric']:.6g} ({one['trial']})" for one in models if one)
    model = f"best {best}" if best else "no model"
    kinds = {row["result"] for row in result.get("jobs", [result])}
    model += ", no model saved" if "configuration" in kinds and "model" not in kinds else ""
    how = ENDINGS.get(result["status"], result["status"])
    took = format_duration(round(result["elapsed_s"]))
    spent = format_gpu_time(result["gpu_min"] * 60)
    return printable(f"{result['run']}: {how}; {model}; {took}, {spent}")
