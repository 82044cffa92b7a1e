"""A connection between the daemon and an agent, line by line, that can break at any line.

The one rule: lines arrive in order, whole and once, or the connection is over. Each side learns of
its end by itself, and one may learn late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tests.faults.timeline import Loop, Timeline

CLOSED_S = 0.05
"""Until a side learns that the other has closed."""


class Reader:
    """What the daemon reads."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lines: deque[bytes] = deque()
        self._error: OSError | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    async def readline(self) -> bytes:
        """The next line; nothing at the end. Raises `OSError` where the connection was lost."""
        while not self._lines and not self._over:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._lines:
            return self._lines.popleft()
        if self._error is not None:
            raise self._error
        return b""

    def feed(self, line: bytes) -> None:
        """A line has come."""
        if not self._over:
            self._lines.append(line)
            self._wake()

    def end(self, error: OSError | None = None) -> None:
        """Nothing more comes."""
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and self._loop.alive:
            self._waiter.set_result(None)


class Wire:
    """One connection. `heard`: takes what the daemon says; `gone`: told when the agent learns that
    the connection is over.

    It is the daemon's writer, too.
    """

    def __init__(self, timeline: Timeline, loop: Loop, latency_s: float) -> None:
        self.reader = Reader(loop)
        self.heard: Callable[[bytes], None] = lambda line: None
        self.gone: Callable[[], None] = lambda: None
        self.cut_daemon = False
        self.cut_agent = False
        self._timeline = timeline
        self._loop = loop
        self._latency_s = latency_s
        self._there_at = 0.0
        self._back_at = 0.0

    def write(self, data: bytes) -> None:
        """The daemon says this."""
        if not self._loop.alive or self.cut_daemon:
            return
        leaves = max(self._timeline.now, self._loop.busy_until)
        self._there_at = max(self._there_at, leaves + self._latency_s)
        self._timeline.at(self._there_at, lambda: None if self.cut_agent else self.heard(data))

    def close(self) -> None:
        """The daemon ends it."""
        if self._loop.alive:
            self.hang_up()

    def hang_up(self) -> None:
        """The daemon's side is over; the agent learns of it a little later."""
        if not self.cut_daemon:
            self.cut_daemon = True
            self.reader.end()
            self._timeline.at(
                max(self._there_at, self._timeline.now) + CLOSED_S, self._agent_learns
            )

    def send(self, data: bytes) -> None:
        """The agent says this."""
        if self.cut_agent or self.cut_daemon:
            return
        self._back_at = max(self._back_at, self._timeline.now + self._latency_s)
        self._timeline.at(
            self._back_at, lambda: None if self.cut_daemon else self.reader.feed(data)
        )

    def end_by_agent(self) -> None:
        """The agent ends it, or its process does."""
        if not self.cut_agent:
            self.cut_agent = True
            self._timeline.at(
                max(self._back_at, self._timeline.now) + CLOSED_S, lambda: self._daemon_learns(None)
            )

    def lose(self, noticed_s: float) -> None:
        """It breaks in the middle: what is under way is lost, and the daemon notices after a
        while.
        """
        if self.cut_agent and self.cut_daemon:
            return
        was_open, self.cut_agent = not self.cut_agent, True
        if was_open:
            self._timeline.after(noticed_s, self.gone)
        error = ConnectionResetError("the connection was lost")
        self._timeline.after(noticed_s, lambda: self._daemon_learns(error))

    def _agent_learns(self) -> None:
        if not self.cut_agent:
            self.cut_agent = True
            self.gone()

    def _daemon_learns(self, error: OSError | None) -> None:
        if not self.cut_daemon:
            self.cut_daemon = True
            self.reader.end(error)
