"""The life of one attempt: its files, its processes, its output and its end. `Exited` is reported
last, when no process is left, all output is reported, and the last checkpoint is stored or lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from typing import Any, Awaitable, Callable, Coroutine, Iterator, Optional, Sequence, Union

from seerd.agent import clock, host, postmortem
from seerd.agent.container import ContainerProcess
from seerd.agent.family import Ancestor, Family
from seerd.agent.hangs import Stall, Standstill
from seerd.agent.health import GpusAfter
from seerd.agent.launch import LaunchPlan, Places, speaks
from seerd.agent.protocol import Exited, Fact, Noticed, Start, Started
from seerd.agent.secrecy import mask_files
from seerd.agent.threads import in_thread, in_thread_or_here, spawned
from seerd.agent.timings import Timings
from seerd.agent.trial_output import QUIET_S, TrialOutput
from seerd.agent.warm.gpu_share import GROWN, SHARE
from seerd.agent.warm_starts import ForkedProcess, WarmStarts
from seerd.agent.watchdog import END_FILE, ScriptObserver, Watchdog

LAST_PLACE_S = 30.0
"""Seconds that the last checkpoint may wait for a place in the store, without a grace period."""
POLL_S = 0.1
AGAIN_S = 1.0
"""Seconds until storing is tried again after the system has had no thread or file for it."""
LEAST_QUIET_S, STILL_S = 5.0, 10.0
"""Shortest time without a report that is reported; and without any activity."""
Report = Callable[[list[Fact]], None]
SUMMARY_S = 3.0
"""Seconds that torchrun has, after a rank has crashed, to end the others and log which it was."""
CLOSING_S = 1.0
"""Seconds that other ranks live on when one has failed; torchrun would wait 30 s for stuck ones."""
LAST_WORDS_S = 10.0  # seconds that torchrun has to log which rank failed, once all ranks are gone
STACK_S = 1.0  # seconds that a rank that hangs has to write its Python stack
FirstProcess = Union[asyncio.subprocess.Process, ForkedProcess, ContainerProcess]


class LocalAttempt:
    """One attempt of the run `run`, as `start` orders it.

    `gpus_after` waits until the memory of its GPUs is free. `others` returns the other attempts
    here.
    """

    def __init__(
        self,
        run: str,
        start: Start,
        places: Places,
        output: TrialOutput,
        timings: Timings,
        report: Report,
        gpus_after: Callable[[], Awaitable[GpusAfter]],
        others: Callable[[], list[LocalAttempt]],
    ) -> None:
        self.start = start
        self.gpus = set(start.gpus)  # held until `done` is set
        self.done = asyncio.Event()  # set when the attempt is over
        self.cause: Optional[str] = None  # why it has to end: "asked" or "lease"; None: it has not
        self._places = places
        self._output = output
        self._patience = timings.hang_patience
        self._report = report
        self._gpus_after = gpus_after
        self.family = Family(
            *(f"{run}/{self.key}", places.attempt.resolve(), host.ticks(), lambda: self.launcher),
            others=lambda: [other.family for other in others()],
        )
        self._watchdog = Watchdog(start, places, self.members, report, timings)
        self._hung: Optional[Stall] = None
        self._fault = ""
        self._still, self._quiet_s = Standstill(), QUIET_S
        self._ends_at: Optional[float] = None
        self._marker = self._share = ""
        self._by_torchrun = False
        self._is_crashing = False
        self._process: Optional[FirstProcess] = None
        self._observer = ScriptObserver(places.attempt, self._end_unobserved)
        self._wake = asyncio.Event()
        self.stopped = asyncio.Event()  # set when it has to end
        self._memory: list[int] = []  # see `Exited.memory`
        self._kill_at: Optional[float] = None
        self._killing: Optional[asyncio.Task[None]] = None
        self._storing: Optional[asyncio.Task[None]] = None
        self._store_at = 0.0

    @property
    def key(self) -> str:
        """Trial and attempt, as "trial/attempt"."""
        return f"{self.start.trial}/{self.start.attempt}"

    def see_memory(self, used: int, total: int) -> None:
        """Note how many bytes of one of its GPUs are in use for it, and how many that GPU has."""
        if self._process is not None:
            self._memory = max(self._memory, [used, total])

    async def begin(self, plan: LaunchPlan, warm: WarmStarts) -> None:
        """Start the processes, warm if possible, unless stopped. Raises `OSError`, `ValueError`."""
        if self.cause is not None:
            return
        self._make_ready(plan)
        try:
            self._process = await warm.start(plan, self.stopped)
            if self._process is None and self.cause is None:
                plain = plan.argv, plan.env, plan.cwd, plan.log
                self._process = await (
                    spawned(*plain)
                    if plan.container is None
                    else plan.container.start(*plain, self.start.secrets, self.stopped)
                )
            if isinstance(self._process, (ForkedProcess, ContainerProcess)):
                self.family.supervisor = self._process.supervisor
            if plan.observer is not None and self._process is not None:
                argv = [*plan.observer, str(self._process.pid)]
                folder = str(self._places.attempt)
                env = {k: v for k, v in plan.env.items() if k not in self.start.secrets}
                await self._observer.begin(partial(spawned, argv, env, folder, plan.log))
        except OSError:
            await self._kill()  # also a process that was started before that was raised
            if self._process is not None:
                await self._process.wait()
            raise

    async def follow(self) -> None:
        """Report the facts of the attempt until its end."""
        if self._process is None:
            self._report([self._exited(clock.now(), None)])
            return
        order, pid = self.start, self._process.pid
        self._report([Started(0, clock.now(), order.id, order.trial, order.attempt, pid)])
        if speaks(self.start):
            left_s = math.inf if self._ends_at is None else self._ends_at - clock.now()
            self._quiet_s = quiet_s_of(left_s)
            self._output.begin(self._quiet_s)
        self._wake.set()
        free_at, gpus = await self._until_gone(self._process)
        with contextlib.suppress(OSError):  # then it cannot be read, either
            secrets = self.start.secrets.values()
            await in_thread_or_here(mask_files, self._places.logs, secrets)
        why = f"after {self.key} had ended its GPUs could not be used again: {gpus.held}"
        unfit = [Noticed(0, free_at, "unhealthy", None, why)] if gpus.held else []
        self._report([*unfit, self._exited(free_at, self._process.returncode, gpus.fault)])

    def stop(self, cause: str, kill_at: float) -> None:
        """Ask the attempt to save and exit, and kill it at `kill_at` (the agent's time; past: at
        once). A later call can only shorten the time.

        When an attempt on several nodes crashes, the first node to report has the others stopped,
        so one that has lost a rank itself has `SUMMARY_S` to find out which.
        """
        now = clock.now()
        if self.cause is None and kill_at <= now:
            self._is_crashing = self._has_lost_a_rank()
            self._end_if_hung()
        self.cause = self.cause or cause
        self.stopped.set()
        kill_at = now + SUMMARY_S if self._is_crashing else kill_at
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if not self._marker:
            # It has not started, so what is being fetched need not be restored.
            self._output.checkpoint_store.cut()
        if kill_at > now:
            self.ask("stop")
        self.look()

    def ask(self, file: str) -> None:
        """Ask the trial to `stop` or to `save`, at its next step."""
        if self._marker:
            with contextlib.suppress(OSError):  # a trial that has removed its own folder
                (self._places.attempt / file).touch()

    def expect_end(self, at: Optional[float]) -> None:
        """Inform the trial when training ends (agent's time; None: unknown)."""
        self._ends_at = at
        if self._marker:
            self._write_end()

    def _write_end(self) -> None:
        if self._ends_at is None:
            return
        at, steady = clock.to_wall(self._ends_at), clock.to_boot(self._ends_at)
        horizon = {"version": 1, "ends_at": at, "ends_since_boot": steady}
        self._hand_over("horizon.json", json.dumps(horizon))

    def _hand_over(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):  # a trial that has removed its own folder
            part = self._places.attempt / f".{name}"
            part.write_text(text)
            os.replace(part, self._places.attempt / name)

    def grow(self, slots: Sequence[int]) -> None:
        """Let the attempt use these slots of its GPU, and their memory."""
        self.gpus = set(slots)
        if self._share:
            self._share = f"{len(slots)}/{self.start.parts}"
            self._hand_over(GROWN, self._share)

    def end_as_failed(self, why: str) -> None:
        """Kill the attempt, which has failed for this reason, unless it ends already."""
        if self._end_by(self._kill):
            self._fault = why

    def look(self) -> None:
        """Do what is due. Called often; costs next to nothing if nothing is due."""
        if self._process is not None and self._killing is None:
            self._look_after(self._process)
        due = self._kill_at is not None and (
            clock.now() >= self._kill_at or self._only_torchrun_is_left()
        )
        if due:
            self._end_by(self._kill)
        if self._kill_at is not None and clock.now() >= self._kill_at and self.cause != "lease":
            # After a lease nobody waits, so a checkpoint under way may still get there.
            self._output.checkpoint_store.cut()
        self._output.look(partial(postmortem.error_in, self._places.logs))
        if self._output.has_news() or (self._storing is None and self._can_store()):
            self._wake.set()

    def _end_by(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin this, which ends its processes; return whether they are there, and end only now."""
        if self._killing is not None or self._process is None:
            return False
        self._killing = asyncio.ensure_future(work())
        self._killing.add_done_callback(lambda _: self._wake.set())
        return True

    def _end_unobserved(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._end_by(self._kill)

    def _look_after(self, process: FirstProcess) -> None:
        # On several nodes a hang is only reported: the daemon, to which all report, decides.
        if self._by_torchrun and self._watchdog.is_closing():
            self._end_by(partial(self._clear, process))
        elif self.cause is None:
            self._watchdog.look()
            if self.start.node is None:
                self._end_if_hung()
                output = self._output
                limit_s = max(min(STILL_S, self._quiet_s), self._patience * output.longest_s)
                activity = (process.pid, output.read_to, output.reported_at)
                if why := self._still.look(time.monotonic(), *activity, limit_s):
                    output.report_once("still", why)

    def _end_if_hung(self) -> None:
        stall = self._watchdog.hung
        if stall is not None and self._end_by(partial(self._kill, stall)):
            self._hung = stall

    def _only_torchrun_is_left(self) -> bool:
        """Return whether torchrun runs without ranks, before they start or after they have gone:
        its own exit takes half a second, for which nobody needs to wait.

        With several nodes it is left alone once it has started ranks: it keeps the store through
        which their ranks talk.
        """
        if self._process is None or not self._by_torchrun:
            return False
        if not postmortem.ranks(self._places.logs):  # though forks may wait to become ranks
            return True
        if self.start.node is not None:
            return False
        return self.members() == {self._process.pid}

    def _has_lost_a_rank(self) -> bool:
        if self._process is None or self.start.node is None:
            return False
        ranks = host.values_of("LOCAL_RANK", self.members())
        return len(ranks) < len(postmortem.ranks(self._places.logs))

    def _launched(self) -> set[int]:
        own = set() if self._process is None else {self._process.pid}
        return own | self._observer.pids

    def each_member(self) -> Iterator[int]:
        """Yield the ids of its processes one by one, as `Family.each` does."""
        return iter(()) if self._process is None else self.family.each()

    def members(self) -> set[int]:
        """Return the ids of its processes."""
        return set() if self._process is None else self.family.members()

    @property
    def launcher(self) -> Ancestor:
        """The process that has started all others."""
        process = self._process
        if process is None:
            return Ancestor(0, False)
        return Ancestor(process.pid, process.returncode is not None)

    def _make_ready(self, plan: LaunchPlan) -> None:
        self._places.logs.mkdir(parents=True, exist_ok=True)
        self._places.checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._places.marks, ignore_errors=True)
        # An agent that died before it could report this start may have left files.
        for left_over in ("stop", "save", "out.jsonl", GROWN, END_FILE):
            with contextlib.suppress(FileNotFoundError):
                (self._places.attempt / left_over).unlink()
        if not speaks(self.start):
            (self._places.attempt / "out.jsonl").symlink_to(os.devnull)  # only node 0 reports
        (self._places.attempt / "trial.json").write_text(json.dumps(plan.about))
        self._write_end()
        self._marker, self._share = plan.env[host.MARKER], plan.env.get(SHARE, "")
        self._by_torchrun = "torch.distributed.run" in plan.argv

    async def _until_gone(self, process: FirstProcess) -> tuple[float, GpusAfter]:
        """Report what the attempt writes until it has ended. Return since when nothing of it is
        left (agent's time), and how its GPUs are then.
        """
        exited = asyncio.ensure_future(process.wait())
        exited.add_done_callback(lambda _: self._wake.set())
        while not exited.done():
            await self._wake.wait()
            self._wake.clear()
            if self._killing is not None and self._killing.done():
                self._killing.result()
            self._report(await in_thread_or_here(self._output.drain))
            self._store_beside()
        if self._killing is not None:
            await self._killing
        await self._observer.see_end(process.returncode)
        if not self.family.is_gone():  # the launcher has left processes behind
            await self._kill()
        proving = asyncio.ensure_future(self._proved_free())
        while self._output.has_grown():
            self._report(await in_thread_or_here(self._output.drain))
        self._report(self._output.last_reports())
        await self._store_last()
        self._report(self._output.promised())
        return await proving

    async def _proved_free(self) -> tuple[float, GpusAfter]:
        gpus = await self._gpus_after()
        return clock.now(), gpus

    def _store_beside(self) -> None:
        if self._storing is not None and self._storing.done():
            self._storing.result()
            self._storing = None
        if self._storing is None and self._can_store():
            self._storing = asyncio.ensure_future(self._store())
            self._storing.add_done_callback(lambda _: self._wake.set())

    def _can_store(self) -> bool:
        return self._output.can_store() and time.monotonic() >= self._store_at

    async def _store(self) -> None:
        try:
            while self._output.can_store():
                self._report(await in_thread(self._output.store))
        except OSError as error:
            self._store_at = time.monotonic() + AGAIN_S
            self._report(self._output.put_off(error))

    async def _store_last(self) -> None:
        """Store what still waits, until there is no place for `LAST_PLACE_S` or no grace left."""
        self._output.checkpoint_store.last_call()
        self._store_at = 0.0  # threads and files that the trial had are free now
        give_up_at = clock.now() + LAST_PLACE_S
        self._store_beside()
        while self._output.waits() or self._storing is not None:
            if self._storing is not None:
                await asyncio.wait({self._storing})
            elif clock.now() >= min(give_up_at, self._kill_at or give_up_at):
                return
            else:
                await asyncio.sleep(POLL_S)
            self._store_beside()

    async def _clear(self, process: FirstProcess) -> None:
        await asyncio.sleep(CLOSING_S)
        spared = self._launched()
        await in_thread_or_here(self.family.end, spared, spared)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), LAST_WORDS_S)
        # What observes the script still has to see its last words and its last checkpoint.
        await in_thread_or_here(self.family.end, self._observer.pids, spared)

    def _request_stack(self, stall: Stall) -> None:
        mark = stall.hung
        if mark is None or mark.signal == 0 or mark.pid not in self.members():
            return
        logs, give_up_at = self._places.logs, time.monotonic() + STACK_S
        before = postmortem.error_bytes(logs, stall.local)
        with contextlib.suppress(OSError, ValueError, OverflowError):
            os.kill(mark.pid, mark.signal)
        while postmortem.error_bytes(logs, stall.local) == before and time.monotonic() < give_up_at:
            time.sleep(host.POLL_S)

    async def _kill(self, hung: Optional[Stall] = None) -> None:
        if hung is not None:
            await in_thread_or_here(self._request_stack, hung)
        left = await in_thread_or_here(self.family.end, (), self._launched())
        if left:
            raise RuntimeError(f"processes {sorted(left)} of {self.key} cannot be killed")
        if isinstance(self._process, ContainerProcess):
            await self._process.clear()

    def _exited(self, at: float, code: Optional[int], fault: str = "") -> Exited:
        cause, order = self._cause_of_exit(code), self.start
        findings = self._findings() if cause == "crashed" else postmortem.Findings()
        postmortem.name_own_module(findings.tail, self._places.work)
        postmortem.name_share(findings.tail, self._share)
        return Exited(
            *(0, at, order.trial, order.attempt, cause, None if self._fault else code),
            *(findings.rank, findings.tail, findings.silent, findings.signal, findings.waited_s),
            started=self._process is not None,
            memory=self._memory,
            fault=fault if cause == "crashed" else "",
        )

    def _findings(self) -> postmortem.Findings:
        if self._fault:
            return postmortem.Findings(tail=[self._fault])
        logs, stall = self._places.logs, self._hung
        if stall is None or stall.hung is None:
            findings = postmortem.examine(logs)
            at = None if findings.silent is None else clock.of_wall(findings.silent)
            return replace(findings, silent=at)
        return postmortem.of_hung(logs, stall.hung.rank, stall.local, stall.since, stall.quiet_s)

    def _cause_of_exit(self, code: Optional[int]) -> str:
        is_crash = self._is_crashing and self._tells_of_it(code)
        if self._hung is not None or self._fault or is_crash:
            return "crashed"
        one_of_several = self.start.node is not None and self.cause is None
        if one_of_several and code == 0 and (self._places.attempt / "stop").exists():
            return "asked"  # its ranks left because another node's were asked to
        return self.cause or ("finished" if code == 0 else "crashed")

    def _tells_of_it(self, code: Optional[int]) -> bool:
        """Return whether the launcher, or a rank if it ended too soon, says that one failed."""
        logs = self._places.logs
        if code is not None and code > 0:
            return True
        return any(postmortem.error_in(logs, rank) for rank in postmortem.ranks(logs))


def quiet_s_of(left_s: float) -> float:
    """Return the seconds without a report that are reported, with `left_s` left to train."""
    return min(QUIET_S, max(LEAST_QUIET_S, left_s / 3))
