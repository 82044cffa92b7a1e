"""Waits for what other processes and threads do, and withholds threads and files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import threading
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
