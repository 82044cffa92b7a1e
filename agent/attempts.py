"""The life of one attempt: files, processes, its output, its end.

The one rule: `Exited` is told when no process of the attempt is left, all that it wrote has been told before, and its last checkpoint is in the
store or has failed to get there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from typing import Callable, List, Optional, Set

from agent import host, postmortem
from agent.journal import Maker
from agent.launch import LaunchPlan, Places, speaks
from agent.outbox import Outbox
from agent.protocol import Exited, Start, Started
from agent.threads import in_thread

LAST_PLACE_S = 30.0
"""How long the last checkpoint waits for a place in the store, if no grace period says less."""
POLL_S = 0.1
Tell = Callable[[List[Maker]], None]
SUMMARY_S = 3.0
"""How long torchrun may take, after a rank has crashed, to end the others and say which it was."""


class Attempt:
    """One attempt that has been ordered. `gpus` are held until `done`; `cause` says who asked it to end, None if nobody."""

    def __init__(self, start: Start, places: Places, outbox: Outbox, tell: Tell) -> None:
        self.start = start
        self.gpus = set(start.gpus)
        self.done = asyncio.Event()
        self.cause: Optional[str] = None
        self._places = places
        self._outbox = outbox
        self._tell = tell
        self._marker = ""
        self._by_torchrun = False
        self._is_crashing = False
        self._process: Optional[asyncio.subprocess.Process] = None
        self._wake = asyncio.Event()
        self._kill_at: Optional[float] = None
        self._killing: Optional[asyncio.Task[None]] = None
        self._storing: Optional[asyncio.Task[None]] = None

    @property
    def key(self) -> str:
        """Trial and attempt."""
        return f"{self.start.trial}/{self.start.attempt}"

    async def begin(self, plan: LaunchPlan) -> None:
        """Start its processes, unless it has been stopped before. Raises `OSError` or `ValueError` if they cannot be started."""
        if self.cause is not None:
            return
        self._make_ready(plan)
        await self._spawn(plan)

    async def follow(self) -> None:
        """Tell that it has started, what it writes, and at last that nothing of it is left."""
        if self._process is None:
            self._tell([self._exited(time.time(), None)])
            return
        self._tell([self._started(time.time(), self._process.pid)])
        free_at = await self._until_gone(self._process)
        self._tell([self._exited(free_at, self._process.returncode)])

    def stop(self, cause: str, grace_s: float) -> None:
        """Ask it to save and exit, and kill it after the grace period; with none, at once. A later word can only shorten it.

        The nodes of a crash all fail at the same time, and the first to tell has the others stopped: one whose own rank has failed may still
        say so.
        """
        if self.cause is None and grace_s == 0:
            self._is_crashing = self._has_lost_a_rank()
        self.cause = self.cause or cause
        kill_at = time.monotonic() + (SUMMARY_S if self._is_crashing else grace_s)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if not self._marker:
            self._outbox.shelf.cut()  # it need not be restored
        if grace_s > 0 and self._marker:
            with contextlib.suppress(
                OSError
            ):  # a trial that has removed its own folder is not asked, and killed when its time is up
                (self._places.attempt / "stop").touch()
        self.look()

    def look(self) -> None:
        """To be called often: see whether there is something to do. Costs next to nothing if there is not."""
        due = self._kill_at is not None and (time.monotonic() >= self._kill_at or self._only_torchrun_is_left())
        if due and self._killing is None and self._process is not None:
            self._killing = asyncio.ensure_future(self._kill(self._process))
            self._killing.add_done_callback(lambda _: self._wake.set())
        if self._kill_at is not None and time.monotonic() >= self._kill_at and self.cause != "lease":
            self._outbox.shelf.cut()  # where nobody waits any more, it may still get there
        if self._outbox.has_grown() or (self._storing is None and self._outbox.can_store()):
            self._wake.set()

    def _only_torchrun_is_left(self) -> bool:
        """Its ranks have gone, or are not there yet: torchrun's own exit takes half a second, and nobody needs it any more.

        Unless there are other nodes: these wait for it, and it keeps what their ranks talk through.
        """
        if self._process is None or not self._by_torchrun:
            return False
        if self.start.node is not None and postmortem.ranks(self._places.logs):
            return False
        return self.members() == {self._process.pid}

    def _has_lost_a_rank(self) -> bool:
        """Whether this is one node of several, and of its ranks that have been started one is gone."""
        if self._process is None or self.start.node is None:
            return False
        return len(host.values_of("LOCAL_RANK", self.members())) < len(postmortem.ranks(self._places.logs))

    def members(self) -> Set[int]:
        """Its processes."""
        return host.members(self._marker, self._process.pid) if self._process is not None else set()

    def _make_ready(self, plan: LaunchPlan) -> None:
        self._places.logs.mkdir(parents=True, exist_ok=True)
        self._places.checkpoints.mkdir(parents=True, exist_ok=True)
        for left_over in ("stop", "out.jsonl"):  # an agent died between starting this attempt and telling so
            with contextlib.suppress(FileNotFoundError):
                (self._places.attempt / left_over).unlink()
        if not speaks(self.start):
            (self._places.attempt / "out.jsonl").symlink_to(os.devnull)  # whatever its ranks say, node 0 speaks
        (self._places.attempt / "trial.json").write_text(json.dumps(plan.about))
        self._marker = plan.env[host.MARKER]
        self._by_torchrun = "torch.distributed.run" in plan.argv

    async def _spawn(self, plan: LaunchPlan) -> None:
        with open(plan.log, "ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *plan.argv,
                env=plan.env,
                cwd=plan.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    async def _until_gone(self, process: asyncio.subprocess.Process) -> float:
        """Tell what it writes until it has ended. Returns when that was: the moment since which nothing of it is left."""
        exited = asyncio.ensure_future(process.wait())
        exited.add_done_callback(lambda _: self._wake.set())
        while not exited.done():
            await self._wake.wait()
            self._wake.clear()
            if self._killing is not None and self._killing.done():
                self._killing.result()
            self._tell(await asyncio.to_thread(self._outbox.drain))
            self._store_beside()
        if self._killing is not None:
            await self._killing
        await self._kill(process)
        free_at = time.time()
        for makers in await asyncio.to_thread(lambda: list(self._outbox.drain_all())):
            self._tell(makers)
        await self._store_last()
        return free_at

    def _store_beside(self) -> None:
        """Have the newest checkpoint put into the store while the trial goes on."""
        if self._storing is None and self._outbox.can_store():
            self._storing = asyncio.ensure_future(self._store())
            self._storing.add_done_callback(lambda _: self._wake.set())

    async def _store(self) -> None:
        """Until none waits that there is a place for."""
        while self._outbox.can_store():
            self._tell(await in_thread(self._outbox.store))
        self._storing = None

    async def _store_last(self) -> None:
        """What still waits is put now, or never; within the grace period."""
        self._outbox.shelf.last_call()
        give_up_at = time.monotonic() + LAST_PLACE_S
        while self._outbox.waits() or self._storing is not None:
            self._store_beside()
            if self._storing is not None:
                await self._storing
            elif time.monotonic() >= min(give_up_at, self._kill_at or give_up_at):
                return
            else:
                await asyncio.sleep(POLL_S)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        left = await asyncio.to_thread(host.kill, self.members, {process.pid})
        if left:
            raise RuntimeError(f"processes {sorted(left)} of {self.key} cannot be killed")

    def _started(self, at: float, pid: int) -> Maker:
        order = self.start
        return lambda seq: Started(seq, at, order.id, order.trial, order.attempt, pid)

    def _exited(self, at: float, code: Optional[int]) -> Maker:
        cause, order = self._cause_of_exit(code), self.start
        found = postmortem.examine(self._places.logs) if cause == "crashed" else postmortem.Findings()
        return lambda seq: Exited(
            seq, at, order.trial, order.attempt, cause, code, found.rank, found.tail, found.silent
        )

    def _cause_of_exit(self, code: Optional[int]) -> str:
        if self._is_crashing and code is not None and code > 0:
            return "crashed"
        if (
            self.cause is None
            and code == 0
            and self.start.node is not None
            and (self._places.attempt / "stop").exists()
        ):
            return "asked"  # its ranks left because another node's were asked to
        return self.cause or ("finished" if code == 0 else "crashed")
