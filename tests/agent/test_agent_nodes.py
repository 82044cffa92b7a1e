"""Attempts that span instances: real torchrun on two addresses, an agent for each, in process
namespaces of their own as instances have them.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest

from seerd.agent.attempts import SUMMARY_S
from seerd.agent.protocol import (
    Checkpointed,
    Exited,
    Node,
    Refused,
    Renew,
    Reported,
    Started,
    Training,
)

PATIENCE_S = 120.0
SECONDS = 15.0
"""What "within seconds" may mean on a machine that does other things too."""

TRAINS = """
import os, time, torch, seerd
trial = seerd.trial()
trial.track(model=torch.nn.Linear(2, 1))
guilty = int(os.environ.get("GUILTY", "-1"))
while trial.running():
    time.sleep(0.02)
    if trial.rank == guilty and trial.epoch >= 3:
        raise ValueError(f"rank {guilty} has had enough")
    trial.report(accuracy=trial.epoch, world=trial.world, gpus=trial.gpus, node=int(os.environ.get("GROUP_RANK", "0")))
"""
HANGS = TRAINS.replace("time.sleep(0.02)", "time.sleep(0.02 if trial.epoch < 3 else 600)")


class Pair:
    """Two instances; `own`: what is different in the job of one. As text, the address of the first
    comes after that of the second.
    """

    addresses = ("127.0.0.4", "127.0.0.30")

    def __init__(self, rigs: list[Any]) -> None:
        self.rigs = rigs
        self.clients: list[Any] = []
        self.own: dict[int, dict[str, Any]] = {}

    def ready(self, script: str, **other: object) -> None:
        """Agents that have been prepared for this script."""
        job = self.rigs[0].job(script, launcher="torchrun", **other)
        self.clients = [
            rig.ready(replace(job, **self.own.get(rank, {}))) for rank, rig in enumerate(self.rigs)
        ]

    def start(
        self, attempt: int = 1, gpus: tuple[int, ...] = (0,), checkpoints: tuple[str, ...] = ()
    ) -> None:
        """An attempt on both; the second is told first."""
        endpoint = f"{self.addresses[0]}:{free_port(self.addresses[0])}"
        for rank in (1, 0):
            node = Node(rank, 2, self.addresses[rank], endpoint, 2 * len(gpus))
            self.clients[rank].start(attempt=attempt, gpus=gpus, checkpoints=checkpoints, node=node)

    def exits(self, attempt: int = 1) -> list[Exited]:
        """How it ended on each."""
        return [client.exit_of(attempt=attempt) for client in self.clients]


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def is_a_rank(process: psutil.Process) -> bool:
    try:
        return "LOCAL_RANK" in process.environ()
    except (psutil.Error, OSError):
        return False


@pytest.fixture
def pair(two_rigs: list[Any]) -> Pair:
    return Pair(two_rigs)


def test_two_nodes_train_and_save_and_one_goes_on_with_it_and_two_again(pair):
    pair.ready(TRAINS)
    first, second = pair.clients
    pair.start(gpus=(0, 1))
    metrics = first.until(Reported).metrics
    assert (metrics["world"], metrics["gpus"], metrics["node"]) == (4, 4, 0)
    first.stop(grace_s=PATIENCE_S)
    assert [(end.cause, end.code) for end in pair.exits()] == [("asked", 0), ("asked", 0)]
    assert [fact.kind for fact in second.facts] == ["prepared", "started", "exited"]
    saved = [fact for fact in first.facts if isinstance(fact, Checkpointed)][-1]

    second.start(attempt=2, checkpoints=(saved.name,))
    assert second.until(Training).epoch == saved.epoch
    assert second.until(Reported).metrics["world"] == 1
    second.stop(attempt=2, grace_s=PATIENCE_S)
    assert second.exit_of(attempt=2).cause == "asked"
    later = [fact for fact in second.facts if isinstance(fact, Checkpointed)][-1]

    pair.start(attempt=3, checkpoints=(later.name,))
    assert first.until(Training, lambda fact: fact.attempt == 3).epoch == later.epoch > saved.epoch
    first.stop(attempt=3)
    second.stop(attempt=3)
    assert [end.cause for end in pair.exits(3)] == ["asked", "asked"]


def test_the_lease_of_one_node_has_all_save_and_leave_and_none_calls_that_finished(pair):
    pair.ready(TRAINS)
    pair.start()
    pair.clients[0].until(Reported)
    pair.clients[1].say(Renew(0.1, PATIENCE_S))
    assert [(end.cause, end.code) for end in pair.exits()] == [("asked", 0), ("lease", 0)]
    facts = pair.clients[0].facts
    reported = [fact.epoch for fact in facts if isinstance(fact, Reported)]
    saved = [fact.epoch for fact in facts if isinstance(fact, Checkpointed)]
    assert saved[-1] == reported[-1]


@pytest.mark.parametrize(("guilty", "later_s"), [(0, 0.5), (1, 0.5), (1, 2 * SUMMARY_S)])
def test_a_rank_that_crashes_ends_the_attempt_everywhere_and_is_quoted_though_its_node_is_slower_to_tell(
    pair, guilty, later_s
):
    dawdling = pair.rigs[guilty].source / "python"
    dawdling.write_text(f'#!/bin/sh\n{sys.executable} "$@"; code=$?; sleep {later_s}; exit $code\n')
    dawdling.chmod(0o700)
    pair.own[guilty] = {"python": str(dawdling)}
    pair.ready(TRAINS, env={"GUILTY": str(guilty)})
    pair.start()
    innocent = pair.clients[1 - guilty]
    assert innocent.exit_of()
    while any(map(is_a_rank, pair.rigs[guilty].processes_of())):  # it is still being torn down
        time.sleep(0.01)
    crashed_at = time.time()
    pair.clients[guilty].stop()
    ends = pair.exits()
    assert time.time() - crashed_at < SECONDS
    assert [end.cause for end in ends] == ["crashed", "crashed"]
    first = min(ends, key=lambda end: end.silent)
    assert (first.rank, first.tail[-1].endswith(f"ValueError: rank {guilty} has had enough")) == (
        guilty,
        True,
    )
    assert not [process for rig in pair.rigs for process in rig.processes_of()]


def test_when_one_node_is_killed_the_other_is_ended_by_a_word(pair):
    pair.ready(HANGS)
    pair.start()
    first, second = pair.clients
    first.until(Reported, lambda fact: fact.epoch == 3)
    killed_at = time.time()
    for process in pair.rigs[1].processes_of():
        with contextlib.suppress(psutil.NoSuchProcess):  # of those that the first ones took along
            if str(pair.rigs[1].folder) in process.environ()["SEERD_DIR"]:
                process.kill()
    assert second.exit_of().cause == "crashed"
    assert first.facts[-1].kind != "exited"
    first.stop()
    assert first.exit_of().cause == "asked"
    assert time.time() - killed_at < SECONDS
    assert pair.rigs[0].processes_of() == []


def test_a_node_that_waits_in_vain_for_the_other_leaves_when_it_is_told(pair):
    job = pair.rigs[0].job(TRAINS, launcher="torchrun")
    waiting = pair.rigs[1].ready(job)  # the other is as good as not there
    waiting.start(node=Node(1, 2, "127.0.0.30", f"127.0.0.4:{free_port('127.0.0.4')}", 2))
    waiting.until(Started)
    waiting.stop(grace_s=PATIENCE_S)
    asked_at = time.time()
    assert waiting.exit_of().cause == "asked"
    assert time.time() - asked_at < SECONDS


def test_what_cannot_span_nodes_is_refused(rig):
    client = rig.ready(rig.job(TRAINS, launcher="python"))
    client.start(node=Node(0, 2, "127.0.0.4", "127.0.0.4:29400", 2))
    assert 'only "torchrun" can span 2' in client.until(Refused).why


def test_a_node_of_forks_and_one_of_new_processes_train_together(pair):
    pair.own[1] = {"preload": []}
    pair.ready('import sys\nprint("forked", "torch" in sys.modules, flush=True)\n' + TRAINS)
    first, _ = pair.clients
    pair.start()
    assert first.until(Reported).metrics["world"] == 2
    first.stop(grace_s=PATIENCE_S)
    assert [(end.cause, end.code) for end in pair.exits()] == [("asked", 0), ("asked", 0)]
    said = [
        path.read_text()
        for rig in pair.rigs
        for path in rig.attempt().glob("logs/*/attempt_0/0/stdout.log")
    ]
    assert said == ["forked True\n", "forked False\n"]
