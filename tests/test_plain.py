"""What people read when there is no terminal: one line for each event that matters, in words, and
nothing that a terminal would obey.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import (
    LaunchRefused,
    ModelPublished,
    PublishFailed,
    RunFacts,
    TimerFired,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from seerd.core.plans import STAYS, PlanChange, Put
from seerd.core.state import Instance, new_state
from seerd.core.step import follow
from seerd.core.verdicts import Grown
from seerd.planner.space import Config
from seerd.sim.behaviour import exactly
from seerd.telling.explanation.sentences import gpus_text
from seerd.telling.harmless import config_text, printable
from seerd.telling.plain import line_of
from tests.by_hand import handle
from tests.core.test_parts import plan, side_by_side

MakeFacts = Callable[..., RunFacts]


def curve(config: Config, epoch: int) -> float | None:
    return float(config["lr"]) * (1 - 0.5**epoch)


def slow(facts: RunFacts, **behaviour: object) -> World:
    return World(
        facts, Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus, **behaviour)
    )  # type: ignore[arg-type]


def said(world: World) -> list[str]:
    """The lines of a whole run, each told with the state as it was right after its event."""
    world.run()
    state = new_state(world.facts)
    lines = []
    for event, decided in world.journal:
        follow(state, event, decided)
        line = line_of(event, state, decided)
        lines += [] if line is None else line.splitlines()
    return lines


def test_a_run_from_its_limits_to_its_model(facts: MakeFacts) -> None:
    lines = said(slow(facts()))
    assert lines[0] == "    0.1s  6 trials, deadline 1m, budget 5.333gpu-min"
    assert (
        lines[1] == "    0.2s  m2.0: ready with 8 GPUs; "
        "stage 1 of 2 until 20s: 4 trials x 1 GPU and 2 trials x 2 GPUs"
    )
    for line in (
        "    2.2s  t0001 trains on GPU 0-1  lr=0.2904",
        "   20.0s  stage 2 of 2 until 1m: 2 trials x 1 GPU and 1 trial x 2 GPUs",
        "   20.0s  t0003 is out: eliminated after stage 1, 3rd of 4 at report 4",
        "   20.5s  t0002 has stopped, saved up to report 9",
        "   22.5s  t0002 goes on after report 9 on GPU 2  lr=0.5354",
        "   51.5s  the plan is carried out: trials save and exit",
    ):
        assert line in lines, line
    assert lines[-1] == "   52.0s  the best model is that of t0005, accuracy 0.600574: best"


def test_a_trial_that_grows_on_its_gpu_is_said(facts: MakeFacts) -> None:
    run, lines = side_by_side(facts, 1), []
    for gpus in (2, 4):
        plan(run, PlanChange(put=(Put("t0", gpus, 0, None, STAYS),)))
        event, decided = run.journal[-1]
        lines.append(line_of(event, run.state, decided))
    (earlier,) = [msgspec.structs.replace(one, had=0) for one in decided if isinstance(one, Grown)]
    lines.append(line_of(event, run.state, [earlier]))
    assert lines == [
        "    0.0s  t0 trains on with 1/2 GPU instead of 1/4",
        "    0.0s  t0 trains on with 1 GPU instead of 1/2",
        "    0.0s  t0 trains on with 1 GPU",
    ]


def test_the_target_is_said_when_it_is_reached(facts: MakeFacts) -> None:
    lines = said(slow(facts(target=0.4)))
    assert sum("the target was reached: trials save and exit" in line for line in lines) == 1


def test_the_stages_are_said_once_each(facts: MakeFacts) -> None:
    assert sum("stage 1 of 2" in line for line in said(slow(facts()))) == 1
    rented = facts(billing="rented", gpus=4, deadline_s=300.0, budget_gpu_s=1600.0, t_min_s=75.0)
    lines = said(
        World(
            rented,
            Behaviour(
                metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)
            ),
        )
    )
    assert sum("ready with" in line for line in lines) == 2
    assert sum("stage 1 of 2" in line for line in lines) == 1
    assert sum("stage 2 of 2" in line for line in lines) == 1


def test_with_several_instances_a_trial_says_which_is_its_own(facts: MakeFacts) -> None:
    rented = facts(billing="rented", gpus=4, deadline_s=300.0, budget_gpu_s=1600.0, t_min_s=75.0)
    lines = said(
        World(
            rented,
            Behaviour(
                metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)
            ),
        )
    )
    assert any("t0001 trains on m2.0 GPU 0-1" in line for line in lines)
    assert any("has been given back" in line for line in lines)


def test_best_is_said_only_of_a_report_that_no_other_equals(facts: MakeFacts) -> None:
    up_and_down = World(
        facts(),
        Behaviour(metric=lambda config, epoch: [0.5, 0.9, 0.7, 0.9, 0.95][min(epoch, 5) - 1]),
    )
    best = [line for line in said(up_and_down) if line.endswith("(best)")]
    assert all(mark in line for line, mark in zip(best, ("0.5", "0.9", "0.95"), strict=True))


def test_the_least_is_best_where_less_is_better(facts: MakeFacts) -> None:
    lines = said(slow(facts(mode="min")))
    first = next(line for line in lines if "report" in line and "accuracy" in line)
    assert first.endswith("(best)")
    assert not any(line.endswith("(best)") for line in lines if "report 4:" in line)


def test_the_first_report_of_a_run_is_shown_with_its_line(facts: MakeFacts) -> None:
    world = slow(facts())
    world.run()
    state, lines = new_state(world.facts), []
    for event, decided in world.journal:
        is_first = isinstance(event, TrialReported) and event.reports == 1
        read = {"line": 'epoch 1:\x1baccuracy "0.5"'} if is_first else {}
        lined = msgspec.structs.replace(event, **read)
        follow(state, lined, decided)
        lines += [line_of(lined, state, decided) or ""]
    (shown,) = (line for line in lines if "read from" in line)
    assert shown.endswith(', read from "epoch 1:\\x1baccuracy "0.5""  (best)')
    assert " report 1: accuracy " in shown


def test_nan_is_said_in_words(facts: MakeFacts) -> None:
    lines = said(World(facts(), Behaviour(metric=lambda config, epoch: None)))
    assert any(line.endswith("t0001 report 1: accuracy missing or not finite") for line in lines)


def test_a_crash_says_how_it_ended_what_follows_and_the_last_line(facts: MakeFacts) -> None:
    lines = said(
        slow(facts(), crashes=lambda trial, attempt, epoch: trial == "t0001" and epoch == 2)
    )
    crashes = [line[10:] for line in lines if "exit status" in line]
    assert crashes == [
        "t0001 ended with exit status 1 and will be restarted: last line",
        "t0001 ended with exit status 1 and has failed: last line",
    ]


def test_what_is_in_a_trial_s_way_is_named_with_how_long_it_waits(facts: MakeFacts) -> None:
    (line, *_) = (
        line for line in said(slow(facts(), blocked=lambda beside: beside > 0)) if "waits" in line
    )
    assert re.search(
        r"t0001 ended with exit status 1 since an address was in use; it waits, and at most \d+ "
        r"trains? at a time until [\d.]+s",
        line,
    )


def test_a_crash_while_everything_is_being_stopped_promises_no_restart(facts: MakeFacts) -> None:
    world = slow(facts(), deaf=True)
    world.at(11.0, world.interrupt)
    world.begin()
    while world.now < 11.0:
        world.turn()
    last = max(
        event.fact for event, _ in world.journal if isinstance(event, TrialStarted | TrialReported)
    )
    event = TrialExited(
        at=11.5,
        instance="m2.0",
        fact=last + 100,
        happened=11.5,
        trial="t0003",
        attempt=1,
        cause="crashed",
        code=-9,
    )
    handle(world.state, event)
    assert (
        line_of(event, world.state)
        == "   11.5s  t0003 was killed by signal 9 (usually out of memory)"
    )


def test_a_script_that_ends_without_a_report_says_what_to_do(facts: MakeFacts) -> None:
    world = World(facts(), Behaviour(metric=curve, most_reports=1))
    world.begin()
    while not any(isinstance(event, TrialStarted) for event, _ in world.journal):
        world.turn()
    event = TrialExited(
        at=1.0,
        instance="m2.0",
        fact=99,
        happened=1.0,
        trial="t0001",
        attempt=1,
        cause="finished",
        code=0,
    )
    handle(world.state, event)
    line = line_of(event, world.state)
    assert line is not None
    assert "t0001 has failed: ended without a report" in line
    assert "trial.report(accuracy=...)" in line


def test_a_lost_instance_and_a_daemon_that_was_killed(facts: MakeFacts) -> None:
    lost = slow(facts())
    lost.at(12.0, lambda: lost.fleet.lose("m2.0"))
    lines = said(lost)
    assert (
        "   12.0s  m2.0 is lost: power failure; its trials go on elsewhere from "
        "their last checkpoints" in lines
    )
    assert any("t0001 goes on after report 1" in line for line in lines)
    killed = World(facts(), Behaviour(metric=curve), kill_after=frozenset({30}))
    assert any("instances that are still there: m2.0" in line for line in said(killed))


@pytest.mark.parametrize(
    ("hard", "line"), [(False, "stopping: trials save and exit"), (True, "stopping at once")]
)
def test_interruptions(facts: MakeFacts, hard: bool, line: str) -> None:
    world = slow(facts())
    world.at(11.0, lambda: world.interrupt(hard=hard))
    lines = said(world)
    assert any(line in told for told in lines)
    assert any("t0001 has stopped, saved up to report" in told for told in lines)


def test_a_budget_that_ends_a_run_is_named(facts: MakeFacts) -> None:
    rented = facts(
        billing="rented",
        deadline_s=300.0,
        budget_gpu_s=1600.0,
        t_min_s=75.0,
        usd_per_gpu_h=3.06,
        cost_usd=1.0,
    )
    lines = said(
        World(
            rented,
            Behaviour(
                metric=curve, unit_s=lambda config, epoch, gpus: 10.0 / gpus, boot=exactly(20.0)
            ),
        )
    )
    assert any("the budget is used up: trials save and exit" in line for line in lines)


def test_refusals_have_their_reason(facts: MakeFacts) -> None:
    state = new_state(facts())
    state.fleet.add(Instance("1.0", 4, why="no capacity"))
    refused = LaunchRefused(at=1.0, command="1.0", why="no capacity")
    assert line_of(refused, state) == "    1.0s  no instance: no capacity"
    unreadable = PublishFailed(at=2.0, command="9.0", why="checksum")
    assert (
        line_of(unreadable, state)
        == "    2.0s  a checkpoint cannot be used, trying the next best: checksum"
    )
    assert (
        line_of(ModelPublished(at=3.0, command="9.0", path="best"), state)
        == "    3.0s  the best model is in best"
    )


def test_of_launches_that_are_refused_again_and_again_ever_fewer_have_a_line(
    facts: MakeFacts,
) -> None:
    state, told = new_state(facts()), []
    for number in range(1, 41):
        for launch in (f"{number}.0", f"{number}.1"):
            state.fleet.add(Instance(launch, 4, why="no capacity"))
            event = LaunchRefused(at=number, command=launch, why="no capacity")
            told += [launch] if line_of(event, state) else []
    assert told == ["1.0", "2.0", "4.0", "8.0", "16.0", "32.0"]
    state.fleet.add(Instance("41.0", 4, why="the quota is used up"))
    event = LaunchRefused(at=41.0, command="41.0", why="the quota is used up")
    assert line_of(event, state) == "   41.0s  no instance: the quota is used up"


def test_nobody_is_told_of_checkpoints_processes_and_timers(facts: MakeFacts) -> None:
    world = slow(facts())
    world.run()
    for event, _ in world.journal:
        if isinstance(event, TrialCheckpointed | TrialStarted):
            assert line_of(event, world.state) is None
    assert line_of(TimerFired(at=5.0, command="1.1"), new_state(facts())) is None


@given(st.text(), st.text())
def test_nothing_that_a_terminal_obeys_is_printed(name: str, value: str) -> None:
    assert printable(name + value).isprintable()
    assert config_text({name: value}).isprintable()


@given(st.sets(st.integers(0, 30), min_size=1))
def test_ranges_of_gpus_name_every_gpu_once(gpus: set[int]) -> None:
    named = [
        gpu
        for part in gpus_text(tuple(gpus)).split(",")
        for gpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    ]
    assert named == sorted(gpus)


def test_a_log_line_with_control_characters_is_harmless(facts: MakeFacts) -> None:
    world = slow(facts())
    world.begin()
    while not any(isinstance(event, TrialStarted) for event, _ in world.journal):
        world.turn()
    event = TrialExited(
        at=1.0,
        instance="m2.0",
        fact=99,
        happened=1.0,
        trial="t0001",
        attempt=1,
        cause="crashed",
        code=1,
        tail=("\x1b[2Jgone\r\x07",),
    )
    handle(world.state, event)
    line = line_of(event, world.state)
    assert (
        line
        == "    1.0s  t0001 ended with exit status 1 and will be restarted: \\x1b[2Jgone\\r\\x07"
    )
