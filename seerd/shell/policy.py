"""The policy beside the daemon: a process that is asked, and killed if it does not answer.

The one rule: a question is what was so when it was noted. Nothing of the run is shared with the
process, and an answer comes in time or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec

from seerd.core.asking import Answer
from seerd.core.plans import Order
from seerd.errors import PolicyError
from seerd.planner.model import Problem, Report, TrialStatus, TrialView, View
from seerd.shell.policy_wire import (
    LENGTH,
    MOST_BYTES,
    Anew,
    Failure,
    Opening,
    Question,
    Reply,
    TrialNews,
    frame,
)

BUFFER_BYTES = 1 << 20
END_S = 1.0
"""From closing its output to its end, at most."""


class PolicyProcess:
    """A problem's policy. One question at a time: `note` it, then await its `answer`.

    limit_s  how long an answer may take, with the start of the process if it is not there yet
    plan     see `policy_wire.Opening`
    """

    def __init__(self, problem: Problem, limit_s: float = 10.0, *, plan: str = "") -> None:
        self._opening = Opening(problem, limit_s, plan)
        self._replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._child: _Child | None = None
        self._ending: set[_Child] = set()
        self._told = _Told()
        self._in_step = False
        self._question: tuple[str, bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begin the process, so that the first question need not wait for it. Returns at once."""
        if self._child is None:
            self._child = _Child(frame(self._opening))
            self._in_step = False

    def note(
        self,
        question: str,
        view: View,
        memory: Mapping[str, Any],
        order: Order,
        changed: Collection[str] | None = None,
    ) -> None:
        """What to ask next; it replaces a question that has no answer yet.

        memory, order  what the policy remembers, and its plan, after all answers that were adopted
        changed        trials that may not be as at the question before; None: all are looked at
        """
        if self._asked or (self._child is not None and self._child.ended):
            self._abandon()
        self.start()
        anew = None
        if not self._in_step:
            self._told, changed = _Told(), None
            anew = Anew(dict(memory), order.puts())
        news = self._told.news(view.trials, changed)
        self._question = question, frame(Question(question, view.now_s, view.mode, news, anew))
        self._in_step = False  # until it is answered

    async def answer(self) -> Answer:
        """The answer to the question. Raises `PolicyError` if there is none. Then the process has
        been killed, unless it has told itself what the policy has raised.
        """
        if self._question is None or self._child is None:
            raise PolicyError("the policy was asked nothing")
        (question, data), self._question, self._asked = self._question, None, True
        child = self._child
        try:
            reply = await self._reply(child, question, data)
        except BaseException:  # cancelled, too: what it says now answers nothing
            if child is self._child:
                self._abandon()
            raise
        if child is not self._child:
            raise PolicyError("the policy's process was given up while it was answering")
        self._in_step, self._asked = True, False
        if isinstance(reply, Failure):
            raise PolicyError(f"the policy has failed: {reply.why}")
        return reply.answer

    def forget(self) -> None:
        """The last answer was not adopted: the next question tells the process everything."""
        self._in_step = False

    async def close(self) -> None:
        """Leave no process. Whoever is cancelled meanwhile has killed it already."""
        self._question = None
        self._abandon()
        for child in list(self._ending):
            await child.gone()

    async def _reply(self, child: _Child, question: str, data: bytes) -> Reply:
        limit_s = self._opening.limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await child.ask(data)
            reply = self._replies.decode(answer)
        except TimeoutError as error:
            raise PolicyError(f"the policy gave no answer in {limit_s:g} s") from error
        except msgspec.DecodeError as error:
            raise PolicyError(f"the policy's answer cannot be read: {error}") from error
        if reply.id != question:
            raise PolicyError(f"the policy has answered question {reply.id}, not {question}")
        return reply

    def _abandon(self) -> None:
        """The process is of no use any more."""
        child, self._child = self._child, None
        self._in_step = self._asked = False
        if child is not None:
            child.kill()
            self._ending = {one for one in (*self._ending, child) if not one.ended}


@dataclass(slots=True)
class _Known:
    """What the process knows of a trial: its status and so many reports, the last of them this."""

    status: TrialStatus | None = None
    count: int = 0
    last: Report | None = None

    def news(self, trial: TrialView) -> TrialNews | None:
        """What it does not know yet, if anything.

        Reports are frozen; they are only ever taken back from the end, or put in between. So while
        the last one that it knows is in its place, all before it are.
        """
        status, history = trial.status, trial.history
        kept = self.count
        if kept and (len(history) < kept or history[kept - 1] is not self.last):
            kept = 0
        if kept == self.count == len(history) and status == self.status:
            return None
        config = dict(trial.config) if self.status is None else None
        self.status, self.count, self.last = status, len(history), history[-1] if history else None
        return TrialNews(trial.id, status, kept, list(history[kept:]), config)


class _Told:
    """What the process knows of the trials."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def news(
        self, trials: Mapping[str, TrialView], changed: Collection[str] | None
    ) -> list[TrialNews]:
        """What it does not know, of these or of all. New trials come last and in their order, by
        which a policy may go.
        """
        known = [name for name in changed or () if name in self._known]
        if changed is None:
            known = list(self._known)
        new = list(islice(trials, len(self._known), None))  # trials are never removed
        self._known |= {name: _Known() for name in new}
        found = (self._known[name].news(trials[name]) for name in known + new)
        return [news for news in found if news is not None]


class _Child(asyncio.SubprocessProtocol):
    """One process, from its start until nothing is left of it."""

    def __init__(self, opening: bytes) -> None:
        self._transport: asyncio.SubprocessTransport | None = None
        self._said = asyncio.StreamReader(BUFFER_BYTES)
        self._gone = asyncio.Event()
        self._killed = False
        self._failed = ""
        self._started = asyncio.create_task(self._start(opening), name="the policy's process")

    @property
    def ended(self) -> bool:
        """Nothing is left of it."""
        return self._gone.is_set()

    @property
    def pid(self) -> int | None:
        """Its number, once it is there."""
        return None if self._transport is None else self._transport.get_pid()

    async def ask(self, question: bytes) -> bytes:
        """What it says to that. Raises `PolicyError` if it ends instead."""
        await asyncio.wait([self._started])
        try:
            self._write(question)
            size = int.from_bytes(await self._said.readexactly(LENGTH), "big")
            if size > MOST_BYTES:
                raise PolicyError(f"the policy's answer has {size} bytes, more than {MOST_BYTES}")
            return await self._said.readexactly(size)
        except asyncio.IncompleteReadError as error:
            await self._end()
            raise PolicyError(f"the policy's process {self._how()}") from error

    async def _end(self) -> None:
        """It is ending by itself, as it seems: it may say how."""
        try:
            async with asyncio.timeout(END_S):
                await self._gone.wait()
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        """End it, with all processes that it has started: at once, or as soon as it is there."""
        self._killed = True
        if self._transport is not None and self._transport.get_returncode() is None:
            self._kill_group()

    async def gone(self) -> None:
        """Wait until nothing is left of it."""
        await asyncio.wait([self._started])
        if self._transport is not None:
            await self._gone.wait()

    def _kill_group(self) -> None:
        assert self._transport is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS
            os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def _start(self, opening: bytes) -> None:
        """With the modules that this process has, in the same order, and none from the folder in
        which it happens to be (-P); in a session of its own, so that Ctrl-C is not for it.
        """
        loop = asyncio.get_running_loop()
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            await loop.subprocess_exec(
                lambda: self,
                *(sys.executable, "-P", "-m", "seerd.shell.policy_main"),
                stdin=pipe,
                stdout=pipe,
                stderr=nothing,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
                start_new_session=True,
            )
            self._write(opening)
        except OSError as error:
            self._failed = f"could not be started: {error}"
        finally:
            if self._transport is None:
                self._said.feed_eof()
                self._gone.set()

    def _write(self, data: bytes) -> None:
        """Nothing is written to a process that is not there: reading tells so."""
        if self._transport is not None and not self.ended:
            pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
            pipe.write(data)

    def _how(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None:
            return self._failed
        return f"has ended with code {code}" if code >= 0 else f"was killed by signal {-code}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        said = self._transport.get_pipe_transport(1)
        assert said is not None
        self._said.set_transport(said)
        if self._killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - only its stdout
        """It says something."""
        self._said.feed_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        """It will say nothing more."""
        if fd == 1:
            self._said.feed_eof()

    def process_exited(self) -> None:
        """It has ended. What it has started ends too; some of it may have its pipes open."""
        assert self._transport is not None
        self._kill_group()
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Its pipes are closed, too."""
        self._gone.set()
