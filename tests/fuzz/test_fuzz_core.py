"""An agent that lies within the protocol: core, journal and what people read go on, and a replay
comes out the same.
"""

from __future__ import annotations

import io
import random
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console, Group

from bench.testbed.checked_world import Behaviour, World
from seerd.agent.manifest import LARGEST
from seerd.agent.protocol import (
    FACTS,
    Checkpointed,
    Computed,
    Exited,
    Fact,
    Noticed,
    Refused,
    Reported,
    Started,
    Training,
)
from seerd.agent.wire import decode, encode
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.commands import Launch, StartTrial
from seerd.core.events import InstanceReady, OrderRefused, RunFacts, RunStarted, TrialExited
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.state import new_state
from seerd.core.step import step
from seerd.planner.policies import POLICIES
from seerd.shell.translate import event_of
from seerd.telling.live.board import Recent, board_of
from seerd.telling.live.frame import frame
from seerd.telling.live.look import LiveLook
from seerd.telling.plain import line_of
from seerd.telling.run_json import details, ledger
from seerd.telling.summary import summary
from tests.by_hand import begun, handle
from tests.conftest import small_facts
from tests.fuzz.kit import ESCAPES, fuzzed

ENDS_BY_S = 61.0
ATTEMPTS = st.integers(-1, 4) | st.just(LARGEST)
TRIALS = st.sampled_from([f"t{n:04d}" for n in range(8)] + ["", "../x", "nope", ESCAPES])
EPOCHS = st.sampled_from([0, 1, 2, 3, 17, 1000, LARGEST])
METRICS = st.sampled_from([None, 0.0, 0.5, -1.0, 1e308, -1.7e308, 5e-324])
SECONDS = st.sampled_from([0.0, 0.3, 1e9, 5e-324])
MOMENTS = st.sampled_from([-1e12, 0.0, 1e12]) | st.floats(-60, 60)
ORDERS = st.sampled_from(
    [f"{event}.{index}" for event in range(1, 12) for index in range(3)] + ["", "x", "1", ESCAPES]
)
LINES = st.lists(st.sampled_from(["", ESCAPES, "x" * 999, "[/bold]"]), max_size=2)
TABLE = st.fixed_dictionaries({}, optional={"accuracy": METRICS, ESCAPES: METRICS})
NAMES = st.sampled_from(
    ["0001-000001", "0002-000001", "0001-" + "9" * 50, "x", "-", "000001-00000001"]
)
LIES = st.one_of(
    st.builds(
        Refused,
        st.just(1),
        MOMENTS,
        ORDERS,
        st.sampled_from(["no", ESCAPES, "[/a]\n 9.0s  the best model"]),
    ),
    st.builds(
        Started, st.just(1), MOMENTS, ORDERS, TRIALS, ATTEMPTS, st.sampled_from([-1, 0, LARGEST])
    ),
    st.builds(Training, st.just(1), MOMENTS, TRIALS, ATTEMPTS, EPOCHS),
    st.builds(Reported, st.just(1), MOMENTS, TRIALS, ATTEMPTS, EPOCHS, TABLE, SECONDS),
    st.builds(
        Checkpointed,
        *(st.just(1), MOMENTS, TRIALS, ATTEMPTS, NAMES, EPOCHS, TABLE),
        *(st.sampled_from(["", "0" * 64, ESCAPES]), st.sampled_from([0, LARGEST]), SECONDS),
    ),
    st.builds(
        Exited,
        *(
            st.just(1),
            MOMENTS,
            TRIALS,
            ATTEMPTS,
            st.sampled_from(["asked", "lost", "finished", "crashed", "lease", "?"]),
        ),
        *(
            st.sampled_from([None, 0, -9, LARGEST]),
            st.sampled_from([None, 0, -1, LARGEST]),
            LINES,
            MOMENTS | st.none(),
        ),
    ),
    st.builds(
        Computed,
        st.just(1),
        MOMENTS,
        st.lists(st.sampled_from([None, -1.0, 0.5, 1e300]), max_size=9),
    ),
    st.builds(
        Noticed,
        st.just(1),
        MOMENTS,
        st.sampled_from(["rebalance", "interruption", "?"]),
        MOMENTS | st.none(),
    ),
)


def lie(world: World, fact: Fact, who: int) -> None:
    """One of the machines says this, as its next fact."""
    machines = list(world.fleet.machines.values())
    if not machines or not world.up:
        return
    machine = machines[who % len(machines)]
    if not machine.alive:
        return
    heard: Any = decode(encode(fact))
    assert isinstance(heard, FACTS)
    happened = min(world.now, max(0.0, world.now + heard.at))
    event = event_of(heard, machine.id, world.now, happened, "accuracy")
    if isinstance(event, TrialExited) and (
        told := machine.attempts.get((event.trial, event.attempt))
    ):
        world.fleet.end(machine, told)  # on this much its word is all that anyone has
    if event is not None:
        machine.facts += 1
        world.tell(_numbered(event, machine.facts))


def _numbered(event: Any, fact: int) -> Any:
    return msgspec.structs.replace(event, fact=fact)


def told_of(world: World) -> None:
    """The journal as it is on the disk gives the same run again, and everything that people may ask
    of it can be shown.
    """
    state = new_state(world.facts)
    console = Console(width=100, file=io.StringIO(), markup=False)
    for event, decided in world.journal:
        again = decode_event(encode_event(event))
        assert encode_decisions(step(state, again)) == encode_decisions(decided)
        assert decode_decisions(encode_decisions(decided)) == decided
        line = line_of(again, state)
        assert line is None or all(part.isprintable() for part in line.split("\n"))
    shown = frame(board_of(state, state.now, Recent()), LiveLook(), (100, 40))
    console.print(Group(*shown.lines))
    console.print(summary(state))
    details(state, "done")
    ledger(state, state.now)


def live_with(
    facts: RunFacts, lies: list[tuple[float, Fact, int]], *, kill_at: int | None = None
) -> World:
    """A run in which these lies are told; it ends in time, whatever they were."""
    rng = random.Random(len(lies))
    behaviour = Behaviour(
        metric=lambda config, epoch: float(config["lr"]) * (1 - 0.5**epoch),
        unit_s=lambda config, epoch, gpus: rng.uniform(1.0, 3.0) / gpus,
        partial="finished",
    )
    world = World(facts, behaviour, kill_after=frozenset(() if kill_at is None else (kill_at,)))
    for at, fact, who in lies:
        world.at(at, partial(lie, world, fact, who))
    state = world.run()
    assert state.phase is RunPhase.OVER
    assert state.now <= ENDS_BY_S
    told_of(world)
    return world


TOLD = st.lists(st.tuples(st.floats(0.3, 55.0), LIES, st.integers(0, 3)), min_size=1, max_size=12)


INVENTS = [
    *[(1.0, Refused(1, -1e12, "1.0", "no"), 0)] * 5,
    (41.0, Started(1, -1e12, "1.0", "t0000", 2**53, -1), 0),
]


@given(TOLD, st.sampled_from(sorted(POLICIES.keys() - {"bohb"})), st.booleans())
@example(lies=INVENTS, policy="asha", rented=False)
@example([(5.0, Training(1, 0.0, "nope", 1, 0), 0)], "seer", False)
@example([(5.0, Started(1, -1e12, "x", "t0001", 1, 1), 0)], "seer", False)
@example([(2.0, Exited(1, 0.0, "t0001", 1, "crashed", 1, None, []), 0)], "asha", False)
@example(
    [(1.0, Refused(1, 0.0, "1.0", "no"), 0)] * 7
    + [(2.0, Exited(1, -1e12, "t0001", 3, "asked", None, None, [], -1e12), 0)],
    "asha",
    False,
)
@fuzzed(40)
def test_a_lying_agent_ends_nothing_but_its_own_attempts(lies, policy, rented):
    facts = small_facts(gpus=2, billing="rented", usd_per_gpu_h=3.0) if rented else small_facts()
    problem = replace(facts.problem, params=replace(facts.problem.params, name=policy))
    live_with(msgspec.structs.replace(facts, problem=problem), lies)


def test_an_agent_refuses_only_orders_to_start(facts):
    """It may guess the number of any command; a launch that counted as answered would bring an
    instance that nobody gives back.
    """
    state = begun(facts(gpus=2, billing="rented", usd_per_gpu_h=3.0))
    asked = [
        c.id for c in handle(state, RunStarted(at=0.0, facts=state.facts)) if isinstance(c, Launch)
    ]
    assert len(asked) > 1
    handle(
        state, InstanceReady(at=1.0, command=asked[0], instance="i-0", gpus=2, running_since=0.5)
    )
    for number, command in enumerate([*asked[1:], *state.under_way], 1):
        if not isinstance(state.under_way.get(command), StartTrial):
            handle(
                state,
                OrderRefused(
                    at=1.0, instance="i-0", fact=number, happened=1.0, command=command, why="no"
                ),
            )
    handle(
        state, InstanceReady(at=2.0, command=asked[1], instance="i-1", gpus=2, running_since=0.5)
    )
    assert state.fleet.instances["i-1"].phase is InstancePhase.READY
    assert state.clock.timer is None or state.clock.timer.id in state.under_way
