"""The life of one attempt: files, processes, its output, its end.

The one rule: `Exited` is told when no process of the attempt is left and all that it wrote has been told before.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Callable, List, Optional, Set, Tuple

from agent import host
from agent.launch import LaunchPlan, Places
from agent.outbox import Maker, Outbox
from agent.protocol import Exited, Start, Started

POLL_S = 0.1
TAIL_LINES = 30
TAIL_BYTES = 16_384
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL)

Tell = Callable[[List[Maker]], None]


class Attempt:
    """One attempt that has been ordered. `gpus` are held until `done`."""

    def __init__(self, start: Start, plan: LaunchPlan, places: Places, outbox: Outbox, tell: Tell) -> None:
        self.start = start
        self.gpus = set(start.gpus)
        self.done = asyncio.Event()
        self._plan = plan
        self._places = places
        self._outbox = outbox
        self._tell = tell
        self._process: Optional[asyncio.subprocess.Process] = None
        self._cause: Optional[str] = None
        self._killer: Optional[asyncio.Task[None]] = None

    @property
    def key(self) -> str:
        """Trial and attempt."""
        return f"{self.start.trial}/{self.start.attempt}"

    async def begin(self) -> None:
        """Start its processes and tell so. Raises `OSError` if they cannot be started."""
        self._places.logs.mkdir(parents=True, exist_ok=True)
        self._places.checkpoints.mkdir(parents=True, exist_ok=True)
        (self._places.attempt / "trial.json").write_text(json.dumps(self._plan.about))
        with self._plan.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *self._plan.argv,
                env=self._plan.env,
                cwd=self._plan.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        order, pid, at = self.start, self._process.pid, time.time()
        self._tell([lambda seq: Started(seq, at, order.id, order.trial, order.attempt, pid)])

    async def follow(self) -> None:
        """Tell what it writes until it has ended, and then that."""
        assert self._process is not None
        exited = asyncio.ensure_future(self._process.wait())
        while not exited.done():
            await asyncio.wait({exited}, timeout=POLL_S)
            await self._drain()
        if self._killer is not None:
            self._killer.cancel()
        await self._kill()
        await self._drain()
        self._tell([self._exited(exited.result())])
        self.done.set()

    def stop(self, cause: str, grace_s: float) -> None:
        """Ask it to save and exit, and kill it after the grace period; with none, at once."""
        self._cause = cause
        if grace_s > 0:
            (self._places.attempt / "stop").touch()
        if self._killer is not None:
            self._killer.cancel()
        self._killer = asyncio.ensure_future(self._kill_after(grace_s))

    async def _kill_after(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        await self._kill()

    async def _kill(self) -> None:
        launcher = self._process.pid if self._process is not None and self._process.returncode is None else 0
        left = await asyncio.to_thread(host.kill, lambda: self._members(launcher))
        if left:
            raise RuntimeError(f"processes {sorted(left)} of {self.key} cannot be killed")

    def _members(self, launcher: int) -> Set[int]:
        if self._process is not None and self._process.returncode is not None:
            launcher = 0
        return host.members(self._plan.env[host.MARKER], launcher)

    async def _drain(self) -> None:
        makers = await asyncio.to_thread(self._outbox.drain)
        if makers:
            self._tell(makers)

    def _exited(self, code: int) -> Maker:
        cause = self._cause or ("finished" if code == 0 else "crashed")
        rank, tail = _post_mortem(self._places.logs) if cause == "crashed" else (None, [])
        at, order = time.time(), self.start
        return lambda seq: Exited(seq, at, order.trial, order.attempt, cause, code, rank, tail)


def _post_mortem(logs: Path) -> Tuple[Optional[int], List[str]]:
    """Which rank failed first, as torchrun says, and the last lines that it wrote."""
    launcher = _tail(logs / "launcher.log")
    found = ROOT_CAUSE.search("\n".join(launcher)) or ROOT_CAUSE.search(_text(logs / "launcher.log"))
    if found is None:
        return None, launcher[-TAIL_LINES:]
    rank = int(found[1])
    for name in ("stderr.log", "stdout.log"):
        for path in sorted(logs.glob(f"*/attempt_*/{rank}/{name}")):
            lines = _tail(path)
            if lines:
                return rank, lines
    return rank, launcher


def _tail(path: Path) -> List[str]:
    return _text(path)[-TAIL_BYTES:].splitlines()[-TAIL_LINES:]


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 20)))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
