"""The daemon as a process: started, killed at a step or a write, started again, as `seerd run` and
`seerd resume` would.

The one rule: everything of it is the real thing (daemon, dispatch, sessions, EC2 provider, journal
on a disk); only what lies behind its adapters is virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import msgspec

from seerd import clock
from seerd.agent.protocol import Expected, Job
from seerd.aws import cloud as clouds
from seerd.backends.backend import MARGIN_S
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ec2.request import Ec2Settings
from seerd.core.commands import AnyCommand
from seerd.core.events import ExtendAsked, JobAdded, JobStopAsked, JobWeighed, RunStarted
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import sign_of
from seerd.core.state import State, new_state
from seerd.errors import DamagedJournalError, DamagedWarning, JournalError, SeerdError
from seerd.planner.model import Limits, Mode
from seerd.planning.planned import extended
from seerd.runs.reading import replay
from seerd.runs.runs import _take_up_clock, lacks_its_model
from seerd.shell.daemon import Daemon
from seerd.shell.inbox import (
    Inbox,
    JobRequest,
    Request,
)
from seerd.shell.journal import Entry, Journal
from seerd.shell.run_environment import RunEnvironment
from tests.faults.damage import files_of, flip_a_bit, put_back, without_tail
from tests.faults.ec2 import RESERVATION, Client, Ec2, VirtualCloud
from tests.faults.machines import Door, Host
from tests.faults.objects import VirtualStore
from tests.faults.policy import Said, VirtualAsker
from tests.faults.scenario import (
    JOB_ADDED,
    JOB_STOPPED,
    JOB_WEIGHED,
    Kill,
    More,
    NewJob,
    Scenario,
)
from tests.faults.strains import (
    COMMIT_S,
    FLIPPED,
    JOURNALS,
    OLDER,
    SHORT_JOB,
    SLOW_COMMIT,
    TAIL_LOST,
    falls_back,
)
from tests.faults.timeline import EPOCH, Killed, Loop
from tests.faults.training import Shared
from tests.faults.versions import OTHER_RULES, Version
from tests.recorded import differing


@dataclass(frozen=True, slots=True)
class Watching:
    """Who looks on. `said`: lines for people; `saw`: the state after each batch; `over`: the
    process has ended, and why if not in order; `lost`: events that had been committed are lost.
    """

    said: Callable[[str], None]
    saw: Callable[[State, list[Entry]], None]
    over: Callable[[Daemon | None, BaseException | None], None]
    lost: Callable[[], None]


COPY_EVERY = 25
"""Writes between two copies of the journal."""


class NoRules:
    """Whoever reads a run asks for none."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"the rule {name} is read where nothing is decided")


class DoomedJournal(Journal):
    """A journal whose process may be killed around any of its writes, and whose disk may be
    full.
    """

    coordinator: Coordinator

    def append(self, entries: list[Entry]) -> None:
        """Commit, with whatever is ordered for this write."""
        mine = self.coordinator
        mine.writes += 1
        mine.die_if(lambda kill: kill.write == mine.writes and not kill.after)
        if mine.shared.chance.during("coordinator disk full", mine.shared.timeline.now):
            raise JournalError(
                f"the journal {self.path} cannot be written: database or disk is full"
            )
        super().append(entries)
        mine.copy_at_times(self.path)
        mine.said_all(entries)
        mine.die_if(lambda kill: kill.write == mine.writes and kill.after)
        if mine.shared.chance.hits(SLOW_COMMIT):
            mine.hold_up(mine.shared.chance.lasts(SLOW_COMMIT, *COMMIT_S))


class Coordinator:
    """All daemon processes of one run, one after the other. `steps` and `writes`: of all of them
    together.
    """

    def __init__(
        self,
        scenario: Scenario,
        shared: Shared,
        ec2: Ec2,
        hosts: dict[str, Host],
        folder: Path,
        watching: Watching,
    ) -> None:
        self.shared = shared
        self.steps = 0
        self.writes = 0
        self.began_at = 0.0
        self.left_at: float | None = None
        self._loops: list[Loop] = []
        self._journals: list[Journal] = []
        self._absent: list[tuple[float, float]] = []
        self.loop: Loop | None = None
        self.killed: list[Kill] = []
        self.state: State | None = None
        self.said = Said()
        self._scenario = scenario
        self._ec2 = ec2
        self._hosts = hosts
        self._folder = folder
        self._inbox = Inbox(folder / "requests")
        self._watching = watching
        self._kills = list(scenario.kills)
        self._door: Door | None = None
        self._incarnation = 0
        self._happened: set[str] = set()
        self._copy: dict[Path, bytes] | None = None
        self._lost_limits: list[Limits] = []
        self._has_lost = False

    @property
    def alive(self) -> bool:
        """Whether a daemon runs."""
        return self.loop is not None and self.loop.alive

    @property
    def absent(self) -> list[tuple[float, float]]:
        """When there was no daemon, or one that could do nothing."""
        return [
            *self._absent,
            *([(self.left_at, self.shared.timeline.now)] if self.left_at is not None else []),
        ]

    def start(self) -> None:
        """`seerd run`, or `seerd resume` if there is a journal already, in a process of its own: by
        the wall clock as it is now, where nothing tells better.
        """
        clock.began_at = time.time() - self.shared.timeline.now
        contextvars.copy_context().run(self._start)

    def _start(self) -> None:
        self._incarnation += 1
        self.began_at = now = self.shared.timeline.now
        if self.left_at is not None:
            self._absent.append((self.left_at, now))
            self.left_at = None
        clouds._dice = random.Random(f"{self._scenario.seed} retries {self._incarnation}")  # type: ignore[assignment]
        loop = self.loop = Loop(self.shared.timeline, self._before_step)
        self._loops.append(loop)
        with loop.running():
            path = self._folder / "journal.db"
            fresh = not path.exists()
            if not fresh:
                self._damage(path)
            try:
                journal = DoomedJournal.create(path, EPOCH) if fresh else DoomedJournal.open(path)
            except DamagedJournalError as error:
                self._cut(path)
                loop.kill()
                self.left_at = now
                self._watching.over(None, error)
                return
            journal.coordinator = self  # type: ignore[attr-defined]
            self._journals.append(journal)
            begun = next(journal.entries(), None) is not None
            rules = self._version().rules
            state = replay(journal, rules) if begun else new_state(self._scenario.facts, rules)
            if not fresh:
                _take_up_clock(journal, state.now)
            lost, self._has_lost = self._has_lost, False
            if lost:
                self.shared.lost |= {
                    attempt
                    for (instance, _), attempt in self.shared.training.items()
                    if instance not in state.fleet.instances or not _has(state, attempt)
                }
            if begun:
                self._look_recorded(journal, state, None if lost else self.state)
            if (
                state.phase is RunPhase.OVER
                and not lacks_its_model(state)
                and state.end.status != "interrupted"
            ):
                loop.kill()
                self._watching.over(None, None)
                return
            self.state = state
            daemon = Daemon(state, journal, self._environment(loop), self._watched)
            first = RunStarted(at=daemon.clock.now(), facts=state.facts)
            work = daemon.resume() if begun else daemon.begin(first)
            loop.spawn(work, lambda task: self._ended(loop, daemon, task))

    def copy_at_times(self, path: Path) -> None:
        """Keep a copy of the journal, as a backup does, if it is to be put back."""
        chance = self.shared.chance
        if chance.can(OLDER) and self.writes % COPY_EVERY == 0:
            self._copy = files_of(path)

    def _damage(self, path: Path) -> None:
        """Let the disk not have kept what was on it."""
        chance = self.shared.chance
        can = (name for name in JOURNALS if name not in self._happened)
        name = next((n for n in can if (n != OLDER or self._copy) and chance.hits(n)), None)
        if name is None:
            return
        self._happened.add(name)
        before, dice = files_of(path), chance.dice(name)
        for journal in self._journals:
            journal.close()
        self._journals.clear()
        committed = _events(path)
        if name == TAIL_LOST:
            put_back(path, without_tail(before, dice))
        else:
            put_back(path, self._copy if name == OLDER and self._copy else before)
        if name == FLIPPED:
            flip_a_bit(dice.choice([one for one in before if one.stat().st_size]), dice)
        if not _events(path):  # the first event is hit, and there is no way back
            put_back(path, before)
        # A copy from before another loss may be longer, and have other events.
        both = zip(committed, _events(path), strict=False)
        left = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        if self.state is not None and left < len(committed):
            self._watching.said(f"{name}: {left} events of {len(committed)} are left")
            self._lost_limits.append(self.limits)
            self._has_lost = True
            self._watching.lost()

    def _cut(self, path: Path) -> None:
        """The person types `seerd resume --up-to`."""
        with (
            warnings.catch_warnings(action="ignore", category=DamagedWarning),
            Journal.open(path, read_only=True) as journal,
        ):
            journal.cut(sum(1 for _ in journal.entries()))

    def bury(self) -> None:
        """Nothing of any of its processes is left."""
        for loop in self._loops:
            loop.bury()
        for journal in self._journals:
            journal.close()

    def press_ctrl_c(self) -> None:
        """The person wants it to end."""
        if self.loop is not None and self.loop.alive and signal.SIGINT in self.loop.signals:
            with self.loop.running():
                self.loop.signals[signal.SIGINT]()

    def extend(self, more: More) -> None:
        """The person asks for later and larger limits, as `seerd extend` does."""
        state, now = self.state, self.shared.timeline.now
        if state is None or not self.alive or state.phase is not RunPhase.RUNNING:
            return
        spent, limits = state.ledger.spent_gpu_s(max(now, state.now)), state.facts.problem.limits
        wanted = replace(
            limits,
            deadline_s=limits.deadline_s + more.s,
            budget_gpu_s=limits.budget_gpu_s * (1 + more.budget),
            cost_usd=None if limits.cost_usd is None else limits.cost_usd * (1 + more.budget),
        )
        if wanted != limits:
            usd, facts = state.ledger.usd(spent), state.facts
            problem, outline = extended(
                facts.problem, facts.cluster, wanted, now_s=now, spent_gpu_s=spent, spent_usd=usd
            )
            self._put(1, ExtendAsked(at=0.0, request="", problem=problem, outline=outline))
            self.shared.chance.injected["limits extended"] += 1

    def stop_job(self, job: str, number: int) -> None:
        """The person wants one of the jobs to end, as `seerd stop --job` does."""
        self._put(number, JobStopAsked(at=0.0, request="", job=job))
        self.shared.chance.injected[JOB_STOPPED] += 1

    def weigh(self, job: str, weight: float, number: int) -> None:
        """The person wants one of the jobs to have another weight."""
        self._put(number, JobWeighed(at=0.0, request="", job=job, weight=weight))
        self.shared.chance.injected[JOB_WEIGHED] += 1

    def add_job(self, new: NewJob, number: int) -> None:
        """The person adds a job, as `seerd add RUN SPEC` does."""
        self.shared.signs[new.job.id] = sign_of(new.facts)
        starts = _job(new.facts.mode, new.job.id)
        added = JobAdded(at=0.0, request="", job=new.job, facts=new.facts)
        self._put(number, JobRequest(added, starts))
        self.shared.chance.injected[JOB_ADDED] += 1
        self.shared.chance.injected[SHORT_JOB] += new.short

    def _put(self, number: int, request: Request) -> None:
        self._inbox.path.mkdir(exist_ok=True)
        (self._inbox.path / f"{number:016x}.json").write_bytes(msgspec.json.encode(request))

    @property
    def limits(self) -> Limits:
        """Those that hold now, as far as is known."""
        state = self.state
        return (self._scenario if state is None else state).facts.problem.limits

    @property
    def granted(self) -> Limits:
        """The largest that ever held, also by events that the journal has lost."""
        every = [*self._lost_limits, self.limits]
        return max(every, key=lambda one: (one.deadline_s, one.budget_gpu_s, one.cost_usd or 0.0))

    def hold_up(self, for_s: float) -> None:
        """Nothing of the present process happens for so long."""
        if self.loop is not None and self.loop.alive:
            now = self.shared.timeline.now
            self.loop.busy_until = max(self.loop.busy_until, now + for_s)
            self._absent.append((now, self.loop.busy_until))

    def die_if(self, meant: Callable[[Kill], bool]) -> None:
        """Kill this process here, if that is ordered."""
        for kill in [kill for kill in self._kills if meant(kill)]:
            self._kills.remove(kill)
            self._die(kill)

    def said_all(self, entries: list[Entry]) -> None:
        """Tell of what was committed."""
        for entry in entries:
            self._watching.said(f"event {entry.seq}: {entry.event}")
            for command in entry.commands:
                self._watching.said(f"    -> {_short(command)}")

    def _version(self) -> Version:
        """Of this process."""
        version = self._scenario.version(self._incarnation)
        if self._incarnation > 1 and version != self._scenario.version(self._incarnation - 1):
            self.shared.chance.injected[OTHER_RULES] += 1
        return version

    def _look_recorded(self, journal: Journal, read: State, kept: State | None) -> None:
        """The journal alone gives the state that the process before had, whatever the rules are.

        kept  that state; None if there was none, or if events of it were lost since
        """
        wrong = self.shared.wrong
        try:
            ruleless = replay(journal, NoRules())  # type: ignore[arg-type]
        except SeerdError as error:
            wrong.append(f"it cannot be read without rules: {error}")
        else:
            wrong += [f"read with other rules: {what}" for what in differing(ruleless, read)]
        if (
            kept is not None and kept.clock.seq == read.clock.seq
        ):  # else it was killed before it had committed
            wrong += [f"read and kept: {what}" for what in differing(read, kept)]

    def _before_step(self) -> None:
        self.steps += 1
        self.die_if(lambda kill: kill.step == self.steps)

    def _die(self, kill: Kill) -> None:
        self.killed.append(kill)
        self.shared.chance.injected["daemon killed"] += 1
        self._watching.said(
            f"KILLED at step {self.steps}, write {self.writes}; back after {kill.down_s}"
        )
        assert self.loop is not None
        self.loop.kill()
        self.left_at = self.shared.timeline.now
        if self._door is not None:
            self._door.hang_up()
        if kill.down_s is not None:
            self.shared.timeline.after(kill.down_s, self.start)
        raise Killed

    def _watched(self, state: State, now: float, entries: list[Entry]) -> None:
        self._watching.saw(state, entries)

    def _ended(self, loop: Loop, daemon: Daemon, task: asyncio.Task[None]) -> None:
        if not loop.alive:
            return
        loop.kill()
        self.left_at = self.shared.timeline.now
        if self._door is not None:
            self._door.hang_up()
        error = task.exception() if not task.cancelled() else None
        self._watching.said(f"the daemon has ended: {error!r}")
        for failure in loop.failures:
            self._watching.said(f"nobody caught {failure}")
        self._watching.over(daemon, error)

    def _environment(self, loop: Loop) -> RunEnvironment:
        shared, scenario = self.shared, self._scenario
        self._door = Door(self._hosts, shared, loop)
        cloud = VirtualCloud(Client(self._ec2, shared.timeline, shared.chance, loop))
        provider = Ec2Provider(self._settings(), self._door, cloud)
        store = VirtualStore(shared.objects, shared.timeline, shared.chance)
        facts, version = scenario.facts, scenario.version(self._incarnation)
        problem = facts.problem if self.state is None else self.state.facts.problem
        asker = VirtualAsker(problem, version, self._stages, shared, self.said)
        several = facts if self.state is None else self.state.facts
        jobs, door = [_job(one.mode, one.id) for one in several.jobs], self._door
        door.jobs = lambda: [job.id for job in jobs]
        door.machine = provider.machine
        return RunEnvironment(
            provider,
            store,
            asker,
            _job(facts.mode),
            run=scenario.facts.run,
            metric="accuracy",
            result=self._folder / "best",
            rented=True,
            expected=Expected(0, 1, torch=True),
            jobs=jobs,
            sources=door,  # type: ignore[arg-type]
            inbox=self._inbox,
            progress=provider.progress,
            until=lambda: provider._settings.hard_end,
            prolong=lambda deadline: provider.prolong(
                max(provider._settings.hard_end, deadline + MARGIN_S)
            ),
        )

    def _stages(self) -> int:
        """Of the present plan: it is another one once limits were extended."""
        state = self.state
        outline = (self._scenario if state is None else state).facts.outline
        return 0 if outline is None else len(outline.stages)

    def _settings(self) -> Ec2Settings:
        scenario, cluster = self._scenario, self._scenario.facts.cluster
        return Ec2Settings(
            run=scenario.facts.run,
            name="simulated",
            owner="somebody",
            region="us-east-1",
            instance_types=("p3.8xlarge",),
            gpus=cluster.gpus_per_instance // cluster.parts,
            market="spot",
            falls_back=falls_back(scenario.seed),
            capacity=None if self._ec2.block is None else RESERVATION,
            image="ami-1",
            hard_end=EPOCH + self.limits.deadline_s + MARGIN_S,
            boot_s=scenario.boot_s,
            keys=self._folder / "keys",
        )


def _has(state: State, attempt: str) -> bool:
    """Return whether the journal has this attempt (`TRIAL/NUMBER`)."""
    trial, _, number = attempt.rpartition("/")
    return trial in state.trials and int(number) <= state.trials[trial].attempt


def _job(mode: Mode, name: str = "") -> Job:
    """What agents are told of a job."""
    return Job(
        f"source/{name}",
        "train.py",
        [],
        "torchrun",
        "python3",
        {},
        [],
        "",
        "accuracy",
        mode,
        [1],
        1,
        10.0,
        id=name,
    )


def _events(path: Path) -> list[str]:
    """The events of a journal that can be read."""
    with (
        warnings.catch_warnings(action="ignore", category=DamagedWarning),
        contextlib.suppress(JournalError),
        Journal.open(path, read_only=True) as journal,
    ):
        return [str(entry.event) for entry in journal.entries()]
    return []


def _short(command: AnyCommand) -> str:
    text = str(command)
    return text if len(text) < 200 else text[:200] + "..."
