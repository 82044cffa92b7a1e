"""`seerd watch`, `stop` and `pause`: a run that goes on elsewhere. Imports that cost more than
these commands are inside the functions.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from seerd.commands import common as c
from seerd.errors import UsageError

if TYPE_CHECKING:
    from seerd.shell.home import RunFolder

POLL_S = 0.2


def watch(folder: RunFolder, at: str | None) -> None:
    """Show a run `at` so long after its start (None: now): the live view, or lines where there is
    no terminal. Raises `UsageError`, `JournalError`.
    """
    at_s = None if at is None else c.seconds(at)
    if drawable():
        from seerd.telling.live.viewer import (
            watch_live,  # rich costs more to import than lines need
        )

        watch_live(folder, at_s)
        return
    from seerd.telling.plain import watch_run

    watch_run(folder, at_s)


def drawable() -> bool:
    """Return whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def stop(folder: RunFolder, job: str | None = None) -> None:
    """End a run in order, as Ctrl-C in its terminal does, or only one of its jobs. Raises
    `UsageError` if that does not run.
    """
    if job is not None:
        from seerd.commands.asking import stop_job

        stop_job(folder, job)
        return
    ask_to_stop(folder)
    print(f"asked {folder.run} to stop; its trials save now")


def ask_to_stop(folder: RunFolder) -> None:
    """Ask the run's daemon to end it: by a signal, or by a request if signals are not for it.
    Raises `UsageError` if it is not running.
    """
    owner = folder.owner()
    if owner is None:
        how = f"seerd show {folder.run} tells how it ended"
        raise UsageError(f"{folder.run} is not running ({how})")
    if not folder.is_in_a_thread():
        os.kill(owner, signal.SIGINT)
        return
    from seerd.commands.asking import ask
    from seerd.core.events import StopAsked

    ask(folder, StopAsked(at=0.0))


def pause(folder: RunFolder) -> None:
    """Stop a run, wait until nothing is held, and print what is left. Raises `UsageError`."""
    from seerd.runs import reading
    from seerd.telling.working import working
    from seerd.units import format_duration, format_gpu_time

    stop(folder)
    with working("waiting until trials have saved and everything is given back"):
        while folder.owner() is not None:
            time.sleep(POLL_S)
    state = reading.read(folder)
    if state.end.status != "interrupted":
        print(f"{folder.run} had come to its end: seerd show {folder.run}")
        return
    limits = state.facts.problem.limits
    left_s = max(0.0, limits.deadline_s - state.now)
    left_gpu_s = max(0.0, limits.budget_gpu_s - state.ledger.spent_gpu_s(state.now))
    print(
        f"{folder.run} is paused: nothing is held or billed, and its clock stands still; "
        f"{format_duration(round(left_s))} and {format_gpu_time(left_gpu_s)} are left\n"
        f"go on with: seerd resume {folder.run}"
    )
