"""The policy beside the daemon: a process of its own, which shares nothing with the daemon and is
killed if it does not answer in time. A question shows the run as it was when it was noted.
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
from seerd.shell import policy_main as wire

BUFFER_BYTES = 1 << 20
END_S = 1.0  # longest time from the end of its output to the end of the process, seconds
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # so that a plan is the same on any number of cores


class PolicyProcess:
    """The process of a problem's policy. One question at a time: `note` it, then await its
    `answer`. `limit_s`: seconds for an answer, with the start of the process; `plan`: see
    `policy_main.Opening`.
    """

    def __init__(self, problem: Problem, limit_s: float = 10.0, *, plan: str = "") -> None:
        self._opening = wire.Opening(problem, limit_s, plan)
        self._replies: msgspec.msgpack.Decoder[wire.Reply] = msgspec.msgpack.Decoder(wire.Reply)
        self._child: _Child | None = None
        self._ending: set[_Child] = set()
        self._known: dict[str, _Known] = {}
        self._in_step = False
        self._question: tuple[str, bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int | None:
        """The process id, if there is a process."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process, so that the first question need not wait for it. Returns at once."""
        if self._child is None:
            self._child = _Child(wire.frame(self._opening))
            self._in_step = False

    def note(
        self,
        question: str,
        view: View,
        memory: Mapping[str, Any],
        order: Order,
        changed: Collection[str] | None = None,
    ) -> None:
        """Record the next question; it replaces one that has no answer yet. `memory` and `order`:
        after all answers that were adopted. `changed`: trials that may differ from the question
        before; None: all are compared.
        """
        if self._asked or (self._child is not None and self._child.ended):
            self._abandon()
        self.start()
        anew = None
        if not self._in_step:
            self._known, changed = {}, None
            anew = wire.Anew(dict(memory), order.puts())
        news, spent = self._news(view.trials, changed), dict(view.spent)
        message = wire.Question(question, view.now_s, view.mode, news, anew, spent)
        self._question = question, wire.frame(message)
        self._in_step = False  # until it is answered

    def _news(
        self, trials: Mapping[str, TrialView], changed: Collection[str] | None
    ) -> list[wire.TrialNews]:
        """Return what the process does not know yet, of the trials `changed` or of all. New trials
        come last and in their order, on which a policy may rely.
        """
        names = [name for name in changed or () if name in self._known]
        if changed is None:
            names = list(self._known)
        new = list(islice(trials, len(self._known), None))  # trials are never removed
        self._known |= {name: _Known() for name in new}
        changes = (self._known[name].news(trials[name]) for name in names + new)
        return [news for news in changes if news is not None]

    async def answer(self) -> Answer:
        """Send the noted question and return its answer. Raises `PolicyError` if there is none: the
        process has then been killed, unless the policy itself has raised.
        """
        if self._question is None or self._child is None:
            raise PolicyError("the policy was asked nothing")
        (question, data), self._question, self._asked = self._question, None, True
        child = self._child
        try:
            reply = await self._reply(child, question, data)
        except BaseException:  # also cancelled: a late answer would be for the wrong question
            if child is self._child:
                self._abandon()
            raise
        if child is not self._child:
            raise PolicyError("the policy's process was given up while it was answering")
        self._in_step, self._asked = True, False
        if isinstance(reply, wire.Failure):
            raise PolicyError(f"the policy has failed: {reply.why}")
        return reply.answer

    def forget(self) -> None:
        """Send the process everything with the next question: its last answer was not adopted."""
        self._in_step = False

    def change(self, problem: Problem) -> None:
        """End the process; the next question starts one for this problem."""
        self._opening = msgspec.structs.replace(self._opening, problem=problem)
        self._question = None
        self._abandon()

    async def close(self) -> None:
        """Kill the process and wait until it is gone; a cancelled wait kills it too."""
        self._question = None
        self._abandon()
        for child in list(self._ending):
            await child.gone()

    async def _reply(self, child: _Child, question: str, data: bytes) -> wire.Reply:
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
        child, self._child = self._child, None
        self._in_step = self._asked = False
        if child is not None:
            child.kill()
            self._ending = {process for process in (*self._ending, child) if not process.ended}


@dataclass(slots=True)
class _Known:
    """What the process knows of a trial."""

    status: TrialStatus | None = None  # the status that it was sent; None: nothing was sent yet
    count: int = 0  # how many reports it was sent
    last: Report | None = None  # the last of these

    def news(self, trial: TrialView) -> wire.TrialNews | None:
        """Return what the process does not know yet of this trial, or None. Reports are only
        removed from the end, or inserted: if the last known one is still in its place, so are all
        before it.
        """
        status, history = trial.status, trial.history
        kept = self.count
        if kept and (len(history) < kept or history[kept - 1] is not self.last):
            kept = 0
        if kept == self.count == len(history) and status == self.status:
            return None
        config = dict(trial.config) if self.status is None else None
        self.status, self.count, self.last = status, len(history), history[-1] if history else None
        return wire.TrialNews(trial.id, status, kept, list(history[kept:]), config)


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
        """Whether nothing is left of it."""
        return self._gone.is_set()

    @property
    def pid(self) -> int | None:
        """Its process id, once it has started."""
        return None if self._transport is None else self._transport.get_pid()

    async def ask(self, question: bytes) -> bytes:
        """Send a question and return the reply's bytes. Raises `PolicyError`."""
        await asyncio.wait([self._started])
        try:
            self._write(question)
            size = int.from_bytes(await self._said.readexactly(wire.LENGTH), "big")
            if size > (most := wire.MOST_BYTES):
                raise PolicyError(f"the policy's answer has {size} bytes, more than {most}")
            return await self._said.readexactly(size)
        except asyncio.IncompleteReadError as error:
            try:  # so that its exit code is known
                async with asyncio.timeout(END_S):
                    await self._gone.wait()
            except TimeoutError:
                self.kill()
                await self._gone.wait()
            raise PolicyError(f"the policy's process {self._how()}") from error

    def kill(self) -> None:
        """Kill the process and all that it has started, as soon as it runs."""
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
        """Start the process in a session of its own, so that Ctrl-C does not reach it. It finds the
        same modules in the same order as this one, and none in its working folder (-P).
        """
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            folders = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *(sys.executable, "-P", "-m", "seerd.shell.policy_main"),
                stdin=pipe,
                stdout=pipe,
                stderr=nothing,
                env={**ONE_THREAD, **os.environ, "PYTHONPATH": folders},
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
        """Write to the process if it exists; if not, reading will fail."""
        if self._transport is not None and not self.ended:
            pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
            pipe.write(data)

    def _how(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None:
            return self._failed
        return f"has ended with code {code}" if code >= 0 else f"was killed by signal {-code}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the started process; kill it if that was asked for meanwhile."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        stdout = self._transport.get_pipe_transport(1)
        assert stdout is not None
        self._said.set_transport(stdout)
        if self._killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - only its stdout
        """Keep what the process has written."""
        self._said.feed_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        """Note that the process will write nothing more."""
        if fd == 1:
            self._said.feed_eof()

    def process_exited(self) -> None:
        """Kill what the ended process has left running, and close its pipes."""
        assert self._transport is not None
        self._kill_group()
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note that the process has ended and its pipes are closed."""
        self._gone.set()
