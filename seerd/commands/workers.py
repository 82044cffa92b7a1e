"""Processes that simulate side by side, one on each core.

The one rule: whatever they all need is sent to each once. If anything ends the work early, also
Ctrl-C, they are killed at once.
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
Submit = Callable[..., "Future[Any]"]
"""Has a worker call a function with these arguments."""


@contextmanager
def workers(tasks: int, what: Any = None) -> Iterator[Submit]:
    """Start worker processes for so many tasks, each of which is `given` a value; yield what
    submits a call to them.
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
    """Do this work for each task, and return what came of it in their order. Raises what the work
    raises.

    tick  called after every task
    """
    with workers(len(tasks)) as submit:
        waiting = [submit(work, task) for task in tasks]
        for done in as_completed(waiting):
            done.result()
            tick()
        return [one.result() for one in waiting]


def given() -> Any:
    """Return what this worker process was given."""
    return _given[0]


_given: list[Any] = []


def _cores() -> int:
    """Count the cores that this process may use; where the system does not tell, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(what: Any) -> None:
    """Prepare a worker process: it ignores Ctrl-C, which only the command handles, and ends with
    it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    _given[:] = [what]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
