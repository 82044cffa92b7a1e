"""The policy's process: `python -m seerd.shell.policy_main` answers until its input is closed.

The one rule: nothing that a policy does gets into the answers but its answer, and nothing keeps
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
from seerd.shell.policy_wire import (
    LENGTH,
    Answered,
    Failure,
    Opening,
    Question,
    Reply,
    TrialNews,
    frame,
)

SPARE_S = 5.0
"""Beyond the daemon's limit, which ends this process itself if it is there."""


@dataclass(slots=True)
class KnownTrial:
    """A trial as it was when the question was asked: a `seerd.planner.model.TrialView`."""

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
        """That of its last report."""
        return self.history[-1].metric if self.history else None

    def hear(self, news: TrialNews) -> None:
        """Bring it up to date."""
        self.status = news.status
        self.config = self.config if news.config is None else news.config
        self.history[news.kept :] = news.reports


class Answering:
    """The policy and what it has been told of the run."""

    def __init__(self, opening: Opening) -> None:
        self._problem = opening.problem
        self._plan = _named(opening.plan) if opening.plan else default_plan()
        self._trials: dict[str, KnownTrial] = {}
        self._asking = Asking(self._problem, {}, Order(), plan=self._plan)

    def reply(self, question: Question) -> Reply:
        """Ask the policy."""
        self._hear(question)
        view = View(question.now_s, question.mode, self._trials)
        try:
            return Answered(question.id, self._asking.ask(view))
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon is told
            return Failure(question.id, why(error))

    def _hear(self, question: Question) -> None:
        if question.anew is not None:
            order = Order()
            order.apply(PlanChange(put=question.anew.order))
            self._asking = Asking(self._problem, question.anew.memory, order, plan=self._plan)
            self._trials = {}
        for news in question.news:
            self._trials.setdefault(news.trial, KnownTrial(news.trial)).hear(news)


def main() -> None:
    """Answer what comes in, until nothing more can."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions, answers = _streams()
    _thread.start_new_thread(_end_with, (questions.fileno(),))
    messages = _messages(questions)
    for first in messages:
        opening = msgspec.msgpack.decode(first, type=Opening)
        _answer(messages, answers, opening)


def _answer(messages: Iterator[bytes], answers: BinaryIO, opening: Opening) -> None:
    answering = Answering(opening)
    decoder = msgspec.msgpack.Decoder(Question)
    for message in messages:
        with _limited(opening.limit_s + SPARE_S):
            data = frame(answering.reply(decoder.decode(message)))
        answers.write(data)
        answers.flush()


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output under other numbers. In their places are an empty input and the
    standard error, for whoever reads and prints.
    """
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return questions, answers


def _messages(stream: BinaryIO) -> Iterator[bytes]:
    """Until it is closed; what is cut off was never said."""
    while len(length := stream.read(LENGTH)) == LENGTH:
        size = int.from_bytes(length, "big")
        message = stream.read(size)
        if len(message) == size:
            yield message


def _end_with(descriptor: int) -> None:
    """In a thread of its own: that the daemon was killed is noticed while the policy thinks."""
    closed = select.poll()
    closed.register(descriptor, 0)  # POLLHUP and POLLERR are always told
    closed.poll()
    os._exit(0)


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """The system ends this process after so long, also if the policy lets no other thread run."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def _named(plan: str) -> PlanFunction:
    module, _, function = plan.partition(":")
    found: PlanFunction = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    main()
