"""Ranks that hang or are slow, of attempts on two instances: what the agents tell, together."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from seerd.core.attempts import crash_text, slow_rank
from seerd.core.commands import Launch, StartTrial, Terminate
from seerd.core.events import (
    InstanceNoticed,
    InstanceTerminated,
    TrialExited,
    TrialStalled,
    TrialWaited,
)
from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.rules import RULES
from seerd.telling.complaints import notes_of
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from tests.core.test_several_nodes import MakeFacts, Pair, stops

WAITS = {"hung": False, "units": 8, "ticks": 0}
HANGS = {"hung": True, "units": 7, "ticks": 2}


@pytest.fixture
def pair(facts: MakeFacts) -> Pair:
    return Pair(facts).run()


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_when_one_node_waits_and_the_other_hangs_the_attempt_ends_and_begins_anew(
    pair: Pair, order: tuple[str, str]
) -> None:
    said = {"a": WAITS, "b": HANGS}
    assert pair.fact(order[0], TrialStalled, **said[order[0]]) == []
    assert stops(pair.fact(order[1], TrialStalled, **said[order[1]])) == [(("a", "b"), False, 0.0)]
    pair.exit("a", "asked")
    again = pair.exit("b", "crashed", rank=3, waited_s=12.0, tail=("stack",), silent=2.0)
    assert [c.attempt for c in again if isinstance(c, StartTrial)] == [2]
    assert (pair.trial.crashes, pair.trial.tail, pair.trial.hung) == (1, ("stack",), False)
    assert pair.trial.why == "hung (rank 3 on b; the others waited 12 s for it, and it did nothing)"


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        (WAITS, WAITS),
        (HANGS, HANGS),
        (WAITS, HANGS | {"units": 9}),
        (WAITS, HANGS | {"over": True}),
        (WAITS | {"over": True}, HANGS),
    ],
)
def test_nodes_that_stand_still_together_or_move_again_are_left_alone(
    pair: Pair, of_a: dict[str, Any], of_b: dict[str, Any]
) -> None:
    assert pair.fact("a", TrialStalled, **(of_a | {"over": False})) == []
    if of_a.get("over"):
        pair.fact("a", TrialStalled, **of_a)
    assert pair.fact("b", TrialStalled, **of_b) == []
    assert pair.trial.phase is TrialPhase.RUNNING


def test_a_rank_that_came_to_itself_before_it_was_killed_costs_no_restart(pair: Pair) -> None:
    pair.fact("a", TrialStalled, **WAITS)
    pair.fact("b", TrialStalled, **HANGS)
    pair.exit("a", "asked")
    pair.exit("b", "asked")
    assert (pair.trial.crashes, pair.trial.attempt) == (0, 2)


def test_who_keeps_the_others_waiting_is_told_once_when_all_nodes_have_spoken(pair: Pair) -> None:
    told = []
    for _ in range(2):
        for node, ranks, shares in (("a", (0, 1), (0.75, 0.75)), ("b", (2, 3), (0.75, 0.04))):
            pair.at += 1.0
            common = {
                "at": pair.at,
                "happened": pair.at,
                "instance": node,
                "fact": 2 + round(pair.at),
            }
            event = TrialWaited(
                **common, trial="t0001", attempt=1, over_s=30.0, ranks=ranks, shares=shares
            )
            assert pair.tell(event) == []
            told.append(line_of(event, pair.state))
    note = "rank 3 of t0001 on b keeps the others waiting 71% of the time"
    assert notes_of(pair.state) == [note]
    assert [line for line in told if line] == [f"    6.0s  {note}"]
    shown = io.StringIO()
    Console(file=shown, width=200).print(summary(pair.state))
    assert f"note: {note}" in shown.getvalue()


def test_an_instance_that_cannot_be_used_any_more_is_left_and_noted(pair: Pair) -> None:
    why = (
        "after t0009/1 had ended its GPUs could not be used again: process 7, which has "
        "ended, still holds 900 MiB"
    )
    event = InstanceNoticed(at=9.0, happened=9.0, instance="b", fact=9, what="unhealthy", why=why)
    commands = pair.tell(event)
    assert pair.state.fleet.instances["b"].phase is InstancePhase.LEAVING
    assert stops(commands)[0][:2] == (("a", "b"), True)
    assert notes_of(pair.state) == [f"b is not used any more: {why}"]


def test_a_host_that_cannot_be_used_is_left_before_it_is_asked_for_anew(facts: MakeFacts) -> None:
    pair = Pair(facts, "held").run()
    pair.tell(
        InstanceNoticed(at=9.0, happened=9.0, instance="b", fact=9, what="unhealthy", why="held")
    )
    pair.at = 10.0
    pair.exit("a", "asked")
    commands = pair.tell(
        TrialExited(
            at=12.0,
            happened=12.0,
            instance="b",
            fact=10,
            trial="t0001",
            attempt=1,
            cause="asked",
            code=0,
        )
    )
    (left,) = [command for command in commands if isinstance(command, Terminate)]
    (asked,) = pair.tell(InstanceTerminated(at=13.0, command=left.id, instance="b"))
    assert isinstance(asked, Launch)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"code": 1}, "ended with exit status 1"),
        ({"code": 1, "rank": 2}, "ended with exit status 1 (rank 2 on i-7)"),
        ({"code": -9}, "was killed by signal 9 (usually out of memory)"),
        (
            {"code": 1, "rank": 2, "signal": 9},
            "was killed by signal 9 (rank 2 on i-7; usually out of memory)",
        ),
        ({"code": 1, "rank": 2, "signal": 11}, "was killed by signal 11 (rank 2 on i-7)"),
    ],
)
def test_how_an_attempt_crashed_in_words(fields: dict[str, Any], text: str) -> None:
    common = {
        "at": 1.0,
        "happened": 1.0,
        "instance": "i-7",
        "fact": 1,
        "trial": "t1",
        "attempt": 1,
        "cause": "crashed",
    }
    assert crash_text(TrialExited(**common, **fields)) == text


@given(st.dictionaries(st.integers(0, 63), st.floats(0, 1), max_size=16))
def test_a_slow_rank_waits_much_less_than_every_other(shares: dict[int, float]) -> None:
    found = slow_rank(shares, RULES.slow_share)
    gaps = sorted(shares.values())
    assert (found is not None) == (len(gaps) > 1 and gaps[1] - gaps[0] >= RULES.slow_share)
    if found is not None:
        assert shares[found[0]] == gaps[0]
        assert RULES.slow_share <= found[1] <= 1
