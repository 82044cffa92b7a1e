"""Instances that are kept at the end of a run for the next one."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.core.commands import AnyCommand, StopTrial, Terminate
from seerd.core.events import (
    InstanceKept,
    InstanceLost,
    InstanceNoticed,
    InstancePriced,
    InstanceReady,
    InstanceTerminated,
    RunResumed,
    RunStarted,
    StopAsked,
    TrialExited,
    TrialReported,
)
from seerd.core.ledger import Charge, Ledger
from seerd.core.lifecycle import InstancePhase
from seerd.core.limits import affordable_keep
from seerd.core.settle import settle
from seerd.core.state import Instance
from seerd.core.step import take
from seerd.core.verdicts import Gone
from seerd.planning.measured import measured
from seerd.telling.complaints import notes_of
from seerd.telling.plain import line_of
from tests.core.test_provisioning import GPUS, Cloud, MakeFacts

KEEP_S = 300.0
PRICE = 1.0  # USD for a GPU and hour
PLENTY = {"budget_gpu_s": 100_000.0, "cost_usd": 100.0}


def with_two(
    facts: MakeFacts, cluster: dict[str, object], *, reports: bool = True, **limits: float | None
) -> Cloud:
    """A run that has the instances "a" and "b"."""
    cloud = Cloud(facts, {"usd_per_gpu_h": PRICE, "keep_s": KEEP_S, **cluster}, **limits)
    first, second, *others = cloud.open
    for other in others:
        cloud.refuse(other, 1.0, retry=False)
    cloud.come(first, "a", 10.0)
    cloud.come(second, "b", 10.0)
    for trial in list(cloud.state.trials.values()) if reports else ():
        if trial.held:
            about = {"trial": trial.id, "attempt": 1, "reports": 1, "metric": 0.5, "unit_s": 1.0}
            cloud.fact(TrialReported, trial.held[0].node, 15.0, **about)
    return cloud


def exits(cloud: Cloud, commands: list[AnyCommand], at: float) -> list[AnyCommand]:
    """All trials end when they are asked to; what follows from that."""
    later: list[AnyCommand] = []
    for stop in commands:
        if isinstance(stop, StopTrial):
            about = {"trial": stop.trial, "attempt": stop.attempt, "cause": "asked", "code": 0}
            later += cloud.fact(TrialExited, stop.instance, at, **about)
    return later


def ends(cloud: Cloud) -> dict[str, Terminate]:
    """The run ends at its deadline; how instances are given back."""
    commands = cloud.wake()
    while not any(isinstance(command, StopTrial) for command in commands):
        commands = cloud.wake()
    after = exits(cloud, commands, cloud.state.now + 1.0)
    return {end.instance: end for end in after if isinstance(end, Terminate)}


def test_what_waits_is_paid_until_its_end_when_it_is_let_go(facts: MakeFacts) -> None:
    cloud = with_two(facts, {}, **PLENTY)
    given = ends(cloud)
    at = cloud.state.now
    assert {end.keep_until_s for end in given.values()} == {at + KEEP_S}
    before = cloud.state.ledger.spent_gpu_s(at + 2.0)
    kept = InstanceKept(at=at + 2.0, command=given["a"].id, instance="a")
    after = cloud.tell(kept)
    text = "a is kept for 4m58s for the next run: $0.3311 and 19.87 GPU-min are set aside for that"
    assert (line_of(kept, cloud.state, after) or "").endswith(f"s  {text}")
    assert text in notes_of(cloud.state)
    more = cloud.state.ledger.spent_gpu_s(at + 2.0) - before
    assert more == pytest.approx(GPUS * (KEEP_S - 2.0))
    cloud.tell(InstanceTerminated(at=at + 2.0, command=given["b"].id, instance="b"))
    assert cloud.state.fleet.present == 0
    assert cloud.state.ledger.spent_gpu_s(at + 9.0) == pytest.approx(before + more)
    assert cloud.state.ledger.spent_usd(at + 9.0) == pytest.approx((before + more) / 3600)


def test_only_so_many_are_kept_as_the_limits_have_room_for(facts: MakeFacts) -> None:
    cloud = with_two(facts, {}, **PLENTY)
    spare_gpu_s = cloud.state.ledger.spent_gpu_s(599.0) + 1.5 * KEEP_S * GPUS
    for limit in ({"cost_usd": spare_gpu_s / 3600}, {"budget_gpu_s": spare_gpu_s}):
        run = with_two(facts, {}, **{**PLENTY, **limit})
        until = [end.keep_until_s for end in ends(run).values()]
        assert sorted(at is None for at in until) == [False, True], limit


def test_what_may_become_dearer_is_kept_at_its_highest_price(facts: MakeFacts) -> None:
    spot = {"most_usd_per_gpu_h": 3.0, "price_lag_s": 1.0}
    cloud = with_two(facts, spot, **PLENTY)
    cloud.tell(InstancePriced(at=20.0, instance="a", usd_per_h=PRICE * GPUS, since=20.0))
    given = ends(cloud)
    at = cloud.state.now
    usd = cloud.state.ledger.spent_usd(at)
    cloud.tell(InstanceKept(at=at, command=given["a"].id, instance="a"))
    more = cloud.state.ledger.spent_usd(at) - usd
    assert more == pytest.approx(3.0 * GPUS * KEEP_S / 3600)
    poor = with_two(facts, spot, budget_gpu_s=100_000.0, cost_usd=100.0)
    limits = replace(poor.state.facts.problem.limits, cost_usd=usd + 2.9 * GPUS * KEEP_S / 3600)
    problem = replace(poor.state.facts.problem, limits=limits)
    ends(poor)
    poor.state.facts = msgspec.structs.replace(poor.state.facts, problem=problem)
    poor.state.under_way.clear()
    assert not affordable_keep(poor.state, Instance("c", GPUS))


def test_what_leaves_and_what_the_user_ends_is_not_kept(facts: MakeFacts) -> None:
    cloud = with_two(facts, {}, **PLENTY)
    left = cloud.fact(InstanceNoticed, "a", 20.0, what="interruption", by=900.0)
    given = {end.instance: end for end in exits(cloud, left, 21.0) if isinstance(end, Terminate)}
    assert given["a"].keep_until_s is None
    assert ends(cloud)["b"].keep_until_s is not None
    silent = with_two(facts, {}, reports=False, **PLENTY)
    assert {end.keep_until_s for end in ends(silent).values()} == {None}, "none has reported"
    stopped = with_two(facts, {}, **PLENTY)
    after = exits(stopped, stopped.tell(StopAsked(at=30.0)), 31.0)
    given = {end.instance: end for end in after if isinstance(end, Terminate)}
    assert {end.keep_until_s for end in given.values()} == {None}
    assert given.keys() == {"a", "b"}


def test_what_an_earlier_run_has_paid_costs_a_minute_until_then(facts: MakeFacts) -> None:
    cloud = Cloud(facts, {"usd_per_gpu_h": PRICE, "keep_s": KEEP_S}, **PLENTY)
    first, *others = cloud.open
    for other in others:
        cloud.refuse(other, 1.0, retry=False)
    taken = InstanceReady(at=2.0, command=first.id, instance="a", gpus=GPUS, running_since=100.0)
    cloud.tell(taken)
    began = RunStarted(at=0.0, facts=cloud.state.facts)
    book = cloud.state.ledger
    assert [book.spent_gpu_s(at) / GPUS for at in (2.0, 100.0, 160.0, 161.0)] == [60, 60, 60, 61]
    assert measured([(began, (first,)), (taken, ())]).boot_s == []
    cloud.tell(InstanceLost(at=50.0, instance="a", why="power failure"))
    lost = [charge.gpu_s(200.0) / GPUS for charge in book.closed if charge.instance == "a"]
    assert lost == [60]


@given(
    st.lists(st.tuples(st.floats(0.0, 900.0), st.integers(1, 8)), min_size=1, max_size=5),
    st.floats(0.0, 5000.0),
    st.floats(0.0, 30.0),
)
def test_the_budget_is_kept_whoever_has_paid_until_when(
    charges: list[tuple[float, int]], budget_gpu_s: float, release_s: float
) -> None:
    book = Ledger()
    for number, (since_s, gpus) in enumerate(charges):
        book.start(Charge(f"i{number}", f"i{number}", gpus, since_s, minimum_s=60.0))
    ends_s = book.exhausted_at(budget_gpu_s, release_s)
    if ends_s > -math.inf:
        assert book.committed_gpu_s(ends_s, release_s) <= budget_gpu_s + 1e-6
    assert book.committed_gpu_s(300.0, 0.0) == pytest.approx(
        math.fsum(charge.gpu_s(300.0) for charge in book.charges())
    )


def test_a_run_that_dies_while_it_lets_go_pays_until_the_end_all_the_same(
    facts: MakeFacts,
) -> None:
    """The next process does not see the instance any more: it may be another run's."""
    cloud = with_two(facts, {}, **PLENTY)
    until_s = ends(cloud)["a"].keep_until_s
    assert until_s is not None
    at = cloud.state.now + 30.0
    take(cloud.state, RunResumed(at=at, alive=(), ended={"b": at - 20.0}))
    gone = {g.instance: g.at_s for g in settle(cloud.state) if isinstance(g, Gone)}
    assert gone == {"a": until_s, "b": at - 20.0}
    assert cloud.state.fleet.instances["a"].phase is InstancePhase.RELEASING
