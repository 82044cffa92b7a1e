"""One connection with the daemon: its messages become orders, and facts go to it in order, from the
journal and from nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Callable, Optional, Union

from seerd.agent import clock, host
from seerd.agent.journal import AgentJournal
from seerd.agent.orders import Here, Orders
from seerd.agent.protocol import (
    VERSION,
    Alive,
    Ask,
    Hello,
    Message,
    ProtocolError,
    Refused,
    Welcome,
)
from seerd.agent.wire import decode, encode

AT_ONCE = 256
FAREWELL_S = 2.0
AGENT = "2"
log = logging.getLogger("agent")


class Talk:
    """A connection, from its first line to its end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        here: Here,
        journal: AgentJournal,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._here = here
        self._journal = journal
        self._sent = 0
        self._news = asyncio.Event()
        self._sending: Optional[asyncio.Task[None]] = None
        self._is_welcome = False

    async def hello(self) -> Optional[Hello]:
        """Return the daemon's hello; None: it was a probe. Raises `ProtocolError`."""
        line = await self._reader.readline()
        if not line:
            return None
        try:
            message = decode(line)
            if not isinstance(message, Hello):
                raise ProtocolError("the first line has to be hello")
            if message.version != VERSION:
                why = f"this agent speaks version {VERSION} of the protocol, not {message.version}"
                raise ProtocolError(why)
            if message.run != self._here.run:
                why = f"this is an agent of the run {self._here.run}, not of {message.run:.80}"
                raise ProtocolError(why)
        except ProtocolError as error:
            self._writer.write(encode(Refused(0, clock.now(), "", str(error))))
            raise
        return message

    async def listen(self, hello: Hello, orders: Orders, obey: Callable[[Message], None]) -> None:
        """End attempts that the daemon lacks, welcome it, then send facts and take orders."""
        ended = [] if hello.holds is None else await orders.end_others(hello.holds)
        last, acked, attempts = self._journal.last, self._journal.acknowledged, orders.attempts
        now, wall, boot, gpus = clock.now(), time.time(), host.boot_id(), self._here.gpus
        self._is_welcome = True
        self.say(Welcome(VERSION, AGENT, gpus, last, now, attempts, boot, wall, True, acked, ended))
        for question in orders.asks:
            self.say(question)
        self._sent = max(0, hello.seen)
        self._sending = asyncio.ensure_future(self._send())
        try:
            while line := await self._reader.readline():
                obey(decode(line))
        finally:
            self._sending.cancel()

    def say(self, message: Union[Welcome, Alive, Ask]) -> None:
        """Send what is no fact. A question that comes before the welcome is sent after it."""
        if self._is_welcome:
            self._writer.write(encode(message))

    def tell(self) -> None:
        """Send the new facts in the journal."""
        self._news.set()

    def close(self) -> None:
        """End the connection; what has been written is still sent."""
        self._writer.close()

    async def farewell(self) -> None:
        """Send the facts that are left, then end the connection; the journal keeps them."""
        if self._sending is not None:
            self._sending.cancel()
            self._writer.write(b"".join(self._journal.lines_after(self._sent)))
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), FAREWELL_S)

    async def _send(self) -> None:
        try:
            while True:
                self._news.clear()
                # The file, where they may come from, is read once, however many facts are wanted.
                while lines := self._journal.lines_after(self._sent):
                    for at in range(0, len(lines), AT_ONCE):
                        some = lines[at : at + AT_ONCE]
                        self._writer.write(b"".join(some))
                        self._sent += len(some)
                        await self._writer.drain()
                await self._news.wait()
        except OSError as error:
            log.info("facts cannot be sent any more: %s", error)
            self._writer.close()
