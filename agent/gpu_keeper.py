"""A process that holds the leases of GPUs that trials use, until the agent says that the attempt is
over, or, if the agent has died, until no process of the attempt is left. It carries the run's mark,
and is ended last (`host.each_of_run`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Optional

import seerd.agent
from seerd.agent import host

POLL_S = 0.05
MOST_BYTES = 1 << 16
MOST_AT_ONCE = 64  # leases in one message; at most 253 descriptors can travel together (unix(7))
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from seerd.agent.gpu_keeper import main; main(int(sys.argv[2]), sys.argv[3])"
)


class Keeper:
    """The keeper of the run `run`, started when it is first needed, and again if it has died."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._wire: Optional[socket.socket] = None
        self._held: dict[str, list[int]] = {}

    def hold(self, attempt: str, leases: list[int]) -> None:
        """Hold copies of these leases too for an attempt. Raises `OSError` without a keeper."""
        before = self._held.get(attempt, [])
        self._held[attempt] = [*before, *leases]
        if not self._hand(attempt, leases):
            try:
                self._begin()
            except OSError:
                self._held[attempt] = before
                raise
            for held in self._held.items():
                self._hand(*held)

    def release(self, attempt: str) -> None:
        """Release the leases of an attempt whose processes are gone."""
        if self._held.pop(attempt, None) is not None:
            self._send({"over": attempt}, [])

    def close(self) -> None:
        """End the keeper, once nothing is left of the attempts that it holds leases for."""
        if self._wire is not None and self._process is not None:
            self._wire.close()
            self._process.wait()
        self._wire = None

    def _hand(self, attempt: str, leases: list[int]) -> bool:
        parts = [leases[at : at + MOST_AT_ONCE] for at in range(0, len(leases), MOST_AT_ONCE)]
        return all(self._send({"hold": attempt, "leases": len(part)}, part) for part in parts)

    def _send(self, message: dict[str, Any], leases: list[int]) -> bool:
        if self._wire is None:
            return False
        line = json.dumps(message).encode() + b"\n"
        try:
            return socket.send_fds(self._wire, [line], leases) == len(line)
        except OSError:  # also if it has been stopped
            return False

    def _begin(self) -> None:
        if self._process is not None:
            self._process.poll()
        if self._wire is not None:
            self._wire.close()
        here, theirs = socket.socketpair()
        here.setblocking(False)
        package = Path(seerd.agent.__path__[0]).parents[1]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", START, package, str(theirs.fileno()), self._run],
                env={**os.environ, host.MARKER: host.keeper_mark(self._run)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        self._wire = here


def main(descriptor: int, run: str) -> None:
    """Keep leases, which come over the socket with this descriptor, until none is needed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    held: dict[str, list[int]] = {}
    for message, leases in _messages(socket.socket(fileno=descriptor)):
        if "hold" in message:
            held.setdefault(message["hold"], []).extend(leases)
        else:
            _close(held.pop(message["over"], []))
    # The agent has closed its end, or has died.
    empty = dict.fromkeys(held, 0)
    while held:
        for attempt in list(held):
            runs = host.marked_with(f"{run}/{attempt}\0")
            empty[attempt] = 0 if runs else empty[attempt] + 1
            if empty[attempt] >= host.EMPTY_LOOKS:
                _close(held.pop(attempt))
        time.sleep(POLL_S)


def _messages(wire: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    text: bytes = b""
    received: list[int] = []
    while True:
        try:
            data, leases, _, _ = socket.recv_fds(wire, MOST_BYTES, MOST_AT_ONCE)
        except ConnectionError:
            return
        if not data:
            return
        text, received = text + data, received + leases
        *lines, text = text.split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            count = message.get("leases", 0)
            yield message, received[:count]
            received = received[count:]


def _close(leases: list[int]) -> None:
    for lease in leases:
        os.close(lease)
