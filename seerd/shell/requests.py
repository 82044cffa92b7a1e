"""The requests in a run's inbox: each becomes an event, and is answered once the decision is in the
journal. A job that is added reaches the core only when every instance is ready for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from seerd.agent.protocol import Job
from seerd.core import events
from seerd.core.events import AnyRequest
from seerd.shell.core import Core
from seerd.shell.inbox import Inbox, JobRequest, Reply
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
                if isinstance(request, events.StopAsked):
                    self._core.stop()
                    self._answer(name, Reply(None))
                elif name in answered:
                    self._answer(name, Reply(answered[name]))
                elif name not in self._seen:
                    self._seen.add(name)
                    if isinstance(request, JobRequest):
                        self._tasks.create_task(self._take_job(name, request, inbox))
                    else:
                        self._emit(name, request)
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

    async def _take_job(self, name: str, request: JobRequest, inbox: Inbox) -> None:
        """Make all instances ready for one more job at a time, and emit it."""
        async with self._one_job:
            if why := await self._why_not_ready_for(request.starts, name, inbox):
                self._answer(name, Reply("unready", why))
            elif inbox.has(name):
                self._environment.jobs.append(request.starts)
                self._emit(name, request.added)

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
                try:
                    while not preparing.done() and inbox.has(name):
                        await asyncio.wait({preparing}, timeout=INBOX_S)
                    if preparing.done() and (why := preparing.result()):
                        return why
                finally:
                    preparing.cancel()
                ready.update(more)
            else:
                await asyncio.sleep(INBOX_S)
        return ""

    def _emit(self, name: str, event: AnyRequest) -> None:
        """Queue a request as what happens now."""
        if isinstance(event, events.ExtendAsked):
            until_s = self._core.clock.of_wall(self._environment.until())
            ends_s = until_s if math.isfinite(until_s) else None
            event = replace(event, rented_until_s=ends_s)
        self._core.emit(replace(event, at=self._core.clock.now(), request=name))

    def _answer(self, request: str, reply: Reply) -> None:
        """Write the answer. A disk that refuses must not end the run: the caller then times out."""
        if self._environment.inbox is not None:
            with contextlib.suppress(OSError):
                self._environment.inbox.answer(request, reply)
