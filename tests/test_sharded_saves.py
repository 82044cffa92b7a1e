"""Checkpoints of models that are sharded over the ranks: each rank writes its parts of the file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seerd.training import checkpoints, shards
from tests.trials import Bench, Processes, import_torch


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what sharded models need before the forks: they need torch's compiler, too."""
    import_torch()
    for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
        del sys.modules[name]
    for module in ("_dynamo", "distributed.fsdp", "distributed.checkpoint.state_dict"):
        importlib.import_module(f"torch.{module}")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that has failed leaves no process behind."""
    yield
    Processes.end_all()


BEGINS = """
import json, os, signal, sys, time
from pathlib import Path
import seerd, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
trial = seerd.trial()
if trial.world == 1:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
folder = Path(os.environ["SEERD_DIR"])
checkpoints = Path(json.loads((folder / "trial.json").read_text())["checkpoints"])
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
fully_shard(model, mesh=init_device_mesh("cpu", (trial.world,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
trial.track(model=model, optimizer=optimizer)
def whole():
    return {name: each.full_tensor().tolist() for name, each in model.state_dict().items()}
def moments():
    each = optimizer.state.values()
    return [state["exp_avg"].full_tensor().tolist() for state in each]
def unit(accuracy):
    model(torch.ones(4, 7)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    trial.report(accuracy=accuracy)
def show():
    state = {"epoch": trial.epoch, "model": whole(), "moments": moments()}
    if trial.rank == 0:
        (folder / "shown.jsonl").open("a").write(json.dumps(state) + "\\n")
def saved():
    return (folder / "out.jsonl").read_text().count('"kind": "checkpoint"')
"""
"""`show` writes down the whole model, and the optimizer's moments in the order of its parameters."""
TRAINS = """
show()
for _ in range(2):
    assert trial.running()
    unit(trial.epoch)
show()
"""


def run(
    bench: Bench, ranks: int, script: str, *, fails: bool = False, **more: Any
) -> tuple[list[Any], str]:
    """One attempt on so many ranks; what it has shown and printed."""
    path = bench.folder / "train.py"
    path.write_text(BEGINS + script)
    process, out = bench.start(ranks, steps=0, unit=0, script=path, **more)
    text = process.printed()
    assert process.failed == fails, text
    return bench.lines(out.with_name("shown.jsonl")), text


def whole_model(folder: Path) -> dict[str, Any]:
    """The newest checkpoint's model, as people read it; it is whole."""
    path = checkpoints.every(folder)[-1]
    data = path.with_suffix(".pt")
    assert checkpoints.is_whole(data, json.loads(path.read_text()))
    state = torch.load(data, weights_only=True)["state"]
    assert all(type(tensor) is torch.Tensor for tensor in state["model"].values())
    return {name: tensor.tolist() for name, tensor in state["model"].items()}


def test_a_checkpoint_of_some_ranks_goes_on_on_any_number_and_is_whole_for_people(
    tmp_path: Path,
) -> None:
    bench, before = Bench(tmp_path), None
    for ranks in (2, 1, 2, 4):
        begun, ended = run(bench, ranks, TRAINS)[0]
        if before is not None:
            assert begun == before
        before = ended
        assert whole_model(bench.checkpoints) == ended["model"]
    assert before is not None
    assert before["epoch"] == 8


def test_under_torchrun_each_rank_writes_and_the_model_is_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "train.py").write_text(BEGINS + TRAINS)
    env = bench.prepared(2)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", str(tmp_path / "train.py")]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    shown = bench.lines(tmp_path / "1" / "shown.jsonl")
    assert whole_model(bench.checkpoints) == shown[-1]["model"]


ELSEWHERE = """
assert trial.running()
unit(0.1)
assert trial.running()
unit(0.9)
show()
assert not list(folder.glob("received*"))
"""


def test_a_rank_on_another_instance_sends_its_parts(tmp_path: Path) -> None:
    """The ranks have folders of their own, as on two instances."""
    bench = Bench(tmp_path)
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    about = json.loads((Path(bench.prepared(2)["SEERD_DIR"]) / "trial.json").read_text())
    about["checkpoints"] = str(other / "checkpoints")
    (other / "trial.json").write_text(json.dumps(about))
    own = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    of_rank = [own, {**own, "SEERD_DIR": str(other)}]
    shown, _ = run(bench, 2, ELSEWHERE, of_rank=of_rank)
    assert whole_model(bench.checkpoints) == shown[-1]["model"]
    assert not list((other / "checkpoints").iterdir())


KILLED = """
from seerd.training import checkpoints as files, shards
rank, moment = int(os.environ["TEST_RANK"]), os.environ["TEST_MOMENT"]
assert trial.running()
unit(0.1)
assert trial.running()
while saved() < 1:
    time.sleep(0.001)
unit(0.9)
def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if trial.rank == rank:
    where, name = {
        "written": (files.Flushed, "flush"),
        "laid out": (shards.PartWriter, "_pieces"),
        "read": (files.Flushed, "read_again"),
        "named": (files, "publish"),
    }[moment]
    setattr(where, name, killed)
assert trial.running()
while True:
    time.sleep(0.001)
"""
MOMENTS = [(1, "written"), (1, "laid out"), (0, "laid out"), (0, "read"), (0, "named")]


@pytest.mark.parametrize(("rank", "moment"), MOMENTS)
def test_a_rank_that_is_killed_before_publication_leaves_the_checkpoint_before(
    tmp_path: Path, rank: int, moment: str
) -> None:
    """Rank 1 before it has written its parts, and once they are in the file; rank 0 before, once
    all parts are there, and once the file has its name.
    """
    bench = Bench(tmp_path)
    run(bench, 2, KILLED, fails=True, TEST_RANK=str(rank), TEST_MOMENT=moment, every_s=1e6)
    assert [path.stem.partition("-")[0] for path in checkpoints.every(bench.checkpoints)] == [
        "000001"
    ]
    before = whole_model(bench.checkpoints)
    shown, _ = run(bench, 1, TRAINS)
    assert shown[0]["model"] == before
    assert shown[0]["epoch"] == 1
    assert whole_model(bench.checkpoints) == shown[-1]["model"]
    assert not list(bench.checkpoints.glob(".*"))


BEST_WAITS = """
import threading
disk, flush = threading.Event(), os.fsync
def slow(file):
    disk.wait()
    flush(file)
os.fsync = slow
for accuracy in (0.1, 0.5, 0.2, 0.9, 0.3):
    assert trial.running()
    if trial.rank == 0 and trial.epoch:
        while not any(checkpoints.glob(".*.pt")):
            time.sleep(0.001)
    unit(accuracy)
    show()
assert saved() == 0
disk.set()
"""


def test_the_best_since_waits_on_all_ranks_and_a_better_one_takes_its_place(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    shown, _ = run(bench, 2, BEST_WAITS)
    models = {state["epoch"]: state["model"] for state in shown}
    kept = checkpoints.every(bench.checkpoints)
    assert [json.loads(path.read_text())["epoch"] for path in kept] == [4, 5]
    for path, epoch in zip(kept, (4, 5), strict=True):
        state = checkpoints.load(torch, path.with_suffix(".pt"))["state"]
        assert {name: each.tolist() for name, each in state["model"].items()} == models[epoch]


SHORT = """
from seerd.training import copies
def short(*_):
    raise MemoryError
if trial.rank == 1:
    copies.HostCopy.take = short
assert trial.running()
unit(0.1)
assert trial.running()
if trial.rank == 0:
    assert saved() == 1
show()
unit(0.2)
assert trial.running()
unit(0.05)
(folder / "stop").touch()
assert not trial.running()
show()
"""


def test_where_one_rank_is_short_of_memory_all_wait_and_a_trial_that_leaves_has_its_last_state(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    shown, _ = run(bench, 2, SHORT, every_s=1e6)
    assert whole_model(bench.checkpoints) == shown[-1]["model"]
    lines = bench.lines(tmp_path / "1" / "out.jsonl")
    why = [line["why"] for line in lines if line["kind"] == "warning"]
    assert len(why) == 1
    assert "host memory is too short for a copy" in why[0]


FAILS = """
from seerd.training import shards
def full(*_):
    raise OSError("no space left on device")
if trial.rank == 1:
    shards.PartWriter._write = full
assert trial.running()
unit(0.1)
while trial.running():
    if saved():
        (folder / "stop").touch()
"""


def test_a_part_that_cannot_be_written_fails_the_trial_and_publishes_nothing(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    _, text = run(bench, 2, FAILS, fails=True)
    assert "rank 1 could not write its part of a checkpoint" in text
    assert "no space left on device" in text
    assert not checkpoints.every(bench.checkpoints)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_part_lies_in_the_file_where_it_is_in_the_whole_tensor(dim: int) -> None:
    whole = torch.arange(4 * 6 * 2, dtype=torch.int16).reshape(4, 6, 2)
    data = bytearray(3 + whole.nbytes)
    for index, part in enumerate(whole.split(1 if dim == 2 else 2, dim)):
        at = [0, 0, 0]
        at[dim] = index * part.shape[dim]
        shard = shards.Shard(("w",), part, tuple(whole.shape), tuple(at))
        for place, piece in shard.pieces(torch, 3):
            data[place : place + len(piece)] = piece
    assert torch.equal(torch.frombuffer(data[3:], dtype=torch.int16).reshape(4, 6, 2), whole)


def test_a_large_file_is_laid_out_in_no_memory_and_what_is_not_plain_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large.pt"
    large = torch.empty(5 << 28, 4, dtype=torch.uint8, device="meta")
    state = {"large": large, "small": torch.arange(3.0)}

    def laid_out(value: Any) -> dict[Any, int]:
        with open(path, "wb", buffering=0) as file, torch.serialization.skip_data():
            torch.save(shards.filled(torch, value), checkpoints.Flushed(file, path))
        return shards.layout(torch, path)

    offsets = laid_out(state)
    assert path.stat().st_blocks * 512 < 1 << 20
    assert offsets["small",] - offsets["large",] >= large.nbytes
    with pytest.raises(RuntimeError, match="only plain tensors"):
        laid_out({**state, "sparse": torch.eye(3).to_sparse()})
