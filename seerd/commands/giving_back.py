"""Work that rents something and gives it back whatever happens, Ctrl-C included: giving back is
never cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TextIO, TypeVar

from seerd.errors import InterruptedRentalError
from seerd.telling.harmless import harmless

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def until_signal(work: Callable[[], Awaitable[T]], tell: Callable[[str], None], what: str) -> T:
    """Do the work in an event loop of its own, and cancel it at the first Ctrl-C; later ones do not
    disturb giving `what` back.
    Raises `InterruptedRentalError` if the work let itself be cancelled: it had started nothing.
    """
    signalled = False

    async def cancelled_by_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work())

        def stop() -> None:
            nonlocal signalled
            again, signalled = signalled, True
            if not again:
                task.cancel()
            # The terminal or the pipe may be what has gone.
            with contextlib.suppress(OSError, ValueError):
                tell(f"still giving {what} back" if again else f"interrupted; giving {what} back")

        for number in SIGNALS:
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            raise InterruptedRentalError("interrupted; nothing was started") from None
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    return asyncio.run(cancelled_by_signals())


def teller(out: TextIO) -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since now. It prints nothing once
    nobody reads: work that has rented something must not end for that.
    """
    began = time.monotonic()

    def tell(text: str) -> None:
        with audible(out):
            print(f"{time.monotonic() - began:7.1f}s  {harmless(text)}", file=out, flush=True)

    return tell


@contextlib.contextmanager
def audible(out: TextIO) -> Iterator[None]:
    """Print to this stream in the block; once nobody reads it, print nothing from then on."""
    try:
        yield
    except (OSError, ValueError):
        # What is still in its buffer would fail once more when Python ends, with status 120.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work that gives things back to its end, even if this task is cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    return task.result()
