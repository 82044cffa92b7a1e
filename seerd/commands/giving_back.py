"""Work that rents something and gives it back whatever happens: on Ctrl-C, too.

The one rule: giving back is never cancelled.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
        tell(f"still giving {what} back" if interrupted else f"interrupted; giving {what} back")
        if not interrupted:
            interrupted = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work that gives things back to its end, whatever cancels this task meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    return task.result()
