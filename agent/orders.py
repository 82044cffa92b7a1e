"""Carries out orders: prepares the instance, starts attempts, stops them, ends them all.

The one rule: what an order asks for is reserved in the same moment in which it is checked. So a
later order finds what an earlier one is still about to do: GPUs are not given twice, and a stop
ends an attempt that has not been started yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Coroutine, Dict, Iterator, List, Optional, Union

from seerd.agent import host
from seerd.agent.attempts import LocalAttempt, Tell
from seerd.agent.downloads import JobData
from seerd.agent.gpus import Gpus
from seerd.agent.health import CheckedMachine, UnhealthyError, check_machine, check_torch
from seerd.agent.journal import AgentJournal, Maker, Order
from seerd.agent.launch import (
    LaunchPlan,
    Places,
    WarmPlan,
    devices,
    launch_plan,
    speaks,
    warm_plan,
    why_not_nodes,
)
from seerd.agent.manifest import Goal, is_safe
from seerd.agent.network import environment
from seerd.agent.presigned_urls import PresignedUrls, PresignedUrlsByAttempt, Say
from seerd.agent.protocol import (
    Ask,
    Downloads,
    Grant,
    Job,
    Noticed,
    Parts,
    Prepare,
    Prepared,
    Refused,
    Start,
    Stop,
)
from seerd.agent.record import record
from seerd.agent.remote_store import RemoteStore
from seerd.agent.threads import in_thread
from seerd.agent.transfer import CheckpointStore, Directory
from seerd.agent.trial_output import TrialOutput
from seerd.agent.warm_starts import WarmStarts, can_fork

TAIL_LINES = 20
LONGEST_WHY = 4000
Beside = Callable[[Coroutine[Any, Any, None]], None]


@record
class Here:
    """This instance, as its agent was told.

    run      the run's name
    gpus     how many GPUs there are
    cuda     whether they are CUDA devices; otherwise CPU slots
    folder   the agent's own
    library  folder that holds the training side
    """

    run: str
    gpus: int
    cuda: bool
    folder: Path
    library: Path

    def resolved(self, job: Job) -> Job:
        """Complete the job for this instance: its source becomes an absolute path, and each rank
        gets its share of this machine's cores if the job sets no `threads`.
        """
        threads = job.threads or max(1, (os.cpu_count() or 1) // self.gpus)
        return replace(job, source=str(self.folder / job.source), threads=threads)

    @property
    def machine(self) -> CheckedMachine:
        """What is looked at to see whether the machine is healthy."""
        return CheckedMachine(self.folder, self.cuda, f"{self.run}//health")

    def places(self, trial: str, attempt: int) -> Places:
        """Return where an attempt's things are."""
        own = self.folder / "trials" / trial
        return Places(
            own / str(attempt), own / "checkpoints", self.library, self.folder / "agent.lock"
        )

    def output(self, store: str, goal: Goal, urls: PresignedUrls) -> TrialOutput:
        """Return the output of an attempt, to be read.

        Its checkpoints go to the directory `store`, or, if that is empty, to where `urls` allows;
        they are compared by `goal`.
        """
        trial, attempt = urls.trial, urls.attempt
        places = self.places(trial, attempt)
        checkpoint_store: CheckpointStore = (
            Directory(Path(store) / trial, goal) if store else RemoteStore(urls)
        )
        out = places.attempt / "out.jsonl"
        return TrialOutput(out, trial, attempt, places.checkpoints, checkpoint_store, goal)


class Orders:
    """The orders of this instance, and the attempts that they have started.

    Facts go through `tell`, questions to the daemon through `ask`; `beside` runs work in the
    background.
    """

    def __init__(
        self, here: Here, journal: AgentJournal, tell: Tell, beside: Beside, ask: Say
    ) -> None:
        self._here = here
        self._journal = journal
        self._tell = tell
        self._beside = beside
        self._urls = PresignedUrlsByAttempt(ask)
        self._data = JobData()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._gpus = Gpus(here.machine, lambda gpus: devices(gpus, visible))
        self._attempts: Dict[str, LocalAttempt] = {}
        self._ends_at: Optional[float] = None
        self._preparing = asyncio.Lock()
        self._warm = WarmStarts(f"{here.run}//warm-", here.folder, self._note_cold)
        self._learning: Optional[Path] = None

    @property
    def attempts(self) -> List[str]:
        """Attempts that run or are about to, as "trial/attempt"."""
        return sorted(self._attempts)

    def carry_out(self, order: Order) -> None:
        """Begin to carry out this order. Its outcome is told as a fact."""
        if isinstance(order, Prepare):
            self._beside(self._prepare(order))
        elif isinstance(order, Start):
            self._start(order)
        else:
            self._stop(order)

    @property
    def asks(self) -> List[Ask]:
        """Questions to the daemon that wait for an answer."""
        return self._urls.asks

    def hand(self, message: Union[Grant, Parts, Downloads]) -> None:
        """Take in presigned URLs, which orders need and which must not be written to any disk."""
        if isinstance(message, Downloads):
            self._data.take(message)
        else:
            self._urls.take(message)

    def expect_end(self, in_s: Optional[float]) -> None:
        """Tell every attempt, also later ones, when training ends: in so many seconds. None: that
        is not known.
        """
        self._ends_at = None if in_s is None else time.time() + in_s
        for attempt in self._attempts.values():
            attempt.expect_end(self._ends_at)

    def save_all(self) -> None:
        """Have every attempt save at its next step, and go on."""
        for attempt in self._attempts.values():
            attempt.ask_to_save()

    def look(self) -> None:
        """Have every attempt do what is due. This is called often."""
        for attempt in self._attempts.values():
            attempt.look()
        if self._learning is not None and self._learning.exists():
            self._beside(self._warm.learn(self._learning))
            self._learning = None

    async def end_all(self, cause: str, grace_s: float) -> None:
        """Have every attempt save and exit within `grace_s` seconds; return when none is left."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.stop(cause, grace_s)
        for attempt in attempts:
            await attempt.done.wait()

    def close(self) -> None:
        """Begin no more attempts."""
        self._warm.close()

    def kill_all(self) -> None:
        """Kill everything of ours at once, without telling any fact.

        Raises `RuntimeError` if a process cannot be killed.
        """
        left = host.kill(self._each_process, set())
        if left:
            raise RuntimeError(f"processes {sorted(left)} cannot be killed")

    def _each_process(self) -> Iterator[int]:
        members = [attempt.each_member() for attempt in list(self._attempts.values())]
        return chain(host.each_marked_with(f"{self._here.run}/"), *members)

    async def _prepare(self, order: Prepare) -> None:
        """Make the instance ready for the job, and tell the outcome. Several such orders go one by
        one.
        """
        unhealthy = False
        async with self._preparing:
            try:
                problem = await self._made_ready(order)
            except UnhealthyError as error:
                problem, unhealthy = str(error), True
            except (OSError, ValueError) as error:
                problem = _text(error)
        at = time.time()
        self._tell(
            [
                _refused(order.id, problem, unhealthy)
                if problem
                else lambda seq: Prepared(seq, at, order.id)
            ]
        )

    async def _made_ready(self, order: Prepare) -> str:
        """Check the machine, set up the job and check its torch; return what went wrong, or
        nothing.

        Raises `UnhealthyError` if the machine is at fault, `OSError` or `ValueError` if it is not.
        """
        job = self._here.resolved(order.job)
        listing = await check_machine(order.expected, self._here.machine)
        if not job.setup:  # which may install what is to be imported
            self._warm_up(job)
        if not self._attempts:
            self._gpus.note(listing)
        problem = await self._set_up(job)
        if not problem:
            self._warm_up(job)
            await check_torch(order.expected, self._here.machine, job)
        return problem

    def _warm_up(self, job: Job) -> None:
        self._beside(self._warm.ready(self._warm_plan(job)))

    def _warm_plan(self, job: Job) -> Optional[WarmPlan]:
        outside = dict(os.environ)
        return (
            warm_plan(job, self._here.places("", 0), self._here.cuda, outside)
            if can_fork()
            else None
        )

    def _note_cold(self, why: str) -> None:
        at = time.time()
        self._tell([lambda seq: Noticed(seq, at, "cold", None, why)])

    def _start(self, order: Start) -> None:
        job, why = self._journal.job, self._why_not(order)
        if job is not None:
            job, why = self._here.resolved(job), why or why_not_nodes(job, order.node)
        if why or job is None:
            self._tell([_refused(order.id, why or "this instance is not prepared")])
            return
        places = self._here.places(order.trial, order.attempt)
        urls = self._urls.of(order.trial, order.attempt)
        output = self._here.output(job.store, Goal(job.metric, job.mode), urls)
        attempt = LocalAttempt(order, places, output, self._tell, self._gpus.why_held)
        attempt.expect_end(self._ends_at)
        self._attempts[attempt.key] = attempt
        outside = {**(environment(order.node.address) if order.node else {}), **os.environ}
        plan = launch_plan(
            job, order, self._here.run, places, self._here.cuda, outside, self._is_to_learn(places)
        )
        self._beside(self._run(attempt, plan, job, output.checkpoint_store))

    def _is_to_learn(self, places: Places) -> bool:
        """Have one attempt at a time tell what it has imported, until that is known."""
        if not self._warm.learns:
            return False
        self._learning = places.modules
        return True

    async def _run(
        self,
        attempt: LocalAttempt,
        plan: LaunchPlan,
        job: Job,
        checkpoint_store: CheckpointStore,
    ) -> None:
        """Bring an attempt from its start to its end."""
        order = attempt.start
        places = self._here.places(order.trial, order.attempt)
        try:
            self._warm_up(job)
            if speaks(order):
                await in_thread(checkpoint_store.fetch, places.checkpoints, order.checkpoints)
            await attempt.begin(plan, self._warm)
        except (OSError, ValueError) as error:
            self._tell([_refused(order.id, _text(error))])
        else:
            await attempt.follow()
        self._urls.forget(order.trial, order.attempt)
        del self._attempts[attempt.key]
        attempt.done.set()

    def _stop(self, order: Stop) -> None:
        """End an attempt, if it is not over: one that is over has told so already."""
        attempt = self._attempts.get(f"{order.trial}/{order.attempt}")
        if attempt is not None:
            attempt.stop("asked", order.grace_s if order.checkpoint else 0.0)

    def _why_not(self, order: Start) -> str:
        if not all(map(is_safe, [order.trial, *order.checkpoints])) or order.attempt < 0:
            return "the name of the trial or of a checkpoint is not allowed"
        if not order.gpus or not set(order.gpus) <= set(range(self._here.gpus)):
            return f"GPUs {order.gpus} are not among the {self._here.gpus} here"
        if f"{order.trial}/{order.attempt}" in self._attempts:
            return "this attempt has been started by another order"
        for attempt in self._attempts.values():
            if attempt.gpus & set(order.gpus):
                return f"GPUs {sorted(attempt.gpus & set(order.gpus))} are held by {attempt.key}"
        return ""

    async def _set_up(self, job: Job) -> str:
        """Fetch the data, and run the setup commands unless the same ones have succeeded here
        before.

        Returns what went wrong; empty if nothing did.
        """
        await in_thread(self._data.fetch, Path(job.source))
        done = (
            self._here.folder
            / f"setup-{hashlib.sha256(json.dumps(job.setup).encode()).hexdigest()[:16]}.done"
        )
        if not job.setup or done.exists():
            return ""
        output = self._here.folder / "setup.log"
        env = {**os.environ, **job.env, host.MARKER: f"{self._here.run}//setup"}
        for command in job.setup:
            with open(output, "ab") as out:
                process = await asyncio.create_subprocess_shell(
                    command,
                    cwd=job.source,
                    env=env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
                status = await process.wait()
            if status:
                lines = output.read_text(errors="replace")[-LONGEST_WHY:].splitlines()[-TAIL_LINES:]
                return "\n".join(
                    [f"setup command {command!r} ended with exit status {status}:", *lines]
                )
        done.touch()
        return ""


def _refused(order: str, why: str, unhealthy: bool = False) -> Maker:
    at = time.time()
    return lambda seq: Refused(seq, at, order, why, unhealthy)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return str(error)
