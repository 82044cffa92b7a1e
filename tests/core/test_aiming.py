"""How many instances are needed, and who gets room that has appeared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.invariants import violations
from seerd.core.aiming import aim_all, drop, fill, instances_needed
from seerd.core.attempts import unwant
from seerd.core.commands import Launch, StartTrial, StopTrial, Terminate
from seerd.core.events import (
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    RunFacts,
    RunStarted,
    StopAsked,
    TrialExited,
)
from seerd.core.lifecycle import InstancePhase
from seerd.core.plans import Order
from seerd.core.state import Instance, State, Trial, new_state
from seerd.planner.model import Allocation, ClusterFacts
from tests.by_hand import begun, handle
from tests.conftest import small_facts
from tests.examples import few

MakeFacts = Callable[..., RunFacts]


def rented(gpus: int, most: int | None = None) -> ClusterFacts:
    return ClusterFacts("rented", gpus, max_instances=most)


@cache
def fewest(trials: tuple[int, ...], room: tuple[int, ...], size: int) -> int:
    """By trying everything: instances to open for these trials, given what is left free of those
    that are open; none larger than one.
    """
    if not trials:
        return 0
    trial, *rest = trials
    ways = [
        fewest(tuple(rest), tuple(sorted([*room[:i], room[i] - trial, *room[i + 1 :]])), size)
        for i in range(len(room))
        if room[i] >= trial and room[i] not in room[:i]
    ]
    return min([*ways, 1 + fewest(tuple(rest), tuple(sorted([*room, size - trial])), size)])


def brute_force(trials: Sequence[int], size: int) -> int:
    """Trials larger than an instance take whole ones."""
    whole = sum(trial // size for trial in trials)
    return whole + fewest(
        tuple(sorted((t % size for t in trials if t % size), reverse=True)), (), size
    )


@given(st.sampled_from([1, 2, 4, 8]), st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=9))
@settings(max_examples=few(100), deadline=None)
def test_sizes_that_divide_each_other_need_as_few_instances_as_can_be(
    size: int, trials: list[int]
) -> None:
    assert instances_needed(Counter(trials), rented(size)) == brute_force(trials, size)


@given(st.integers(1, 8), st.lists(st.integers(1, 8), max_size=8))
@settings(max_examples=few(100), deadline=None)
def test_others_are_never_too_few_and_at_most_half_as_many_again(
    size: int, trials: list[int]
) -> None:
    """Best fit with the largest first needs at most 11/9 of the fewest and one more."""
    trials = [trial for trial in trials if trial <= size]
    needed, least = instances_needed(Counter(trials), rented(size)), brute_force(trials, size)
    assert least <= needed <= 11 / 9 * least + 1
    assert needed * size >= sum(trials)


@given(st.sampled_from([1, 4, 8]), st.lists(st.integers(1, 8), max_size=12), st.integers(1, 5))
def test_never_more_than_there_are(size: int, trials: list[int], most: int) -> None:
    trials = [trial for trial in trials if trial <= size or trial % size == 0]
    free = instances_needed(Counter(trials), rented(size))
    assert instances_needed(Counter(trials), rented(size, most)) == min(free, most)


def test_sizes_that_nobody_wants_any_more_need_nothing() -> None:
    assert instances_needed(Counter({4: 0, 1: 3}), rented(4)) == 1
    assert instances_needed(Counter({4: 0}), rented(4)) == 0


class Board:
    """A state with wanted trials and ready instances, and nothing else going on."""

    def __init__(self, facts: RunFacts, wanted: Sequence[int], *instances: int) -> None:
        self.state = new_state(facts)
        for number, gpus in enumerate(wanted):
            trial = self.state.trials[f"t{number}"] = Trial(f"t{number}", {}, 0, gpus=gpus)
            self.state.plan.wanted[trial.id] = Allocation(trial.id, gpus)
        self.state.plan.order = Order(self.state.plan.wanted.values())
        for gpus in instances:
            self.add(gpus)
        aim_all(self.state)

    def add(self, gpus: int) -> str:
        """One more instance that is ready, with all its room."""
        name = f"m{len(self.state.fleet.instances)}"
        self.state.fleet.add(Instance(name, gpus))
        self.state.fleet.go(self.state.fleet.instances[name], InstancePhase.READY)
        self.state.agenda.roomy[name] = None
        return name

    def drop(self, name: str) -> None:
        """It has ended, if it has not already."""
        trial = self.state.trials[name]
        gpus = trial.gpus
        unwant(self.state, trial)
        drop(self.state, trial, gpus)

    @property
    def aimed(self) -> list[str]:
        return sorted(trial.id for trial in self.state.trials.values() if trial.target is not None)

    def check(self) -> None:
        """Claims are the targets, each GPU once; counts are those of who is wanted; nobody waits
        who could be placed on free GPUs.
        """
        state = self.state
        targets = [
            (s.node, gpu, t.id)
            for t in state.trials.values()
            for s in t.target or ()
            for gpu in s.gpus
        ]
        claims = [
            (i.id, gpu, trial)
            for i in state.fleet.instances.values()
            for gpu, trial in i.claims.items()
        ]
        assert sorted(targets) == sorted(claims)
        assert set(state.aims.aimed) == set(self.aimed)
        assert +state.aims.sizes == Counter(a.gpus for a in state.plan.wanted.values())
        assert state.aims.needed == instances_needed(state.aims.sizes, state.facts.cluster)
        assert state.aims.waiting.keys() == state.plan.wanted.keys() - set(self.aimed)


def test_a_new_instance_is_filled_with_the_most_valuable_that_fit(facts: MakeFacts) -> None:
    board = Board(facts(billing="rented", gpus=4), [4, 2, 1, 1, 1], 4)
    assert board.aimed == ["t0"]
    board.add(4)
    fill(board.state)
    assert board.aimed == ["t0", "t1", "t2", "t3"]
    board.check()


def test_room_that_has_become_free_goes_to_who_waits(facts: MakeFacts) -> None:
    board = Board(facts(), [2, 2, 2, 2, 1, 2], 8)
    assert board.aimed == ["t0", "t1", "t2", "t3"]
    before = {trial.id: trial.target for trial in board.state.trials.values()}
    board.drop("t1")
    fill(board.state)
    assert board.aimed == ["t0", "t2", "t3", "t4"]
    assert all(board.state.trials[name].target == before[name] for name in ("t0", "t2", "t3"))
    board.check()


def test_a_larger_one_does_not_go_where_only_a_smaller_one_fits(facts: MakeFacts) -> None:
    board = Board(facts(), [4, 3, 2, 1, 4], 8)
    assert board.aimed == ["t0", "t1", "t3"]
    board.drop("t3")
    fill(board.state)
    assert board.aimed == ["t0", "t1"]
    board.drop("t1")
    fill(board.state)
    assert board.aimed == ["t0", "t2"] or board.aimed == ["t0", "t4"]
    board.check()


def test_who_waits_for_more_than_an_instance_has_is_placed_with_all_the_others(
    facts: MakeFacts,
) -> None:
    board = Board(facts(billing="rented", gpus=4), [8, 1], 4)
    board.add(4)
    fill(board.state)
    assert board.state.agenda.replace
    aim_all(board.state)
    assert "t0" in board.aimed
    board.check()


def test_a_trial_that_is_dropped_twice_frees_its_gpus_once(facts: MakeFacts) -> None:
    board = Board(facts(), [2, 2], 8)
    board.drop("t0")
    board.drop("t0")
    assert board.aimed == ["t1"]
    board.check()


def test_trials_are_packed_again_when_that_frees_a_quarter_of_the_instances(
    facts: MakeFacts,
) -> None:
    board = Board(facts(billing="rented", gpus=1), [1] * 8, *[1] * 8)
    board.drop("t0")
    assert not board.state.agenda.replace
    board.drop("t1")
    assert board.state.agenda.replace


@given(
    wanted=st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=12),
    moves=st.lists(st.one_of(st.none(), st.integers(0, 11)), max_size=20),
    billing=st.sampled_from(["held", "rented"]),
)
@settings(max_examples=few(80), deadline=None)
def test_whoever_is_dropped_and_whatever_is_added_nobody_waits_beside_room(
    wanted: list[int], moves: list[int | None], billing: str
) -> None:
    board = Board(small_facts(billing=billing, gpus=4), wanted, 4)
    for move in moves:
        if move is None:
            board.add(4)
        elif move < len(wanted):
            board.drop(f"t{move}")
        fill(board.state)
        if board.state.agenda.replace:
            aim_all(board.state)
        board.check()
        for instance in board.state.fleet.instances.values():
            free = instance.gpus - len(instance.claims)
            assert all(gpus > free for gpus in board.state.aims.waiting.values())


def rich_facts(gpus: int) -> RunFacts:
    """The six trials of `small_facts`, four on 1 GPU and two on 2, and a budget that pays for any
    instance that they could need.
    """
    made = small_facts(billing="rented", gpus=gpus)
    limits = made.problem.limits
    problem = replace(made.problem, limits=replace(limits, budget_gpu_s=5000.0), within=limits)
    return msgspec.structs.replace(made, problem=problem)


def launched(facts: RunFacts) -> tuple[State, list[Launch]]:
    """A run that has asked for its instances."""
    state = begun(facts)
    return state, [
        c for c in handle(state, RunStarted(at=0.0, facts=facts)) if isinstance(c, Launch)
    ]


def ready(command: Launch, instance: str, at: float) -> InstanceReady:
    return InstanceReady(
        at=at, command=command.id, instance=instance, gpus=command.gpus, running_since=at - 0.5
    )


@pytest.mark.parametrize(("gpus", "instances"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_as_many_are_asked_for_as_the_trials_need_and_no_more(gpus: int, instances: int) -> None:
    state, launches = launched(rich_facts(gpus))
    assert sorted(a.gpus for a in state.plan.wanted.values()) == [1, 1, 1, 1, 2, 2]
    assert len(launches) == instances


def test_an_instance_that_is_lost_leaves_its_trials_waiting_for_the_next() -> None:
    state, launches = launched(rich_facts(4))
    handle(state, ready(launches[0], "a", 1.0))
    on_a = {name for name, trial in state.trials.items() if trial.held is not None}
    assert len(on_a) in (2, 3, 4)
    commands = handle(state, InstanceLost(at=2.0, instance="a", why="power failure"))
    assert len([c for c in commands if isinstance(c, Launch)]) == 1
    assert all(state.trials[name].held is None for name in on_a)
    again = handle(state, ready(launches[1], "b", 3.0))
    assert {c.trial for c in again if isinstance(c, StartTrial)} & on_a
    assert violations(state) == []


def test_an_instance_is_given_back_before_it_is_ready_when_nobody_needs_it() -> None:
    """Its end settles what it cost: from when it ran, for a minute at least, and nothing if it
    never did.
    """
    state, (first, second) = launched(rich_facts(4))
    handle(state, ready(first, "a", 1.0))
    commands = handle(state, StopAsked(at=2.0))
    stops = [c for c in commands if isinstance(c, StopTrial)]
    for number, stop in enumerate(stops, 1):
        exited = TrialExited(
            at=3.0,
            happened=3.0,
            instance="a",
            fact=number,
            trial=stop.trial,
            attempt=stop.attempt,
            cause="asked",
            code=0,
        )
        commands = handle(state, exited)
    ends = {c.instance: c for c in commands if isinstance(c, Terminate)}
    assert ends.keys() == {"a", second.id}
    assert second.id not in state.under_way
    assert second.id in state.ledger.open
    before = state.ledger.spent_gpu_s(3.0)
    assert before == 2 * 4 * 60
    handle(state, InstanceTerminated(at=4.0, command=ends[second.id].id, instance=second.id))
    assert state.ledger.spent_gpu_s(4.0) == 4 * 60
    assert handle(state, ready(second, "b", 5.0)) == []
    assert "b" not in state.fleet.instances
    assert violations(state) == []


@pytest.mark.parametrize(
    ("running_since", "ended", "gpu_s"),
    [(None, None, 0.0), (1.0, 2.0, 240.0), (1.0, None, 396.0), (1.0, 91.0, 360.0)],
)
def test_a_launch_that_came_to_nothing_costs_what_ran_of_it(
    running_since: float | None, ended: float | None, gpu_s: float
) -> None:
    made = small_facts(
        billing="rented", gpus=4, deadline_s=600.0, t_min_s=150.0, budget_gpu_s=3200.0
    )
    state, launches = launched(made)
    refused = [
        LaunchRefused(
            at=100.0,
            command=c.id,
            why="it died while it booted",
            retry=True,
            running_since=running_since,
            ended=ended,
        )
        for c in launches
    ]
    for event in refused:
        handle(state, event)
    closed = [charge.gpu_s(100.0) for charge in state.ledger.closed]
    assert closed == [gpu_s] * (0 if running_since is None else len(launches))
    assert violations(state) == []


def test_a_launch_is_charged_from_the_request_until_its_start_is_known() -> None:
    state, launches = launched(rich_facts(4))
    assert state.ledger.spent_gpu_s(0.0) == len(launches) * 4 * 60
    assert state.ledger.spent_gpu_s(100.0) == len(launches) * 4 * 100
    handle(
        state,
        InstanceReady(at=30.0, command=launches[0].id, instance="a", gpus=4, running_since=20.0),
    )
    assert state.ledger.spent_gpu_s(100.0) == 4 * 80 + 4 * 100


def test_nothing_is_asked_for_that_could_not_be_used_before_the_end() -> None:
    """Closing begins at 51 s, after the grace and what giving back takes; an attempt must have five
    seconds.
    """
    for lost_at, asked in ((40.0, 1), (50.0, 0)):
        state, launches = launched(rich_facts(8))
        handle(state, ready(launches[0], "a", 1.0))
        commands = handle(state, InstanceLost(at=lost_at, instance="a", why="power failure"))
        assert len([c for c in commands if isinstance(c, Launch)]) == asked
