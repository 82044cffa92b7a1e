"""The daemon among faults: many seeds without a broken promise, the same run from the same seed, a
kill at steps all along a run.

`make test` plays 100 that were never played before all tests, `make soak SEEDS=10000` more of them; `python -m
tests.faults --seed N` tells one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.__main__ import again, fresh
from tests.faults.scenario import DEFAULT, EVERYTHING, ONE_JOB, Kill, Scenario, scenario
from tests.faults.shrink import shrink
from tests.faults.soak import Soaked, soak
from tests.faults.strains import AGENTS_JOURNAL, JOURNALS
from tests.faults.weather import Weather
from tests.faults.world import Play, Report, play

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("SEERD_FAULT_SEEDS", "4"))
STEPS = int(os.environ.get("SEERD_FAULT_STEPS", "10"))
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
"""Those of killed daemons are cleared away before they have begun."""


@pytest.fixture(scope="module")
def soaked() -> Soaked:
    return soak(range(SEEDS), jobs=1)


def test_no_promise_is_broken_whatever_goes_wrong(soaked: Soaked) -> None:
    assert not soaked.violations, "python -m tests.faults --seed N tells what happened"
    assert soaked.seeds == SEEDS


def test_what_has_not_gone_wrong_is_known(soaked: Soaked) -> None:
    assert set(soaked.missing) == EVERYTHING - soaked.injected.keys() < EVERYTHING
    assert replace(soaked, injected=dict.fromkeys(EVERYTHING, 1)).missing == []


def test_a_seed_is_one_run_in_every_process() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "tests.faults", "--seed", "720"],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": number},
        ).stderr.partition(b"seed 720")[2]
        for number in ("1", "2")
    ]
    lines = [text.replace(b"seerd-faults-", b"").splitlines() for text in told]
    assert len(lines[0]) > 50
    assert [line[:60] for line in lines[0]] == [line[:60] for line in lines[1]]


KEPT = (
    *(3, 4, 7, 16, 20, 23, 28, 38, 51, 62, 65, 102, 106, 133, 136, 173, 198, 623, 720, 965),
    *(1110, 2367, 3898, 3924, 4027, 5421, 5610, 6330, 30008, 43733, 58103, 80241, 100878),
    *(12, 318, 370, 426, 1830),
)
"""Seeds that failed once, of the daemon or of one with a mistake in it
(`tests/mutants/of_the_fault_world.py`).
"""


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_failed_is_kept(seed: int) -> None:
    kept = scenario(seed, parts=1)
    one_job = seed in ONE_JOB
    assert kept.facts.problem.params.name != DEFAULT, "it is another run than the one that failed"
    assert one_job == (not kept.facts.jobs), "it is another run than the one that failed"
    assert not play(kept).wrong


STRAINED = (
    *(30044, 31000006, 31000015, 31000018, 31000035, 31000056, 44100070),
    *(57007964, 58011756, 73994708787, 73994708790),
)
"""Seeds that notice mistakes in leases, orphan timeouts, limits of added jobs, notices, order and
clocks.
"""


@pytest.mark.parametrize("seed", STRAINED)
def test_a_seed_with_strains_is_kept(seed: int) -> None:
    assert not play(scenario(seed, parts=1)).wrong


DAMAGED = (
    *(52000075, 52000148, 52000150, 52000229, 52000271, 52000592, 52000925, 52000950, 53000229),
    *(55000689, 57014032, 57018891, 58015594, 59013592),
)
"""Seeds that notice mistakes in what follows from events that a journal has lost."""


@pytest.mark.parametrize("seed", DAMAGED)
def test_a_seed_with_a_damaged_journal_is_kept(seed: int) -> None:
    report = play(scenario(seed, parts=1))
    assert not report.wrong
    assert report.injected.keys() & set(JOURNALS)


def test_fresh_seeds_are_others_each_second_and_each_day() -> None:
    at = datetime(2026, 11, 27, 23, 59, 58, tzinfo=UTC)
    drawn = [fresh(at + timedelta(seconds=later)) for later in (0, 1, 2, 86400)]
    assert drawn == sorted(set(drawn))
    assert f"--first {drawn[0]} --seeds 100;" in again(drawn[0], 100)


def test_a_launch_that_is_taken_up_without_credentials_is_looked_for_until_there_are_some(
    tmp_path: Path,
) -> None:
    """Killed while it is under way; the credentials expire just after the run was resumed."""
    weather = Weather({}, {"credentials expired": ((4.78, 64.78),)})
    kills = (Kill(step=60, down_s=1.0),)
    world = Play(replace(calm(3), kills=kills, weather=weather), tmp_path, told=False)
    assert not world.run().wrong
    ended = world.ec2.instances["i-00000000000000001"].ended
    assert ended is not None
    assert ended < 75.0


def calm(seed: int) -> Scenario:
    """This seed's run with nothing going wrong."""
    return replace(scenario(seed, parts=1), kills=(), weather=Weather(), versions=())


@functools.cache
def undisturbed() -> Report:
    """What becomes of `calm(3)`."""
    return play(calm(3))


def test_ec2_is_asked_often_enough_to_account_for_instances_and_leaves_time_for_others(
    tmp_path: Path,
) -> None:
    """Its answers take 0.2 s on average here; it lets an account ask twenty times a second. Asked
    every five seconds, and every half a second while an instance starts.
    """
    world = Play(calm(3), tmp_path, told=False)
    assert not world.run().wrong
    asked = world.ec2.questions
    pauses = [after - before for before, after in pairwise(asked)]
    assert 0.2 < len(asked) / (asked[-1] - asked[0]) < 0.6
    assert 4.0 < max(pauses) < 6.5
    assert min(starting(world)) > 1.0, "a start is looked for more than once a second"
    assert len([pause for pause in pauses if pause < 0.1]) <= 3, (
        "a launch that is taken up, and the end, ask by themselves"
    )


def starting(world: Play) -> list[float]:
    """How often a second EC2 was asked while each instance was pending, of those that were so for
    more than two seconds.
    """
    return [
        len([at for at in world.ec2.questions if one.launched < at < one.running])
        / (one.running - one.launched)
        for one in world.ec2.instances.values()
        if one.running is not None and one.running - one.launched > 2.0
    ]


def test_a_stop_before_the_first_event_is_one_of_a_run_that_has_begun() -> None:
    assert not play(replace(calm(3), weather=Weather({}, {"Ctrl-C": ((0.01, 0.01),)}))).wrong


def test_a_launch_that_is_called_off_while_it_is_given_back_is_still_given_back() -> None:
    """Ended by a person while it is asked for; EC2 is out of reach for longer than the first caller
    waits.
    """
    weather = Weather({}, {"Ctrl-C": ((8.0, 8.0),), "endpoint unreachable": ((7.5, 68.0),)})
    assert not play(replace(calm(3), weather=weather)).wrong


def test_a_launch_of_unknown_outcome_is_looked_for_once_there_are_credentials_again() -> None:
    weather = Weather({"lost answer": 0.7}, {"credentials expired": ((3.5, 63.5),)})
    assert not play(replace(calm(2), weather=weather)).wrong


def test_a_daemon_that_is_killed_at_any_step_leaves_nothing_and_loses_nothing() -> None:
    """The steps are spread over the run; `python -m tests.faults --every-step 3` takes all of
    them.
    """
    run, steps = calm(3), undisturbed().steps
    broken = {
        step: report.wrong
        for step in range(1, steps, max(1, steps // STEPS))
        if (report := play(replace(run, kills=(Kill(step=step, down_s=1.0),)))).wrong
    }
    assert not broken


@pytest.mark.parametrize("after", [False, True])
def test_a_daemon_that_is_killed_at_any_write_leaves_nothing_and_loses_nothing(after: bool) -> None:
    run, writes = calm(3), undisturbed().writes
    broken = {
        write: report.wrong
        for write in range(1, writes + 1, max(1, 2 * writes // STEPS))
        if (report := play(replace(run, kills=(Kill(write=write, after=after, down_s=1.0),)))).wrong
    }
    assert not broken


def test_a_daemon_that_never_comes_back_leaves_nothing_beyond_its_leases() -> None:
    run = replace(calm(3), kills=(Kill(write=12, after=True, down_s=None),))
    report = play(run, told=True)
    assert not report.wrong
    killed = next(at for at, line in report.timeline if "KILLED" in line)
    ends = [at for at, line in report.timeline if " ends: Client.InstanceInitiatedShutdown" in line]
    assert ends
    assert max(ends) < killed + 60.0 + 30.0 + 120.0


@pytest.mark.parametrize(
    ("seed", "kill"),
    [(2119, Kill(step=103, down_s=None)), (2257, Kill(write=5, after=True, down_s=None))],
)
def test_instances_that_nobody_has_brought_an_agent_keep_the_budget(seed: int, kill: Kill) -> None:
    assert not play(replace(calm(seed), kills=(kill,))).wrong


@pytest.mark.parametrize("seed", [37, 39])
def test_a_dead_coordinator_and_a_slow_store_do_not_pass_the_budget(seed: int) -> None:
    run = calm(seed)
    run = replace(run, script=replace(run.script, upload_s=25.0))
    writes = play(run).writes
    for share in (0.75, 0.9):
        assert not play(
            replace(run, kills=(Kill(write=int(writes * share), after=True, down_s=None),))
        ).wrong


def test_an_instance_whose_agent_has_a_damaged_journal_is_given_up() -> None:
    moments = tuple((at, at) for at in (90.0, 150.0, 210.0, 270.0))
    report = play(replace(calm(3), weather=Weather({}, {AGENTS_JOURNAL: moments})), told=True)
    assert not report.wrong
    assert report.injected[AGENTS_JOURNAL] == len(moments)
    assert "has lost facts that it had reported" in str(report.timeline)


def mute(report: Report) -> str:
    return "; ".join(report.wrong)


def test_the_world_sees_what_is_broken() -> None:
    """A run that was promised less than it takes: the budget is a hundredth of what the plan was
    made for.
    """
    run = calm(3)
    limits = run.facts.problem.limits
    assert not undisturbed().wrong
    report = play(replace(run, promised_gpu_s=limits.budget_gpu_s / 100))
    assert "GPU-seconds billed of" in mute(report)


def test_the_world_sees_a_job_that_passes_a_limit_of_its_own() -> None:
    """Its own budget, after the run, is said to be a hundredth of what it was."""
    seed = next(seed for seed in range(95, 400) if own_budget(calm(seed)))
    world = calm(seed)
    assert not play(world).wrong
    assert " GPU-seconds of " in mute(play(replace(world, promised_to_jobs=0.01)))


def own_budget(run: Scenario) -> bool:
    """Whether each of its jobs has one."""
    whole = run.facts.problem.limits.budget_gpu_s
    return bool(run.facts.jobs) and all(
        job.problem.limits.budget_gpu_s < whole for job in run.facts.problem.jobs
    )


def test_what_fails_is_shrunk_to_what_it_takes() -> None:
    run = replace(scenario(3, parts=1), promised_gpu_s=1.0)
    smallest, report = shrink(
        replace(run, weather=Weather({"tells twice": 0.5}, {"rebalance hint": ((50.0, 50.0),)}))
    )
    assert smallest.parts == []
    assert "GPU-seconds billed of" in mute(report)
