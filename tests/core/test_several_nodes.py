"""Attempts on several instances: they start with node 0, end everywhere, and what ended them is
what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.testbed.invariants import violations
from seerd.core.codec import decode_decisions, encode_decisions
from seerd.core.commands import AnyCommand, Launch, StartTrial, StopTrial
from seerd.core.events import (
    InstanceLost,
    InstanceReady,
    OrderRefused,
    RunFacts,
    RunResumed,
    RunStarted,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.rules import RULES
from seerd.core.state import Instance, State, Trial
from tests.by_hand import begun, handle, reconciled_again

MakeFacts = Callable[..., RunFacts]


class Pair:
    """One trial on the instances `a` (node 0) and `b` of two GPUs each; after every event the
    invariants hold and nothing is asked for twice.
    """

    def __init__(self, make: MakeFacts, billing: str = "rented") -> None:
        made = make(billing=billing, gpus=2, deadline_s=600.0, budget_gpu_s=4000.0)
        params = replace(made.problem.params, name="random", trials=1, p_min=4, p_max=4)
        problem = replace(made.problem, params=params, gpus_per_instance=2)
        cluster = replace(made.cluster, max_instances=None if billing == "rented" else 2)
        self.state: State = begun(msgspec.structs.replace(made, problem=problem, cluster=cluster))
        self._facts = {"a": 0, "b": 0}
        self.at = 0.0
        launches = self.tell(RunStarted(at=0.0, facts=self.state.facts))
        (first, second) = [c for c in launches if isinstance(c, Launch)]
        self.tell(self.ready(first, "a"))
        (self.start,) = [c for c in self.tell(self.ready(second, "b")) if isinstance(c, StartTrial)]

    @property
    def trial(self) -> Trial:
        return self.state.trials["t0001"]

    def ready(self, launch: Launch, name: str) -> InstanceReady:
        return InstanceReady(at=1.0, command=launch.id, instance=name, gpus=2, running_since=1.0)

    def tell(self, event: Any) -> list[AnyCommand]:
        """Let it be so."""
        commands = handle(self.state, event)
        assert violations(self.state) == []
        assert reconciled_again(self.state) == []
        return commands

    def fact(self, node: str, kind: type, /, **fields: Any) -> list[AnyCommand]:
        """The agent of that instance tells of the present attempt; a second later each time."""
        self.at += 1.0
        self._facts[node] += 1
        if kind is not OrderRefused:
            fields = {"trial": "t0001", "attempt": self.start.attempt} | fields
        return self.tell(
            kind(at=self.at, happened=self.at, instance=node, fact=self._facts[node], **fields)
        )

    def run(self) -> Pair:
        """Both nodes have started, node 0 trains."""
        self.fact("a", TrialStarted, pid=7)
        self.fact("b", TrialStarted, pid=8)
        self.fact("a", TrialTraining, reports=0)
        self.fact("a", TrialReported, reports=1, metric=0.5, unit_s=5.0)
        return self

    def exit(self, name: str, cause: str, **fields: Any) -> list[AnyCommand]:
        code = {"finished": 0, "crashed": 1}.get(cause)
        return self.fact(name, TrialExited, cause=cause, code=code, **fields)

    def lose(self, name: str, ended: float | None = None) -> list[AnyCommand]:
        self.at += 1.0
        return self.tell(InstanceLost(at=self.at, instance=name, why="power failure", ended=ended))


@pytest.fixture
def pair(facts: MakeFacts) -> Pair:
    return Pair(facts)


def stops(commands: list[AnyCommand]) -> list[tuple[tuple[str, ...], bool, float]]:
    """Whom an attempt is stopped on, whether it may save, and for how long."""
    return [(c.nodes, c.checkpoint, c.grace_s) for c in commands if isinstance(c, StopTrial)]


def test_an_attempt_has_started_when_node_0_has(pair: Pair) -> None:
    assert pair.start.nodes == ("a", "b")
    pair.fact("b", TrialStarted, pid=8)
    assert pair.trial.phase is TrialPhase.STARTING
    assert pair.trial.pid is None
    assert pair.start.id in pair.state.under_way
    pair.fact("a", TrialStarted, pid=7)
    assert pair.trial.phase is TrialPhase.RUNNING
    assert pair.trial.pid == 7
    assert pair.start.id not in pair.state.under_way


def test_an_order_is_said_again_until_every_node_has_started(pair: Pair) -> None:
    pair.fact("a", TrialStarted, pid=7)
    assert pair.start in handle(pair.state, RunResumed(at=5.0, alive=("a", "b")))


def test_only_node_0_reports_and_saves(pair: Pair) -> None:
    pair.run()
    saved = {"name": "000009", "reports": 9, "metric": 1.0, "sha256": "0", "size": 1, "save_s": 0.1}
    pair.fact("b", TrialReported, reports=9, metric=1.0, unit_s=1.0)
    pair.fact("b", TrialCheckpointed, **saved)
    assert pair.trial.reports == 1
    assert pair.trial.checkpoints == ()
    pair.fact("a", TrialCheckpointed, **saved)
    assert [c.reports for c in pair.trial.checkpoints] == [9]


@pytest.mark.parametrize(("first", "left"), [("a", "b"), ("b", "a")])
def test_a_crash_on_one_node_is_the_end_on_the_other(pair: Pair, first: str, left: str) -> None:
    pair.run()
    assert stops(pair.exit(first, "crashed", tail=("boom",))) == [((left,), False, 0.0)]
    assert pair.trial.phase is TrialPhase.STOPPING
    assert pair.state.fleet.instances[first].busy == {}
    assert set(pair.state.fleet.instances[left].busy.values()) == {"t0001"}
    again = pair.exit(left, "asked")
    assert [c.attempt for c in again if isinstance(c, StartTrial)] == [2]
    assert (pair.trial.crashes, pair.trial.losses) == (1, 0)
    assert pair.trial.tail == ("boom",)
    assert pair.trial.why == f"ended with exit status 1 on {first}"


@pytest.mark.parametrize(
    ("silent_a", "silent_b", "guilty"),
    [(5.0, 4.0, "b"), (4.0, 5.0, "a"), (None, None, "a"), (None, 9.0, "b")],
)
def test_the_node_that_fell_silent_first_is_the_guilty_one(
    pair: Pair, silent_a: float | None, silent_b: float | None, guilty: str
) -> None:
    pair.run()
    pair.exit("a", "crashed", tail=("of a",), silent=silent_a)
    pair.exit("b", "crashed", tail=("of b",), silent=silent_b)
    assert pair.trial.tail == (f"of {guilty}",)
    assert pair.trial.why.endswith(f"on {guilty}")
    assert pair.trial.crashes == 1


def test_a_lost_node_takes_the_blame_also_if_the_other_one_was_heard_first(pair: Pair) -> None:
    pair.run()
    pair.exit("a", "crashed", tail=("connection reset by peer",))
    pair.lose("b")
    assert (pair.trial.crashes, pair.trial.losses) == (0, 1)
    assert pair.trial.phase is TrialPhase.WAITING
    assert "b was lost" in pair.trial.why


def test_with_one_node_lost_and_the_other_one_stuck_it_waits(pair: Pair) -> None:
    """Its GPUs are free where it has ended; it starts again when it has ended everywhere, and not
    before.
    """
    pair.run()
    commands = pair.lose("b")
    assert stops(commands) == [(("a",), False, 0.0)]
    (launch,) = [c for c in commands if isinstance(c, Launch)]
    assert pair.tell(replaced(launch, pair.at)) == []
    again = pair.exit("a", "asked")
    assert [c.nodes for c in again if isinstance(c, StartTrial)] == [("a", "c")]


def replaced(launch: Launch, at: float) -> InstanceReady:
    return InstanceReady(at=at, command=launch.id, instance="c", gpus=2, running_since=at)


def test_a_node_that_is_gone_when_the_run_is_resumed_is_lost(pair: Pair) -> None:
    pair.run()
    commands = pair.tell(RunResumed(at=30.0, alive=("a",)))
    assert stops(commands) == [(("a",), False, 0.0)]
    pair.at = 30.0
    pair.exit("a", "lease")
    assert (pair.trial.crashes, pair.trial.losses) == (0, 1)


def test_an_order_that_one_node_refuses_ends_the_attempt(pair: Pair) -> None:
    pair.fact("a", TrialStarted, pid=7)
    commands = pair.fact("b", OrderRefused, command=pair.start.id, why="disk full")
    assert stops(commands) == [(("a",), False, 0.0)]
    pair.exit("a", "asked")
    assert pair.trial.why == "disk full"
    assert pair.trial.crashes == 1


def test_only_orders_to_start_can_be_refused(pair: Pair) -> None:
    pair.run()
    pair.exit("b", "crashed")
    (order,) = (c for c in pair.state.under_way.values() if isinstance(c, StopTrial))
    assert pair.fact("a", OrderRefused, command=order.id, why="no") == []
    assert pair.trial.held is not None, "it may still be there"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (TrialReported, {"reports": 2, "metric": 0.99, "unit_s": 5.0}),
        (TrialExited, {"cause": "crashed", "code": 1}),
        (TrialStarted, {"pid": 9}),
    ],
)
def test_nobody_reports_for_trials_on_other_instances(
    pair: Pair, kind: type, fields: dict[str, Any]
) -> None:
    pair.run()
    pair.state.fleet.instances["c"] = Instance("c", 2, InstancePhase.READY, ready_at=1.0)
    pair.state.fleet.live += 1
    pair.state.fleet.present += 1
    pair.state.ledger.start(Charge("c", "c", 2, 1.0))
    before = (pair.trial.phase, pair.trial.reports, dict(pair.trial.told), dict(pair.trial.ends))
    told = {"trial": "t0001", "attempt": pair.start.attempt} | fields
    commands = handle(pair.state, kind(at=9.0, happened=9.0, instance="c", fact=1, **told))
    assert not [one for one in commands if isinstance(one, StartTrial | StopTrial)]
    after = (pair.trial.phase, pair.trial.reports, dict(pair.trial.told), dict(pair.trial.ends))
    assert after == before


def test_when_node_0_has_finished_all_is_saved_and_the_others_may_end_by_themselves(
    pair: Pair,
) -> None:
    pair.run()
    assert stops(pair.exit("a", "finished")) == [(("b",), True, RULES.grace_min_s)]
    assert pair.trial.phase is TrialPhase.STOPPING
    pair.exit("b", "crashed")
    assert pair.trial.phase is TrialPhase.FINISHED


def test_a_node_that_finishes_first_leaves_node_0_its_time_to_save(pair: Pair) -> None:
    pair.run()
    assert stops(pair.exit("b", "finished")) == []
    assert pair.trial.phase is TrialPhase.RUNNING
    pair.exit("a", "finished")
    assert pair.trial.phase is TrialPhase.FINISHED


def test_a_crash_after_another_node_has_finished_is_a_crash(pair: Pair) -> None:
    pair.run()
    pair.exit("b", "finished")
    pair.exit("a", "crashed")
    assert pair.trial.crashes == 1
    assert pair.trial.attempt == 2


def test_what_is_told_twice_or_late_changes_nothing(pair: Pair) -> None:
    pair.run()
    pair.exit("b", "crashed")
    late = TrialExited(
        at=9.0,
        happened=9.0,
        instance="b",
        fact=9,
        trial="t0001",
        attempt=1,
        cause="crashed",
        code=1,
    )
    twice = TrialStarted(
        at=9.0, happened=9.0, instance="b", fact=10, trial="t0001", attempt=1, pid=8
    )
    assert pair.tell(late) == []
    assert pair.tell(twice) == []
    pair.at = 9.0
    pair.exit("a", "asked")
    assert pair.tell(msgspec.structs.replace(late, fact=11)) == []
    assert (pair.trial.crashes, pair.trial.attempt) == (1, 2)


def test_on_hosts_each_node_is_paid_until_it_has_ended(facts: MakeFacts) -> None:
    pair = Pair(facts, "held").run()
    pair.exit("b", "crashed")
    ended = pair.at
    pair.at += 10.0
    pair.exit("a", "asked")
    closed = {charge.what: charge for charge in pair.state.ledger.closed}
    assert (closed["t0001/1@b"].gpus, closed["t0001/1@b"].until_s) == (2, ended)
    assert (closed["t0001/1"].gpus, closed["t0001/1"].until_s) == (2, ended + 11.0)


def test_a_lost_instance_is_paid_until_it_ended_by_the_clouds_account(pair: Pair) -> None:
    pair.run()
    pair.at = 99.0
    pair.lose("b", ended=80.0)
    pair.lose("a", ended=500.0)
    assert {c.what: c.until_s for c in pair.state.ledger.closed} == {"b": 80.0, "a": 101.0}


def test_an_order_to_stop_on_one_instance_names_no_other() -> None:
    older = b'[{"kind":"stop-trial","id":"9.0","trial":"t","attempt":1,"instance":"a","checkpoint":true,"grace_s":4.0,"why":"out"}]'
    (command,) = decode_decisions(older)
    assert isinstance(command, StopTrial)
    assert command.nodes == ("a",)
    assert encode_decisions([command]) == older
