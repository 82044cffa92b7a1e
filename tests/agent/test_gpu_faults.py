"""GPUs that break while a run uses them: by a library with NVML's functions, whose answers are in
files, with two GPUs in it, of which the second has no ECC.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import health, nvml
from seerd.agent.gpu_faults import MACHINE_XIDS, GpuFaults
from seerd.agent.health import CheckedMachine, GpusAfter, gpus_after
from seerd.agent.protocol import Noticed, Prepare, Prepared, Start
from tests.agent.test_agent_health import program
from tests.agent.test_agent_nvml import LIBRARY

FAULTS = r"""
static int events, registered;
typedef struct { void *device; unsigned long long kind, data; unsigned gi, ci; } event;
static int number(const char *name, int once) {
    char path[4096];
    int found = 0;
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%d", &found) != 1) found = 0;
    fclose(file);
    if (once) unlink(path);
    return found;
}
static int answer(void *handle, unsigned *value, const char *name) {
    if (number("lost", 0)) return number("lost", 0);
    if (handle == &second) return 3;
    *value = number(name, 0);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *count) {
    unsigned errors = 0;
    int status = answer(handle, &errors, "ecc");
    *count = errors;
    return kind == 1 && counter == 0 ? status : 2;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) {
    return answer(handle, pending, "pages");
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *not, unsigned *pending,
                              unsigned *failed) {
    *corrected = *not = 7;
    *failed = 0;
    return answer(handle, pending, "rows");
}
int nvmlEventSetCreate(void **set) {
    *set = &events;
    return 0;
}
int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *set) {
    if (kinds != 8 || set != &events) return 2;
    registered |= handle == &second ? 2 : 1;
    return 0;
}
int nvmlEventSetWait_v2(void *set, event *told, unsigned ms) {
    int second_xid = number("xid of 1", 1), xid = second_xid ? second_xid : number("xid of 0", 1);
    if (set != &events || ms || registered != 3 || !xid) return 10;
    told->device = second_xid ? &second : &first;
    told->kind = 8;
    told->data = xid;
    return 0;
}
"""
ONE_CARD = "echo '0, GPU-a, 3, V100, 16160, 550'"


def built(folder: Path) -> Path:
    (folder / "nvml.c").write_text(LIBRARY + FAULTS)
    made = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-DSTATUS=0"]
    subprocess.run(["cc", *flags, "-o", made, folder / "nvml.c"], check=True)
    return made


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the answers."""
    monkeypatch.setattr(nvml, "LIBRARY", str(built(tmp_path)))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "before", "after", "what"),
    [
        ("ecc", "2", "3", "an error of its memory that ECC could not correct"),
        ("pages", "0", "1", "a page of its memory is to be retired"),
        ("rows", "0", "1", "a row of its memory is to be replaced"),
        ("lost", "0", "15", "it is lost, or must be reset"),
        ("lost", "0", "16", "it is lost, or must be reset"),
    ],
)
def test_what_breaks_after_the_first_look_is_a_fault_and_stays_one(
    driver: Path, file: str, before: str, after: str, what: str
) -> None:
    (driver / file).write_text(before)
    faults = GpuFaults(["0", "GPU-unknown"])
    assert faults.look() == faults.look() == ["", ""]
    (driver / file).write_text(after)
    assert faults.look()[0] == f"GPU 0 has broken: {what}"
    (driver / file).write_text("0")
    assert faults.look()[0] == f"GPU 0 has broken: {what}"


def test_what_was_broken_before_the_first_look_is_none_of_ours(driver: Path) -> None:
    for file in ("ecc", "pages", "rows"):
        (driver / file).write_text("1")
    faults = GpuFaults(["0", "1"])
    assert faults.look() == faults.look() == ["", ""]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_the_xids_of_programs_are_no_faults(driver: Path, xid: int) -> None:
    faults = GpuFaults(["0", "1"])
    faults.look()
    (driver / "xid of 1").write_text(str(xid))
    assert faults.look() == ["", ""]
    assert not (driver / "xid of 1").exists(), "it was seen"
    (driver / "xid of 1").write_text("79")
    assert faults.look() == ["", f"GPU 1 has broken: {MACHINE_XIDS[79]} (XID 79)"]


def test_a_watch_reports_a_fault_once_and_ends_with_the_agent(driver: Path) -> None:
    seen: list[list[str]] = []

    def report(faults: list[str]) -> None:
        seen.append(faults)
        if len(seen) == 2:
            raise RuntimeError("the loop is closed")
        (driver / "xid of 1").write_text("79")

    faults = GpuFaults(["0", "1"])
    faults.look()
    (driver / "ecc").write_text("1")
    watch = faults.watch(report, look_s=0.001)
    faults.look()
    watch.join(30)
    assert not watch.is_alive()
    assert [[bool(fault) for fault in each] for each in seen] == [[True, False], [True, True]]


def test_without_nvml_there_are_no_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "none.so"))
    faults = GpuFaults(["0", "1"])
    assert faults.look() == ["", ""]
    watch = faults.watch(pytest.fail, look_s=0.001)
    watch.join(30)
    assert not watch.is_alive()


# ---------------------------------------------------------------- agents


def test_a_crash_on_a_gpu_that_broke_is_the_machines_and_any_other_the_trials(
    rig: Any, tmp_path: Path
) -> None:
    rig.options = ("--cuda",)
    rig.env = {"LD_LIBRARY_PATH": str(built(tmp_path).parent), "FAKE_NVML": str(tmp_path)}
    rig.fork = None  # the variable counts when a program begins
    tools = rig.source / "bin"
    program(tools / "nvidia-smi", f'test "${{2#*apps}}" = "$2" || exit 0\n{ONE_CARD}')
    rig.env["PATH"] = f"{tools}:{os.environ['PATH']}"
    rig.launch(gpus=2)
    client = rig.connect()
    while not (tmp_path / "asked").exists():
        time.sleep(0.01)
    job = rig.job("", launcher="command")
    break_it = replace(job, script="sh", args=["-c", f"echo $1 >'{tmp_path}/xid of 0'; exit 3"])
    client.say(Prepare("p", replace(break_it, args=[*break_it.args, "sh", "{xid}"], names=["xid"])))
    client.until(Prepared)
    ends = []
    for number, (gpu, xid) in enumerate([(0, 31), (1, 79), (0, 48)]):
        client.say(Start(f"s{number}", f"t{number}", 1, [gpu], {"xid": xid}, 17, []))
        ends.append(client.exit_of(f"t{number}"))
    assert [end.cause for end in ends] == ["crashed"] * 3
    fault = f"GPU 0 has broken: {MACHINE_XIDS[79]} (XID 79)"
    assert [end.fault for end in ends] == ["", "", fault]
    (noticed,) = [fact for fact in client.facts if isinstance(fact, Noticed)]
    assert (noticed.what, noticed.why) == ("unhealthy", fault)
    assert ends[0].seq < noticed.seq < ends[1].seq, "before its GPU can be given to another trial"


@pytest.mark.parametrize(
    ("smi", "fault"),
    [
        (ONE_CARD, "nvidia-smi lists 1 GPUs where 2 were"),
        ("echo '0, GPU-a, [GPU is lost], V100'; echo '1, GPU-b, 3, V100'", "nvidia-smi ended"),
        ("echo Unable to determine the device handle for GPU1; exit 255", "nvidia-smi ended"),
    ],
)
def test_a_gpu_that_nvidia_smi_has_lost_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smi: str, fault: str
) -> None:
    program(tmp_path / "bin" / "nvidia-smi", smi)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(health, "FREE_S", 0.0)
    machine = CheckedMachine(tmp_path, True, f"faults-{os.getpid()}//health")
    after = asyncio.run(gpus_after(["0"], machine, {}, 2))
    assert after.fault.startswith(fault)
    assert after.held == after.fault
    program(tmp_path / "bin" / "nvidia-smi", f"{ONE_CARD}; echo '1, GPU-b, 3, V100'")
    assert asyncio.run(gpus_after(["0"], machine, {}, 2)) == GpusAfter()
