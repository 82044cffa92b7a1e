"""The policy of `seerd profile`, through the real core in a simulated world."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import StartTrial
from seerd.core.events import RunFacts, TrialReported
from seerd.planner.measure import MEASURE, steps
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Limits, PolicyParams, Problem, View
from seerd.planner.policies import POLICIES
from seerd.planner.space import Parameter, Space
from seerd.planning.measured import Measured, measured
from seerd.sim.behaviour import exactly

MakeFacts = Callable[..., RunFacts]


def profiled(
    make: MakeFacts, *, deadline_s: float = 300.0, p_max: int | None = 4, **kwargs: object
) -> RunFacts:
    facts = make(deadline_s=deadline_s, budget_gpu_s=8 * deadline_s, **kwargs)
    params = replace(facts.problem.params, name="profile", p_max=p_max)
    limits = replace(facts.problem.limits, max_gpus=8)
    return msgspec.structs.replace(
        facts, problem=replace(facts.problem, params=params, limits=limits)
    )


def law(gpus: int) -> float:
    return 0.3 + 2 / gpus


PLAIN = Behaviour(metric=lambda config, epoch: 0.5, unit_s=lambda config, epoch, gpus: law(gpus))


def started_on(world: World) -> list[int]:
    return [
        len(c.gpus) for _, commands in world.journal for c in commands if isinstance(c, StartTrial)
    ]


def shown(world: World) -> Measured:
    return measured(world.journal)


def test_one_trial_of_the_defaults_goes_through_all_steps(facts: MakeFacts) -> None:
    world = World(profiled(facts), PLAIN)
    state = world.run()
    assert state.end.status == "done"
    assert started_on(world) == [1, 2, 4]
    assert [t.config for t in state.trials.values()] == [{"lr": pytest.approx(0.5)}]
    found = shown(world)
    for gpus in (1, 2, 4):
        assert len(found.report_s[gpus]) >= 2
        assert found.report_s[gpus] == pytest.approx([law(gpus)] * len(found.report_s[gpus]))
    assert not found.rough
    assert found.start_s == pytest.approx([2.0])
    assert found.restore_s == pytest.approx([2.0, 2.0])
    assert found.stop_s == pytest.approx([0.5] * 3)
    assert found.save_s == pytest.approx([0.5] * len(found.save_s))
    assert found.checkpoint_bytes == 1000
    assert found.boot_s == pytest.approx([0.2])
    assert state.now < 60.0, "it ends when it has seen enough, long before the deadline"


def test_quick_reports_are_watched_for_a_while(facts: MakeFacts) -> None:
    world = World(profiled(facts, p_max=1), replace(PLAIN, unit_s=lambda config, epoch, gpus: 0.05))
    world.run()
    assert len(shown(world).report_s[1]) > 20


def test_slow_reports_leave_time_for_every_step(facts: MakeFacts) -> None:
    world = World(
        profiled(facts, deadline_s=120.0),
        replace(PLAIN, unit_s=lambda config, epoch, gpus: 24 / gpus),
    )
    state = world.run()
    assert started_on(world) == [1, 2, 4]
    assert set(shown(world).report_s) == {1, 2, 4}
    assert state.now <= 120.0


def test_a_single_slow_report_is_better_than_none_and_said_to_be_rough(facts: MakeFacts) -> None:
    world = World(
        profiled(facts, deadline_s=120.0), replace(PLAIN, unit_s=lambda config, epoch, gpus: 70.0)
    )
    state = world.run()
    found = shown(world)
    assert found.report_s == {1: pytest.approx([70.0])}
    assert found.rough == {1}
    assert state.now <= 120.0


def test_where_a_script_ends_by_itself_another_trial_goes_on(facts: MakeFacts) -> None:
    world = World(profiled(facts), replace(PLAIN, most_reports=4))
    state = world.run()
    assert state.end.status == "done"
    assert started_on(world) == [1, 2, 4]
    assert len(state.trials) == 3
    assert set(shown(world).report_s) == {1, 2, 4}


def test_a_step_that_crashes_ends_it_with_what_was_measured(facts: MakeFacts) -> None:
    def out_of_memory(trial: str, attempt: int, epoch: int) -> bool:
        return attempt > 1

    world = World(profiled(facts), replace(PLAIN, crashes=out_of_memory))
    state = world.run()
    assert state.end.status == "done"
    assert set(shown(world).report_s) == {1}
    assert state.trials["t0001"].status == "failed"


def test_a_script_that_saves_nothing_is_measured_all_the_same(facts: MakeFacts) -> None:
    world = World(profiled(facts), PLAIN)
    world.fleet.store = Forgetful()
    state = world.run()
    found = shown(world)
    assert state.end.status == "done"
    assert set(found.report_s) == {1, 2, 4}
    assert len(found.start_s) == 3
    assert not found.restore_s


class Forgetful(dict):
    """A store in which nothing is found again."""

    def get(self, *_: object) -> dict:
        return {}


def test_a_script_that_cannot_run_fails(facts: MakeFacts) -> None:
    state = World(profiled(facts), replace(PLAIN, crashes=lambda *_: True)).run()
    assert state.end.status == "failed"


@pytest.mark.parametrize("seed", range(30))
def test_through_faults_it_ends_in_time_and_never_goes_back(facts: MakeFacts, seed: int) -> None:
    rng = random.Random(seed)
    behaviour = replace(
        PLAIN,
        unit_s=lambda config, epoch, gpus: rng.uniform(0.1, 3.0),
        crashes=lambda *_: rng.random() < 0.02,
        start=exactly(rng.uniform(0.5, 10.0)),
        stop=exactly(rng.choice([0.2, 2.0, 50.0])),
        most_reports=rng.choice([None, 3, 12]),
    )
    kills = frozenset(rng.randrange(1, 120) for _ in range(rng.randrange(4)))
    world = World(
        profiled(facts, deadline_s=rng.choice([60.0, 200.0])), behaviour, kill_after=kills
    )
    state = world.run()
    assert state.now <= state.facts.problem.limits.deadline_s
    assert started_on(world) == sorted(started_on(world))
    reported = any(isinstance(event, TrialReported) for event, _ in world.journal)
    assert bool(shown(world).report_s) == reported


def problem(
    *, p_min: int = 1, p_max: int | None = None, max_gpus: int | None = 8, deadline_s: float = 300.0
) -> Problem:
    space = Space((Parameter("lr", low=0.1, high=0.9),))
    limits = Limits(deadline_s, 8 * deadline_s, max_gpus)
    return Problem(limits, space, PolicyParams(name="profile", p_min=p_min, p_max=p_max))


def test_steps_double_as_far_as_may_be() -> None:
    assert steps(problem()) == (1, 2, 4, 8)
    assert steps(problem(p_max=6)) == (1, 2, 4)
    assert steps(problem(p_min=3)) == (3, 6)
    assert steps(problem(max_gpus=None)) == (1, 2, 4, 8)


def test_the_outline_is_one_trial_step_by_step() -> None:
    outline = MEASURE.outline(problem(p_max=4))
    assert not isinstance(outline, Impossible)
    assert outline.trials == 1
    assert [bracket.gpus_per_trial for bracket in outline.brackets] == [1, 2, 4]
    assert [stage.gpus for stage in outline.stages] == [1, 2, 4]
    assert outline.stages[-1].end_s < 300.0


@pytest.mark.parametrize("bad", [problem(p_min=9), problem(deadline_s=20.0)])
def test_what_cannot_be_measured_is_said(bad: Problem) -> None:
    assert isinstance(MEASURE.outline(bad), Impossible)
    with pytest.raises(ValueError):
        MEASURE.plan(bad, Memory(), View(0.0, "max", {}))


def test_the_smallest_limits_that_are_told_are_enough() -> None:
    impossible = MEASURE.outline(problem(deadline_s=20.0))
    assert isinstance(impossible, Impossible)
    limits = Limits(impossible.min_deadline_s, impossible.min_budget_gpu_s, 8)
    assert not isinstance(MEASURE.outline(replace(problem(), limits=limits)), Impossible)


def test_a_spec_cannot_name_it() -> None:
    assert "profile" not in POLICIES


def test_parts_are_measured_with_as_many_trials_as_share_the_gpu(facts: MakeFacts) -> None:
    made = profiled(facts, p_max=None, gpus=8)
    problem = replace(made.problem, parts=4, gpus_per_instance=8)
    cluster = replace(made.cluster, parts=4)
    world = World(msgspec.structs.replace(made, problem=problem, cluster=cluster), PLAIN)
    state = world.run()
    assert state.end.status == "done"
    found = measured(world.journal, 4).report_s
    assert {size: round(times[-1], 6) for size, times in found.items()} == {
        slots / 4: pytest.approx(law(slots)) for slots in (1, 2, 4, 8)
    }
    assert len(state.trials) == 4
    assert {c.config["lr"] for c in state.trials.values()} == {0.5}


def test_where_a_part_has_too_little_memory_the_whole_is_measured(facts: MakeFacts) -> None:
    made = profiled(facts, p_max=None, gpus=4)
    problem = replace(made.problem, parts=4, gpus_per_instance=4)
    problem = replace(problem, limits=replace(problem.limits, max_gpus=4))
    cluster = replace(made.cluster, parts=4, gpus_per_instance=4)
    lacking = replace(PLAIN, lacks=lambda config, slots: slots < 4)
    world = World(msgspec.structs.replace(made, problem=problem, cluster=cluster), lacking)
    assert world.run().end.status == "done"
    assert set(measured(world.journal, 4).report_s) == {1}
