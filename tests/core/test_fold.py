"""Reading a run: a fold over its journal that asks no rule, so a version with other rules reads
every run as it was, and goes on from there by its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from bench.testbed.invariants import violations
from seerd.core.aiming import derive
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    ExtendAsked,
    RunFacts,
    RunStarted,
    TrialComplained,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialWaited,
)
from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.plans import PlanChange
from seerd.core.rules import RULES, Rules
from seerd.core.state import GONE, LIVE, State, new_state
from seerd.core.step import Difference, again, follow, step
from seerd.core.wanted import Agenda
from seerd.planner.profile import Latency
from tests.by_hand import begun
from tests.conftest import small_facts
from tests.core.test_alike import crash
from tests.core.test_alike import run_of as run_of_trials
from tests.core.test_answers import FIRST, Run
from tests.core.test_seen import world_of
from tests.properties.test_core_properties import faulty_world, recorded

MakeFacts = Callable[..., RunFacts]
SEEDS = range(24)
ALTERED = range(8)
"""Runs that are decided again: each once for every rule and each of its other values."""
NO_RULES: Rules = None  # type: ignore[assignment]
"""Whoever asks for one of them fails."""


@cache
def run_of(seed: int) -> World:
    """A run with faults that is over; not to be changed."""
    world = faulty_world(seed, small_facts)
    world.run()
    return world


def prefixes(world: World, rules: Rules) -> Iterator[State]:
    """The state after each event, read."""
    state = new_state(world.facts, rules)
    for event, decided in world.journal:
        follow(state, event, decided)
        yield state


def test_deciding_needs_rules_and_so_reading_without_them_shows_that_nothing_is_decided(
    facts: MakeFacts,
) -> None:
    run = begun(facts())
    state = new_state(run.facts, NO_RULES)
    with pytest.raises(AttributeError):
        step(state, RunStarted(at=0.0, facts=run.facts))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_is_read_from_the_disk_without_a_rule(seed: int) -> None:
    world = run_of(seed)
    assert recorded(world.read(rules=NO_RULES)) == recorded(world.state)


@pytest.mark.parametrize("seed", [0, 5, 9, 14])
def test_after_each_event_whoever_reads_knows_what_whoever_decided_knew(seed: int) -> None:
    """Not only at the end: a daemon that is killed anywhere is followed by one that only reads."""
    world = run_of(seed)
    decider = new_state(world.facts)
    for (event, decided), reader in zip(world.journal, prefixes(world, NO_RULES), strict=True):
        assert step(decider, event) == decided
        assert recorded(reader) == recorded(decider)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_counted_is_what_a_recount_gives(seed: int) -> None:
    """Reading keeps the counts as deciding does."""
    for state in prefixes(run_of(seed), NO_RULES):
        fleet, phases = state.fleet, [one.phase for one in state.fleet.instances.values()]
        assert fleet.live == sum(phase in LIVE for phase in phases)
        assert fleet.leaving == phases.count(InstancePhase.LEAVING)
        assert fleet.present == sum(phase not in GONE for phase in phases)
        assert state.fleet.holding == sum(trial.held is not None for trial in state.trials.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_invariants_hold_for_whoever_reads(seed: int) -> None:
    for state in prefixes(run_of(seed), NO_RULES):
        assert violations(state) == []


@pytest.mark.parametrize("seed", range(4))
def test_what_is_derived_anew_is_of_what_was_recorded_alone(seed: int) -> None:
    """Twice is once, and nothing that a journal has is touched."""
    for state in prefixes(run_of(seed), NO_RULES):
        if state.clock.seq % 5:
            continue
        before = recorded(state)
        derive(state)
        aims = state.aims
        derive(state)
        assert state.aims == aims
        assert recorded(state) == before


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_whoever_has_read_a_run_has_nothing_left_to_look_at(seed: int) -> None:
    """Whatever was to be looked at has been, by whoever decided."""
    for state in prefixes(run_of(seed), NO_RULES):
        assert replace(state.agenda, stirred=False, because="room") == Agenda()


# ---------------------------------------------------------------- other rules

Rows = Sequence[tuple[AnyEvent, Sequence[AnyDecision]]]
Told = tuple[RunFacts, Rows, State]
"""What was known before the first event, the journal, and the state at its end."""


@cache
def long_run() -> Told:
    """An hour on instances that are taken away every few minutes, and that cannot be had for a
    while; units of work take long.
    """
    facts = small_facts(
        billing="rented",
        gpus=1,
        deadline_s=3600.0,
        t_min_s=600.0,
        budget_gpu_s=20_000.0,
    )
    behaviour = Behaviour(
        metric=lambda config, epoch: float(config["lr"]) / epoch,
        unit_s=lambda config, epoch, gpus: 30.0,
        most_reports=40,
        lifetime_s=150.0,
        capacity=lambda at: 9 if not 700.0 < at < 1500.0 else 0,
    )
    world = World(facts, behaviour, seed=1)
    world.run()
    return world.facts, world.journal, world.state


@cache
def by_hand() -> Told:
    """A rank is slow, the next question is due a moment earlier than the timer that is set, then
    the policy gives no plan any more.
    """
    run = Run(small_facts())
    run.answer(FIRST)
    run.come()
    run.train("a")
    run.fact(TrialWaited, "a", over_s=30.0, ranks=(0, 1), shares=(0.75, 0.25))
    run.wake()
    run.answer(PlanChange(ask_at_s=30.0))
    run.train("c", 2)
    run.answer(PlanChange(ask_at_s=29.98))
    for _ in range(RULES.max_failures):
        run.wake()
        run.fail()
    return run.state.facts, run.journal, run.state


@cache
def extended() -> Told:
    """Instances are replaced that were rented for an earlier deadline."""
    facts = small_facts(
        billing="rented", deadline_s=1200.0, budget_gpu_s=9600.0, t_min_s=60.0, max_gpus=8
    )
    world = World(facts, Behaviour(metric=lambda c, e: c["lr"], unit_s=lambda *_: 20.0))
    limits = replace(facts.problem.limits, deadline_s=4000.0, budget_gpu_s=40000.0)
    problem = replace(facts.problem, limits=limits, extended=1, start_s=600.0)
    asked = ExtendAsked(at=600.0, request="r1", problem=problem, rented_until_s=1800.0)
    world.at(600.0, lambda: world.tell(asked))
    world.run()
    return world.facts, world.journal, world.state


@cache
def diverging() -> Told:
    """No report has a finite metric."""
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: None))
    world.run()
    return world.facts, world.journal, world.state


@cache
def crashing() -> Told:
    """One trial crashes again and again at once, another one after each report."""
    run = run_of_trials("in vain", "further")
    crash(run, "in vain", ("ValueError: no",))
    for _ in range(RULES.max_burst + 1):
        reports = run.trial("further").reports + 1
        run.fact(TrialReported, "further", reports=reports, metric=0.5, unit_s=0.1)
        crash(run, "further", ("ValueError: no",))
        run.at += 0.1
    for _ in range(RULES.max_crashes):
        crash(run, "in vain", ("ValueError: no",))
    return run.state.facts, run.journal, run.state


@cache
def blocked() -> Told:
    """Something is always in the way of two trials."""
    return in_the_way_of("a", "b")


@cache
def blocked_alone() -> Told:
    """Something is always in the way of the only trial."""
    return in_the_way_of("a")


def in_the_way_of(*names: str) -> Told:
    run = run_of_trials(*names, deadline_s=7200.0)
    told = {"cause": "crashed", "code": 1, "tail": ("OSError: in use",), "obstacle": "address"}
    while run.state.end.why is None and run.trial("a").phase is not TrialPhase.FAILED:
        for name in names:
            if run.trial(name).pid is not None:
                run.fact(TrialExited, name, **told)
        starting = [name for name in names if run.trial(name).start_command is not None]
        if not starting and run.state.end.why is None and run.state.clock.timer is not None:
            run.wake()
        for name in names:
            if run.trial(name).start_command is not None:
                run.fact(TrialStarted, name, pid=8)
    return run.state.facts, run.journal, run.state


@cache
def cut_off(deadline_s: float) -> Told:
    """No checkpoint of the only trial can be stored."""
    run = run_of_trials("a", deadline_s=deadline_s, budget_gpu_s=8 * deadline_s)
    while run.state.end.why is None:
        run.at += 15.0
        run.fact(TrialComplained, "a", what="store-silent", why="timed out")
    return run.state.facts, run.journal, run.state


@cache
def missing() -> Told:
    """Neither of two trials finds a module."""
    run = run_of_trials("a", "b")
    for name in ("a", "b"):
        crash(run, name, ("ImportError: no",))
    return run.state.facts, run.journal, run.state


@cache
def in_many_ways() -> Told:
    """Each trial fails in a way of its own."""
    run = run_of_trials(*"abcdef")
    for name in "abcdefa":
        crash(run, name, (f"ValueError: {name}",))
    return run.state.facts, run.journal, run.state


@cache
def with_ends_that_differ() -> Told:
    """Trials that are asked to save and exit take ever another time."""
    world = world_of(60.0, Latency(0.5, 1.0))
    world.run()
    return world.facts, world.journal, world.state


@cache
def refused() -> Told:
    """There is no capacity, and only what is asked for at once leaves time for a first round."""
    facts = small_facts(
        billing="rented",
        gpus=4,
        deadline_s=600.0,
        t_min_s=150.0,
        budget_gpu_s=90_000.0,
        max_gpus=8,
    )
    facts = msgspec.structs.replace(facts, cluster=replace(facts.cluster, boot_s=440.0))
    world = World(facts, Behaviour(metric=lambda c, e: c["lr"], capacity=lambda at: 0))
    world.run()
    return world.facts, world.journal, world.state


def told() -> list[Told]:
    worlds = [run_of(seed) for seed in ALTERED]
    return [
        long_run(),
        by_hand(),
        extended(),
        diverging(),
        crashing(),
        blocked(),
        blocked_alone(),
        missing(),
        in_many_ways(),
        with_ends_that_differ(),
        *map(cut_off, (600.0, 4000.0)),
        refused(),
        *((one.facts, one.journal, one.state) for one in worlds),
    ]


def others(name: str) -> list[Rules]:
    """This version's rules but for one, which is smaller or larger."""
    value = getattr(RULES, name)
    if isinstance(value, bool):
        return [replace(RULES, **{name: not value})]
    whole = isinstance(value, int) and name.startswith(("max_", "kept_"))
    values = (max(1, value - 1), value + 2) if whole else (value / 4, value * 4)
    return [replace(RULES, **{name: other}) for other in values]


NAMES = [field.name for field in fields(Rules)]


@cache
def differences(name: str) -> int:
    """How often a version with this rule altered would have decided otherwise; each time it must
    read on as it was.
    """
    found = 0
    for rules in others(name):
        for facts, journal, end in told():
            state, reader = new_state(facts, rules), new_state(facts, rules)
            for event, decided in journal:
                found += again(state, event, decided) is not None
                follow(reader, event, decided)
            assert recorded(state) == recorded(reader) == recorded(end)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_version_with_another_rule_reads_every_run_as_it_was(name: str) -> None:
    """And would have decided otherwise, or these runs showed nothing; but for what agents alone
    are told with each lease.
    """
    assert (differences(name) > 0) is (name != "last_s")


@pytest.mark.parametrize("seed", ALTERED)
def test_with_the_rules_that_it_was_decided_by_nothing_differs(seed: int) -> None:
    world = run_of(seed)
    state = new_state(world.facts)
    assert [again(state, *row) for row in world.journal] == [None] * len(world.journal)


def test_a_decision_more_is_a_difference() -> None:
    """As if a version with other rules had written it, which had set no timer."""
    (event, decided), *_ = run_of(0).journal
    *others, last = decided
    assert again(new_state(run_of(0).facts), event, others) == Difference(1, None, last)
