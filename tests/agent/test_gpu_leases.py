"""The folder of leases: who has a GPU is who holds the lock on its file, whatever files say."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from seerd.agent.gpu_devices import cpu_slots, cuda_devices
from seerd.agent.gpu_leases import (
    LeaseFolder,
    LeaseFolderError,
    RunHere,
    Use,
    free,
    gpu_of,
    in_order,
    leases_text,
    parsed_run,
)

HOLDER = """
import os, sys
from seerd.agent.gpu_leases import LeaseFolder, RunHere, Use
folder = LeaseFolder(sys.argv[1])
lease = folder.lease("gpu-0")
own = folder.register("theirs")
own.write(RunHere("theirs", 2.0, 4, 1, 1, ["gpu-0"], 7.0, {"gpu-0": Use("t1/2", 8.0)}))
print("ready", lease is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(leases: Path) -> LeaseFolder:
    return LeaseFolder(str(leases))


def holder(leases: Path) -> subprocess.Popen[str]:
    """Another process with a run and the lease of gpu-0; whether it got that is its first line."""
    command = [sys.executable, "-c", HOLDER, str(leases)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_gpu_is_leased_once_and_free_when_its_lease_is_closed(folder: LeaseFolder) -> None:
    lease = folder.lease("gpu-0")
    assert lease is not None
    assert folder.lease("gpu-0") is None
    assert folder.leased() == ["gpu-0"]
    os.close(lease)
    assert folder.leased() == []
    assert folder.lease("gpu-0") is not None


def test_a_copy_of_a_lease_holds_it(folder: LeaseFolder) -> None:
    lease = folder.lease("gpu-0")
    assert lease is not None
    copy = os.dup(lease)
    os.close(lease)
    assert folder.lease("gpu-0") is None
    os.close(copy)
    assert folder.lease("gpu-0") is not None


def test_what_a_killed_process_had_is_free(folder: LeaseFolder, leases: Path) -> None:
    other = holder(leases)
    assert said(other) == "ready True"
    assert folder.lease("gpu-0") is None
    (run,) = folder.runs()
    assert (run.run, run.weight, run.wants, run.lives) == ("theirs", 2.0, 1, True)
    assert run.uses == {"gpu-0": Use("t1/2", 8.0)}
    held = folder.holders(folder.runs())["gpu-0"]
    assert held is not None
    assert held.run == "theirs"
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert folder.runs() == []
    (dead,) = folder.runs(dead=True)
    assert not dead.lives
    assert folder.holders([dead]) == {}
    assert folder.lease("gpu-0") is not None


def test_what_a_dead_process_has_left_is_tidied_up(folder: LeaseFolder, leases: Path) -> None:
    other = holder(leases)
    assert said(other) == "ready True"
    folder.tidy()
    assert len(folder.runs()) == 1
    other.kill()
    other.communicate()
    (leases / ".new-gpu-1.77").touch()
    folder.tidy()
    assert names(leases) == ["gpu-0"]


def test_a_run_that_leaves_leaves_nothing(folder: LeaseFolder, leases: Path) -> None:
    own = folder.register("a run/with ..odd names")
    assert len(names(leases)) == 1
    own.close()
    assert names(leases) == []


def test_what_a_run_says_later_replaces_what_it_said(folder: LeaseFolder) -> None:
    own = folder.register("mine")
    long = RunHere(
        "mine", 1.0, 8, 8, 2, [f"gpu-{n}" for n in range(8)], 1.0, {"gpu-1": Use("a/1", 1)}
    )
    short = RunHere("mine", 1.0, 8, 0, 1, ["gpu-0"], 1.0, {})
    own.write(long)
    own.write(short)
    (run,) = folder.runs()
    assert (run.pool, run.uses, run.wants) == (["gpu-0"], {}, 0)


def test_everybody_can_use_files_whatever_the_umask(leases: Path) -> None:
    umask = os.umask(0o077)
    try:
        folder = LeaseFolder(str(leases))
        folder.lease("gpu-0")
        folder.register("mine")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(leases.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(one.stat().st_mode) for one in leases.iterdir()} == {0o644}


def test_a_removed_file_is_made_anew_for_the_next(folder: LeaseFolder, leases: Path) -> None:
    assert folder.lease("gpu-0") is not None
    (leases / "gpu-0").unlink()
    second = folder.lease("gpu-0")
    assert second is not None
    assert os.path.samestat(os.fstat(second), (leases / "gpu-0").stat())


def test_links_and_pipes_are_no_leases(folder: LeaseFolder, leases: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (leases / "gpu-0").symlink_to(precious)
    os.mkfifo(leases / "gpu-1")
    (leases / "gpu-2").mkdir()
    assert [folder.lease(f"gpu-{number}") for number in range(3)] == [None] * 3
    assert folder.leased() == []
    assert precious.read_text() == "mine"


def test_a_folder_that_is_a_link_is_not_used(leases: Path, tmp_path: Path) -> None:
    leases.symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(LeaseFolderError, match="cannot be used"):
        LeaseFolder(str(leases))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_cannot_use_is_told_with_a_way_out(leases: Path) -> None:
    leases.mkdir(mode=0o700)
    with pytest.raises(LeaseFolderError, match=f"mode 0700.*chmod 1777 {leases}"):
        LeaseFolder(str(leases))


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 0},
        {"weight": "much"},
        {"weight": 1e300},
        {"wants": -1},
        {"wants": 10**30},
        {"most": None},
        {"least": 0},
        {"pool": ["../../etc/passwd"]},
        {"pool": 7},
        {"uses": {"gpu-0": []}},
        {"uses": {"gpu-0": ["t/1", "now"]}},
        {"uses": {"gpu-0": ["t/1", float("inf")]}},
        {"since": float("nan")},
        {"run": 5},
        {"parts": 3},
    ],
)
def test_what_makes_no_sense_is_not_heard(change: dict[str, object]) -> None:
    sound = {
        "run": "r",
        "weight": 1,
        "most": 2,
        "wants": 1,
        "least": 1,
        "pool": ["gpu-0"],
        "since": 1.0,
        "uses": {"gpu-0": ["t/1", 2.0]},
    }
    assert parsed_run(json.dumps(sound).encode(), "me", True) is not None
    assert parsed_run(json.dumps({**sound, **change}).encode(), "me", True) is None


def test_what_a_run_is_called_does_no_harm_on_a_terminal() -> None:
    body = {
        "run": "\x1b[2J",
        "weight": 1,
        "most": 2,
        "wants": 1,
        "least": 1,
        "pool": [],
        "since": 1.0,
    }
    run = parsed_run(json.dumps({**body, "uses": {}}).encode(), "me", True)
    assert run is not None
    assert run.run == "?[2J"


def test_half_a_file_is_no_run() -> None:
    assert parsed_run(b'{"run": "r", "wei', "me", True) is None
    assert parsed_run(b"", "me", True) is None


LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb-2)
  MIG 3g.71gb     Device  0: (UUID: MIG-dddd-4)
  MIG 1g.18gb     Device  1: (UUID: MIG-eeee-5)
GPU 2: NVIDIA H200 (UUID: GPU-cccc-3)
"""
"""What `nvidia-smi -L` prints: only what this container or job may use, numbered from 0."""


@pytest.mark.parametrize(
    ("visible", "leases"),
    [
        ("GPU-cccc-3, GPU-bb", {"GPU-cccc-3": "gpu-cccc-3", "GPU-bb": "gpu-bbbb-2"}),
        ("2,0", {"2": "gpu-cccc-3", "0": "gpu-aaaa-1"}),
        ("MIG-dddd-4", {"MIG-dddd-4": "gpu-MIG-dddd-4"}),
        ("MIG-GPU-bbbb-2/1/0", {"MIG-GPU-bbbb-2/1/0": "gpu-MIG-GPU-bbbb-2_1_0"}),
        ("7,GPU-f", {"7": "gpu-7", "GPU-f": "gpu-f"}),
    ],
)
def test_a_device_has_one_lease_whatever_it_is_called(visible: str, leases: dict[str, str]) -> None:
    assert {one.name: one.lease for one in cuda_devices(1, visible, LISTING)} == leases


def test_two_jobs_that_both_call_theirs_0_do_not_meet() -> None:
    theirs = [cuda_devices(1, "0", line) for line in LISTING.splitlines()[::4]]
    assert [[one.lease for one in some] for some in theirs] == [["gpu-aaaa-1"], ["gpu-cccc-3"]]


def test_mig_devices_are_gpus() -> None:
    devices = cuda_devices(2, "", LISTING)
    assert [one.name for one in devices] == ["0", "MIG-dddd-4", "MIG-eeee-5", "2"]
    assert [one.is_mig for one in devices] == [False, True, True, False]


def test_without_a_listing_devices_have_their_numbers() -> None:
    assert [one.lease for one in cuda_devices(2, "", "")] == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ((1, 2), (0, 2), True),
        ((1, 2), (1, 2), False),
        ((1, 2), (1, 4), True),
        ((1, 2), (2, 4), False),
        ((5, 16), (1, 4), False),
        ((5, 16), (3, 8), True),
        ((0, 1), (3, 4), False),
        ((15, 16), (0, 1), False),
    ],
)
def test_parts_of_a_gpu_are_had_together_unless_they_overlap(
    leases: Path, first: tuple[int, int], second: tuple[int, int], both: bool
) -> None:
    folder, other = LeaseFolder(str(leases)), LeaseFolder(str(leases))
    for here, there in ((first, second), (second, first)):
        mine = folder.lease_part("gpu-a", *here)
        assert mine is not None
        theirs = other.lease_part("gpu-a", *there)
        assert (theirs is not None) == both
        free([*mine, *(theirs or ())])
    assert folder.leased() == []


def test_a_part_is_listed_and_those_that_it_is_in_are_not(folder: LeaseFolder) -> None:
    leases = folder.lease_part("gpu-a", 2, 4)
    assert folder.leased() == ["gpu-a.2of4"]
    assert gpu_of("gpu-a.2of4") == gpu_of("gpu-a") == "gpu-a"
    assert leases_text(["gpu-a.0of4", "gpu-b", "gpu-a.2of4", "gpu-c.1of2"]) == (
        "2/4 of gpu-a, gpu-b, 1/2 of gpu-c"
    )
    assert leases is not None
    free(leases)


def test_leases_are_listed_by_number() -> None:
    slots = [device.lease for device in cpu_slots(12)]
    assert in_order(sorted(slots)) == slots


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_no_lease(
    folder: LeaseFolder, leases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run would lock the file that has its name now."""
    made = folder.lease("gpu-0")
    assert made is not None
    free([made])
    lock = fcntl.flock

    def removes(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (leases / "gpu-0").unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removes)
    lease = folder.lease("gpu-0")
    assert lease is not None
    assert os.path.samestat(os.fstat(lease), (leases / "gpu-0").stat())
    assert folder.lease("gpu-0") is None
