"""seerd's own account of AWS with a client whose answers a test writes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from seerd.aws.cloud import Cloud
from tests.faults.timeline import EPOCH, Loop, Timeline, surroundings

T = TypeVar("T")
Answer = dict[str, Any]
Refusal = Exception


@dataclass
class Script:
    """The client of all services: `answers` has for each operation what it answers or raises, or a
    list of such answers, the last of which is the answer from then on.
    """

    answers: dict[str, Answer | Refusal | list[Answer | Refusal]]
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return partial(self._call, operation)

    async def _call(self, operation: str, **request: Any) -> Answer:
        self.calls.append((operation, request))
        self.times.append(asyncio.get_running_loop().time())
        answer = self.answers[operation]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def operations(self) -> list[str]:
        """What was asked for, in order."""
        return [operation for operation, _ in self.calls]


class ScriptedCloud(Cloud):
    """`asked` are the services and regions that clients were made for."""

    def __init__(self, script: Script) -> None:
        super().__init__("us-east-1")
        self._script = script
        self.asked: list[tuple[str, str]] = []

    @property
    def region(self) -> str:
        """The one there is."""
        return "us-east-1"

    async def client(self, service: str, region: str | None = None) -> Any:
        self.asked.append((service, region))
        return self._script


def cloud_of(**answers: Any) -> tuple[ScriptedCloud, Script]:
    """Return a cloud with these answers, and its script."""
    script = Script(answers)
    return ScriptedCloud(script), script


def played(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run this in virtual time, from second 0 on; return its result and when it came."""
    timeline, ended = Timeline(), []
    with surroundings(lambda: EPOCH + timeline.now, lambda: timeline.now):
        Loop(timeline, lambda: None).spawn(work, ended.append)
        while not ended:
            timeline.turn()
    return ended[0].result(), timeline.now


async def raised(work: Coroutine[Any, Any, Any]) -> Exception:
    """Return what this raises."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 -- the test says which it must be
        return error
    raise AssertionError("nothing was raised")
