"""Machines that are not what their kind promises, and those that are: by a real agent with
`nvidia-smi` and python of our own making.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import host
from seerd.agent.health import UnhealthyError, gpu_problem, look
from seerd.agent.protocol import Expected, Prepare, Prepared, Refused

GPU = "Tesla V100-SXM2-16GB, 16160 MiB, 535.54.03"
NEEDS = Expected(gpus=2, free_bytes=1, torch=True)


def program(path: Path, text: str) -> str:
    """A shell script; its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def answer(
    rig: Any,
    expected: Expected | None,
    smi: str | None,
    python: str,
    script: str = "import torch",
    **job: Any,
) -> Prepared | Refused:
    """What an agent with this `nvidia-smi` says to `Prepare`."""
    tools = rig.source / "bin"
    tools.mkdir()
    if smi is not None:
        program(tools / "nvidia-smi", smi)
    rig.env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    rig.launch(gpus=2)
    client = rig.connect()
    client.say(
        Prepare(
            "p", rig.job(script, python=program(rig.source / "python", python), **job), expected
        )
    )
    while not isinstance(said := client.read(), (Prepared, Refused)):
        pass
    return said


@pytest.fixture
def gpus(rig):
    rig.options = ("--cuda",)
    return rig


def test_a_machine_that_has_what_is_expected_is_prepared(gpus):
    said = answer(
        gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", 'echo "$2" | grep -q torch.cuda && echo 12.4 2'
    )
    assert isinstance(said, Prepared), said


@pytest.mark.parametrize(
    ("smi", "why"),
    [
        ("exit 9", "nvidia-smi ended with exit status 9"),
        (
            "echo Failed to initialize NVML: Driver/library version mismatch; exit 18",
            "Driver/library version mismatch",
        ),
        (f"echo '{GPU}'", f"nvidia-smi lists 1 GPUs where 2 are expected: {GPU}"),
        (
            f"echo '{GPU}'; echo 'Tesla V100-SXM2-16GB, [Unknown Error], 535.54.03'",
            "nvidia-smi says of a GPU: Tesla",
        ),
    ],
)
def test_gpus_that_are_missing_or_broken_are_the_machines_fault(gpus, smi, why):
    said = answer(gpus, NEEDS, smi, "touch asked")
    assert (said.unhealthy, why in said.why) == (True, True), said.why
    assert not (gpus.source / "asked").exists()


def test_no_driver_at_all_is_the_machines_fault(gpus):
    gpus.env = {"PATH": str(gpus.source)}
    gpus.launch(gpus=2)
    client = gpus.connect()
    client.say(Prepare("p", gpus.job(), NEEDS))
    said = client.until(Refused)
    assert (said.unhealthy, "nvidia-smi cannot be run (No such file or directory)" in said.why) == (
        True,
        True,
    ), said.why


def test_a_program_that_hangs_is_given_up_and_nothing_of_it_is_left(tmp_path):
    marker = f"health-{os.getpid()}/x"
    argv, env = ["sh", "-c", "sleep 600 & sleep 600"], {**os.environ, host.MARKER: marker}
    with pytest.raises(UnhealthyError, match="a sleeper did not answer within"):
        asyncio.run(look("a sleeper", argv, env, str(tmp_path), 0.3, reads_on_s=0.3))
    assert host.marked_with(marker) == set()


READS = "head -c 200000 /dev/zero > /dev/null; sleep 0.1"


def program_answer(folder: Path, script: str, most_s: float) -> tuple[int, str, str]:
    """That of a program that may take a second, or longer while it reads."""
    env = {**os.environ, host.MARKER: f"health-{os.getpid()}/slow"}
    argv = ["sh", "-c", script]
    return asyncio.run(look("torch", argv, env, str(folder), 1.0, reads_on_s=1.5, most_s=most_s))


def test_a_program_that_still_reads_from_a_cold_disk_is_waited_for(tmp_path):
    slow = f"for i in $(seq 40); do {READS}; done; echo 12.4 2"
    assert program_answer(tmp_path, slow, 60.0) == (0, "12.4 2\n", "")


def test_a_program_that_reads_for_ever_is_given_up_in_the_end(tmp_path):
    began = time.monotonic()
    with pytest.raises(UnhealthyError, match=r"torch did not answer within [345] s"):
        program_answer(tmp_path, f"while :; do {READS}; done", 3.0)
    assert time.monotonic() - began < 30
    assert host.marked_with(f"health-{os.getpid()}/slow") == set()


@pytest.mark.parametrize(
    ("python", "why"),
    [
        (
            "echo 12.4 1; echo UserWarning: CUDA initialization failed >&2",
            "torch sees 1 GPUs where 2 are expected: User",
        ),
        (
            "echo RuntimeError: CUDA error: no kernel image >&2; exit 1",
            "(exit status 1): RuntimeError: CUDA error",
        ),
        ("echo who knows", "torch cannot use the GPUs"),
        (
            "echo RuntimeError: Error 802: system not yet initialized >&2; exit 1",
            "look at `systemctl status nvidia-fabricmanager`",
        ),
        (
            "echo 12.4 0; echo Error 802: system not yet initialized >&2; echo return 0 >&2",
            "no fabric manager of the driver's version",
        ),
    ],
)
def test_a_torch_that_cannot_use_the_gpus_is_the_machines_fault(gpus, python, why):
    said = answer(gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", python)
    assert (said.unhealthy, why in said.why) == (True, True), said.why
    assert ("fabric manager" in said.why) == ("802" in python)


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", "has no torch"),
        ("echo without 0", "was built without CUDA"),
    ],
)
def test_what_no_machine_could_do_with_this_job_is_not_its_fault(gpus, python, why):
    said = answer(gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", python)
    assert (said.unhealthy, why in said.why) == (False, True), said.why


@pytest.mark.parametrize(
    ("script", "launcher", "is_needed"),
    [
        ("import jax", "python", False),
        ("import tensorflow as tf", "python", False),
        ("import model", "python", True),
        ("import jax", "torchrun", True),
    ],
)
def test_torch_is_needed_by_those_who_import_it(gpus, script, launcher, is_needed):
    """JAX and TensorFlow train on hosts without torch; a file beside the script may import it."""
    (gpus.source / "model.py").write_text("from torch import nn\n")
    said = answer(gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", "exit 1", script, launcher=launcher)
    assert isinstance(said, Refused) == is_needed


def test_a_setup_command_that_fails_is_not_the_machines_fault(gpus):
    said = answer(gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", "echo 12.4 2", setup=["exit 3"])
    assert (said.unhealthy, "exit status 3" in said.why) == (False, True)


def test_torch_is_looked_for_once_the_setup_has_run_and_whatever_devices_the_job_names(gpus):
    looks = "test -e installed && test -z $CUDA_VISIBLE_DEVICES && echo 12.4 2"
    job = {"setup": ["touch installed"], "env": {"CUDA_VISIBLE_DEVICES": "7"}}
    assert isinstance(answer(gpus, NEEDS, f"echo '{GPU}'; echo '{GPU}'", looks, **job), Prepared)


def test_too_little_room_is_the_machines_fault_also_with_cpu_slots(rig):
    said = answer(rig, Expected(gpus=2, free_bytes=1 << 52, torch=True), None, "exit 1")
    assert (said.unhealthy, "4194304.0 GiB are expected" in said.why) == (True, True), said.why


@pytest.mark.parametrize("expected", [None, NEEDS])
def test_cpu_slots_need_no_gpus_and_nothing_expected_is_nothing_looked_at(rig, expected):
    assert isinstance(answer(rig, expected, "exit 9", "exit 1"), Prepared)


@pytest.mark.parametrize(
    "trouble", ["ERR!", "[Unknown Error]", "[GPU requires reset]", "[GPU is lost]"]
)
def test_every_way_in_which_a_gpu_is_said_to_be_broken(trouble):
    assert gpu_problem(f"{GPU}\n{GPU}\n", 2) == ""
    assert trouble in gpu_problem(f"{GPU}\n{GPU}\nTesla, {trouble}, 535\n", 2)
    assert "lists 0 GPUs where 1" in gpu_problem("No devices were found\n", 1)


@pytest.mark.parametrize(("listed", "wrong"), [(1, True), (2, False), (3, False)])
def test_as_many_gpus_as_expected_are_enough(listed: int, wrong: bool) -> None:
    problem = gpu_problem(f"0, {GPU}\n" * listed, 2)
    assert problem.startswith(f"nvidia-smi lists {listed} GPUs where 2 are") is wrong
    assert bool(problem) is wrong
