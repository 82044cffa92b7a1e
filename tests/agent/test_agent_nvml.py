"""How busy GPUs are, and their memory, as NVML says: by a library of the same functions, with two
GPUs in it, of which the second tells nothing.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import nvml
from seerd.agent.protocol import Computed, Exited, Prepare, Prepared, Start

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned long long total, free, used; } memory;
static int first, second;
int nvmlInit_v2(void) { return STATUS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = index ? &second : &first;
    return index > 1 ? 2 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = &first;
    return strcmp(uuid, "GPU-0d5d1f2e") ? 6 : 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates *told) {
    static unsigned asked;
    if (handle == &second) return 3;
    told->gpu = asked++ ? 50 : 100;
    told->memory = 7;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory *told) {
    if (handle == &second) return 3;
    const char *folder = getenv("FAKE_NVML");
    told->total = 8000;
    told->used = 5;
    if (folder) {
        char used[4096], asked[4096];
        snprintf(used, sizeof used, "%s/used", folder);
        snprintf(asked, sizeof asked, "%s/asked", folder);
        if (!access(used, F_OK)) told->used = 1005;
        fclose(fopen(asked, "w"));
    }
    told->free = told->total - told->used;
    return 0;
}
"""


def built(folder: Path, status: int = 0) -> Path:
    """The library; `status`: what it says to those who begin with it."""
    (folder / "nvml.c").write_text(LIBRARY)
    made = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", f"-DSTATUS={status}"]
    subprocess.run(["cc", *flags, "-o", made, folder / "nvml.c"], check=True)
    return made


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = built(tmp_path)
    monkeypatch.setattr(nvml, "LIBRARY", str(made))
    return made


def test_a_gpu_is_known_by_its_number_or_its_uuid(library: Path) -> None:
    assert nvml.Nvml(["0", "1", "7"]).look() == [1.0, None, None]
    assert nvml.Nvml(["GPU-0d5d1f2e", "GPU-another"]).look() == [0.5, None]


def test_the_first_look_is_told_and_then_the_mean_when_it_is_another(library: Path) -> None:
    told: list[nvml.Shares] = []

    def tell(shares: nvml.Shares) -> None:
        told.append(shares)
        if len(told) == 2:
            raise RuntimeError("nobody listens any more")

    memory: list[Any] = []
    nvml.watch(["0", "1"], tell, memory.append, look_s=0.001, means=10).join(30)
    assert told == [[1.0, None], [0.5, None]]
    assert memory == [[(5, 8000), None]] * (1 + 1 + 10), "at once, then with each look"


@pytest.mark.parametrize("broken", ["missing", "no functions", "refuses"])
def test_without_a_driver_nothing_is_told(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "no.so"
    if broken == "refuses":
        path = built(tmp_path, status=9)
    elif broken == "no functions":
        (tmp_path / "empty.c").touch()
        subprocess.run(["cc", "-shared", "-o", path, tmp_path / "empty.c"], check=True)
    monkeypatch.setattr(nvml, "LIBRARY", str(path))
    with pytest.raises((OSError, AttributeError)):
        nvml.Nvml(["0"])
    ended = nvml.watch(["0"], pytest.fail, pytest.fail, look_s=0.001)
    ended.join(30)
    assert not ended.is_alive()


def test_an_agent_tells_it(rig: Any, tmp_path: Path) -> None:
    rig.options = ("--cuda",)
    rig.env = {"LD_LIBRARY_PATH": str(built(tmp_path).parent)}
    rig.fork = None  # the variable counts when a program begins
    rig.launch(gpus=3)
    assert rig.connect().until(Computed).shares == [1.0, None, None]


TAKES = """
touch $FAKE_NVML/used
for look in 1 2; do
    rm -f $FAKE_NVML/asked
    until test -e $FAKE_NVML/asked; do sleep 0.02; done
done
"""
"""Uses memory until it was looked at for the second time."""


def test_the_memory_that_an_attempt_took_is_reported_with_its_end(rig: Any, tmp_path: Path) -> None:
    rig.options = ("--cuda",)
    rig.env = {"LD_LIBRARY_PATH": str(built(tmp_path).parent), "FAKE_NVML": str(tmp_path)}
    rig.fork = None
    rig.launch(gpus=1)
    client = rig.connect()
    while not (tmp_path / "asked").exists():
        time.sleep(0.01)
    job = replace(rig.job(""), launcher="command", script="sh", args=["-c", TAKES])
    client.say(Prepare("p", job))
    client.until(Prepared)
    client.say(Start("s", "t1", 1, [0], {}, 17, []))
    end = client.until(Exited)
    assert (end.cause, end.memory) == ("finished", [1000, 8000])
