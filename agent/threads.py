"""Work in threads of its own. What takes long must not occupy the pool of threads that reads what
trials report.

The one rule: no thread here keeps the agent from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any, Callable, Iterable, List, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_thread(work: Callable[..., Result], *args: Any) -> Result:
    """Call `work` in a thread of its own; return its result, or raise what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_it(value)

    def run() -> None:
        try:
            outcome: Any = (done.set_result, work(*args))
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await done


def parallel(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call `work` with every item, in at most `threads` threads.

    After a failure nothing new is begun. The first failure is raised when all threads have ended.
    """
    waiting = deque(items)
    failures: List[BaseException] = []

    def serve() -> None:
        while not failures:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 (it is raised below)
                failures.append(error)

    crew = [threading.Thread(target=serve, daemon=True) for _ in range(min(threads, len(waiting)))]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    if failures:
        raise failures[0]
