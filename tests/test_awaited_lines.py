"""What is told of instances that are awaited: a line for each step, one for a cause that many have,
and a note in `show`.
"""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from seerd.core.events import InstanceAwaited
from seerd.core.step import step
from seerd.shell.journal import Entry
from seerd.telling.live.board import Recent
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from tests.core.test_provisioning import Cloud, MakeFacts

WHY = "timed out: no answer on port 22"


@pytest.fixture
def cloud(facts: MakeFacts) -> Cloud:
    return Cloud(facts, budget_gpu_s=40_000.0)


def told(cloud: Cloud, number: int, at: float, what: Any, **more: str) -> str | None:
    """The line on what is awaited of the instance of one of the launches."""
    event = InstanceAwaited(
        at=at, command=cloud.open[number].id, instance=f"i-{number}", what=what, **more
    )
    return line_of(event, cloud.state, step(cloud.state, event))


def test_each_step_of_an_instance_is_a_line(cloud: Cloud) -> None:
    where = "g5.xlarge in us-east-1a"
    launched = f"    1.0s  i-0: launched ({where}); it costs nothing until it runs"
    assert told(cloud, 0, 1.0, "launched", where=where) == launched
    runs = "    9.0s  i-0: runs, and is billed; it boots until somebody can log in"
    assert told(cloud, 0, 9.0, "running") == runs
    assert told(cloud, 0, 70.0, "unreached", why=WHY) == (
        f"   70.0s  i-0: runs, and cannot be used yet: {WHY}"
    )
    assert told(cloud, 0, 90.0, "reached") is None, "what is made ready has lines of its own"


def test_a_cause_that_several_instances_have_is_told_once_and_another_one_again(
    cloud: Cloud,
) -> None:
    lines = [told(cloud, number, 70.0 + number, "unreached", why=WHY) for number in range(3)]
    assert [line is not None for line in lines] == [True, False, False]
    assert told(cloud, 1, 90.0, "unreached", why="connection refused") is not None
    console = Console(width=200)
    with console.capture() as shown:
        console.print(summary(cloud.state, alive=True))
    assert f"note: i-0, i-1, i-2 cannot be used: {WHY}; connection refused" in shown.get()


def test_the_live_view_has_the_same_lines(cloud: Cloud) -> None:
    event = InstanceAwaited(
        at=70.0, command=cloud.open[0].id, instance="i-0", what="unreached", why=WHY
    )
    recent, decided = Recent(), step(cloud.state, event)
    recent.read([Entry(2, event, decided)], cloud.state)
    assert list(recent.lines) == [f"   70.0s  i-0: runs, and cannot be used yet: {WHY}"]
