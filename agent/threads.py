"""Work in threads and processes. No thread keeps the agent from ending, and neither does one that
the system refuses: trials may have filled a table of processes and threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections import deque
from pathlib import Path
from typing import Any, Awaitable, Callable, Iterable, Iterator, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def thread_needed() -> Iterator[None]:
    """Raise `OSError`, not `RuntimeError`, if no thread can be started for a process."""
    try:
        yield
    except RuntimeError as error:
        why = "this machine has as many processes and threads as it allows"
        raise OSError(errno.EAGAIN, why) from error


async def in_thread_or_here(work: Callable[..., Result], *args: Any) -> Result:
    """Do as `in_thread`, but without a thread call `work` in the caller's."""
    try:
        begun = in_thread(work, *args)
    except OSError:
        return work(*args)
    return await begun


async def spawned(
    argv: Sequence[str], env: dict[str, str], cwd: str, log: Path, pass_fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start a program, in a session of its own, which writes at the end of a log. Raises `OSError`
    also if no thread can be started that waits for it.
    """
    with open(log, "ab") as out, thread_needed():
        return await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=pass_fds,
        )


async def came_before(work: Awaitable[object], stopped: asyncio.Event) -> bool:
    """Wait for one of both; return whether `work` is done, which is cancelled otherwise."""
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    other.cancel()
    return task.done() or not task.cancel()


def in_thread(work: Callable[..., Result], *args: Any) -> "asyncio.Future[Result]":
    """Begin `work` in a thread; return its result to await. Raises `OSError` if no thread can be
    started.
    """
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

    with thread_needed():
        threading.Thread(target=run, daemon=True).start()
    return done


def parallel(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call `work` with every item in at most `threads` threads, or in the caller's if none can be
    started. After a failure nothing new is begun; the first is raised when all threads have ended.
    """
    waiting = deque(items)
    failures: list[BaseException] = []

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

    crew: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):
        for _ in range(min(threads, len(waiting))):
            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            crew.append(thread)
    if not crew:
        serve()
    for thread in crew:
        thread.join()
    if failures:
        raise failures[0]
