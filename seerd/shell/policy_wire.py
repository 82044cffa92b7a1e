"""The messages between the daemon and the policy's process: first one `Opening`, then questions,
each of which gets one reply. A message is its length in four bytes, followed by that many bytes of
MessagePack, which gives every number back exactly.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from seerd.core.asking import Answer
from seerd.core.plans import Put
from seerd.planner.model import Mode, Problem, Report, TrialStatus
from seerd.planner.space import Value

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
