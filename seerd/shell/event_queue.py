"""The events that wait to be handled. Those about one instance stay in order; apart from that no
event waits for reports, since limits, exits and losses must be handled in time.
"""

from __future__ import annotations

import asyncio
from collections import deque

from seerd.core.events import AnyEvent, TrialReported

MOST_AT_ONCE = 200  # events that are handled and committed together
MOST_REPORTS = 256
MOST_FIRST = 2000  # reports of one instance, and other events, that may wait before agents must


class EventQueue:
    """Events, of which reports come last."""

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
