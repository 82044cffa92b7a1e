"""Ranks that are gone or silent, with real torchrun: the others are ended with them within seconds,
and the report says which it was.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from seerd.agent.progress_marks import read
from seerd.agent.protocol import Reported, Stalled
from tests.agent.test_agent_nodes import Pair

TRAINS = """
import os, time, torch, seerd
trial = seerd.trial()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial.track(model=model, optimizer=optimizer)
parallel = torch.nn.parallel.DistributedDataParallel(model)
where, guilty = os.environ["WHERE"], trial.rank == int(os.environ["GUILTY"])
def read_the_next_batch():
    print("about to read", flush=True)
    exec(os.environ["DOES"])
while trial.running():
    for step in range(3):
        if guilty and trial.epoch >= 8 and step == 2 and where == "step":
            read_the_next_batch()
        optimizer.zero_grad()
        parallel(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if guilty and trial.epoch >= 8 and where == "unit":
        read_the_next_batch()
    trial.report(accuracy=trial.epoch)
"""
SLEEPS = "time.sleep(600)"
AFTER_S = 6.0
"""How long an attempt with a rank that is gone may take to end, on a machine that does other things
too.
"""
QUIET_S = (10.0, 20.0)
"""The same for one with a rank that hangs."""


def of(guilty: int, where: str, does: str) -> dict[str, str]:
    """The environment in which this rank does so, in the middle of a unit of work or at its end."""
    return {"GUILTY": str(guilty), "WHERE": where, "DOES": does}


@pytest.fixture
def pair(two_rigs: list[Any]) -> Pair:
    return Pair(two_rigs)


def test_when_a_rank_is_killed_the_others_end_and_it_is_named_and_quoted(rig):
    """Another rank is in the middle of a long unit of work that no signal interrupts: torchrun
    alone would give it 30 s.
    """
    does = "os.kill(os.getpid(), 9)"
    script = TRAINS.replace(
        "    trial.report",
        '    if trial.epoch >= 8: __import__("ctypes").CDLL(None).sleep(600)\n    trial.report',
    )
    client = rig.ready(rig.job(script, launcher="torchrun", env=of(1, "unit", does)))
    client.start(gpus=(0, 1, 2))
    said = client.until(Reported, lambda fact: fact.epoch == 8)
    end = client.exit_of()
    assert (end.cause, end.rank, end.signal, end.tail) == (
        "crashed",
        1,
        signal.SIGKILL,
        ["about to read"],
    )
    assert end.at - said.at < AFTER_S
    assert rig.processes_of() == []


def test_ranks_that_hang_are_found_by_their_neighbours_and_one_that_computes_is_left_alone(rig):
    """Three trials at once. In one a rank works for longer than any that hangs is waited for, and
    its neighbour waits as long.
    """
    env = of(1, "step", "exec(os.environ[trial._attempt.trial])")
    job = rig.job(TRAINS, launcher="torchrun", env=env)
    # An eighth of a CPU, on any machine: other tests need the cores too.
    computes = (
        "until = time.process_time() + 0.002\n"
        "    while time.process_time() < until: pass\n"
        "    time.sleep(0.014)"
    )
    works = f"end = time.monotonic() + 14\nwhile time.monotonic() < end:\n    {computes}"
    job.env.update(sleeps=SLEEPS, stops="os.kill(os.getpid(), 19)", works=works)
    client = rig.ready(job, gpus=6)
    for number, trial in enumerate(("sleeps", "stops", "works")):
        client.start(trial, gpus=(2 * number, 2 * number + 1))
    said = client.until(Reported, lambda fact: (fact.trial, fact.epoch) == ("sleeps", 8))
    end, stopped = client.exit_of("sleeps"), client.exit_of("stops")
    assert (end.cause, end.rank, end.signal) == ("crashed", 1, None)
    assert QUIET_S[0] <= end.waited_s <= end.at - said.at < QUIET_S[1]
    assert end.tail[0] == "Stack (most recent call last):"
    assert any(line.endswith("in read_the_next_batch") for line in end.tail)
    assert (stopped.cause, stopped.rank, stopped.tail) == ("crashed", 1, ["about to read"])
    client.until(Reported, lambda fact: (fact.trial, fact.epoch) == ("works", 9))
    shown = read(rig.attempt("works") / "marks")
    assert shown[0].waited_s + shown[0].reduced_s > 12 > 6 > shown[1].waited_s + shown[1].reduced_s
    client.stop("works")
    assert client.exit_of("works").cause == "asked"
    assert not any(rig.processes_of(trial) for trial in ("sleeps", "stops", "works"))


def test_of_two_nodes_the_one_that_waits_and_the_one_that_hangs_both_say_so(pair):
    pair.ready(TRAINS, env=of(1, "unit", SLEEPS))
    pair.start()
    waits, hangs = pair.clients
    stalls = [waits.until(Stalled), hangs.until(Stalled)]
    assert [stall.hung for stall in stalls] == [False, True]
    assert (stalls[0].units, stalls[0].ticks) > (stalls[1].units, stalls[1].ticks)
    for client in pair.clients:
        client.stop()
    innocent, guilty = pair.exits()
    assert (innocent.cause, innocent.rank) == ("asked", None)
    assert (guilty.cause, guilty.rank) == ("crashed", 1)
    assert guilty.tail[-2].endswith("in read_the_next_batch")
    assert guilty.waited_s >= QUIET_S[0]
    assert not [process for each in pair.rigs for process in each.processes_of()]
