"""The agent's journal, which holds what it must not forget: orders that it has taken, facts that it
has reported, and which of these the daemon has.

The one rule: an order is on the disk before anything follows from it. A fact is in the file before
it is sent, and soon on a disk: on the daemon's, which acknowledges it then, or flushed to this one.
If the machine ends before that, its boot id says that nothing here goes on. The file holds nothing
but lines of the protocol, each with a checksum behind a tab; those of earlier versions have none.
A last line that a crash cut short was never sent, and is dropped. A journal with a damaged line
is set aside, and an empty one begun: a daemon that knows of facts which this one lacks gives the
instance up, so that nothing is charged for an agent that never comes.
"""

from __future__ import annotations

import logging
import os
import zlib
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple, Union

from seerd.agent.protocol import (
    FACTS,
    Ack,
    Checkpointed,
    Complained,
    Exited,
    Fact,
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
from seerd.agent.wire import decode, encode

log = logging.getLogger("agent")
CHECK = 8
"""Length of a line's checksum, in bytes."""
Order = Union[Prepare, Start, Stop]
Maker = Callable[[int], Fact]
"""A fact that lacks only its number."""


class AgentJournalError(Exception):
    """The journal cannot be read or written; nothing may go on without it."""


class _DamagedError(AgentJournalError):
    """A line is not as it was written."""


class AgentJournal:
    """The file at `path`, opened for one agent.

    last     number of the newest fact; 0: none
    prepared  the last `Prepare` that succeeded
    noticed  every `what` of a `Noticed` that any agent of this folder has reported
    share    how many GPUs the run may use, as the last `Shared` says; None: there is none
    open     facts of attempts that an earlier agent had started and not ended, by trial and attempt
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()
        good = 0
        try:
            good = self._load() if path.exists() else 0
        except _DamagedError as error:
            self._forget()
            log.warning("%s; it is set aside, and an empty one begun", error)
            path.rename(_free(path))
        self._file = open(path, "ab", buffering=0)
        self._file.truncate(good)
        _flush_folder(path.parent)

    def _forget(self) -> None:
        """Know nothing."""
        self.last = 0
        self.prepared: Optional[Prepare] = None
        self.noticed: Set[str] = set()
        self.share: Optional[int] = None
        self.open: Dict[Tuple[str, int], List[Fact]] = {}
        self._acked = 0
        self._waiting: List[bytes] = []
        self._flushed = True
        self._orders: Dict[str, Order] = {}
        self._settled: Set[str] = set()

    def take(self, order: Order) -> bool:
        """Keep this order; return whether it is new.

        An order whose outcome an earlier agent did not live to tell is new again when it is
        repeated. Raises `AgentJournalError` if it cannot be written.
        """
        if order.id in self._orders:
            return False
        self._write(_kept(encode(order)))
        self._orders[order.id] = order
        return True

    def add(self, facts: Iterable[Maker]) -> None:
        """Give these facts their numbers, and keep them. Raises `AgentJournalError` if they cannot
        be written.
        """
        self.note(facts)
        self.flush()

    def note(self, facts: Iterable[Maker]) -> None:
        """Give these facts their numbers, and write them down. They survive our own end, and that
        of the machine once `flush` has returned.

        Raises `AgentJournalError` if they cannot be written.
        """
        made = [make(self.last + offset) for offset, make in enumerate(facts, 1)]
        lines = [encode(fact) for fact in made]
        self._write(b"".join(map(_kept, lines)), sync=False)
        self._flushed = False
        for fact, line in zip(made, lines):
            self._remember(fact, line)

    def flush(self) -> None:
        """Have on the disk what has not been acknowledged. Raises `AgentJournalError`."""
        if not self._flushed:
            self._write(b"")

    def lines_after(self, seen: int) -> List[bytes]:
        """Return the facts with numbers above `seen`, as they are sent."""
        if seen >= self._acked:
            return self._waiting[seen - self._acked :]
        return [encode(fact) for fact in facts_after(self._path, seen)]

    @property
    def unacknowledged(self) -> int:
        """How many facts the daemon has not acknowledged."""
        return len(self._waiting)

    @property
    def acknowledged(self) -> int:
        """Number of the last fact that a daemon has acknowledged as committed; 0: none."""
        return self._acked

    def acknowledge(self, seen: int) -> None:
        """Note that the daemon has committed the facts up to the number `seen`, and drop them from
        memory.
        """
        if self._acked < seen <= self.last:
            self._write(_kept(encode(Ack(seen))), sync=False)
            self._flushed = self._flushed or seen == self.last
            self._trim(seen)

    def close(self) -> None:
        """Close the file, with everything on the disk."""
        self.flush()
        self._file.close()

    def _load(self) -> int:
        """Read what is there; return how many bytes of it are good."""
        messages, good, damage = _read(self._path)
        if damage:
            raise _DamagedError(damage)
        for message in messages:
            if isinstance(message, FACTS):
                if message.seq != self.last + 1:
                    raise _DamagedError(
                        f"{self._path}: fact {message.seq} comes after fact {self.last}"
                    )
                self._remember(message, encode(message))
                self._sort(message)
            elif isinstance(message, (Prepare, Start, Stop)):
                self._take_back(message)
            elif isinstance(message, Ack):
                self._trim(message.seen)
        settled = self._settled
        self._orders = {name: order for name, order in self._orders.items() if name in settled}
        return good

    def _take_back(self, order: Order) -> None:
        """Remember an order that an earlier agent took. A stop counts as settled: its attempt is
        over now in any case.
        """
        self._orders[order.id] = order
        if isinstance(order, Stop):
            self._settled.add(order.id)

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
            self._settled.update(
                name for name, order in self._orders.items() if _starts(order, fact)
            )

    def _remember(self, fact: Fact, line: bytes) -> None:
        self.last = fact.seq
        self._waiting.append(line)
        if isinstance(fact, Noticed):
            self.noticed.add(fact.what)
        if isinstance(fact, Shared):
            self.share = fact.gpus
        order = self._orders.get(fact.id) if isinstance(fact, Prepared) else None
        if isinstance(order, Prepare):
            self.prepared = order

    def _trim(self, seen: int) -> None:
        self._waiting = self._waiting[seen - self._acked :]
        self._acked = seen

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


def facts_after(path: Path, seen: int) -> List[Fact]:
    """Return the facts with numbers above `seen` in the journal at `path`, whose agent may be alive
    or not; of a damaged one those before the damage. Raises `OSError` if it cannot be read.
    """
    messages, _, _ = _read(path)
    return [message for message in messages if isinstance(message, FACTS) and message.seq > seen]


def _starts(order: Order, exited: Exited) -> bool:
    return isinstance(order, Start) and (order.trial, order.attempt) == (
        exited.trial,
        exited.attempt,
    )


def _kept(line: bytes) -> bytes:
    """Return a line as it is kept: with its checksum."""
    return b"%s\t%08x\n" % (line[:-1], zlib.crc32(line[:-1]))


def _message(kept: bytes) -> Message:
    """Read a line as it is kept, without its end. Raises `ProtocolError` if it is damaged."""
    line, tab, check = kept.partition(b"\t")
    if tab and check != b"%08x" % zlib.crc32(line):
        raise ProtocolError("the line does not fit its checksum")
    return decode(line)


def _free(path: Path) -> Path:
    """Return a path beside this one at which nothing is."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged{number}")):
        number += 1
    return aside


def _read(path: Path) -> Tuple[List[Message], int, str]:
    """Read the messages in the file; return them, the length in bytes of the part that holds them,
    and what is wrong with the next line, empty if there is none but what a crash cut short.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    messages: List[Message] = []
    good = 0
    for number, line in enumerate(lines, 1):
        try:
            messages.append(_message(line))
        except ProtocolError as error:
            return messages, good, f"{path}, line {number}: {error}"
        good += len(line) + 1
    # The last line may have been sent already, unless it is cut short.
    cut_short = len(rest.partition(b"\t")[2]) <= CHECK
    return messages, good, "" if cut_short else f"{path}: the last line does not end"


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a new file's name survives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
