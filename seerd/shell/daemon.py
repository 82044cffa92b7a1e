"""The loop that runs a run: event, step, journal, commands, and their outcomes as events.

The one rule: commands are carried out, facts acknowledged and observers informed only after the
events are committed to the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType

import msgspec

from seerd.backends.base import Leftovers
from seerd.clock import RunClock, wall
from seerd.core import events
from seerd.core.commands import AnyCommand, AskPolicy, Launch
from seerd.core.gaps import gap, lacks
from seerd.core.limits import gone_by, off_in_s
from seerd.core.state import PRESENT, State
from seerd.core.step import step, unfinished
from seerd.core.verdicts import Declined
from seerd.errors import AbandonedError, RunRemovedError
from seerd.shell.core import Core
from seerd.shell.dispatch import Dispatch
from seerd.shell.home import takes_signals
from seerd.shell.journal import Entry, Journal
from seerd.shell.run_environment import RunEnvironment
from seerd.units import format_duration

Watcher = Callable[[State, float, list[Entry]], None]
"""Gets the state, the seconds since the run began and what was just committed, at least once a
second. It must not change anything.
"""
SHOW_S = 1.0
APART_S = 60.0  # clocks that are further apart are reported
MOVED_S = 0.05  # a wall clock set by more seconds moves the recorded start of the run


MOST_STOPS = 2
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _OverError(Exception):
    """The block has ended by itself."""


class Tasks(asyncio.TaskGroup):
    """A task group that ends with the block and raises the first exception, never a group."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        over = _OverError()
        try:
            await super().__aexit__(kind or _OverError, error or over, trace)
        except BaseExceptionGroup as failed:
            first = failed.exceptions[0]
            if first is not over:
                raise first from None


class Daemon:
    """Runs one run, from where its journal ends to the end of the run."""

    def __init__(
        self, state: State, journal: Journal, environment: RunEnvironment, watcher: Watcher
    ) -> None:
        self.core = Core(state, RunClock(journal.origin))
        self.state, self.clock, self._queue = state, self.core.clock, self.core.queue
        self.leftovers = Leftovers()  # what still exists of the run when it has ended
        self._journal = journal
        self._watcher = watcher
        self._set_by_s = 0.0
        self._removed = False
        self._environment = environment
        self._dispatch: Dispatch

    async def begin(self, event: events.AnyEvent) -> None:
        """Run a new run, from its first event, until it is over."""
        self._queue.put(event)
        await self._at_work(self._run)

    async def resume(
        self, note: str = "", stored: Sequence[events.Checkpoint] = (), *, steady: bool = True
    ) -> None:
        """Take up a run whose daemon has ended: record what is found, then run it to its end.

        note    what the user should know of the clock
        stored  see `RunResumed`
        steady  whether the machine has not booted since; if it has, other clocks are looked at
        """
        await self._at_work(partial(self._take_up, note, tuple(stored), steady=steady))

    async def _take_up(
        self, note: str, stored: tuple[events.Checkpoint, ...], *, steady: bool
    ) -> None:
        let_go_s = math.inf if steady else gone_by(self.state)
        present = (i for i in self.state.fleet.instances.values() if i.phase in PRESENT)
        ready = [i.id for i in present if i.ready_at is not None]
        launches = [c.id for c in self.state.under_way.values() if isinstance(c, Launch)]
        self._queue.is_bounded = False  # agents send all that they have before it is handled
        reattached = await self._dispatch.reattach(
            ready, launches, lambda: off_in_s(self.state, self.clock.now())
        )
        notes = [note, *([] if steady else await self._follow_latest_clock())]
        saved = await self._environment.store.set_aside(self.state.trials)
        # By then all has let go, whatever a clock that was set in between makes of its stamps.
        backlog = [_happened_by(let_go_s, event) for event in self._queue.take()]
        others = {
            loss.instance: (self.clock.past(loss.span.since), self.clock.past(loss.span.until))
            for loss in reattached.others
            if lacks(self.state, loss.instance, loss.launch)
        }
        ends = {name: until or self.clock.now() for name, (_, until) in others.items()}
        lost = self._gap(backlog, saved, ends, notes)
        if lost is not None:
            await self._dispatch.call_off(launches)
        # Nothing is awaited from here on: what agents report next comes after this.
        backlog += [_happened_by(let_go_s, event) for event in self._queue.take()]
        self._queue.is_bounded = True
        self._queue.put(
            events.RunResumed(
                at=self.clock.now(),
                alive=reattached.alive,
                ended=reattached.ended,
                saved=reattached.saved,
                stored=stored,
                lost=lost,
                strays=others,
            )
        )
        for event in backlog:
            self._queue.put(event)
        for text in filter(None, notes):
            self._queue.put(events.Remarked(at=self.clock.now(), text=text))
        await self._run()

    def _gap(
        self,
        backlog: list[events.AnyEvent],
        saved: Mapping[str, float],
        others: dict[str, float],
        notes: list[str],
    ) -> tuple[float, float] | None:
        """Return from when until when events are missing, and add it to `notes`; None: none.
        `others`: when instances that the journal lacks ended; `saved`: when trials that it lacks
        last saved (since 1970).
        """
        welcomes = self._dispatch.sessions.welcomes()
        acked = {instance: welcome.acked for instance, welcome in welcomes.items()}
        attempts = [attempt for welcome in welcomes.values() for attempt in welcome.ended]
        strays = others | dict.fromkeys(attempts, self.clock.now())
        ended = sorted(strays)
        strays |= {trial: self.clock.past(at) for trial, at in saved.items()}
        lost = gap(self.state, acked, strays, backlog, self._journal.lost_until)
        if lost is not None:
            notes.append(_missing(self.state.facts.run, lost, ended, sorted(saved)))
        return lost

    async def _follow_latest_clock(self) -> list[str]:
        """Go on by the latest clock of this machine, the store and the agents; return notes."""
        shown = await self._environment.store.time()
        ahead_s = {"the store's": 0.0 if shown is None else shown - wall()}
        for instance, off_s in self._dispatch.sessions.clocks().items():
            ahead_s[f"that of {instance}"] = off_s
        most = max(ahead_s, key=ahead_s.__getitem__)
        if ahead_s[most] > 0:
            self.clock.origin -= ahead_s[most]
            self._journal.origin = self.clock.origin
        return [
            f"this machine's clock is {format_duration(round(abs(off_s)))} "
            f"{'behind' if off_s > 0 else 'ahead of'} {whose}: the run goes by the later, since so "
            "much time may have passed; set the clock (timedatectl)"
            for whose, off_s in ahead_s.items()
            if abs(off_s) > APART_S
        ]

    async def _run(self) -> None:
        await self._turn()
        while not self.state.finished:
            await self._turn()
            if not self._removed and not self._journal.path.exists():  # new work would fail
                self._removed = True
                self._queue.put(events.StopAsked(at=self.clock.now(), hard=True))
        self.leftovers = await self._dispatch.leftovers()
        if self._removed:
            raise RunRemovedError(self.state.facts.run, self._journal.path.parent)

    async def _at_work(self, work: Callable[[], Awaitable[None]]) -> None:
        with self._signals():
            try:
                async with Tasks() as tasks:
                    self._dispatch = Dispatch(self._environment, self.core, tasks)
                    await self._dispatch.open()
                    await work()
            finally:
                await self._dispatch.close()

    async def _turn(self) -> None:
        """Wait for events, at most `SHOW_S` seconds, then handle the first of them. Raises
        `AbandonedError` after more than `MOST_STOPS` requests to stop.
        """
        try:
            async with asyncio.timeout(SHOW_S):
                batch = await self._queue.some()
        except TimeoutError:
            self._watcher(self.state, self.clock.now(), [])
            return
        if self.core.stops > MOST_STOPS:
            raise AbandonedError(self.state.facts.run)
        self._handle(batch)

    def _handle(self, batch: list[events.AnyEvent]) -> None:
        entries, carried_on = [], []
        for event in batch:
            if event.at < self.state.now:  # times of events never decrease
                event = msgspec.structs.replace(event, at=self.state.now)  # noqa: PLW2901
            before = unfinished(self.state) if isinstance(event, events.RunResumed) else []
            entry = Entry(self.state.clock.seq + 1, event, step(self.state, event))
            entries.append(entry)
            still = [command for command in before if command.id in self.state.under_way]
            carried_on += still
            self._put_question(entry, still)
        self._journal.append(entries)
        if abs(time.time() - wall() - self._set_by_s) > MOVED_S:
            self._set_by_s = time.time() - wall()
            self._journal.origin = self.clock.origin
        happened = [entry.event for entry in entries]
        self._dispatch.requests.reply([e for e in happened if isinstance(e, events.AnyRequest)])
        self._dispatch.carry_out(carried_on)
        for entry in entries:
            self._dispatch.carry_out(entry.commands)
        facts = {e.instance: e.fact for e in happened if isinstance(e, events.AgentFact)}
        for instance, fact in facts.items():
            self._dispatch.sessions.committed(instance, fact)
        for instance in {e.instance for e in happened if isinstance(e, events.TrialExited)}:
            self._dispatch.collect(instance)
        saved = {e.trial for e in happened if isinstance(e, events.TrialCheckpointed)}
        for name in saved & self.state.trials.keys():
            self._dispatch.keep(name, [kept.name for kept in self.state.trials[name].checkpoints])
        self._watcher(self.state, self.clock.now(), entries)

    def _put_question(self, entry: Entry, still: list[AnyCommand]) -> None:
        """Prepare the policy's question right after its event: it is about that moment."""
        policy, plan = self._environment.policy, self.state.plan
        if any(isinstance(decision, Declined) for decision in entry.decided):
            policy.forget()
        policy.change(self.state.facts.problem)
        for command in [*entry.commands, *still]:
            if isinstance(command, AskPolicy) and command.id == plan.question:
                policy.note(command.id, self.state.view, plan.memory, plan.order)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have SIGINT, SIGTERM and SIGHUP stop the run in order, and the second one at once, unless
        they are ignored (nohup) or the daemon is a thread of another program.
        """
        if not takes_signals():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = [n for n in ENDING_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self.core.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _happened_by(limit_s: float, event: events.AnyEvent) -> events.AnyEvent:
    if not isinstance(event, events.AgentFact) or event.happened <= limit_s:
        return event
    return msgspec.structs.replace(event, happened=limit_s)


def _missing(run: str, lost: tuple[float, float], ended: list[str], saved: list[str]) -> str:
    since, until = (format_duration(round(at)) for at in lost)
    others = [f"it lacks {name}, which ran and is ended" for name in ended]
    others += [f"it lacks {name}, whose checkpoints are .{name}-lost-... now" for name in saved]
    return (
        f"the journal lacks events from {since} into the run on, which were committed: its end was "
        f"lost, or an older copy was put back{''.join(f'; {one}' for one in others)}. All GPUs are "
        f"charged up to {until}, and the run goes on from what the journal and the agents have. If "
        f"you have the newer journal: seerd stop {run}, put it back with all of its files"
        f"{', give those folders of checkpoints their names again' if saved else ''}, seerd "
        f"resume {run}"
    )
