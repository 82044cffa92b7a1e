"""When an agent keeps and sends reports: at once, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from seerd.agent import clock
from seerd.agent.journal import facts_after
from seerd.agent.orders import Here
from seerd.agent.protocol import Exited, Renew, Reported
from seerd.agent.serve import Agent, Lease
from seerd.agent.wire import decode

METRICS = {"accuracy": 0.5}


def report(epoch: int, trial: str = "t1") -> Reported:
    return Reported(0, 2.0, trial, 1, epoch, METRICS, 0.0)


def exited(seq: int = 0) -> Exited:
    return Exited(seq, 3.0, "t1", 1, "finished", 0)


def played(folder: Path, scenario: Callable[[Agent], Awaitable[None]]) -> list[Any]:
    """The facts that are on the disk after this scenario with an agent that has no daemon."""

    async def play() -> None:
        agent = Agent(Here("run", 2, False, folder, folder), Lease(time.monotonic() + 600, 10))
        agent._loop = asyncio.get_running_loop()
        await scenario(agent)
        agent._journal.close()

    asyncio.run(play())
    return facts_after(folder / "journal.jsonl", 0)


def test_facts_are_kept_at_once_and_in_their_order(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        for epoch in range(1, 41):
            agent._report([report(epoch)])
            agent._report([])
            assert agent._journal.last == epoch
        agent._report([report(41), exited()])

    told = played(tmp_path, scenario)
    assert [fact.seq for fact in told] == list(range(1, 43))
    assert [type(fact) for fact in told] == [*[Reported] * 41, Exited]


def test_trials_are_told_an_end_that_moves_and_not_the_same_one_again(tmp_path: Path) -> None:
    told: list[float | None] = []

    async def scenario(agent: Agent) -> None:
        agent._orders.expect_end = told.append  # type: ignore[method-assign]
        for in_s in (60.0, 60.0, 30.0, None, None, 60.0):
            agent._expect_end(Renew(60.0, 5.0, ends_in_s=in_s, at=began))

    began = clock.now()
    played(tmp_path, scenario)
    assert told == [began + 60.0, began + 30.0, None, None, began + 60.0]


def test_the_line_that_is_sent_is_the_line_that_is_kept(tmp_path: Path) -> None:
    lines: list[bytes] = []

    async def scenario(agent: Agent) -> None:
        agent._report([report(1), report(2, "t2"), exited()])
        lines.extend(agent._journal.lines_after(0))

    told = played(tmp_path, scenario)
    kept = (tmp_path / "journal.jsonl").read_bytes().splitlines()
    assert [line.rstrip(b"\n") for line in lines] == [line.partition(b"\t")[0] for line in kept]
    assert [decode(line) for line in lines] == told
