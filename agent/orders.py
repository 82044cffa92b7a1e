"""Carries out orders: prepares the instance, starts attempts, stops them, ends them all. What an
order needs is reserved in the moment in which it is checked, so GPUs are not given twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

from seerd.agent import clock, host, setting_up, workplace
from seerd.agent.arguments import GPUS, filled_text, is_inside
from seerd.agent.attempts import LocalAttempt, Report
from seerd.agent.container import Container, Containers, Outside
from seerd.agent.downloads import JobData
from seerd.agent.family import Crowding, Reaper
from seerd.agent.gpu_devices import SMI, cpu_slots, cuda_devices
from seerd.agent.gpu_leases import RunHere
from seerd.agent.gpu_sharing import SharedGpus, shared
from seerd.agent.health import (
    CheckedMachine,
    GpusAfter,
    Interpreters,
    UnhealthyError,
    ask_smi,
    check_machine,
    check_torch,
    gpus_after,
)
from seerd.agent.journal import AgentJournal, Order
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.launch import (
    LaunchPlan,
    Places,
    devices,
    going_on,
    launch_plan,
    node_environment,
    speaks,
    values_of,
    warm_plan,
    why_not_nodes,
)
from seerd.agent.manifest import Comparison, is_safe
from seerd.agent.mps import Mps
from seerd.agent.presigned_urls import PresignedUrls, PresignedUrlsByAttempt, Say
from seerd.agent.protocol import (
    PARTS,
    Ask,
    Complained,
    Downloads,
    Grant,
    Grow,
    Job,
    Noticed,
    Parts,
    Prepare,
    Prepared,
    Refused,
    Start,
)
from seerd.agent.remote_store import CheckpointStore, RemoteStore
from seerd.agent.secrecy import no_core_dumps
from seerd.agent.store_proof import prove
from seerd.agent.threads import in_thread, in_thread_or_here
from seerd.agent.timings import TIMINGS, Timings
from seerd.agent.transfer import Directory
from seerd.agent.trial_output import TrialOutput
from seerd.agent.warm_starts import WarmStarts, can_fork

if TYPE_CHECKING:
    from seerd.agent.gpu_faults import GpuFaults
    from seerd.agent.nvml import GpuMemory

FAULTS_S = 5.0  # for NVML to say what has broken, once `nvidia-smi` has answered
Seen = TypeVar("Seen")
Beside = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True)
class Here:
    """This instance, by its agent's options."""

    run: str
    gpus: int
    cuda: bool  # whether they are CUDA devices; otherwise CPU slots
    folder: Path  # the agent's own
    library: Path  # folder of the training side
    weight: Optional[float] = None  # the run's share of the machine; None: it has the whole
    timings: Timings = TIMINGS

    def resolved(self, job: Job, parts: int) -> Job:
        """Return the job with an absolute source, and with the cores of a slot for each rank."""
        threads = job.threads or max(1, (os.cpu_count() or 1) // (self.gpus * parts))
        return replace(job, source=str(self.folder / job.source), threads=threads)

    @property
    def machine(self) -> CheckedMachine:
        """The machine whose health is checked."""
        return CheckedMachine(self.folder, self.cuda, f"{self.run}//health")

    def places(self, trial: str, attempt: int) -> Places:
        """Return the paths of an attempt."""
        own = self.folder / "trials" / trial
        return Places(
            own / str(attempt), own / "checkpoints", self.library, self.folder / "agent.lock"
        )

    def output(self, job: Optional[Job], urls: PresignedUrls, limit: ReportLimit) -> TrialOutput:
        """Return the reader of an attempt's output. `job`: None: it is unknown."""
        trial, attempt = urls.trial, urls.attempt
        store = str(self.folder / "store") if job is None else job.store
        goal = Comparison("", "max")
        if job is not None:
            goal = Comparison(job.metric, job.mode, job.constraints)
        places = self.places(trial, attempt)
        checkpoint_store: CheckpointStore = (
            Directory(Path(store) / trial, goal) if store else RemoteStore(urls)
        )
        out, local = places.attempt / "out.jsonl", places.checkpoints
        return TrialOutput(out, trial, attempt, local, checkpoint_store, goal, limit)


class Orders:
    """The orders of this instance, and the attempts that they have started.

    Facts go through `report`, questions to the daemon through `ask`; `beside` runs work in the
    background. `devices`: CUDA's names of all GPUs that it may come to use.
    """

    def __init__(
        self, here: Here, journal: AgentJournal, report: Report, beside: Beside, ask: Say
    ) -> None:
        self._here = here
        self._journal = journal
        self._report = report
        self._beside = beside
        self._urls = PresignedUrlsByAttempt(ask)
        self._data = JobData()
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own = cuda_devices(here.gpus, self._visible) if here.cuda else cpu_slots(here.gpus)
        self._own, self.devices = own, [device.name for device in own]
        self._shared: Optional[SharedGpus] = None  # None: the whole machine is ours
        self._attempts: dict[str, LocalAttempt] = {}
        self._growing: dict[str, list[int]] = {}  # slots of attempts that are to have more
        self._ended: dict[str, int] = {}
        self._limit = ReportLimit(lambda: len(self._attempts), lambda: journal.unacknowledged)
        self._ends_at: Optional[float] = None
        self._preparing = asyncio.Lock()
        self._warm: dict[str, WarmStarts] = {}
        self._learning: dict[str, list[Path]] = {}
        self._interpreters = Interpreters(here.machine.marker)
        slow_s, folders = here.timings.setup_s, (here.folder, here.library)
        self._containers = Containers(here.run, folders, self._note_cold, slow_s, cuda=here.cuda)
        self._reaper = Reaper()
        self._crowding = Crowding()
        self._mps = Mps(here.run, here.machine, self._note_cold)
        self._counts = False
        self._in_use: dict[str, int] = {}  # MiB of each GPU before the first attempt, by uuid
        self._unused: dict[int, int] = {}  # fewest bytes in use of each GPU without an attempt
        self._listed = 0  # GPUs that `nvidia-smi` listed; 0: it was not asked
        self.faults: Optional[GpuFaults] = None  # None: nothing looks for any
        self._is_broken = False

    @property
    def attempts(self) -> list[str]:
        """Attempts that run or are about to, as "trial/attempt"."""
        return sorted(self._attempts)

    async def come(self) -> None:
        """Share the machine's GPUs with other runs from now on, unless it is ours alone."""
        here = self._here
        if here.weight is None:
            return
        if here.cuda:
            listing = ""  # of GPUs of another maker
            with contextlib.suppress(OSError, UnhealthyError):
                _, listing, _ = await ask_smi(SMI, here.machine, here.timings.listing_s)
            self._own = cuda_devices(here.gpus, self._visible, listing)
            self.devices = [device.name for device in self._own]
        pool = [device.lease for device in self._own]
        run = RunHere(here.run, here.weight, here.gpus, 0, 1, pool, time.time(), {})
        self._shared = shared(run, self._own, self._journal.share, self._report)
        if self._journal.prepared is not None:
            self._need(self._journal.prepared)

    def _need(self, order: Prepare) -> None:
        sizes = (gpus for job in order.jobs or [order.job] for gpus in job.allocations)
        if self._shared is not None:
            self._shared.need(min(sizes, default=1), order.parts)
        secrets = [name for job in order.jobs or [order.job] for name in job.secrets]
        for name in secrets:  # this machine may be the coordinator's own
            os.environ.pop(name, None)
        if secrets:
            no_core_dumps()

    def leave(self) -> None:
        """Use nothing of this machine any more."""
        if self._shared is not None:
            self._shared.close()

    def carry_out(self, order: Order) -> None:
        """Begin to carry out this order. Its outcome is reported as a fact."""
        if isinstance(order, Prepare):
            # A later preparation takes the place of an earlier one's setup commands.
            for pid in host.marked_with(setting_up.mark_of(self._here.run)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._beside(self._prepare(order))
        elif isinstance(order, Start):
            self._start(order)
        elif isinstance(order, Grow):
            self._growing[f"{order.trial}/{order.attempt}"] = order.gpus
            self._grow()
        else:
            attempt = self._attempts.get(f"{order.trial}/{order.attempt}")
            if attempt is not None:
                attempt.stop("asked", order.kill_at(clock.now()))

    @property
    def asks(self) -> list[Ask]:
        """Questions to the daemon that wait for an answer."""
        return self._urls.asks

    def hand(self, message: Union[Grant, Parts, Downloads]) -> None:
        """Take in presigned URLs, which must not be written to any disk."""
        if isinstance(message, Downloads):
            self._data.take(message)
        else:
            self._urls.take(message)

    def expect_end(self, at: Optional[float]) -> None:
        """Inform all attempts, also later ones, when training ends (agent's time)."""
        self._ends_at = at
        for attempt in self._attempts.values():
            attempt.expect_end(self._ends_at)

    def save_all(self) -> None:
        """Ask every attempt to save at its next step and go on."""
        for attempt in self._attempts.values():
            attempt.ask("save")

    def look(self) -> None:
        """Do what is due. Called often."""
        self._reaper.look()
        if self._attempts and not self._counts and self._crowding.may_be():
            self._counts = True
            self._beside(self._end_crowd())
        if self._shared is not None:
            self._shared.look()
        self._grow()
        for attempt in self._attempts.values():
            attempt.look()
        self._learn()

    def _grow(self) -> None:
        """Widen attempts that are to have more of their GPU and whose leases allow it by now."""
        for key, slots in list(self._growing.items()):
            attempt = self._attempts.get(key)
            if attempt is None:
                del self._growing[key]
            elif self._shared is None or self._shared.widen(key, slots):
                del self._growing[key]
                attempt.grow(slots)

    def _learn(self) -> None:
        for name, files in list(self._learning.items()):
            if written := next(filter(Path.exists, files), None):
                del self._learning[name]
                self._beside(self._warm[name].learn(written))

    async def _end_crowd(self) -> None:
        members = {key: attempt.members for key, attempt in self._attempts.items()}
        with contextlib.suppress(OSError):  # of a full table of files
            culprit = await in_thread_or_here(self._crowding.culprit, members)
            if culprit is not None and culprit[0] in self._attempts:
                self._attempts[culprit[0]].end_as_failed(culprit[1])
        await asyncio.sleep(self._here.timings.crowded_s)
        self._counts = False

    async def end_all(self, cause: str, kill_at: float) -> None:
        """Ask every attempt to save and exit by `kill_at` (agent's time); return when all have."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.stop(cause, kill_at)
        await asyncio.gather(*(attempt.done.wait() for attempt in attempts))

    async def end_others(self, holds: Collection[str]) -> list[str]:
        """Kill every attempt that is not among these, and wait a moment for their ends.

        Returns their names, and those of earlier calls until a fact from after the kill is
        acknowledged.
        """
        others = [attempt for key, attempt in self._attempts.items() if key not in holds]
        for attempt in others:
            self._ended[attempt.key] = self._journal.last + 1
            attempt.stop("asked", -math.inf)
        if others:
            ends = [asyncio.ensure_future(attempt.done.wait()) for attempt in others]
            await asyncio.wait(ends, timeout=self._here.timings.others_s)
        acked = self._journal.acknowledged
        return [key for key, fact in self._ended.items() if acked < fact]

    def close(self) -> None:
        """Begin no more attempts."""
        for warm in self._warm.values():
            warm.close()

    async def clear(self) -> None:
        """Remove what the engines of containers have left."""
        await self._containers.clear()

    def kill_all(self) -> None:
        """Kill everything of ours, without facts. Raises `RuntimeError` if something stays."""

        def each() -> Iterator[int]:
            members = [attempt.each_member() for attempt in list(self._attempts.values())]
            return chain(host.each_of_run(self._here.run), host.each_below(), *members)

        left = host.kill(each, set())
        if left:
            raise RuntimeError(f"processes {sorted(left)} cannot be killed")

    async def _prepare(self, order: Prepare) -> None:
        async with self._preparing:
            try:
                await self._make_ready(order)
            except (OSError, ValueError, UnhealthyError) as error:
                is_unhealthy = isinstance(error, UnhealthyError)
                cause = error.cause if isinstance(error, UnhealthyError) else ""
                self._report([_refused(order.id, _text(error), is_unhealthy, cause)])
            else:
                self._report([Prepared(0, clock.now(), order.id)])

    async def _make_ready(self, order: Prepare) -> None:
        """Check the machine, set up its jobs and check torch; raise what is wrong."""
        self._need(order)
        expected = order.expected
        if expected is not None and self._are_mig:  # torch sees one, `nvidia-smi` its GPU
            expected = replace(expected, gpus=min(1, expected.gpus))
        if order.proof is not None:
            await in_thread(prove, order.proof)
        in_use = await check_machine(expected, self._here.machine)
        if self._shared is None:  # on a desk, screens take what they want
            self._in_use = {**in_use, **self._in_use}
        self._listed = 0 if expected is None else expected.gpus
        await in_thread(self._data.fetch, self._here.folder / order.job.source)
        for each in order.jobs or [order.job]:
            job = self._here.resolved(each, order.parts)
            container = await self._containers.of(job)
            where = container or Outside()
            own = (self._here.run, self._here.folder, self._note_cold)
            await setting_up.set_up(job, *own, self._here.timings.setup_s, where)
            ready = await self._interpreters.complete(job, anew=True, container=container)
            self._warm_up(ready, container)
            free = None if self._shared is None else self._shared.left()
            await check_torch(expected, self._here.machine, ready, where, free)

    def _warm_up(self, job: Job, container: Optional[Container]) -> None:
        places, cuda = self._here.places("", 0), self._here.cuda
        outside = (container or Outside()).environment()
        plan = warm_plan(job, places, cuda, outside, container) if can_fork() else None
        self._beside(self._warm_of(job).ready(plan))

    def _warm_of(self, job: Job) -> WarmStarts:
        if job.id not in self._warm:
            mark = f"{self._here.run}//warm-" + (f"{job.id}-" if job.id else "")
            self._warm[job.id] = WarmStarts(mark, self._here.folder, self._note_cold)
        return self._warm[job.id]

    def _note_cold(self, why: str, since: Optional[float] = None) -> None:
        at = clock.now() if since is None else since
        self._report([Noticed(0, at, "cold", None, why)])

    @property
    def _are_mig(self) -> bool:
        return any(device.is_mig for device in self._own)

    def by_number(self, seen: Sequence[Optional[Seen]]) -> list[Optional[Seen]]:
        """Sort what was seen of each of `devices` by the daemon's numbers of GPUs."""
        seen_of, gpus = dict(zip(self.devices, seen)), range(self._here.gpus)
        own, shared = devices(gpus, self._visible), self._shared
        return [seen_of.get(name) for name in (own if shared is None else shared.shown(gpus))]

    def see_memory(self, seen: Sequence[Optional[GpuMemory]]) -> None:
        """Note the memory of each of `devices` for the attempt that has it, if only one does."""
        for gpu, memory in enumerate(self.by_number(seen)):
            users = [each for each in self._attempts.values() if gpu in each.start.devices]
            if memory is not None and not users:
                self._unused[gpu] = min(memory.used, self._unused.get(gpu, memory.used))
            elif memory is not None and len(users) == 1:
                own = max(0, memory.used - self._unused.get(gpu, 0))
                users[0].see_memory(own, memory.total)

    def see_faults(self, seen: Sequence[str]) -> None:
        """Report, once, that one of `devices` has broken. `seen`: how each has; empty: not."""
        broken = next(filter(None, self.by_number(seen)), "")
        if broken and not self._is_broken:
            self._is_broken = True
            self._report([Noticed(0, clock.now(), "unhealthy", None, broken)])

    async def _gpus_after(self, order: Start, before: dict[str, int]) -> GpusAfter:
        """Wait until an attempt's GPUs are free; report those that have broken."""
        after = await gpus_after(self._names(order), self._here.machine, before, self._listed)
        if after.fault or self.faults is None:
            return after
        try:
            seen = await asyncio.wait_for(in_thread(self.faults.look), FAULTS_S)
        except (OSError, asyncio.TimeoutError):  # no thread, or a driver that does not answer
            return after
        self.see_faults(seen)
        faults = self.by_number(seen)
        return after._replace(fault=next(filter(None, (faults[gpu] for gpu in order.devices)), ""))

    def _names(self, order: Start) -> list[str]:
        """Return CUDA's names of an attempt's GPUs; if they are shared, once it has them."""
        if self._shared is None:
            return devices(order.devices, self._visible)
        return self._shared.names(f"{order.trial}/{order.attempt}")

    def _start(self, order: Start) -> None:
        prepared, why = self._journal.prepared, self._why_not(order)
        job = None if prepared is None else prepared.job_of(order.trial)
        if job is not None:
            job = self._here.resolved(job, order.parts)
            why = why or why_not_nodes(job, order.node)
        if prepared is not None and prepared.parts != order.parts:
            why = why or f"the GPUs of this run have {prepared.parts} slots, not {order.parts}"
        if why or job is None:
            self._report([_refused(order.id, why or "this instance is not prepared")])
            return
        places = self._here.places(order.trial, order.attempt)
        urls = self._urls.of(order.trial, order.attempt)
        output = self._here.output(job, urls, self._limit)
        before = self._in_use if order.parts == 1 else {}  # a neighbour's comes and goes
        attempt = LocalAttempt(
            *(self._here.run, order, places, output, self._here.timings),
            lambda facts: self._report(self._mps.explained(str(order.devices), facts)),
            lambda: self._gpus_after(order, before),
            others=lambda: [each for each in list(self._attempts.values()) if each is not attempt],
        )
        attempt.expect_end(self._ends_at)
        self._attempts[attempt.key] = attempt
        self._learn()  # in time for this start
        learns = self._warm_of(job).learns
        if learns:  # until it is known of one attempt, each reports what it has imported
            self._learning.setdefault(job.id, []).append(places.modules)
        self._beside(self._run(attempt, job, output.checkpoint_store, learns=learns))

    async def _run(
        self, attempt: LocalAttempt, job: Job, checkpoint_store: CheckpointStore, *, learns: bool
    ) -> None:
        order, run, cuda = attempt.start, self._here.run, self._here.cuda
        places = self._here.places(order.trial, order.attempt)
        laid: Optional[workplace.Laid] = None
        try:
            container = await self._containers.of(job)
            job = await self._interpreters.complete(job, container=container)
            of_node = node_environment(order.node) if order.node else {}
            outside = {**of_node, **(container or Outside()).environment()}
            plan = launch_plan(job, order, run, places, cuda, outside, learns)
            plan = replace(plan, container=container)
            self._warm_up(job, container)
            fetch, to = checkpoint_store.fetch, places.checkpoints
            name = await in_thread(fetch, to, order.checkpoints) if speaks(order) else None
            over = attempt.stopped.is_set
            plan, laid = await in_thread(_placed, plan, job, order, places, name, over)
            shared = self._shared
            if shared is not None and await shared.take(attempt.key, order.gpus, attempt.stopped):
                names = shared.names(attempt.key) if cuda else []
                env = {**plan.env, "CUDA_VISIBLE_DEVICES": ",".join(names)}
                plan = replace(plan, env=env)
            plan = replace(plan, env=await self._mps.environment(plan.env))
            plan = replace(plan, env={**plan.env, **order.secrets})
            await attempt.begin(plan, self._warm_of(job))
        except (OSError, ValueError, UnhealthyError) as error:
            self._report([_refused(order.id, _text(error))])
        else:
            await attempt.follow()
        self._urls.forget(order.trial, order.attempt)
        if self._shared is not None:
            self._shared.give_back(attempt.key)
        del self._attempts[attempt.key]
        attempt.done.set()
        if laid is not None:  # afterwards, since its GPUs are free as soon as it has ended
            saved = "" if job.observed is None else job.observed.checkpoint
            source = Path(job.source)
            if why := await in_thread_or_here(workplace.tidy, source, places.work, laid, saved):
                fact = Complained(0, clock.now(), order.trial, order.attempt, "shared", why)
                self._report([fact])

    def _why_not(self, order: Start) -> str:
        if not all(map(is_safe, [order.trial, *order.checkpoints])) or order.attempt < 0:
            return "the name of the trial or of a checkpoint is not allowed"
        slots, several = self._here.gpus * order.parts, len(order.devices) > 1 or order.node
        if not order.gpus or not set(order.gpus) <= set(range(slots)):
            return f"GPUs {order.gpus} are not among the {slots} here"
        if order.parts not in PARTS or (several and not order.is_whole):
            return f"slots {order.gpus}, {order.parts} to a GPU, are neither of one nor whole GPUs"
        if several and self._are_mig:
            return "a trial can use one MIG device only; p_max in [policy] bounds what it gets"
        if f"{order.trial}/{order.attempt}" in self._attempts:
            return "this attempt has been started by another order"
        for attempt in self._attempts.values():
            if attempt.gpus & set(order.gpus):
                return f"GPUs {sorted(attempt.gpus & set(order.gpus))} are held by {attempt.key}"
        return ""


def _placed(
    plan: LaunchPlan,
    job: Job,
    order: Start,
    places: Places,
    name: Optional[str],
    is_stopped: Callable[[], bool],
) -> tuple[LaunchPlan, workplace.Laid]:
    """Lay out the folder in which the script runs, and for one that does not import seerd put the
    checkpoint `name` at its place; return how it is started, and what was laid out.

    Raises `OSError`, `ValueError`.
    """
    own = [*job.own, *job.fill, *([job.script] if is_inside(job.script) else [])]
    saved = "" if job.observed is None else job.observed.checkpoint
    laid = workplace.lay_out(Path(job.source), places.work, saved, own, is_stopped)
    if is_stopped():
        return plan, laid
    for file in job.fill:
        text = (Path(job.source) / file).read_bytes().decode()
        text = filled_text(text, [GPUS, *job.names], values_of(order))
        (places.work / file).write_bytes(text.encode())  # its mode stays
    if job.observed is None:
        return plan, laid
    at = workplace.put_back(places.checkpoints, name, places.work)
    return going_on(plan, job, order, name or "", at), laid


def _refused(order: str, why: str, unhealthy: bool = False, cause: str = "") -> Refused:
    return Refused(0, clock.now(), order, why, unhealthy, cause)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error)
