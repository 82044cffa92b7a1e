"""The core's state as the parts below the daemon query it, and the queue of the events that they
emit. Only the daemon changes the state, event by event.
"""

from __future__ import annotations

import asyncio
from collections import deque

from seerd.clock import RunClock
from seerd.core.commands import AnyCommand
from seerd.core.events import AgentFact, AnyEvent, StopAsked, TrialReported
from seerd.core.lifecycle import RunPhase
from seerd.core.limits import last_s, lease_grace_s, lease_s, spare_s, training_ends_at
from seerd.core.state import State
from seerd.shell.run_environment import Running
from seerd.stores.base import slot_name, slot_number

MOST_AT_ONCE = 200  # events that are handled and committed together
MOST_REPORTS = 256
MOST_FIRST = 2000  # reports of one instance, and other events, that may wait before agents must


class EventQueue:
    """Events that wait to be handled. Those about one instance stay in order; apart from that no
    event waits for reports, since limits, exits and losses must be handled in time.
    """

    def __init__(self) -> None:
        self.is_bounded = True  # whether `room` waits
        self._first: deque[AnyEvent] = deque()
        self._reports: dict[str, deque[TrialReported]] = {}
        self._there, self._taken = asyncio.Event(), asyncio.Event()

    def put(self, event: AnyEvent) -> None:
        """Add an event, and before it earlier reports of its instance."""
        instance = getattr(event, "instance", "")
        if isinstance(event, TrialReported):
            self._reports.setdefault(instance, deque()).append(event)
        else:
            self._first.extend(self._reports.pop(instance, ()))
            self._first.append(event)
        self._there.set()

    async def room(self, instance: str) -> None:
        """Return when there is room for a fact of this instance."""
        while self.is_bounded and (
            len(self._reports.get(instance, ())) >= MOST_REPORTS or len(self._first) >= MOST_FIRST
        ):
            self._taken.clear()
            await self._taken.wait()

    async def some(self) -> list[AnyEvent]:
        """Wait for events; return the first, at most `MOST_AT_ONCE`, after all else that is due."""
        await asyncio.sleep(0)
        await self._there.wait()
        return self.take(MOST_AT_ONCE)

    def take(self, most: int | None = None) -> list[AnyEvent]:
        """Remove and return the first events, at most `most` (None: all). Instances take turns."""
        events: list[AnyEvent] = []
        while (self._first or self._reports) and (most is None or len(events) < most):
            if self._first:
                events.append(self._first.popleft())
                continue
            instance, reports = next(iter(self._reports.items()))
            events.append(reports.popleft())
            del self._reports[instance]
            if reports:
                self._reports[instance] = reports
        if not self._first and not self._reports:
            self._there.clear()
        self._taken.set()
        return events


class Core:
    """The state of one run, its clock, and the events that wait to be handled."""

    def __init__(self, state: State, clock: RunClock) -> None:
        self.state = state
        self.clock = clock
        self.queue = EventQueue()
        self.stops = 0  # how often the run was asked to stop
        self._received: dict[str, int] = {}

    def emit(self, event: AnyEvent) -> None:
        """Queue an event to be handled."""
        if isinstance(event, AgentFact):
            self._received[event.instance] = event.fact
        self.queue.put(event)

    def stop(self) -> None:
        """Stop the run in order; the second time, at once."""
        self.stops += 1
        self.queue.put(StopAsked(at=self.clock.now(), hard=self.stops > 1))

    def pending(self, instance: str) -> list[AnyCommand]:
        """Return the commands for this instance whose outcome is not known."""
        return [c for c in self.state.under_way.values() if instance in c.nodes]

    def running(self, instance: str) -> list[Running]:
        """Return the attempts that report and save on this instance."""
        running = []
        for trial in self.state.trials.values():
            if trial.held and trial.held[0].node == instance:
                own = slot_name(trial.attempt, 0).rpartition("-")[0] + "-"
                names = [checkpoint.name for checkpoint in trial.checkpoints]
                saved = max((slot_number(n) for n in names if n.startswith(own)), default=0)
                running.append(Running(trial.id, trial.attempt, saved, next(iter(names), "")))
        return running

    def holds(self, instance: str) -> list[str]:
        """Return the attempts that hold GPUs of this instance, as "trial/attempt"."""
        trials = self.state.trials.values()
        return [t.key for t in trials if any(slots.node == instance for slots in t.held or ())]

    def known(self, instance: str) -> tuple[int, str]:
        """Return the number of an instance's last received fact, and its machine's boot id."""
        fleet, received = self.state.fleet, self._received.get(instance, 0)
        recorded = fleet.instances.get(instance)
        if recorded is None:  # it is not ready yet; its agent may have reported before
            return max(received, fleet.early.get(instance, 0)), ""
        return max(received, recorded.seen), recorded.boot

    def lease(self) -> tuple[float, float, float]:
        """Return three times in seconds: how long agents may go on without the daemon, how long
        trials then have to save, and how long storing that may take.
        """
        now = self.clock.now()
        return lease_s(self.state, now), lease_grace_s(self.state, now), last_s(self.state, now)

    def ends_in(self) -> float:
        """Return for how many seconds trials may expect to train on."""
        running = self.state.phase is RunPhase.RUNNING
        return max(0.0, training_ends_at(self.state) - self.clock.now()) if running else 0.0

    def spare(self) -> float:
        """Return how many seconds the end of the run may still wait for a machine (`spare_s`)."""
        return spare_s(self.state, self.clock.now())
