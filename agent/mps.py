"""MPS, NVIDIA's service by which processes of several attempts compute on one GPU at the same time
instead of in turns (docs.nvidia.com/deploy/mps). Used where `SEERD_MPS=1` asks for it.

The one rule: a process of ours, the minder, ends the control daemon once the agent has died and no
attempt of the run is left. It carries the run's mark, as the daemon and its server do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping, Optional

import seerd.agent
from seerd.agent import host
from seerd.agent.health import CheckedMachine, UnhealthyError, card_bytes
from seerd.agent.protocol import Exited, Fact
from seerd.agent.threads import spawned
from seerd.agent.warm.gpu_share import MPS, SHARE, allowed_bytes

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LONGEST = 80  # characters of the folder of pipes, as an address of a socket has 107 (unix(7))
READY_S = 10.0
POLL_S = 0.1
TOGETHER_S = 10.0
"""Attempts that fail on one GPU within so many seconds have failed by one fault: MPS ends all."""
FAULT = re.compile(r"CUDA error(?!: out of memory)|CU(?:DNN|BLAS)_STATUS_EXECUTION_FAILED")
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from seerd.agent.mps import main; main(int(sys.argv[2]), sys.argv[3])"
)


class Mps:
    """The control daemon of the agent of a run on this machine, in the agent's folder.

    `note` reports why there is none: then attempts share a GPU in turns.
    """

    def __init__(self, run: str, machine: CheckedMachine, note: Callable[[str], None]) -> None:
        self._run = run
        self._machine = machine
        self._note = note
        self._pipes, self._logs = machine.folder / "mps", machine.folder / "mps-logs"
        self._turn = asyncio.Lock()
        self._minder: Optional[asyncio.subprocess.Process] = None
        self._wire: Optional[socket.socket] = None
        self._bytes: dict[str, int] = {}
        self._is_off = False
        self._failed: dict[str, tuple[str, float]] = {}

    async def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an attempt's environment with what makes it a client if it has a part of a GPU and
        wants that. Starts the daemon for the first one.
        """
        if SHARE not in env or env.get(MPS, os.environ.get(MPS)) != "1":
            return {**env}
        async with self._turn:
            if not self._is_off and self._minder is None:
                self._turn_off(await self._why_not_begun())
            if self._minder is not None and self._minder.returncode is not None:
                self._turn_off(f"{CONTROL} has ended, see {self._machine.folder}/mps.log")
        if self._is_off:
            return {**env}
        total = self._bytes.get(env["CUDA_VISIBLE_DEVICES"])
        limit = {LIMIT: f"0={allowed_bytes(env[SHARE], total) >> 20}M"} if total else {}
        return {**env, PIPES: str(self._pipes), LOGS: str(self._logs), **limit}

    def explained(self, gpu: str, facts: list[Fact]) -> list[Fact]:
        """Add to the last words of attempts that a fault of another one on this GPU has ended."""
        return [self._explained(gpu, fact) if isinstance(fact, Exited) else fact for fact in facts]

    def _explained(self, gpu: str, fact: Exited) -> Exited:
        if (
            self._minder is None
            or fact.cause != "crashed"
            or not FAULT.search("\n".join(fact.tail))
        ):
            return fact
        first, at = self._failed.get(gpu, ("", 0.0))
        by_other = first and first.rpartition("/")[0] != fact.trial
        if by_other and fact.at - at <= TOGETHER_S:
            return replace(fact, tail=[*fact.tail, f"seerd: MPS ended it, as {first} had failed"])
        self._failed[gpu] = f"{fact.trial}/{fact.attempt}", fact.at
        return fact

    def _turn_off(self, why: str) -> None:
        if why and not self._is_off:
            self._is_off = True
            self._note(f"trials on one GPU take turns: {why}")

    async def _why_not_begun(self) -> str:
        """Start the daemon; return why that was not possible."""
        if shutil.which(CONTROL) is None:
            return f"there is no {CONTROL} on this machine"
        if len(str(self._pipes)) > LONGEST:
            return f"the path of {self._pipes} is too long for the pipes of MPS"
        with contextlib.suppress(OSError, UnhealthyError):  # then torch's bound has to do
            self._bytes = await card_bytes(self._machine)
        env = {**os.environ, host.MARKER: f"{self._run}//mps"}
        env.pop("CUDA_VISIBLE_DEVICES", None)  # or the daemon would number its GPUs anew
        package = str(Path(seerd.agent.__path__[0]).parents[1])
        log = self._machine.folder / "mps.log"
        try:
            for name, folder in ((PIPES, self._pipes), (LOGS, self._logs)):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                env[name] = str(folder)
            self._wire, theirs = socket.socketpair()
            argv = [sys.executable, "-I", "-c", START, package, str(theirs.fileno()), self._run]
            with theirs:
                self._minder = await spawned(argv, env, "/", log, [theirs.fileno()])
        except OSError as error:
            return f"{CONTROL} cannot be started: {error}"
        end = time.monotonic() + READY_S
        while self._minder.returncode is None and not (self._pipes / "control").exists():
            if time.monotonic() > end:
                return f"{CONTROL} was not ready after {READY_S:.0f} s, see {log}"
            await asyncio.sleep(POLL_S)
        return ""


def main(descriptor: int, run: str) -> None:
    """Run the control daemon until it ends, or the agent at the other end of this socket is gone
    and no process of an attempt is left.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wire = socket.socket(fileno=descriptor)
    wire.settimeout(POLL_S)
    daemon = subprocess.Popen([CONTROL, "-f"], stdin=subprocess.DEVNULL)
    empty = 0
    while daemon.poll() is None and empty < host.EMPTY_LOOKS:
        try:
            wire.recv(1)  # nothing is ever sent: the agent is gone
        except socket.timeout:
            continue
        marks = map(host.attempt_of, host.each_marked_with(f"{run}/"))
        left = [mark for mark in marks if mark is None or not mark.startswith(f"{run}//")]
        empty = 0 if left else empty + 1
        time.sleep(POLL_S)
    family = host.below([daemon.pid])
    host.kill(lambda: filter(host.is_there, family), {daemon.pid})
