"""The agent itself: it takes orders on a Unix socket, carries them out, reports facts, and lets go
when nobody renews its lease. What it does survives the daemon, a lost connection and its own death.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Coroutine, Optional

from seerd.agent import clock, host, spot
from seerd.agent.journal import AgentJournal, AgentJournalError
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.orders import Here, Orders
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import (
    MAX_LINE,
    Ack,
    Alive,
    Ask,
    Computed,
    Downloads,
    Exited,
    Fact,
    Grant,
    Grow,
    Message,
    Noticed,
    Parts,
    Prepare,
    ProtocolError,
    Renew,
    Shutdown,
    Start,
    Stop,
)
from seerd.agent.talk import Talk
from seerd.agent.threads import in_thread_or_here

SOCKET = "agent.sock"
LOOK_S = 0.1
PULSE_S = 1.0
"""Seconds between signs of life: an agent sets the file time of its lock."""
NEAR_S = 0.1
"""Ends of training that are nearer than so many seconds are the same."""
FLUSH_S = 0.1
"""Seconds until facts that the daemon has not acknowledged are flushed to our own disk."""
log = logging.getLogger("agent")


@dataclass
class Lease:
    """How long the agent goes on without the daemon; the newest `renew` counts."""

    ends_at: float  # in the agent's time (`clock`)
    grace_s: float  # seconds that trials then have to save and exit
    last_s: float = 120.0  # further seconds for storing, limited as the instance costs money

    def renew(self, now: float, message: Renew) -> None:
        """Renew the lease as the daemon says."""
        self.ends_at = message.since(now) + message.for_s
        self.grace_s, self.last_s = message.grace_s, message.last_s

    def left_s(self, now: float, most_s: float) -> float:
        """Return what is left of a time after its end, which also runs while an agent is suspended.

        `most_s`: that time, in seconds.
        """
        return min(most_s, max(0.0, self.ends_at + most_s - now))

    def ended(self, now: float) -> bool:
        """Return whether nobody has renewed it in time."""
        return now >= self.ends_at


class Agent:
    """Runs in its folder, which is the working directory, until it is shut down or its lease ends.

    `spot`: the cloud may take this instance away or reboot it, and gives notice of it.
    """

    def __init__(self, here: Here, lease: Lease, *, spot: bool = False) -> None:
        self._here = here
        self._lease = lease
        self._journal = AgentJournal(here.folder / "journal.jsonl")
        self._orders = Orders(here, self._journal, self._report, self._beside, self._ask)
        self._ends_at: Optional[float] = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._talk: Optional[Talk] = None
        self._spot = spot
        self._doomed = False
        self._alone_since = self._shown_at = time.monotonic()
        self._computed: list[Optional[float]] = []
        self._forsaken = False
        self._ending = False
        self._ended = asyncio.Event()
        self._flushing = False
        self._failure: Optional[BaseException] = None

    async def serve(self) -> bool:
        """Serve until the end; return whether the agent let go. Raises what went wrong."""
        self._loop = asyncio.get_running_loop()
        await in_thread_or_here(recover, self._here, self._journal)
        await self._orders.come()
        server = await asyncio.start_unix_server(
            self._converse, sock=private_socket(), limit=MAX_LINE
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end, "asked", None)
        if self._spot:
            spot.watch(lambda notice: self._loop.call_soon_threadsafe(self._take_note, notice))
        if self._here.cuda:
            from seerd.agent import nvml  # ctypes, which CPU slots have no use for
            from seerd.agent.gpu_faults import GpuFaults

            nvml.watch(
                self._orders.devices,
                lambda shares: self._loop.call_soon_threadsafe(self._report_use, shares),
                lambda memory: self._loop.call_soon_threadsafe(self._orders.see_memory, memory),
            )
            self._orders.faults = faults = GpuFaults(self._orders.devices)
            faults.watch(lambda seen: self._loop.call_soon_threadsafe(self._see_faults, seen))
        self._beside(self._keep_looking())
        await self._ended.wait()
        server.close()
        self._orders.close()
        await self._orders.clear()
        await in_thread_or_here(self._orders.kill_all)
        await self._orders.clear()  # what an engine was just making when it was killed
        self._orders.leave()
        if self._talk is not None:
            await self._talk.farewell()
        self._journal.close()
        if self._failure is not None:
            raise self._failure
        return self._forsaken

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = Talk(reader, writer, self._here, self._journal)
        try:
            hello = await talk.hello()
            if hello is None:
                return
            if self._talk is not None:
                self._talk.close()
            self._talk = talk
            await talk.listen(hello, self._orders, lambda message: self._obey(talk, message))
        except (ProtocolError, ValueError, OSError) as error:
            log.warning("a connection ended: %s", error)
        except AgentJournalError as error:
            self._fail(error)
        finally:
            if self._talk is talk:
                self._talk, self._alone_since = None, time.monotonic()
            talk.close()

    def _obey(self, talk: Talk, message: Message) -> None:
        if self._talk is not talk:
            return
        if isinstance(message, Ack):
            self._journal.acknowledge(message.seen)
        elif isinstance(message, Renew):
            self._lease.renew(clock.now(), message)
            self._expect_end(message)
            talk.say(Alive())
        elif isinstance(message, Shutdown):
            self._forsaken = False
            self._end("asked", 0.0)
        elif isinstance(message, (Grant, Parts, Downloads)):
            self._orders.hand(message)
        elif not isinstance(message, (Prepare, Start, Stop, Grow)):
            raise ProtocolError(f"{message.kind} is not for an agent")
        elif not self._ending and self._journal.take(message):
            log.info("order %s: %s", message.id, message.kind)
            self._orders.carry_out(message)

    def _expect_end(self, message: Renew) -> None:
        """Inform trials when training ends, if that has changed by the wall clock."""
        in_s, before = message.ends_in_s, self._ends_at
        at = None if in_s is None else message.since(clock.now()) + in_s
        wall = None if at is None else clock.to_wall(at)
        if wall is None or before is None or abs(wall - before) >= NEAR_S:
            self._ends_at = wall
            self._orders.expect_end(at)

    def _report(self, facts: list[Fact]) -> None:
        if not facts:
            return
        self._journal.note(facts)
        if self._talk is not None:
            self._talk.tell()
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        try:
            self._journal.flush()
        except AgentJournalError as error:
            self._fail(error)

    def _ask(self, question: Ask) -> bool:
        """Send a question to the daemon, from any thread; return whether a daemon is connected."""
        talk = self._talk
        if talk is not None:
            self._loop.call_soon_threadsafe(talk.say, question)
        return talk is not None

    def _take_note(self, notice: spot.Notice) -> None:
        """Report what the cloud has announced, unless an earlier agent has reported it.

        Trials save at once, even without a daemon: that costs little, and the cloud may not wait.
        """
        self._doomed = self._doomed or notice.what == "interruption"
        at, by = clock.now(), None if notice.by is None else clock.of_wall(notice.by)
        noted = Noticed(0, at, notice.what, by)
        if self._journal.is_news(noted) and not self._ended.is_set():
            log.warning("notice of the cloud: %s", notice)
            self._orders.save_all()
            self._beside(self._report_soon(noted))

    async def _report_soon(self, fact: Fact) -> None:
        self._report([fact])

    def _report_use(self, shares: list[Optional[float]]) -> None:
        ours = self._orders.by_number(shares)
        if not self._ended.is_set() and ours != self._computed:
            self._computed = ours
            self._report([Computed(0, clock.now(), ours)])

    def _see_faults(self, seen: list[str]) -> None:
        if not self._ended.is_set():
            self._orders.see_faults(seen)

    async def _keep_looking(self) -> None:
        # All in one place, so that an idle agent wakes up as seldom as possible.
        while True:
            if time.monotonic() - self._shown_at >= PULSE_S / 2:
                # The file time of the lock shows when we last lived, in the agent's time.
                self._shown_at = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self._here.folder / "agent.lock", times=(clock.now(), clock.now()))
            self._orders.look()
            why = "" if self._ending else self._why_let_go()
            if why:
                log.warning("%s: letting go", why)
                self._forsaken = True
                self._end("lease", None)
            await asyncio.sleep(LOOK_S)

    def _why_let_go(self) -> str:
        if self._lease.ended(clock.now()):
            return "nobody has renewed the lease"
        alone_s = time.monotonic() - self._alone_since
        if self._doomed and self._talk is None and alone_s >= self._here.timings.deserted_s:
            return "this instance will be taken away, and no daemon is here to move its trials"
        return ""

    def _end(self, cause: str, grace_s: Optional[float]) -> None:
        """Let trials save and exit in `grace_s` (None: the lease's), then end; can only shorten."""
        self._ending = True
        now = clock.now()
        lease = self._lease
        # Within this, all must be over, also storing what was saved.
        limit_s = lease.left_s(now, lease.grace_s + lease.last_s) if cause == "lease" else None
        left_s = lease.left_s(now, lease.grace_s) if grace_s is None else grace_s
        self._beside(self._end_all(cause, now + left_s, limit_s))

    async def _end_all(self, cause: str, kill_at: float, limit_s: Optional[float]) -> None:
        try:
            await asyncio.wait_for(self._orders.end_all(cause, kill_at), limit_s)
        except asyncio.TimeoutError:
            log.warning("what trials saved last could not be stored in time")
        self._ended.set()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in the background; if it fails unforeseen, the agent ends as a whole."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._ended.set()


def recover(here: Here, journal: AgentJournal) -> None:
    """Kill what the dead agent left running, report what its trials had written, and report its
    attempts as "lost". Presigned URLs have died with it, so a checkpoint on its way to a store
    without a directory is lost. Raises `RuntimeError` if a process cannot be killed.
    """
    ran = {key: host.marked_with(f"{here.run}/{key[0]}/{key[1]}") for key in journal.open}
    ended = {key: clock.now() if ran[key] else _last_sign(here, *key) for key in ran}
    left = host.kill(lambda: host.each_of_run(here.run), set())
    if left:
        raise RuntimeError(f"processes {sorted(left)} of an agent before cannot be killed")
    limit = ReportLimit()
    for (trial, attempt), facts in list(journal.open.items()):
        job = None if journal.prepared is None else journal.prepared.job_of(trial)
        output = here.output(job, PresignedUrls(trial, attempt, lambda _: False), limit)
        output.note_reported(facts)
        for written in output.drain_all():
            journal.add(written)
        while output.can_store():
            journal.add(output.store())
        journal.add(output.promised())
        journal.add([Exited(0, ended[trial, attempt], trial, attempt, "lost", None)])
        del journal.open[trial, attempt]


def _last_sign(here: Here, trial: str, attempt: int) -> float:
    """Return when an attempt that is gone ended at the latest (the agent's time): `PULSE_S` after
    its agent's last sign of life, or its own last write.
    """
    folder = here.places(trial, attempt).attempt
    written = (_written_at(Path(top, name)) for top, _, names in os.walk(folder) for name in names)
    last = max(_written_at(here.folder / "agent.lock"), *map(clock.of_wall, written), 0.0)
    return min(clock.now(), PULSE_S + last)


def _written_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def private_socket() -> socket.socket:
    """Make the socket in the working directory, from its first moment on for its owner alone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o177)
    try:
        listener.bind(SOCKET)
    finally:
        os.umask(umask)
    return listener
