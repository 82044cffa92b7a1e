"""Processes that simulate side by side, one on each core. They are killed at once if anything ends
the work early, Ctrl-C included.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Submit = Callable[..., "Future[Any]"]  # has a worker call a function with these arguments
_given: list[Any] = []


@contextmanager
def workers(tasks: int, what: Any = None) -> Iterator[Submit]:
    """Start workers for so many tasks, each of which is `given` a value; yield what submits a call
    to them.
    """
    count = max(1, min(_cores(), tasks))
    pool = ProcessPoolExecutor(count, initializer=_begin, initargs=(what,))
    try:
        yield pool.submit
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def each(work: Callable[[T], R], tasks: Sequence[T], tick: Callable[[], None]) -> list[R]:
    """Do this work for each task, `tick` after every one; return the results in their order."""
    with workers(len(tasks)) as submit:
        waiting = [submit(work, task) for task in tasks]
        for done in as_completed(waiting):
            done.result()
            tick()
        return [future.result() for future in waiting]


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
