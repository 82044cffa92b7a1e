"""`seerd pause`: what `stop` does, and waiting until nothing is held any more."""

from __future__ import annotations

import time

from seerd.commands.stop import stop
from seerd.runs import reading
from seerd.shell.home import RunFolder
from seerd.telling.working import working
from seerd.units import format_duration, format_gpu_time

POLL_S = 0.2


def pause(folder: RunFolder) -> None:
    """End a run in order and wait for that, then say what is left for `seerd resume`.

    Raises `UsageError` if it is not running.
    """
    stop(folder)
    with working("waiting until trials have saved and everything is given back"):
        while folder.owner() is not None:
            time.sleep(POLL_S)
    state = reading.read(folder)
    if state.end.status != "interrupted":
        print(f"{folder.run} had come to its end: seerd show {folder.run}")
        return
    limits = state.facts.problem.limits
    spent_gpu_s = state.ledger.spent_gpu_s(state.now)
    left_s, left_gpu_s = limits.deadline_s - state.now, limits.budget_gpu_s - spent_gpu_s
    print(
        f"{folder.run} is paused: nothing is held or billed, and its clock stands still; "
        f"{format_duration(round(max(0.0, left_s)))} and "
        f"{format_gpu_time(max(0.0, left_gpu_s))} are left\n"
        f"go on with: seerd resume {folder.run}"
    )
