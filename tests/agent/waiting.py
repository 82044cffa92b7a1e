"""Waits for what other processes and threads do, and withholds threads and files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_S = 0.01
TOO_LARGE = 1 << 47
"""Bytes of a stack for which no process has room: the kernel refuses such a thread as it refuses one
when there are too many.
"""


async def until(holds: Callable[[], object]) -> None:
    """Return once this holds."""
    while not holds():  # noqa: ASYNC110 (no event tells of it)
        await asyncio.sleep(LOOK_S)


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """Have no thread start in this process meanwhile."""
    usual = threading.stack_size(TOO_LARGE)
    try:
        yield
    finally:
        threading.stack_size(usual)


async def until_reaped() -> None:
    """Return once asyncio has seen the end of all processes that this loop started and that have
    ended: what its threads report to a closed loop is a warning in a later test.
    """
    await until(
        lambda: not any(t.name.startswith("asyncio-waitpid") for t in threading.enumerate())
    )
    await asyncio.sleep(LOOK_S)  # a thread ends after it has reported, and the loop reads it next


def forget_unwatched() -> None:
    """Have asyncio forget the processes for which it could start no thread: it keeps them until
    another process has such a number, and warns then, in a later test.
    """
    if sys.version_info >= (3, 12):
        return  # it waits for processes without threads
    threads: dict[int, threading.Thread] = vars(asyncio.get_child_watcher())["_threads"]
    for pid in [pid for pid, thread in threads.items() if thread.ident is None]:
        del threads[pid]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.contextmanager
def no_files() -> Iterator[None]:
    """Have this process open no file meanwhile: its table of files is full. It has as many places
    as are taken, since with fewer not even open files can be waited for (poll(2), EINVAL).
    """
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        highest, last = max(int(path.name) for path in Path("/dev/fd").iterdir()), -1
        while last < highest:
            last = stack.enter_context(open(os.devnull)).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, usual[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
