"""What agents know, what really happened where trials run, and what time it really was, compared
with what the coordinator has written down.

The one rule: the coordinator's journal says what happened, once, in order, when it happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from seerd.agent.journal import _read
from seerd.agent.protocol import FACTS, Ack, Fact, Prepared, Refused
from seerd.core.events import AgentFact, InstanceNoticed, InstanceReady, TrialExited, TrialReported
from seerd.core.lifecycle import InstancePhase
from seerd.core.state import State
from seerd.shell.journal import Entry, Journal
from seerd.shell.translate import event_of

if TYPE_CHECKING:
    from tests.faults.world import Play

ANSWERS = (Prepared, Refused)
"""What is no event."""
EPSILON_S = 1e-6
TRAVELS_S = 1.0
"""An agent's answer, by which its clock is known, is so old when it arrives."""


class Agreement:
    """Of one run."""

    def __init__(self, play: Play, broken: Callable[[str], None]) -> None:
        self._play = play
        self._broken = broken
        self._committed: dict[str, dict[int, AgentFact]] = {}
        self._last_at = 0.0
        self._reported: dict[tuple[str, int, int], str] = {}
        self._has_lost = False
        self._by: dict[str, float] = {}
        self._ready: set[str] = set()
        self._may_lack: dict[str, int] = {}

    def after(self, state: State, entries: list[Entry]) -> None:
        """These were committed."""
        for entry in entries:
            event = entry.event
            self._time_goes_on(event.at, type(event).__name__)
            takes = isinstance(event, InstanceNoticed) and event.what != "maintenance"
            if takes and event.by is not None:
                self._by[event.instance] = min(event.by, self._by.get(event.instance, math.inf))
        self._the_earliest_notice_counts(state)
        self._leases_keep_the_deadline()

    def lost(self) -> None:
        """The journal has lost events: what was committed until now may be missing, also what an
        agent learns of that only now, and so may be notices.
        """
        self._by.clear()
        self._has_lost = True
        state = self._play.coordinator.state
        if state is not None:
            seen = {one.id: one.seen for one in state.fleet.instances.values()}
            for name, fact in (seen | state.fleet.early).items():
                self._may_lack[name] = max(fact, self._may_lack.get(name, 0))

    def at_the_end(self) -> None:
        """Nothing more is written."""
        path = self._play.folder / "journal.db"
        if not path.exists():
            return
        with Journal.open(path, read_only=True) as journal:
            for entry in journal.entries():
                if isinstance(entry.event, InstanceReady):
                    self._ready.add(entry.event.instance)
                if isinstance(entry.event, AgentFact):
                    self._facts_come_once(entry.event)
                if isinstance(entry.event, TrialReported):
                    self._it_was_reported(entry.event)
                if isinstance(entry.event, TrialExited):
                    self._it_ended_then(entry.event)
        self._what_is_acknowledged_is_recorded()
        self._reports_count_once()

    def _reports_count_once(self) -> None:
        state = self._play.coordinator.state
        for trial in () if state is None else state.trials.values():
            counted = [report.reports for report in trial.history]
            if counted != sorted(set(counted)):
                self._broken(f"the reports of {trial.id} that count are {counted}")

    def _time_goes_on(self, at: float, kind: str) -> None:
        """Events are in the order of their time, and of the time that it is."""
        now = self._play.now
        if at < self._last_at:
            self._broken(f"{kind} is of {at:.3f}s, after an event of {self._last_at:.3f}s")
        self._last_at = max(self._last_at, at)
        if at > now + EPSILON_S:
            self._broken(f"{kind} is of {at - now:.1f}s from now")

    def _facts_come_once(self, event: AgentFact) -> None:
        """In their order; what a machine tells before it is ready, nobody may know after a kill."""
        known = self._committed.setdefault(event.instance, {})
        again = bool(known) and event.fact <= max(known)
        if again and event.instance in self._ready:
            self._broken(f"fact {event.fact} of {event.instance} is recorded after {max(known)}")
        known[event.fact] = event
        if not -EPSILON_S <= event.happened <= event.at + EPSILON_S:
            self._broken(f"fact {event.fact} of {event.instance} is of {event.happened:.3f}s")

    def _it_was_reported(self, event: TrialReported) -> None:
        """By the script, with this metric, and once: of an attempt that the journal has lost perhaps
        on two instances, since nobody knows of the first until its agent answers.
        """
        key = event.trial, event.attempt, event.reports
        told = self._play.shared.reported.get((event.trial, event.attempt), {})
        by = self._reported.setdefault(key, "")
        if by and (by == event.instance or not self._has_lost):
            self._broken(f"report {event.reports} of {event.trial}/{event.attempt} comes again")
        self._reported[key] = event.instance
        if event.reports not in told or told[event.reports] != event.metric:
            self._broken(
                f"{event.trial}/{event.attempt} never reported {event.metric} as {event.reports}"
            )

    def _it_ended_then(self, event: TrialExited) -> None:
        """Not before its processes were gone: until then its GPUs cost."""
        gone = self._play.shared.ended.get((event.instance, event.trial, event.attempt))
        if gone is not None and event.happened < gone - TRAVELS_S:
            self._broken(
                f"{event.trial}/{event.attempt} ended at {gone:.1f}s, and not at "
                f"{event.happened:.1f}s"
            )

    def _the_earliest_notice_counts(self, state: State) -> None:
        for instance in state.fleet.instances.values():
            by = self._by.get(instance.id, math.inf)
            leaving = instance.phase is InstancePhase.LEAVING
            if leaving and by < math.inf and (instance.by is None or instance.by > by):
                self._broken(f"{instance.id} is taken away at {by:.1f}s, not at {instance.by}")

    def _leases_keep_the_deadline(self) -> None:
        """Were a renewal of a lease the last, its instance would still end in time."""
        leases, deadline_s = self._play.shared.leases, self._play.deadline_s
        late_s = max(leases, default=0.0) - deadline_s
        leases.clear()
        if late_s > EPSILON_S:
            self._broken(f"a lease ends {late_s:.1f}s after the deadline")

    def _what_is_acknowledged_is_recorded(self) -> None:
        for host in self._play.hosts.values():
            path = self._play.folder / "instances" / host.instance.id / "journal.jsonl"
            if not path.exists():
                continue
            committed = self._committed.get(host.instance.id, {})
            messages, _, _ = _read(path)  # up to where it is damaged
            acked = max((one.seen for one in messages if isinstance(one, Ack)), default=0)
            for fact in messages:
                if isinstance(fact, FACTS) and fact.seq <= acked and not isinstance(fact, ANSWERS):
                    self._is_recorded(fact, host.instance.id, committed.get(fact.seq))

    def _is_recorded(self, fact: Fact, instance: str, event: AgentFact | None) -> None:
        if event is None and fact.seq <= self._may_lack.get(instance, 0):
            return
        if event is None:
            self._broken(f"fact {fact.seq} of {instance} was acknowledged and is not recorded")
            return
        meant = event_of(fact, instance, event.at, event.happened, "accuracy")
        if isinstance(meant, InstanceNoticed) and isinstance(event, InstanceNoticed):
            event = msgspec.structs.replace(event, by=meant.by)
        if event != meant:
            self._broken(f"fact {fact.seq} of {instance} is recorded as {event}, not {meant}")
