"""The policy's process: `python -m seerd.shell.policy_main` answers until its input is closed.

The one rule: nothing that a policy prints can get into the stream of answers, and nothing keeps
this process alive when the daemon is gone.

Messages: first one `Opening`, then questions, each of which gets one reply. A message is its length
in four bytes, followed by that many bytes of MessagePack, which gives every number back exactly.
"""

from __future__ import annotations

import _thread
import importlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from seerd.core.asking import Answer, Asking, PlanFunction, why
from seerd.core.plans import Order, PlanChange, Put
from seerd.planner.model import Mode, Problem, Report, TrialStatus, View
from seerd.planner.space import Config, Value

SPARE_S = 5.0  # seconds after the daemon's limit until this process ends itself
LENGTH = 4
MOST_BYTES = 1 << 28  # largest reply; one with ten thousand new trials has about a megabyte


class Opening(Struct, frozen=True):
    """The first message: what does not change during a run."""

    problem: Problem  # the problem, which names the policy
    limit_s: float  # how long the daemon waits for an answer, seconds
    plan: str = ""  # "module:function" to ask instead of the problem's policy; for tests


class TrialNews(Struct, frozen=True, array_like=True):
    """A trial that is new, or that has changed since the question before."""

    trial: str
    status: TrialStatus
    kept: int  # how many of its first reports are unchanged
    reports: list[Report]  # the reports that follow those
    config: dict[str, Value] | None = None  # its configuration, if it is new
    failing: bool = False  # see `seerd.planner.model.TrialView`


class Anew(Struct, frozen=True):
    """Forget everything: this is what the policy remembers, and its plan. All trials follow."""

    memory: dict[str, Any]  # what the policy remembers
    order: tuple[Put, ...]  # its plan


class Question(Struct, frozen=True):
    """A question: which plan the policy wants now."""

    id: str  # the question's id, which the reply repeats
    now_s: float  # seconds since the run began
    mode: Mode  # whether more or less of the metric is better
    news: list[TrialNews]  # trials that have changed, then new ones in their order
    anew: Anew | None = None  # what to begin again from; None: go on from the question before
    spent: dict[str, float] = {}  # see `seerd.planner.model.View`


class Answered(Struct, frozen=True, tag="answered"):
    """The policy's answer to the question `id`."""

    id: str
    answer: Answer


class Failure(Struct, frozen=True, tag="failed"):
    """The policy has raised an exception. Its memory is as it was before the question."""

    id: str
    why: str


Reply = Answered | Failure

_encoder = msgspec.msgpack.Encoder()


def frame(message: Opening | Question | Reply) -> bytes:
    """Return the message as it is sent. Raises `OverflowError` if it is 4 GiB or longer."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH, "big") + data


@dataclass(slots=True)
class KnownTrial:
    """A trial as it was when the question was asked (a `seerd.planner.model.TrialView`)."""

    id: str
    config: Config = field(default_factory=dict)
    status: TrialStatus = "live"
    history: list[Report] = field(default_factory=list)
    failing: bool = False

    @property
    def reports(self) -> int:
        """How many times it has reported."""
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        """The metric of its last report."""
        return self.history[-1].metric if self.history else None

    def apply(self, news: TrialNews) -> None:
        """Apply what has changed."""
        self.status, self.failing = news.status, news.failing
        self.config = self.config if news.config is None else news.config
        self.history[news.kept :] = news.reports


class Answering:
    """The policy, and what it knows of the run."""

    def __init__(self, opening: Opening) -> None:
        self._problem = opening.problem
        module, _, name = opening.plan.partition(":")
        self._plan: PlanFunction | None = (
            getattr(importlib.import_module(module), name) if module else None
        )
        self._trials: dict[str, KnownTrial] = {}
        self._asking = Asking(self._problem, {}, Order(), plan=self._plan)

    def reply(self, question: Question) -> Reply:
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
            return Answered(question.id, self._asking.ask(view))
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon reports it
            return Failure(question.id, why(error))


def main() -> None:
    """Answer questions from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions, answers = _streams()
    _thread.start_new_thread(_end_with, (questions.fileno(),))
    messages, decoder = _messages(questions), msgspec.msgpack.Decoder(Question)
    for first in messages:
        opening = msgspec.msgpack.decode(first, type=Opening)
        answering = Answering(opening)
        for message in messages:
            # The system ends this process if the policy takes longer, even if that lets no other
            # thread run. Anew each time: the policy's code may have set a handler.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, opening.limit_s + SPARE_S)
            answer = frame(answering.reply(decoder.decode(message)))
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.write(answer)
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
    while len(length := stream.read(LENGTH)) == LENGTH:
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


if __name__ == "__main__":
    main()
