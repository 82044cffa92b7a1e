"""Runs torchrun in a fork of the warm process. torchrun starts threads, so its ranks are forked
before it begins; each waits until torchrun would start a process for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Optional, Sequence, Union

from seerd.agent.warm import identity
from seerd.agent.warm.script import Script, come_first, execute, new_main

MODULE = "torch.distributed.run"
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""Where torchrun takes the class from that starts its ranks."""
MEETING = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
RANKS = "--nproc-per-node"
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that torchrun handles, so that its ranks do not ignore them even if its parent does."""
LOOK_S = 0.01
LONGEST = 1 << 20


def is_for(argv: Sequence[str]) -> bool:
    """Return whether this command is torchrun."""
    return list(argv[1:3]) == ["-m", MODULE]


def can_fork_ranks() -> bool:
    """Return whether the torch that is imported starts its ranks as expected here."""
    return getattr(sys.modules.get(HANDLER), "Popen", None) is subprocess.Popen


class Launcher:
    """torchrun, with these arguments; the first three are the interpreter, `-m` and its name."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._arguments = list(argv[3:])

    def begun(self) -> Union["Launcher", Script]:
        """Fork the ranks. Returns what is to be run in this process, torchrun or a rank."""
        count = int(self._arguments[self._arguments.index(RANKS) + 1])
        for _ in range(count):
            here, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                here.close()
                for _, wire in ForkedRank.waiting:
                    wire.close()
                return _awaited(theirs)
            theirs.close()
            here.recv(1)  # it has a session of its own now, which torchrun may signal
            ForkedRank.waiting.append((pid, here))
        return self

    def run(self) -> None:
        """Run torchrun. Raises what it raises."""
        sys.modules[HANDLER].Popen = ForkedRank  # type: ignore[attr-defined]
        meeting: Any = sys.modules.get(MEETING)
        real = getattr(meeting, "_delay", None)
        if real is not None:
            # Spare the random wait of up to 0.3 s for nodes that ask one store at once: nodes share
            # a store of another kind (`launch.py`), without such a wait.
            vars(meeting)["_delay"] = lambda seconds: isinstance(seconds, tuple) or real(seconds)
        torchrun = sys.modules[MODULE]
        sys.argv[:] = [str(torchrun.__file__), *self._arguments]
        come_first(os.getcwd())
        names = new_main(None).__dict__
        names["torchrun"] = torchrun
        execute(b"torchrun.main()", "torchrun", names)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # what was imported takes its time to be taken down, and GPUs wait


def _awaited(wire: socket.socket) -> Script:
    os.setsid()
    for number in ENDING:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    wire.sendall(b"+")
    request_line, descriptors, _, _ = socket.recv_fds(wire, LONGEST, 2)
    while request_line and not request_line.endswith(b"\n"):
        more = wire.recv(LONGEST)
        request_line = request_line + more if more else b""
    if not request_line:  # torchrun has ended without it
        os._exit(0)
    wire.close()
    for descriptor, to in zip(descriptors, (1, 2)):
        os.dup2(descriptor, to)
        os.close(descriptor)
    request = json.loads(request_line)
    identity.wear(request["argv"], request["env"])
    return Script(request["argv"])


class ForkedRank:
    """What torchrun uses of `subprocess.Popen`, for a rank that is there already."""

    # process ids and sockets of ranks that are not wanted yet
    waiting: list[tuple[int, socket.socket]] = []  # noqa: RUF012

    def __init__(
        self,
        args: Sequence[str],
        env: dict[str, str],
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        assert start_new_session
        self.args = args
        self.returncode: Optional[int] = None
        self.pid, wire = self.waiting.pop(0)
        out = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
        line = json.dumps({"argv": list(args), "env": env}).encode() + b"\n"
        with wire:
            if rest := line[socket.send_fds(wire, [line], out) :]:
                wire.sendall(rest)

    def poll(self) -> Optional[int]:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired` after so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                assert timeout is not None
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            time.sleep(LOOK_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)
