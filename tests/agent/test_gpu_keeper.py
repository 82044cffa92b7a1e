"""The keeper holds the leases of an attempt for as long as a process of the attempt is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from seerd.agent import host
from seerd.agent.gpu_keeper import Keeper
from seerd.agent.gpu_leases import LeaseFolder

AGENT = """
import subprocess, sys
from seerd.agent.gpu_keeper import Keeper
from seerd.agent.gpu_leases import LeaseFolder
folder, run = LeaseFolder(sys.argv[1]), sys.argv[2]
keeper = Keeper(run)
for trial, gpu in (("t1", "gpu-0"), ("t2", "gpu-1"), ("t12", "gpu-2")):
    keeper.hold(f"{trial}/1", [folder.lease(gpu)])
    if trial != "t2":
        sleep = ["sleep", "600"]
        child = subprocess.Popen(sleep, env={"SEERD_ATTEMPT": f"{run}/{trial}/1"}, stdout=2)
        print(child.pid, flush=True)
idle = folder.lease("gpu-3")
print("ready", flush=True)
sys.stdin.read()
"""
PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def folder(leases: Path) -> LeaseFolder:
    return LeaseFolder(str(leases))


@pytest.fixture
def run() -> Iterator[str]:
    name = f"kept-{os.getpid()}"
    yield name
    host.kill(lambda: host.each_of_run(name), set())


def test_a_dead_agents_trials_keep_their_gpus(folder: LeaseFolder, leases: Path, run: str) -> None:
    command = [sys.executable, "-c", AGENT, str(leases), run]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    first, second = int(agent.stdout.readline()), int(agent.stdout.readline())
    assert agent.stdout.readline() == "ready\n"
    assert folder.leased() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    agent.kill()
    agent.communicate()
    until(lambda: folder.leased() == ["gpu-0", "gpu-2"])
    os.kill(first, signal.SIGKILL)
    until(lambda: folder.leased() == ["gpu-2"])
    os.kill(second, signal.SIGKILL)
    until(lambda: folder.leased() == [])
    until(lambda: not host.marked_with(f"{run}/"))


def test_what_is_over_is_free_at_once(folder: LeaseFolder, run: str) -> None:
    keeper, lease = Keeper(run), folder.lease("gpu-0")
    assert lease is not None
    keeper.hold("t1/1", [lease])
    os.close(lease)
    assert folder.leased() == ["gpu-0"]
    keeper.release("t1/1")
    until(lambda: folder.leased() == [])
    keeper.close()


def test_a_killed_keeper_is_started_again_with_all_leases(folder: LeaseFolder, run: str) -> None:
    keeper = Keeper(run)
    leases = [folder.lease(f"gpu-{number}") for number in range(3)]
    assert all(lease is not None for lease in leases)
    keeper.hold("t1/1", leases[:2])  # type: ignore[arg-type]
    until(lambda: bool(host.marked_with(f"{run}/")))
    (killed,) = host.marked_with(f"{run}/")
    psutil.Process(killed).kill()
    until(lambda: psutil.Process(killed).status() == psutil.STATUS_ZOMBIE)
    keeper.hold("t2/1", leases[2:])  # type: ignore[arg-type]
    for lease in leases:
        os.close(lease)  # type: ignore[arg-type]
    assert folder.leased() == ["gpu-0", "gpu-1", "gpu-2"]
    keeper.release("t1/1")
    until(lambda: folder.leased() == ["gpu-2"])
    keeper.release("t2/1")
    keeper.close()


def test_many_gpus_of_one_attempt(folder: LeaseFolder, run: str) -> None:
    keeper = Keeper(run)
    leases = [folder.lease(f"slot-{number}") for number in range(200)]
    keeper.hold("t1/1", leases)  # type: ignore[arg-type]
    for lease in leases:
        os.close(lease)  # type: ignore[arg-type]
    assert len(folder.leased()) == 200
    keeper.release("t1/1")
    until(lambda: folder.leased() == [])
    keeper.close()


def test_the_keeper_is_ended_last(folder: LeaseFolder, run: str) -> None:
    keeper, lease = Keeper(run), folder.lease("gpu-0")
    assert lease is not None
    keeper.hold("t1/1", [lease])
    trial = subprocess.Popen(["sleep", "600"], env={"SEERD_ATTEMPT": f"{run}/t1/1"})
    until(lambda: len(host.marked_with(f"{run}/")) == 2)
    assert list(host.each_of_run(run)) == [trial.pid]
    trial.kill()
    trial.wait()
    assert len(list(host.each_of_run(run))) == 1
    keeper.release("t1/1")
    keeper.close()
    assert list(host.each_of_run(run)) == []
