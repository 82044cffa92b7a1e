"""Agents that cost milliseconds: forks of a process that has imported the agent out of its zip,
which is most of what a short life of an agent computes. Nothing of seerd is imported before the
zip's modules.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NoReturn

LONGEST = 1 << 17


class Fork:
    """A process that a server has forked, with what tests use of `subprocess.Popen`. `status`: the
    pipe that `watch` writes into.
    """

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def __del__(self) -> None:
        self._status.close()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, for so long at most."""
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)


class ForkedAgent(Fork):
    """An agent."""

    def __init__(
        self, server: socket.socket, options: list[str], env: dict[str, str], errors: IO[bytes]
    ) -> None:
        ours, theirs = os.pipe()
        line = json.dumps({"options": options, "env": env, "cwd": str(Path.cwd())}).encode()
        assert len(line) < LONGEST
        socket.send_fds(server, [line], [errors.fileno(), theirs])
        os.close(theirs)
        super().__init__(ours)

    def terminate(self) -> None:
        """Ask it to end, if it runs."""
        self.send_signal(signal.SIGTERM)


def begin(bundle: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that forks agents of this zip; it ends when its socket is closed."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-I", __file__, str(there.fileno()), str(bundle)]
    process = subprocess.Popen(command, pass_fds=[there.fileno()])
    there.close()
    return process, here


def serve(control: socket.socket, bundle: str) -> None:
    """Start agents until nobody is there any more."""
    sys.path.insert(0, bundle)
    sys.argv[:] = [bundle]
    import seerd.agent.__main__ as agent

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        line, descriptors, _, _ = socket.recv_fds(control, LONGEST, 2)
        if not line:
            return
        if os.fork() == 0:
            control.close()
            _begin(agent, json.loads(line), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _begin(agent: Any, request: dict[str, Any], errors: int, status: int) -> NoReturn:
    """Start an agent in a fork, and watch it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setsid()  # as sshd starts it; and a session has its own share of the CPU
        os.close(status)
        os.dup2(errors, 2)
        os.close(errors)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv += request["options"]
        sys.exit(agent.main())
    os.close(errors)
    watch(child, status)


def watch(child: int, status: int) -> NoReturn:
    """Write the id of a child of ours into `status`, and, when it has ended, its exit status."""
    os.write(status, b"%d\n" % child)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d\n" % ended)
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
