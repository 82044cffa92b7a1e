"""Processes that simulate side by side, one on each core. They are killed at once if anything ends
the work early, Ctrl-C included.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_given: list[Any] = []


def each(
    work: Callable[[T], R], tasks: Sequence[T], tick: Callable[[], None], what: Any = None
) -> list[R]:
    """Do this work for each task, `tick` after every one; return the results in their order. Each
    worker is `given` a value once.
    """
    count = max(1, min(_cores(), len(tasks)))
    pool = ProcessPoolExecutor(count, initializer=_begin, initargs=(what,))
    try:
        waiting = [pool.submit(work, task) for task in tasks]
        for done in as_completed(waiting):
            done.result()
            tick()
        return [future.result() for future in waiting]
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def given() -> Any:
    """Return what this worker process was given."""
    return _given[0]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(what: Any) -> None:
    """Ignore Ctrl-C, which only the command handles, and end with the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = multiprocessing.parent_process()
    assert command is not None

    def end_with_command() -> None:
        command.join()
        os._exit(1)

    Thread(target=end_with_command, daemon=True).start()
    _given[:] = [what]
