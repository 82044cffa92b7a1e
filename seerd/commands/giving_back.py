"""Work that rents something and gives it back whatever happens: on Ctrl-C, too.

The one rule: giving back is never cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TextIO, TypeVar

from seerd.telling.harmless import harmless

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(
    work: Callable[[], Awaitable[T]], tell: Callable[[str], None], what: str
) -> T:
    """Do the work, and cancel it at the first Ctrl-C; further ones do not disturb giving back.
    `what` is given back.

    Raises `asyncio.CancelledError` if the work has let itself be cancelled.
    """
    loop, interrupted = asyncio.get_running_loop(), False
    task = asyncio.ensure_future(work())

    def stop() -> None:
        nonlocal interrupted
        again, interrupted = interrupted, True
        if not again:
            task.cancel()
        # The terminal or the pipe may be what has gone.
        with contextlib.suppress(OSError, ValueError):
            tell(f"still giving {what} back" if again else f"interrupted; giving {what} back")

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def teller(out: TextIO) -> Callable[[str], None]:
    """Return what prints a line there, after the seconds since now. Work that has rented something
    must not end because nobody listens any more: then it prints nothing.
    """
    began = time.monotonic()

    def tell(text: str) -> None:
        with audible(out):
            print(f"{time.monotonic() - began:7.1f}s  {harmless(text)}", file=out, flush=True)

    return tell


@contextlib.contextmanager
def audible(out: TextIO) -> Iterator[None]:
    """Print to this; if nobody listens there any more, print nothing from now on."""
    try:
        yield
    except (OSError, ValueError):
        # What is still in its buffer would fail once more when Python ends, with status 120.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work that gives things back to its end, whatever cancels this task meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    return task.result()
