"""What agents say, as the core knows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seerd.agent.protocol import Computed, Exited, Grow, Noticed, Stalled, Start, Stop, Waited
from seerd.core.codec import decode_event, encode_event
from seerd.core.commands import GrowTrial, StartTrial, StopTrial
from seerd.core.events import (
    InstanceComputed,
    InstanceNoticed,
    TrialExited,
    TrialStalled,
    TrialWaited,
)
from seerd.shell.translate import event_of, grow_of, start_on, stop_of


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("interruption", "interruption"),
        ("rebalance", "rebalance"),
        ("cold", "cold"),
        ("hibernate", "interruption"),
    ],
)
def test_a_notice_is_counted_by_the_runs_clock(said: str, what: str) -> None:
    """The agent's clock showed 1000 when the run was 40 s old."""
    event = event_of(Noticed(seq=3, at=1000.0, what=said, by=1120.0), "i-1", 41.0, 40.0, "accuracy")
    assert event == InstanceNoticed(
        at=41.0, instance="i-1", fact=3, happened=40.0, what=what, by=160.0
    )  # type: ignore[arg-type]


def test_a_notice_need_not_say_when() -> None:
    event = event_of(
        Noticed(seq=3, at=1000.0, what="rebalance", by=None), "i-1", 41.0, 40.0, "accuracy"
    )
    assert isinstance(event, InstanceNoticed)
    assert event.by is None


def test_a_gpu_computes_for_no_more_than_all_of_the_time() -> None:
    fact = Computed(seq=3, at=1000.0, shares=[0.5, None, 7.0, -1.0])
    assert event_of(fact, "i-1", 41.0, 40.0, "accuracy") == InstanceComputed(
        at=41.0, instance="i-1", fact=3, happened=40.0, shares=(0.5, None, 1.0, 0.0)
    )


def test_silence_is_counted_by_the_runs_clock() -> None:
    fact = Exited(5, 1000.0, "t0001", 1, "crashed", 1, 3, ["boom"], silent=990.0)
    event = event_of(fact, "i-1", 41.0, 40.0, "accuracy")
    assert isinstance(event, TrialExited)
    assert (event.silent, event.tail, event.rank) == (30.0, ("boom",), 3)


def test_an_end_without_memory_is_recorded_as_it_was_before_memory_was_seen() -> None:
    end = Exited(5, 1000.0, "t0001", 1, "finished", 0)
    recorded = encode_event(event_of(end, "i-1", 41.0, 40.0, "accuracy"))  # type: ignore[arg-type]
    assert b"memory" not in recorded
    assert b"fault" not in recorded
    seen = event_of(replace(end, memory=[3, 8]), "i-1", 41.0, 40.0, "accuracy")
    assert isinstance(seen, TrialExited)
    assert seen.memory == (3, 8)
    assert decode_event(encode_event(seen)) == seen
    assert decode_event(recorded) == event_of(replace(end, memory=[3]), "i-1", 41.0, 40.0, "a")


def test_what_hung_waited_or_is_unfit_arrives_whole() -> None:
    common = {"at": 41.0, "instance": "i-1", "fact": 5, "happened": 40.0}
    exited = Exited(
        5, 1000.0, "t0001", 1, "crashed", -9, 3, ["boom"], silent=990.0, signal=9, waited_s=12.5
    )
    event = event_of(exited, "i-1", 41.0, 40.0, "accuracy")
    assert isinstance(event, TrialExited)
    assert (event.signal, event.waited_s) == (9, 12.5)
    broken = event_of(replace(exited, fault="XID 79"), "i-1", 41.0, 40.0, "accuracy")
    assert isinstance(broken, TrialExited)
    assert broken.fault == "XID 79"
    stalled = Stalled(5, 1000.0, "t0001", 1, hung=True, units=7, ticks=2, over=True)
    assert event_of(stalled, "i-1", 41.0, 40.0, "accuracy") == TrialStalled(
        **common, trial="t0001", attempt=1, hung=True, units=7, ticks=2, over=True
    )
    waited = Waited(5, 1000.0, "t0001", 1, 30.0, [2, 3], [0.75, 0.04])
    assert event_of(waited, "i-1", 41.0, 40.0, "accuracy") == TrialWaited(
        **common, trial="t0001", attempt=1, over_s=30.0, ranks=(2, 3), shares=(0.75, 0.04)
    )
    unfit = Noticed(5, 1000.0, "unhealthy", None, "held")
    assert event_of(unfit, "i-1", 41.0, 40.0, "accuracy") == InstanceNoticed(
        **common, what="unhealthy", why="held"
    )


def test_an_order_says_what_the_core_asked_for() -> None:
    start = StartTrial(
        id="5.1",
        trial="t1",
        attempt=2,
        instance="i",
        gpus=(2, 3),
        config={"lr": 0.1},
        seed=7,
        checkpoints=("b", "a"),
        why="first",
    )
    assert start_on(start, "i", str) == Start("5.1", "t1", 2, [2, 3], {"lr": 0.1}, 7, ["b", "a"])
    for checkpoint, grace_s in ((True, 4.5), (False, 0.0)):
        stop = StopTrial(
            id="6.0",
            trial="t1",
            attempt=2,
            instance="i",
            checkpoint=checkpoint,
            grace_s=grace_s,
            why="paused",
        )
        assert stop_of(stop) == Stop("6.0", "t1", 2, checkpoint, grace_s)


def test_the_order_to_grow_has_all_slots_of_the_attempt() -> None:
    grow = GrowTrial(id="6.0", trial="t1", attempt=2, instance="i", gpus=(2, 3))
    assert grow.nodes == ("i",)
    assert grow_of(grow) == Grow("6.0", "t1", 2, [2, 3])


@pytest.mark.parametrize(
    ("cause", "last", "expected"),
    [
        ("crashed", "OSError: [Errno 98] Address already in use", "address"),
        ("crashed", "ValueError: no", None),
        ("asked", "OSError: [Errno 98] Address already in use", None),
    ],
)
def test_what_was_in_the_way_is_recorded_with_the_end(
    cause: str, last: str, expected: str | None
) -> None:
    exited = Exited(1, 1000.0, "t1", 1, cause, 1, tail=["epoch 1", last])
    event = event_of(exited, "i-1", 41.0, 40.0, "accuracy")
    assert isinstance(event, TrialExited)
    assert event.obstacle == expected
