"""What the daemon and the policy's process say to each other.

The one rule: a message is its length in four bytes and so many bytes of MessagePack, which, other
than JSON, gives every number back as it was. First comes one `Opening`, then questions, each of
which gets one reply.
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
MOST_BYTES = 1 << 28
"""No reply is longer. Ten thousand new trials are about a megabyte."""


class Opening(Struct, frozen=True):
    """What does not change.

    limit_s  how long the daemon waits for an answer
    plan     "module:function" to ask instead of the policy that the problem names; for tests
    """

    problem: Problem
    limit_s: float
    plan: str = ""


class TrialNews(Struct, frozen=True, array_like=True):
    """A trial that is new, or not as it was at the question before.

    kept    so many of its reports are as they were; `reports` follow these
    config  of a trial that is new
    """

    trial: str
    status: TrialStatus
    kept: int
    reports: list[Report]
    config: dict[str, Value] | None = None


class Anew(Struct, frozen=True):
    """Forget everything. This is what the policy remembers, and its plan; all trials are news."""

    memory: dict[str, Any]
    order: tuple[Put, ...]


class Question(Struct, frozen=True):
    """What is wanted now? `news`: trials that are known already, and new ones in their order."""

    id: str
    now_s: float
    mode: Mode
    news: list[TrialNews]
    anew: Anew | None = None


class Answered(Struct, frozen=True, tag="answered"):
    """The policy's answer to the question `id`."""

    id: str
    answer: Answer


class Failure(Struct, frozen=True, tag="failed"):
    """The policy has raised something. It remembers what it did before the question."""

    id: str
    why: str


Reply = Answered | Failure

_encoder = msgspec.msgpack.Encoder()


def frame(message: Opening | Question | Reply) -> bytes:
    """The message as it is sent. Raises `OverflowError` if it is 4 GiB or longer."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH, "big") + data
