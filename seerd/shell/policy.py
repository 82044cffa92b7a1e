"""The policy beside the daemon: a process of its own, which shares nothing with the daemon and is
killed if it does not answer in time. A question shows the run as it was when it was noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

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

    def note(self, question: str, view: View, memory: Mapping[str, Any], order: Order) -> None:
        """Record the next question; it replaces one that has no answer yet. `memory` and `order`:
        after all answers that were adopted.
        """
        if self._asked or (self._child is not None and self._child.ended):
            self._abandon()
        self.start()
        anew = None
        if not self._in_step:
            self._known = {}
            anew = wire.Anew(dict(memory), order.puts())
        for name in islice(view.trials, len(self._known), None):  # they are never removed
            self._known[name] = _Known()
        changes = (known.news(view.trials[name]) for name, known in self._known.items())
        news = [news for news in changes if news is not None]
        message = wire.Question(question, view.now_s, view.mode, news, anew, dict(view.spent))
        self._question = question, wire.frame(message)
        self._in_step = False  # until it is answered

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
        """End the process if it is for another problem; the next question starts one for this."""
        if problem is self._opening.problem:
            return
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
    failing: bool = False  # what it was sent
    count: int = 0  # how many reports it was sent
    last: Report | None = None  # the last of these

    def news(self, trial: TrialView) -> wire.TrialNews | None:
        """Return what the process does not know yet of this trial, or None. Reports are only
        removed from the end, or inserted: if the last known one is still in its place, so are all
        before it.
        """
        status, history, failing = trial.status, trial.history, trial.failing
        kept = self.count
        if kept and (len(history) < kept or history[kept - 1] is not self.last):
            kept = 0
        if kept == self.count == len(history) and (status, failing) == (self.status, self.failing):
            return None
        config = dict(trial.config) if self.status is None else None
        self.status, self.failing, self.count = status, failing, len(history)
        self.last = history[-1] if history else None
        return wire.TrialNews(trial.id, status, kept, list(history[kept:]), config, failing)


class _Child:
    """One process, from its start until nothing is left of it."""

    def __init__(self, opening: bytes) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._failed = ""
        self._started = asyncio.Event()
        self._life = asyncio.create_task(self._live(opening), name="the policy's process")

    @property
    def ended(self) -> bool:
        """Whether nothing is left of it."""
        return self._life.done()

    @property
    def pid(self) -> int | None:
        """Its process id, once it has started."""
        return None if self._process is None else self._process.pid

    async def ask(self, question: bytes) -> bytes:
        """Send a question and return the reply's bytes. Raises `PolicyError`."""
        await self._started.wait()
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise PolicyError(f"the policy's process could not be started: {self._failed}")
        self._process.stdin.write(question)
        try:
            size = int.from_bytes(await self._process.stdout.readexactly(wire.LENGTH), "big")
            if size > (most := wire.MOST_BYTES):
                raise PolicyError(f"the policy's answer has {size} bytes, more than {most}")
            return await self._process.stdout.readexactly(size)
        except asyncio.IncompleteReadError as error:
            await asyncio.wait({self._life}, timeout=END_S)  # so that its exit code is known
            self.kill()
            code = await self._process.wait()
            how = f"has ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
            raise PolicyError(f"the policy's process {how}") from error

    def kill(self) -> None:
        """Kill the process and all that it has started, as soon as it runs."""
        self._killed = True
        if self._process is not None and not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS
                os.killpg(self._process.pid, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until nothing is left of it."""
        await asyncio.wait({self._life})

    async def _live(self, opening: bytes) -> None:
        """Start the process in a session of its own, so that Ctrl-C does not reach it, and wait for
        its end. It finds the same modules in the same order as this one, and none in its working
        folder (-P).
        """
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        folders = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "seerd.shell.policy_main"),
                stdin=pipe,
                stdout=pipe,
                stderr=nothing,
                limit=BUFFER_BYTES,
                env={**ONE_THREAD, **os.environ, "PYTHONPATH": folders},
                start_new_session=True,
            )
        except OSError as error:
            self._failed = str(error)
            return
        finally:
            self._started.set()
        if self._killed:
            self.kill()
        assert self._process.stdin is not None
        self._process.stdin.write(opening)
        await self._process.wait()
        self.kill()  # what it has left running
