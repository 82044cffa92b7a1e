"""The policy's process: `python -m seerd.shell.policy_main` answers until its input is closed.

The one rule: nothing that a policy prints can get into the stream of answers, and nothing keeps
this process alive when the daemon is gone.
"""

from __future__ import annotations

import _thread
import importlib
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from seerd.core.asking import Asking, PlanFunction, default_plan, why
from seerd.core.plans import Order, PlanChange
from seerd.planner.model import Report, TrialStatus, View
from seerd.planner.space import Config
from seerd.shell import policy_wire as wire

SPARE_S = 5.0  # seconds after the daemon's limit until this process ends itself


@dataclass(slots=True)
class KnownTrial:
    """A trial as it was when the question was asked (a `seerd.planner.model.TrialView`)."""

    id: str
    config: Config = field(default_factory=dict)
    status: TrialStatus = "live"
    history: list[Report] = field(default_factory=list)

    @property
    def reports(self) -> int:
        """How many times it has reported."""
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        """The metric of its last report."""
        return self.history[-1].metric if self.history else None

    def apply(self, news: wire.TrialNews) -> None:
        """Apply what has changed."""
        self.status = news.status
        self.config = self.config if news.config is None else news.config
        self.history[news.kept :] = news.reports


class Answering:
    """The policy, and what it knows of the run."""

    def __init__(self, opening: wire.Opening) -> None:
        self._problem = opening.problem
        module, _, name = opening.plan.partition(":")
        self._plan: PlanFunction = (
            getattr(importlib.import_module(module), name) if module else default_plan()
        )
        self._trials: dict[str, KnownTrial] = {}
        self._asking = Asking(self._problem, {}, Order(), plan=self._plan)

    def reply(self, question: wire.Question) -> wire.Reply:
        """Ask the policy and return its answer, or what it has raised."""
        if question.anew is not None:
            order = Order()
            order.apply(PlanChange(put=question.anew.order))
            self._asking = Asking(self._problem, question.anew.memory, order, plan=self._plan)
            self._trials = {}
        for news in question.news:
            self._trials.setdefault(news.trial, KnownTrial(news.trial)).apply(news)
        view = View(question.now_s, question.mode, self._trials, question.spent)
        try:
            return wire.Answered(question.id, self._asking.ask(view))
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon reports it
            return wire.Failure(question.id, why(error))


def main() -> None:
    """Answer questions from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions, answers = _streams()
    _thread.start_new_thread(_end_with, (questions.fileno(),))
    messages, decoder = _messages(questions), msgspec.msgpack.Decoder(wire.Question)
    for first in messages:
        opening = msgspec.msgpack.decode(first, type=wire.Opening)
        answering = Answering(opening)
        for message in messages:
            with _limited(opening.limit_s + SPARE_S):
                data = wire.frame(answering.reply(decoder.decode(message)))
            answers.write(data)
            answers.flush()


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the standard input and output under new descriptors. In their old places, what the
    policy reads is empty, and what it prints goes to the standard error.
    """
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return questions, answers


def _messages(stream: BinaryIO) -> Iterator[bytes]:
    """Yield messages until the stream is closed; an incomplete last one is dropped."""
    while len(length := stream.read(wire.LENGTH)) == wire.LENGTH:
        size = int.from_bytes(length, "big")
        message = stream.read(size)
        if len(message) == size:
            yield message


def _end_with(descriptor: int) -> None:
    """End this process when the daemon's end of the pipe is closed, even if the policy is busy."""
    closed = select.poll()
    closed.register(descriptor, 0)  # POLLHUP and POLLERR are always reported
    closed.poll()
    os._exit(0)


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Have the system end this process if the block takes longer than `limit_s` seconds: a signal
    works even if the policy lets no other thread run.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
