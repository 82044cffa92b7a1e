"""The loop that runs a run: event -> step -> journal -> commands -> outcomes as events, until the
core says that it is over.

The one rule: commands are carried out, facts acknowledged and people told only after the events are
committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from seerd.core.asking import lacking
from seerd.core.commands import AnyCommand, AskPolicy, Launch
from seerd.core.events import (
    AgentFact,
    AnyEvent,
    RunResumed,
    StopAsked,
    TrialCheckpointed,
    TrialExited,
)
from seerd.core.limits import grace_s, last_s, lease_s
from seerd.core.state import THERE, State, Trial
from seerd.core.step import step, unfinished
from seerd.errors import AbandonedError
from seerd.planner.model import View
from seerd.shell.clock import RunClock
from seerd.shell.dispatch import Dispatch
from seerd.shell.journal import Entry, Journal
from seerd.shell.nodes import instances_of
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.shell.stores.base import slot_name, slot_number
from seerd.shell.tasks import Tasks

Watcher = Callable[[State, float, list[Entry]], None]
"""Shown the state, the time and what was just committed, at least once a second; must not change
anything.
"""
SHOW_S = 1.0


MOST_STOPS = 2
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Daemon:
    """Runs one run, from where its journal ends to the end of the run. `leftovers`: what then still
    costs something, one line each.
    """

    def __init__(
        self, state: State, journal: Journal, environment: RunEnvironment, watcher: Watcher
    ) -> None:
        self.state = state
        self.clock = RunClock(journal.origin)
        self.leftovers: list[str] = []
        self._journal = journal
        self._watcher = watcher
        self._queue: asyncio.Queue[AnyEvent] = asyncio.Queue()
        self._stops = 0
        self._environment = environment
        self._dispatch: Dispatch

    async def begin(self, event: AnyEvent) -> None:
        """Run a new run, whose first event this is, whatever a person says meanwhile, until it is
        over.
        """
        self._queue.put_nowait(event)
        await self._at_work(self._run)

    async def resume(self) -> None:
        """Take up a run whose daemon has gone: first say what is found, then go on."""
        await self._at_work(self._take_up)

    async def _take_up(self) -> None:
        known = [
            i.id
            for i in self.state.fleet.instances.values()
            if i.phase in THERE and i.ready_at is not None
        ]
        launches = [c.id for c in self.state.under_way.values() if isinstance(c, Launch)]
        found = await self._dispatch.reattach(known, launches)
        backlog = list(self._drain())
        self._queue.put_nowait(
            RunResumed(
                at=self.clock.now(),
                alive=found.alive,
                ended=found.ended,
                saved=found.saved,
                outline=lacking(self.state.facts),
            )
        )
        for event in backlog:
            self._queue.put_nowait(event)
        await self._run()

    async def _run(self) -> None:
        await self._turn()
        while not self.state.finished:
            await self._turn()
        self.leftovers = await self._dispatch.leftovers()

    async def _at_work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this while instances and checkpoints can be had."""
        with self._signals():
            try:
                async with Tasks() as tasks:
                    self._dispatch = Dispatch(self._environment, self, tasks)
                    await self._dispatch.open()
                    await work()
            finally:
                await self._dispatch.close()

    async def _turn(self) -> None:
        """Wait for something to happen, then handle all that has."""
        try:
            async with asyncio.timeout(SHOW_S):
                first = await self._queue.get()
        except TimeoutError:
            self._watcher(self.state, self.clock.now(), [])
            return
        if self._stops > MOST_STOPS:
            raise AbandonedError(self.state.facts.run)
        self._handle([first, *self._drain()])

    def _handle(self, events: list[AnyEvent]) -> None:
        entries, carried_on = [], []
        for event in map(self._in_order, events):
            before = unfinished(self.state) if isinstance(event, RunResumed) else []
            entry = Entry(self.state.clock.seq + 1, event, step(self.state, event))
            entries.append(entry)
            still = [command for command in before if command.id in self.state.under_way]
            carried_on += still
            self._put_question(entry, still)
        self._journal.append(entries)
        self._dispatch.carry_out(carried_on)
        for entry in entries:
            self._dispatch.carry_out(entry.commands)
        for instance, fact in {
            e.event.instance: e.event.fact for e in entries if isinstance(e.event, AgentFact)
        }.items():
            self._dispatch.committed(instance, fact)
        for instance in {
            entry.event.instance for entry in entries if isinstance(entry.event, TrialExited)
        }:
            self._dispatch.collect(instance)
        self._keep_checkpoints([e.event for e in entries if isinstance(e.event, TrialCheckpointed)])
        self._watcher(self.state, self.clock.now(), entries)

    def _put_question(self, entry: Entry, still: list[AnyCommand]) -> None:
        """A question is about the run as it is now, whatever else is handled before it is sent."""
        self._dispatch.heard(entry)
        for command in [*entry.commands, *still]:
            if isinstance(command, AskPolicy) and command.id == self.state.plan.question:
                view = View(self.state.now, self.state.facts.mode, self.state.trials)
                self._dispatch.put_question(command.id, view, self.state.plan)

    def _keep_checkpoints(self, events: list[TrialCheckpointed]) -> None:
        for name in {event.trial for event in events} & self.state.trials.keys():
            self._dispatch.keep(
                name, [checkpoint.name for checkpoint in self.state.trials[name].checkpoints]
            )

    def _in_order(self, event: AnyEvent) -> AnyEvent:
        """The event with a time that is not before that of the last one."""
        return (
            event
            if event.at >= self.state.now
            else msgspec.structs.replace(event, at=self.state.now)
        )

    def _drain(self) -> Iterator[AnyEvent]:
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                yield self._queue.get_nowait()

    # ------------------------------------------------------------ see `environment.Core`

    def emit(self, event: AnyEvent) -> None:
        """Take what has happened; it is handled soon."""
        self._queue.put_nowait(event)

    def pending(self, instance: str) -> list[AnyCommand]:
        """Commands for an instance whose outcome is not known."""
        return [c for c in self.state.under_way.values() if instance in instances_of(c)]

    def running(self, instance: str) -> list[Running]:
        """Attempts that report and save on this instance."""
        held = (t for t in self.state.trials.values() if t.held and t.held[0].node == instance)
        return [
            Running(t.id, t.attempt, _saved(t), t.checkpoints[0].name if t.checkpoints else "")
            for t in held
        ]

    def known(self, instance: str) -> tuple[int, str]:
        """The number of its agent's last fact, and which boot of its machine that was."""
        there = self.state.fleet.instances.get(instance)
        return (0, "") if there is None else (there.seen, there.boot)

    def lease(self) -> tuple[float, float, float]:
        """How long agents may go on without us, and what they may take after that, seconds."""
        now = self.clock.now()
        return lease_s(self.state, now), grace_s(self.state), last_s(self.state, now)

    def spare(self) -> float:
        """How long the end may still wait for a machine, seconds."""
        last = self.state.facts.problem.limits.deadline_s - self.state.rules.publish_s
        return max(0.0, last - self.clock.now())

    # ------------------------------------------------------------ signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP end the run in order, the second one at once; ignored ones
        (nohup) stay so.
        """
        loop = asyncio.get_running_loop()
        numbers = [n for n in ENDING_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self._stops += 1
        self._queue.put_nowait(StopAsked(at=self.clock.now(), hard=self._stops > 1))


def _saved(trial: Trial) -> int:
    """The number of the last checkpoint that the present attempt has put into a store that numbers
    them.
    """
    prefix = slot_name(trial.attempt, 0).rpartition("-")[0]
    return max(
        (slot_number(c.name) for c in trial.checkpoints if c.name.startswith(f"{prefix}-")),
        default=0,
    )
