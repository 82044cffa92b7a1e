"""MPS: where it is asked for, attempts on parts of a GPU compute through a control daemon of their
agent's, which lives no longer than they and the agent do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.testbed.agents import RUN
from seerd.agent.health import CheckedMachine
from seerd.agent.mps import Mps
from seerd.agent.protocol import Exited, Noticed, Prepare, Prepared, Start, Started
from seerd.core.last_words import obstacle_of
from tests.agent.test_agent_gpus import MACHINE, SMI
from tests.agent.test_agent_health import program

CONTROL = """[ "$1" = -f ] || exit 2
[ -z "$CUDA_VISIBLE_DEVICES" ] && touch "$CUDA_MPS_PIPE_DIRECTORY/control"
sleep 600 &
wait"""
"""A control daemon, and its server, which is a child of it."""
SEES = """
import os, pathlib, time
names = ("PIPE_DIRECTORY", "LOG_DIRECTORY", "PINNED_DEVICE_MEM_LIMIT")
told = [os.environ.get(f"CUDA_MPS_{name}", "-") for name in names]
(pathlib.Path(os.environ["SEERD_DIR"]) / "told").write_text(" ".join(told))
if os.environ.get("STAYS"):
    time.sleep(600)
"""
PATIENCE_S = 20.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def tools(rig: Any) -> Path:
    folder, machine = rig.source / "bin", rig.source / "machine"
    machine.mkdir()
    (machine / "machine").write_text(MACHINE)
    program(folder / "nvidia-smi", f'exec bash {SMI} "$@"')
    rig.env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RIG_RUN": str(machine),
        "CUDA_VISIBLE_DEVICES": "1,2",
    }
    rig.options = ("--cuda",)
    return folder


def prepared(rig: Any, **env: str) -> Any:
    rig.launch(gpus=2)
    client = rig.connect()
    job = rig.job(SEES, env={"SEERD_MPS": "1", **env})
    client.say(Prepare("p", job, parts=4))
    client.until(Prepared)
    return client


def start(client: Any, trial: str, *slots: int) -> None:
    client.say(Start(f"s-{trial}", trial, 1, list(slots), {}, 17, [], parts=4))


def told(rig: Any, trial: str) -> list[str]:
    path = rig.attempt(trial) / "told"
    until(lambda: path.exists() and path.read_text())
    return path.read_text().split()


def daemons() -> list[psutil.Process]:
    marked = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("SEERD_ATTEMPT") == f"{RUN}//mps"
        except psutil.Error:
            continue
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            marked.append(process)
    return marked


def test_attempts_on_parts_are_clients_with_a_bound_and_whole_gpus_are_not(rig, tools):
    program(tools / "nvidia-cuda-mps-control", CONTROL)
    client = prepared(rig)
    start(client, "t1", 5)
    start(client, "t2", 0, 1, 2, 3)
    for trial in ("t1", "t2"):
        assert client.exit_of(trial).cause == "finished"
    pipes, logs, limit = told(rig, "t1")
    assert (pipes, logs) == (f"{rig.folder}/mps", f"{rig.folder}/mps-logs")
    assert limit == f"0={16160 // 4 - 850}M"
    assert told(rig, "t2") == ["-", "-", "-"]
    assert daemons()
    rig.processes[-1].send_signal(signal.SIGTERM)
    rig.processes[-1].wait()
    until(lambda: not daemons())


def test_the_daemon_of_a_dead_agent_lives_as_long_as_its_attempts(rig, tools):
    program(tools / "nvidia-cuda-mps-control", CONTROL)
    client = prepared(rig, STAYS="yes")
    start(client, "t1", 5)
    client.until(Started)
    told(rig, "t1")
    rig.lose_agent()
    (trial,) = rig.processes_of("t1")
    time.sleep(1.0)  # more than enough for a minder that would not wait
    assert trial.is_running()
    assert daemons()
    trial.kill()
    until(lambda: not daemons())


def test_the_next_agent_ends_the_daemon_of_the_last_one(rig, tools):
    program(tools / "nvidia-cuda-mps-control", CONTROL)
    client = prepared(rig, STAYS="yes")
    start(client, "t1", 5)
    client.until(Started)
    told(rig, "t1")
    before = {process.pid for process in daemons()}
    rig.lose_agent()
    rig.launch(gpus=2)
    assert not before & {process.pid for process in daemons()}


@pytest.mark.parametrize(
    ("control", "why"),
    [
        (None, "there is no nvidia-cuda-mps-control on this machine"),
        ("exit 1", "nvidia-cuda-mps-control has ended, see {folder}/mps.log"),
    ],
)
def test_without_mps_attempts_take_turns_and_that_is_said_once(rig, tools, control, why):
    if control is not None:
        program(tools / "nvidia-cuda-mps-control", control)
    client = prepared(rig)
    for slot in range(2):
        start(client, f"t{slot}", slot)
        assert client.exit_of(f"t{slot}").cause == "finished"
        assert told(rig, f"t{slot}") == ["-", "-", "-"]
    notes = [fact.why for fact in client.facts if isinstance(fact, Noticed)]
    why = why.format(folder=rig.folder)
    assert [note for note in notes if "take turns" in note] == [
        f"trials on one GPU take turns: {why}"
    ]


def test_mps_is_not_used_unless_asked_for(rig, tools):
    program(tools / "nvidia-cuda-mps-control", CONTROL)
    client = prepared(rig, SEERD_MPS="0")
    start(client, "t1", 5)
    assert client.exit_of("t1").cause == "finished"
    assert told(rig, "t1") == ["-", "-", "-"]
    assert not daemons()


def crash(trial: str, at: float, *tail: str, cause: str = "crashed") -> Exited:
    return Exited(0, at, trial, 1, cause, 1, 0, list(tail))


def test_what_a_neighbours_fault_has_ended_is_not_counted_as_the_trials_crash(tmp_path):
    mps = Mps("r", CheckedMachine(tmp_path, True, "r//health"), pytest.fail)
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert mps.explained("0", [crash("t1", 1.0, error)]) == [crash("t1", 1.0, error)]
    mps._minder = object()  # type: ignore[assignment]
    facts = [
        ("0", crash("t1", 10.0, error), False),
        ("1", crash("t2", 10.5, error), False),
        ("0", crash("t3", 11.0, "ValueError: no"), False),
        ("0", crash("t4", 11.0, error, cause="asked"), False),
        ("0", crash("t5", 12.0, "torch.OutOfMemoryError: CUDA error: out of memory"), False),
        ("0", crash("t6", 12.0, error), True),
        ("0", crash("t1", 13.0, error), False),
        ("0", crash("t7", 40.0, error), False),
    ]
    for gpu, fact, by_another in facts:
        (explained,) = mps.explained(gpu, [fact])
        more = ["seerd: MPS ended it, as t1/1 had failed"] if by_another else []
        assert explained.tail == [*fact.tail, *more]
        assert obstacle_of(explained.tail) == ("device" if by_another else None)
