"""The agent's journal: orders, facts, and which facts the daemon has. An order is on the disk
before anything follows from it; a fact is in the file before it is sent, and soon flushed. Each
line is one of the protocol with a checksum, which lines of earlier versions lack. A last line that
a crash cut short was never sent, and is dropped. A damaged journal is set aside; a daemon that
knows more than the new one gives the instance up.
"""

from __future__ import annotations

import logging
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Optional, Union

from seerd.agent.protocol import (
    FACTS,
    Ack,
    Checkpointed,
    Complained,
    Exited,
    Fact,
    Grow,
    Message,
    Noticed,
    Prepare,
    Prepared,
    ProtocolError,
    Refused,
    Reported,
    Shared,
    Start,
    Started,
    Stop,
    Training,
)
from seerd.agent.transfer import flush
from seerd.agent.wire import decode, encode

log = logging.getLogger("agent")
CHECK = 8  # length of a line's checksum, in bytes
MOVED_S = 60.0  # how much two readings of the same moment may differ at most, as clocks are set
Order = Union[Prepare, Start, Stop, Grow]


class AgentJournalError(Exception):
    """The journal cannot be read or written; nothing may go on without it."""


class AgentJournal:
    """The file at `path`, opened for one agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last = 0  # number of the newest fact; 0: none
        self.prepared: Optional[Prepare] = None  # the last one that succeeded
        self._noticed: dict[str, Noticed] = {}  # the last of each kind, of all agents here
        self.share: Optional[int] = None  # GPUs of the last `Shared`; None: there is none
        # facts of attempts that an earlier agent had started and not ended
        self.open: dict[tuple[str, int], list[Fact]] = {}
        self.acknowledged = 0  # number of the last fact that a daemon has committed; 0: none
        self._waiting: list[bytes] = []
        self._flushed = True
        self._orders: dict[str, Order] = {}
        self._settled: set[str] = set()
        messages, good, damage = _read(path) if path.exists() else ([], 0, "")
        if damage:
            log.warning("%s; it is set aside, and an empty one begun", damage)
            path.replace(path.with_name(f"{path.name}.damaged"))
            messages, good = [], 0
        self._load(messages)
        self._file = open(path, "ab", buffering=0)
        self._file.truncate(good)
        flush(path.parent)  # so that the file's name survives a crash of the machine

    def take(self, order: Order) -> bool:
        """Keep this order; return whether it is new. One whose outcome an earlier agent did not
        report is new again. Raises `AgentJournalError`.
        """
        if order.id in self._orders:
            return False
        self._write(_kept(encode(_shown(order))))
        self._orders[order.id] = order
        return True

    def add(self, facts: Iterable[Fact]) -> None:
        """Number these facts, and keep them on the disk. Raises `AgentJournalError`."""
        self.note(facts)
        self.flush()

    def note(self, facts: Iterable[Fact]) -> None:
        """Number and write these facts; `flush` makes them safe. Raises `AgentJournalError`."""
        made = [replace(fact, seq=self.last + offset) for offset, fact in enumerate(facts, 1)]
        lines = [encode(fact) for fact in made]
        self._write(b"".join(map(_kept, lines)), sync=False)
        self._flushed = False
        for fact, line in zip(made, lines):
            self._remember(fact, line)

    def is_news(self, notice: Noticed) -> bool:
        """Return whether no agent of this folder has reported this. Maintenance may be canceled, or
        moved by more than `MOVED_S`; other notices are for ever.
        """
        before = self._noticed.get(notice.what)
        if notice.what != "maintenance":
            return before is None
        if before is None or before.by is None:
            return notice.by is not None
        return notice.by is None or abs(notice.by - before.by) > MOVED_S

    def flush(self) -> None:
        """Flush what has not been acknowledged to the disk. Raises `AgentJournalError`."""
        if not self._flushed:
            self._write(b"")

    def lines_after(self, seen: int) -> list[bytes]:
        """Return the facts with numbers above `seen`, as they are sent."""
        if seen >= self.acknowledged:
            return self._waiting[seen - self.acknowledged :]
        return [encode(fact) for fact in facts_after(self._path, seen)]

    @property
    def unacknowledged(self) -> int:
        """How many facts the daemon has not acknowledged."""
        return len(self._waiting)

    def acknowledge(self, seen: int) -> None:
        """Note that the daemon has committed the facts up to the number `seen`."""
        if self.acknowledged < seen <= self.last:
            self._write(_kept(encode(Ack(seen))), sync=False)
            self._flushed = self._flushed or seen == self.last
            self._trim(seen)

    def close(self) -> None:
        """Close the file, with everything on the disk."""
        self.flush()
        self._file.close()

    def _load(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, FACTS):
                self._remember(message, encode(message))
                self._sort(message)
            elif isinstance(message, (Prepare, Start, Stop, Grow)):
                self._orders[message.id] = message
                if isinstance(message, (Stop, Grow)):  # its attempt is over now in any case
                    self._settled.add(message.id)
            elif isinstance(message, Ack):
                self._trim(message.seen)
        settled = self._settled
        self._orders = {name: order for name, order in self._orders.items() if name in settled}

    def _sort(self, fact: Fact) -> None:
        """Note, for this fact, which orders have their outcome and which attempts are open."""
        if isinstance(fact, (Prepared, Refused, Started)):
            self._settled.add(fact.id)
        if isinstance(fact, Started):
            self.open[fact.trial, fact.attempt] = []
        elif isinstance(fact, (Training, Reported, Checkpointed, Complained)):
            self.open.get((fact.trial, fact.attempt), []).append(fact)
        elif isinstance(fact, Exited):
            self.open.pop((fact.trial, fact.attempt), None)
            self._settled |= {
                name
                for name, order in self._orders.items()
                if isinstance(order, Start)
                and (order.trial, order.attempt) == (fact.trial, fact.attempt)
            }

    def _remember(self, fact: Fact, line: bytes) -> None:
        self.last = fact.seq
        self._waiting.append(line)
        if isinstance(fact, Noticed):
            self._noticed[fact.what] = fact
        if isinstance(fact, Shared):
            self.share = fact.gpus
        order = self._orders.get(fact.id) if isinstance(fact, Prepared) else None
        if isinstance(order, Prepare):
            self.prepared = order

    def _trim(self, seen: int) -> None:
        self._waiting = self._waiting[seen - self.acknowledged :]
        self.acknowledged = seen

    def _write(self, data: bytes, *, sync: bool = True) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())
                self._flushed = True
        except OSError as error:
            raise AgentJournalError(f"{self._path} cannot be written: {error.strerror}") from error


def _shown(order: Order) -> Order:
    """Return an order without what no file may have."""
    if isinstance(order, Prepare):
        return replace(order, proof=None)
    return replace(order, secrets={}) if isinstance(order, Start) else order


def facts_after(path: Path, seen: int) -> list[Fact]:
    """Return facts above `seen` of a journal, up to any damage. Raises `OSError`."""
    messages, _, _ = _read(path)
    return [message for message in messages if isinstance(message, FACTS) and message.seq > seen]


def _kept(line: bytes) -> bytes:
    return b"%s\t%08x\n" % (line[:-1], zlib.crc32(line[:-1]))


def _read(path: Path) -> tuple[list[Message], int, str]:
    """Return the messages in the file, the bytes that hold them, and what is wrong with the next
    line; nothing is wrong with one that a crash cut short.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    messages: list[Message] = []
    good = last = 0
    for number, line in enumerate(lines, 1):
        try:
            encoded, tab, check = line.partition(b"\t")
            if tab and check != b"%08x" % zlib.crc32(encoded):
                raise ProtocolError("the line does not fit its checksum")
            message = decode(encoded)
        except ProtocolError as error:
            return messages, good, f"{path}, line {number}: {error}"
        if isinstance(message, FACTS):
            if message.seq != last + 1:
                return messages, good, f"{path}: fact {message.seq} comes after fact {last}"
            last = message.seq
        messages.append(message)
        good += len(line) + 1
    # The last line may have been sent already, unless it is cut short.
    cut_short = len(rest.partition(b"\t")[2]) <= CHECK
    return messages, good, "" if cut_short else f"{path}: the last line does not end"
