"""How a trial saves: copied at once, written behind training, read where it lies."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seerd.training import checkpoints, host_memory
from seerd.training.copies import HostCopy
from tests.trials import ROOT, Bench, Processes


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that has failed leaves no process behind."""
    yield
    Processes.end_all()


BEGINS = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
import seerd, torch
folder = Path(os.environ["SEERD_DIR"])
checkpoints = Path(json.loads((folder / "trial.json").read_text())["checkpoints"])
class Counter:
    def __init__(self):
        self.at = torch.zeros(int(os.environ.get("TEST_SIZE", "3")))
    def state_dict(self):
        return {"at": self.at, "list": [self.at[:1], {"units": int(self.at[0])}]}
    def load_state_dict(self, state):
        self.at.copy_(state["at"])
def saved():
    return (folder / "out.jsonl").read_text().count('"kind": "checkpoint"')
def units(*accuracies):
    # The first state that is saved is being written before the next one is made.
    for accuracy in accuracies:
        assert trial.running()
        if trial.epoch:
            wait(lambda: any(checkpoints.glob(".*.pt")))
        counter.at += 1
        trial.report(accuracy=accuracy)
def wait(until):
    while not until():
        time.sleep(0.001)
disk = threading.Event()
flush = os.fsync
def slow(file):
    disk.wait()
    flush(file)
threads = threading.active_count()
trial, counter = seerd.trial(), Counter()
trial.track(counter=counter)
"""
"""Each unit adds one to a counter, so that a state shows of which report it is. Where `os.fsync` is
`slow`, the disk takes until `disk.set()`. `threads`: those that packages start in a fork, too.
"""


def run(bench: Bench, script: str, *, fails: bool = False, **more: Any) -> tuple[list[Any], str]:
    """One attempt of this script; its lines for the agent, and what it has printed."""
    path = bench.folder / "train.py"
    path.write_text(BEGINS + script)
    process, out = bench.start(1, steps=0, unit=0, script=path, **more)
    text = process.printed()
    assert process.failed == fails, text
    return bench.lines(out), text


def names(lines: list[dict[str, Any]]) -> list[int]:
    """Reports that had been made at each checkpoint, in their order."""
    return [int(line["name"].partition("-")[0]) for line in lines if line["kind"] == "checkpoint"]


def states(folder: Path) -> dict[int, tuple[float | None, float]]:
    """Reports -> metric and counter of the checkpoints that are there, each whole."""
    import torch

    found = {}
    for path in checkpoints.every(folder):
        manifest = json.loads(path.read_text())
        assert checkpoints.is_whole(path.with_suffix(".pt"), manifest)
        state = checkpoints.load(torch, path.with_suffix(".pt"))["state"]["counter"]
        at = {*state["at"].unique().tolist(), *state["list"][0].tolist(), state["list"][1]["units"]}
        assert len(at) == 1, "a state is of one moment"
        found[manifest["epoch"]] = (manifest["metrics"]["accuracy"], at.pop())
    return found


WRITES_BEHIND = """
os.fsync = slow
units(0.1, 0.5, 0.2, 0.9, 0.3)
assert saved() == 0
disk.set()
wait(lambda: threading.active_count() == threads)
assert saved() == 2
"""


def test_training_goes_on_while_a_state_is_written_and_the_best_since_waits(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    lines, _ = run(bench, WRITES_BEHIND)
    assert names(lines) == [1, 4, 5], "a better one takes the place of the better one before"
    assert states(bench.checkpoints) == {4: (0.9, 4), 5: (0.3, 5)}


LEAVES = """
os.fsync = slow
units(0.1, 0.9, 0.3)
threading.Timer(0.1, disk.set).start()
(folder / "stop").touch()
assert not trial.running()
assert saved() == 3
"""


def test_a_trial_that_leaves_has_written_the_best_and_its_last_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lines, _ = run(bench, LEAVES, every_s=1e6)
    assert names(lines) == [1, 2, 3]
    assert states(bench.checkpoints) == {2: (0.9, 2), 3: (0.3, 3)}


CRASHES = """
os.fsync = slow
units(0.1, 0.9, 0.3)
threading.Timer(0.1, disk.set).start()
raise ValueError
"""


def test_a_script_that_crashes_has_written_the_best_state_that_was_copied(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "train.py").write_text(BEGINS + CRASHES)
    command, env = [sys.executable, str(tmp_path / "train.py")], bench.prepared(every_s=1e6)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "bare_torch"), str(ROOT)])
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "ValueError" in ended.stderr
    assert ended.returncode == 1
    assert states(bench.checkpoints) == {1: (0.1, 1), 2: (0.9, 2)}


SAVES_AGAIN = """
for accuracy in (0.1, 0.9):
    assert trial.running()
    counter.at += 1
    trial.report(accuracy=accuracy)
for unit in range(4):
    assert trial.running()
    counter.at += 1
    wait(lambda: saved() > unit and threading.active_count() == threads)
    (folder / "save").touch()
"""


def test_a_state_that_was_trained_on_after_a_report_does_not_have_its_metric(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    run(bench, SAVES_AGAIN, every_s=1e6)
    kept = [json.loads(path.read_text()) for path in sorted(bench.checkpoints.glob("*.json"))]
    accuracies = [manifest["metrics"]["accuracy"] for manifest in kept]
    assert accuracies == [0.9, None, None], "the newest two are no better than the best"


KILLED = """
kills = int(os.environ["TEST_KILL"])
calls = 0
def counted(call):
    def made(*args):
        global calls
        calls += 1
        if calls == kills:
            os.kill(os.getpid(), signal.SIGKILL)
        call(*args)
    return made
began = trial.epoch
assert (began, int(counter.at[0])) in ((0, 0), (1, 1), (2, 2))
for accuracy in (0.1, 0.2):
    assert trial.running()
    counter.at += 1
    trial.report(accuracy=accuracy + began)
    if trial.epoch == 2:
        os.fsync, os.replace = counted(slow), counted(os.replace)
        if kills:
            disk.set()
    assert trial.running()
    wait(lambda: saved() == trial.epoch - began or not kills and trial.epoch == 2)
if not began:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kills", range(6))
def test_killed_at_any_moment_a_trial_has_its_checkpoint_before_or_the_whole_new_one(
    tmp_path: Path, kills: int
) -> None:
    """Before each call that flushes or names a file: once it is copied, within the file, before and
    between the names of bytes and manifest; and afterwards.
    """
    bench = Bench(tmp_path)
    run(bench, KILLED, fails=True, TEST_KILL=str(kills), every_s=1e6)
    kept = states(bench.checkpoints)
    assert kept == ({1: (0.1, 1), 2: (0.2, 2)} if kills == 5 else {1: (0.1, 1)})
    lines, _ = run(bench, KILLED, TEST_KILL="99", every_s=1e6)
    assert lines[0]["epoch"] == max(kept)
    files = {path.stem for path in bench.checkpoints.iterdir()}
    assert files == {path.stem for path in bench.checkpoints.glob("[0-9]*.json")}


FORKS = """
os.fsync = slow
units(0.1, 0.2)
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert saved() == 0
disk.set()
"""


def test_a_fork_of_the_script_neither_writes_nor_waits_for_what_is_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lines, _ = run(bench, FORKS)
    assert names(lines) == [1, 2]


FAILS = """
import shutil
assert trial.running()
trial.report(accuracy=0.1)
assert trial.running()
wait(lambda: saved() == 1)
shutil.rmtree(checkpoints)
checkpoints.touch()
while trial.running():
    trial.report(accuracy=trial.epoch)
"""


def test_a_write_that_fails_is_raised_in_running(tmp_path: Path) -> None:
    lines, text = run(Bench(tmp_path), FAILS, fails=True)
    assert names(lines) == [1]
    assert "trial.running()" in text
    assert "FileExistsError" in text


WILD = """
class Wild(Counter):
    def state_dict(self):
        return {"model": torch.zeros(3), "kind": random.Random}
trial.track(wild=Wild())
assert trial.running()
trial.report(accuracy=0.1)
trial.running()
"""


def test_a_state_that_could_not_be_loaded_safely_is_refused_at_the_first_save(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    _, text = run(bench, WILD, fails=True)
    assert "the state_dict of 'wild' holds more than tensors" in text
    assert "random.Random" in text
    assert not list(bench.checkpoints.iterdir())


SHORT = """
import resource
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * os.sysconf("SC_PAGE_SIZE") + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for accuracy in (0.1, 0.2, 0.3):
    assert trial.running()
    counter.at += 1
    trial.report(accuracy=accuracy)
    assert trial.running()
    assert saved() > 0
"""


def test_where_memory_is_short_a_state_is_written_at_once_and_that_is_told_once(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    lines, _ = run(bench, SHORT, TEST_SIZE=str(16 << 20), every_s=0.0)
    assert states(bench.checkpoints)[3] == (0.3, 3)
    why = [line["why"] for line in lines if line["kind"] == "warning"]
    assert len(why) == 1
    assert "host memory is too short for a copy" in why[0]


def test_a_copy_is_of_the_same_structure_and_shares_no_memory_with_what_was_copied() -> None:
    import torch

    weight = torch.rand(4, 6)
    state = OrderedDict(
        weight=weight, tied=weight.t(), part=weight[1:, ::2], empty=torch.zeros(0, 3),
        half=torch.rand(5).half(), flags=torch.tensor([True, False]), sparse=weight.to_sparse(),
        parameter=torch.nn.Parameter(torch.rand(2)), conjugate=torch.rand(2, dtype=torch.cfloat).conj(),
        groups=[{"lr": 0.1, "params": (0, 1)}, weight],
    )  # fmt: skip
    state._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
    memory = HostCopy(torch)
    for _ in range(2):
        copied = memory.take({"model": state})["model"]
        assert (type(copied), copied._metadata) == (OrderedDict, {"": {"version": 2}})
        assert copied.keys() == state.keys()
        before = {name: each.clone() for name, each in state.items() if name != "groups"}
        for name, tensor in before.items():
            assert type(copied[name]) is type(state[name])
            assert copied[name].dtype == tensor.dtype
            assert copied[name].requires_grad == state[name].requires_grad
        assert copied["groups"][0] == {"lr": 0.1, "params": (0, 1)}
        assert copied["groups"][1] is copied["weight"]
        with torch.no_grad():
            for name in before:
                state[name].zero_()
            for name, tensor in before.items():
                assert torch.equal(copied[name].to_dense(), tensor.to_dense()), name
            weight.copy_(torch.rand(4, 6))
    data = io.BytesIO()
    torch.save(copied, data)
    loaded = torch.load(io.BytesIO(data.getvalue()), weights_only=True)
    shared = {loaded[name].untyped_storage().data_ptr() for name in ("weight", "tied", "part")}
    assert len(shared) == 1, "what shares its memory is saved once"


def test_what_may_be_taken_is_the_least_of_the_machine_and_of_all_control_groups(
    tmp_path: Path,
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert host_memory.available(proc, groups) == math.inf
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 90 kB\nMemAvailable:   80 kB\n")
    (proc / "self" / "cgroup").write_text("4:memory:/a/b\n3:cpu:/a/b\n0::/job/step\n")
    assert host_memory.available(proc, groups) == 80 * 1024
    limited(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", 70_000)
    assert host_memory.available(proc, groups) == 70_000 - 5_000 + 2_000
    limited(groups / "job", "memory.max", "memory.current", "", 50_000)
    assert host_memory.available(proc, groups) == 50_000 - 5_000 + 2_000
    (groups / "job" / "memory.max").write_text("max\n")
    assert host_memory.available(proc, groups) == 70_000 - 5_000 + 2_000


def limited(group: Path, most: str, used: str, prefix: str, size: int) -> None:
    """Make a control group that has used 5,000 bytes, 2,000 of them for files."""
    group.mkdir(parents=True)
    (group / most).write_text(f"{size}\n")
    (group / used).write_text("5000\n")
    (group / "memory.stat").write_text(f"cache 3000\n{prefix}inactive_file 2000\n")


READS = """
at = counter.at
assert trial.epoch == 1 and set(at.unique().tolist()) == {1.0}, (trial.epoch, at)
assert not list(folder.glob("received*"))
"""


def test_a_checkpoint_is_sent_to_an_instance_that_lacks_it(tmp_path: Path) -> None:
    """Three pieces of it. The ranks have folders of their own, as on two instances."""
    bench = Bench(tmp_path)
    size = str(9 << 20)
    run(bench, "assert trial.running()\ncounter.at += 1\ntrial.report(accuracy=1)", TEST_SIZE=size)
    script = tmp_path / "train.py"
    script.write_text(BEGINS + READS)
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    about = json.loads((tmp_path / "1" / "trial.json").read_text())
    about["checkpoints"] = str(other / "checkpoints")
    (other / "trial.json").write_text(json.dumps(about))
    own = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    process, _ = bench.start(
        *(2,), steps=0, unit=0, script=script, TEST_SIZE=size,
        of_rank=[own, {**own, "SEERD_DIR": str(other)}],
    )  # fmt: skip
    text = process.printed()
    assert not process.failed, text
    assert not list((other / "checkpoints").iterdir())
