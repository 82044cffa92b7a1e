"""The requests in a run's inbox: each becomes an event, and is answered once the decision is in the
journal. A job that is added reaches the core only when every instance is ready for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Sequence

from seerd.agent.protocol import Job
from seerd.core import events
from seerd.core.events import AnyEvent, AnyRequest
from seerd.shell import inbox as asked
from seerd.shell.core import Core
from seerd.shell.inbox import Inbox, Reply
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.sessions import Sessions

INBOX_S = 0.5


class RequestReader:
    """The requests to one run."""

    def __init__(
        self, environment: RunEnvironment, core: Core, sessions: Sessions, tasks: asyncio.TaskGroup
    ) -> None:
        self._environment = environment
        self._core = core
        self._sessions = sessions
        self._tasks = tasks
        self._seen: set[str] = set()
        self._readying = 0
        self._one_job = asyncio.Lock()

    @contextlib.contextmanager
    def readying(self) -> Iterator[None]:
        """Have new jobs wait while instances are made ready or reconnected to."""
        self._readying += 1
        try:
            yield
        finally:
            self._readying -= 1

    async def keep_reading(self, inbox: Inbox) -> None:
        """Read requests all the time. One whose answer a crash has lost is answered again."""
        while True:
            answered = self._core.state.requests.answered
            for name, request in inbox.waiting():
                if isinstance(request, asked.StopRequest):
                    self._core.stop()
                    self._answer(name, Reply(None))
                elif name in answered:
                    self._answer(name, Reply(answered[name]))
                elif name not in self._seen:
                    self._seen.add(name)
                    if isinstance(request, asked.JobRequest):
                        self._tasks.create_task(self._take_job(name, request, inbox))
                    else:
                        self._core.emit(self._event(name, request))
            await asyncio.sleep(INBOX_S)

    def reply(self, requests: Sequence[AnyRequest]) -> None:
        """Answer these requests, which are in the journal, and extend what is rented and signed."""
        answered = self._core.state.requests.answered
        for event in (event for event in requests if event.request in answered):
            denied = answered[event.request]
            if denied is None and isinstance(event, events.ExtendAsked):
                deadline_s = event.problem.limits.deadline_s
                self._environment.prolong(self._core.clock.origin + deadline_s)
            if denied is not None and isinstance(event, events.JobAdded):
                jobs = self._environment.jobs
                jobs[:] = [job for job in jobs if job.id != event.job.id]
            self._answer(event.request, Reply(denied))

    async def _take_job(self, name: str, request: asked.JobRequest, inbox: Inbox) -> None:
        """Make all instances ready for one more job at a time, and emit it."""
        async with self._one_job:
            if why := await self._why_not_ready_for(request.starts, name, inbox):
                self._answer(name, Reply("unready", why))
            elif inbox.has(name):
                self._environment.jobs.append(request.starts)
                now, job, facts = self._core.clock.now(), request.job, request.facts
                self._core.emit(events.JobAdded(at=now, request=name, job=job, facts=facts))

    async def _why_not_ready_for(self, job: Job, name: str, inbox: Inbox) -> str:
        """Make every instance, at least one, ready for one more job: a job that cannot be set up
        would have all later instances refused. Return what went wrong, or nothing.
        """
        ready: set[str] = set()
        while inbox.has(name):
            present = set() if self._readying else set(self._sessions.instances())
            if present and present <= ready:
                return ""
            if more := sorted(present - ready):
                # Another one after a crash: an agent that has answered one says nothing more to it.
                token = f"{name}-{self._core.clock.now():.3f}"
                preparing = asyncio.ensure_future(self._sessions.prepare_for(job, more, token))
                if why := await self._unless_withdrawn(preparing, name, inbox):
                    return why
                ready.update(more)
            else:
                await asyncio.sleep(INBOX_S)
        return ""

    async def _unless_withdrawn(
        self, preparing: asyncio.Future[str], name: str, inbox: Inbox
    ) -> str:
        """Wait until instances are ready for a job, as long as its request exists."""
        try:
            while not preparing.done() and inbox.has(name):
                await asyncio.wait({preparing}, timeout=INBOX_S)
            return preparing.result() if preparing.done() else ""
        finally:
            preparing.cancel()

    def _event(
        self,
        name: str,
        request: asked.ExtendRequest | asked.AddRequest | asked.StopJobRequest | asked.WeighRequest,
    ) -> AnyEvent:
        now = self._core.clock.now()
        match request:
            case asked.AddRequest():
                return events.AddAsked(at=now, request=name, config=request.config)
            case asked.StopJobRequest():
                return events.JobStopAsked(at=now, request=name, job=request.job)
            case asked.WeighRequest():
                job, weight = request.job, request.weight
                return events.JobWeighed(at=now, request=name, job=job, weight=weight)
        until_s = self._core.clock.of_wall(self._environment.until())
        return events.ExtendAsked(
            at=now,
            request=name,
            problem=request.problem,
            outline=request.outline,
            rented_until_s=until_s if math.isfinite(until_s) else None,
        )

    def _answer(self, request: str, reply: Reply) -> None:
        """Write the answer. A disk that refuses must not end the run: the caller then times out."""
        if self._environment.inbox is not None:
            with contextlib.suppress(OSError):
                self._environment.inbox.answer(request, reply)
