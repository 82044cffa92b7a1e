"""GPUs are free when nothing of the last attempt is on them any more: by a real agent, with the
rig's `nvidia-smi`.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.health import held
from seerd.agent.protocol import Exited, Noticed
from tests.agent.test_agent_health import program

SMI = Path(__file__).parents[2] / "bench" / "testbed" / "rig" / "image" / "nvidia-smi"
MACHINE = """GPUS=4
GPU_NAME='Tesla V100-SXM2-16GB'
GPU_MIB=16160
GPU_HEALTH=ok
GPU_SEED=0d5d1f2e-3b4c-4d5e-8f60-71a2b3
"""


class Driver:
    """What `nvidia-smi` says, and how often it was asked."""

    def __init__(self, rig: Any) -> None:
        self._folder = rig.source / "driver"
        self._folder.mkdir()
        (self._folder / "machine").write_text(MACHINE)
        tools = rig.source / "bin"
        program(tools / "nvidia-smi", f'echo "$1" >>{self._folder}/asked\nexec bash {SMI} "$@"')
        rig.env = {"PATH": f"{tools}:{os.environ['PATH']}", "RIG_RUN": str(self._folder)}
        rig.options = ("--cuda",)

    def hold(self, gpu: int, pid: int | str) -> None:
        """Memory of this GPU is in use by this process."""
        (self._folder / "new").write_text(f"HELD_GPU={gpu}\nHELD_MIB=15000\nHELD_PID={pid}\n")
        (self._folder / "new").rename(self._folder / "gpus")

    def release(self) -> None:
        """It is free."""
        (self._folder / "gpus").unlink()

    def asked(self) -> int:
        """How often it was asked for processes."""
        log = self._folder / "asked"
        return log.read_text().count("compute-apps") if log.exists() else 0


@pytest.fixture
def driver(rig: Any) -> Driver:
    return Driver(rig)


def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        return process.pid


def test_gpus_are_free_when_their_memory_is_and_other_gpus_do_not_matter(rig, driver):
    client = rig.ready(rig.job("pass"))
    driver.hold(1, gone())
    client.start("t1", gpus=(0,))
    assert client.exit_of("t1").cause == "finished"
    client.start("t2", gpus=(1, 2))
    asked = driver.asked()
    while driver.asked() < asked + 3:
        time.sleep(0.01)
    assert not [fact for fact in client.facts if isinstance(fact, Exited) and fact.trial == "t2"]
    released_at = time.time()
    driver.release()
    end = client.exit_of("t2")
    assert (end.cause, end.at >= released_at) == ("finished", True)
    assert not [fact for fact in client.facts if isinstance(fact, Noticed)]


def test_an_instance_whose_gpu_stays_held_is_unfit_and_says_so_before_its_gpus_are_free(
    rig, driver
):
    client = rig.ready(rig.job("pass"))
    pid = gone()
    driver.hold(2, pid)
    client.start("t1", gpus=(2,))
    end = client.exit_of("t1")
    said = [fact for fact in client.facts if isinstance(fact, Noticed)]
    assert [fact.what for fact in said] == ["unhealthy"]
    assert said[0].seq < end.seq
    held_by = f"process {pid}, which has ended, still holds 15000 MiB of GPU 2"
    assert said[0].why == f"after t1/1 had ended its GPUs could not be used again: {held_by}"
    assert end.cause == "finished"


def test_without_cuda_nothing_is_asked(rig, driver):
    rig.options = ("--slots",)
    client = rig.ready(rig.job("pass"))
    client.start()
    assert client.exit_of().cause == "finished"
    assert driver.asked() == 0


CARDS = [["0", "GPU-a", "900", "V100"], ["1", "GPU-b", "[N/A]", "V100"], ["No devices were found"]]


@pytest.mark.parametrize(
    ("apps", "names", "before", "why"),
    [
        ([], ["0"], {}, ""),
        ([], ["0", "1"], {"GPU-a": 388, "GPU-b": 3}, ""),
        ([], ["1"], {"GPU-a": 3, "GPU-b": 3}, ""),
        ([], ["0"], {"GPU-a": 3}, "900 MiB of GPU 0 are in use by no process; 3 MiB were before"),
        ([["7", "GPU-a", "800"]], ["0"], {"GPU-a": 3}, ""),
        ([["8", "GPU-c", "800"]], ["0"], {}, ""),
        ([["8", "GPU-a", "800"]], ["1", "GPU-b"], {}, ""),
        ([["[N/A]", "GPU-a", "800"], [""], ["No running processes found"]], ["0"], {}, ""),
        (
            [["7", "GPU-a", "800"], ["8", "GPU-a", "[N/A]"]],
            ["0"],
            {},
            "process 8, which has ended, still holds [N/A] MiB of GPU 0",
        ),
        (
            [["8", "GPU-b", "90"]],
            ["0", "GPU-b"],
            {},
            "process 8, which has ended, still holds 90 MiB of GPU 1",
        ),
    ],
)
def test_what_the_dead_hold_is_held_and_what_the_living_hold_is_theirs(apps, names, before, why):
    assert held(CARDS, apps, names, before, lambda pid: pid == 7) == why
