"""`seerd` in a process of its own that costs milliseconds: a fork of one that has imported what
commands import, which is most of what a short command computes. Tests give hundreds.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from tests.agent.agent_forks import LONGEST, Fork, watch

ROOT = Path(__file__).parent.parent
NAME = f"seerd-commands-{os.getpid()}"
"""Of the socket at which a command may ask for another."""
STARTING = threading.Lock()


class Command(Fork):
    """A command, with pipes for text. `merged`: what it prints on stderr comes with the rest.
    `log`: takes what it prints, and nothing comes.
    """

    def __init__(
        self,
        args: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        *,
        merged: bool = False,
        log: IO[str] | None = None,
    ) -> None:
        self.args = list(args)
        pipes = [os.pipe() for _ in range(3)]
        out, err, status = (theirs for _, theirs in pipes)
        request = {"args": self.args, "cwd": str(folder), "env": environment}
        line = json.dumps(request).encode()
        assert len(line) < LONGEST
        printed = [out, out if merged else err] if log is None else [log.fileno()] * 2
        with STARTING:
            socket.send_fds(_server(), [line], [*printed, status])
        for theirs in (out, err, status):
            os.close(theirs)
        self.stdout: IO[str]
        self.stderr: IO[str]
        self.stdout, self.stderr = (os.fdopen(ours) for ours, _ in pipes[:2])
        super().__init__(pipes[2][0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            pipe.close()
        self.wait()

    def communicate(self) -> tuple[str, str]:
        """What it prints until it has ended."""
        with ThreadPoolExecutor(1) as beside:
            err = beside.submit(self.stderr.read)
            printed = self.stdout.read(), err.result()
        self.__exit__()
        return printed


def run_command(
    args: Sequence[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Give a command and wait for its end."""
    command = Command(args, folder, environment)
    out, err = command.communicate()
    assert command.returncode is not None
    return subprocess.CompletedProcess(command.args, command.returncode, out, err)


def forked() -> dict[str, str]:
    """Variables with which a command that starts `seerd` has a fork, too."""
    _server()
    return {"PYTHONPATH": str(ROOT / "tests" / "forked"), "SEERD_TEST_COMMANDS": NAME}


@cache
def _server() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{NAME}")
        door.listen()
        subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(there.fileno()), str(door.fileno())],
            cwd=ROOT,
            pass_fds=[there.fileno(), door.fileno()],
            stdin=subprocess.DEVNULL,
        ).returncode = 0  # nobody waits for it
    there.close()
    atexit.register(here.close)
    return here


def serve(control: socket.socket, door: socket.socket) -> None:
    """Start commands until nobody is there any more."""
    from seerd import commands

    for module in pkgutil.iter_modules(commands.__path__, "seerd.commands."):
        if module.name != "seerd.commands.canary":  # imports what few commands need
            importlib.import_module(module.name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if control in select.select([control, door], [], [])[0]:
            line, descriptors, _, _ = socket.recv_fds(control, LONGEST, 3)
            if not line:
                return
        else:
            with door.accept()[0] as wire:
                line, descriptors, _, _ = socket.recv_fds(wire, LONGEST, 3)
        if os.fork() == 0:
            control.close()
            door.close()
            _watch(json.loads(line), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: dict[str, Any], out: int, err: int, status: int) -> NoReturn:
    """Start one in a fork, and write its id and its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(status)
        _begin(request, out, err)
    os.close(out)
    os.close(err)
    watch(child, status)


def _begin(request: dict[str, Any], out: int, err: int) -> NoReturn:
    """Be the command, in a session of its own: to sessions Linux gives CPU time in equal shares, so
    that a run keeps its deadline beside tests that compute.
    """
    from seerd import cli
    from seerd.clock import process_began
    from seerd.commands import common, run

    os.setsid()
    for ours, to in ((out, 1), (err, 2)):
        os.dup2(ours, to)
        os.close(ours)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # TMPDIR says
    sys.argv[1:] = request["args"]
    common.STARTED = run.STARTED = process_began()  # deadlines count from here
    try:
        cli.main()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
