"""Events overtake reports, and too many reports wait with their agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from seerd.core.events import InstanceLost, TimerFired, TrialExited, TrialReported
from seerd.shell.core import MOST_AT_ONCE, MOST_FIRST, MOST_REPORTS, EventQueue


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())


def report(instance: str, fact: int) -> TrialReported:
    return TrialReported(
        at=1.0,
        instance=instance,
        fact=fact,
        happened=1.0,
        trial="t1",
        attempt=1,
        reports=fact,
        metric=0.5,
        unit_s=0.1,
    )


def exited(instance: str, fact: int) -> TrialExited:
    common: dict[str, Any] = {"at": 1.0, "instance": instance, "fact": fact, "happened": 1.0}
    return TrialExited(**common, trial="t1", attempt=1, cause="finished", code=0)


def filled(reports: int) -> EventQueue:
    queue = EventQueue()
    for fact in range(1, reports + 1):
        for instance in ("a", "b"):
            queue.put(report(instance, fact))
    return queue


def order(events: list[Any]) -> list[tuple[str, int]]:
    return [(event.instance, event.fact) for event in events if hasattr(event, "fact")]


@in_a_loop
async def test_a_timer_does_not_wait_for_reports():
    queue = filled(10)
    timer = TimerFired(at=2.0, command="1.0")
    queue.put(timer)
    assert (await queue.some())[0] is timer


def test_an_exit_waits_for_its_own_instance_alone_in_the_order_of_facts():
    queue = filled(3)
    queue.put(exited("b", 4))
    found = order(queue.take())
    assert found[:4] == [("b", 1), ("b", 2), ("b", 3), ("b", 4)]
    assert found[4:] == [("a", 1), ("a", 2), ("a", 3)]


def test_a_loss_comes_after_what_its_agent_has_told():
    queue = filled(2)
    queue.put(InstanceLost(at=3.0, instance="a", why="gone", ended=None))
    events = queue.take()
    assert order(events[:2]) == [("a", 1), ("a", 2)]
    assert isinstance(events[2], InstanceLost)


@in_a_loop
async def test_so_many_are_handled_together_and_instances_take_turns():
    queue = filled(MOST_AT_ONCE)
    events = await queue.some()
    assert len(events) == MOST_AT_ONCE
    assert order(events)[:4] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


async def is_let_in(queue: EventQueue, instance: str) -> bool:
    waiting = asyncio.ensure_future(queue.room(instance))
    for _ in range(3):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


@in_a_loop
async def test_an_agent_waits_while_many_of_its_reports_wait():
    queue = EventQueue()
    for fact in range(MOST_REPORTS - 1):
        queue.put(report("a", fact))
    assert await is_let_in(queue, "a")
    queue.put(report("a", MOST_REPORTS))
    assert not await is_let_in(queue, "a")
    assert await is_let_in(queue, "b")
    waiting = asyncio.ensure_future(queue.room("a"))
    await queue.some()
    await asyncio.wait_for(waiting, 5.0)


@in_a_loop
async def test_agents_wait_while_much_else_waits():
    queue = EventQueue()
    for fact in range(MOST_FIRST):
        queue.put(exited("a", fact))
    assert not await is_let_in(queue, "b")
    queue.is_bounded = False
    assert await is_let_in(queue, "b")


@in_a_loop
async def test_timers_of_the_loop_have_their_turn_between_batches():
    queue, fired = filled(3 * MOST_AT_ONCE), []
    asyncio.get_running_loop().call_soon(fired.append, True)
    await queue.some()
    assert fired
