"""transformers' and Lightning's own training loops under a real agent: stopped, resumed, moved from
one rank to two and back, and compared number by number with a run that nobody disturbed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bench.testbed.agents import Client, Rig
from seerd.agent import folders
from seerd.agent.protocol import Checkpointed, Complained, Reported
from tests.agent.agent_forks import ForkedAgent

PROGRAMS = Path(__file__).parents[1] / "programs"
PRELOADED = [
    *("torch", "torch._dynamo", "torch.onnx", "matplotlib.pyplot", "scipy.stats", "scipy.signal"),
    *("transformers.trainer", "transformers.models.bert.modeling_bert", "accelerate"),
]
"""The parts that take long: to import a package alone imports few of its modules. Lightning is not
among them, since torchmetrics, which it imports, asks for the rank.
"""
SCRIPT = """
import os, runpy
program = os.environ["SEERD_ATTEMPT"].split("/")[1].partition("-")[0]
runpy.run_path(f"with_{program}.py", run_name="__main__")
"""
"""Each trial runs the program whose name its own begins with."""
TRAINS = {"STEPS": "80", "EPOCHS": "10", "PAUSE_S": "0.03"}


@pytest.fixture(scope="module")
def agent(bundle: Path, fork: Callable[..., ForkedAgent] | None) -> Iterator[tuple[Rig, Client]]:
    """An agent whose starts are forks of one process that has imported the frameworks."""
    with ExitStack() as stack:
        top = Path(stack.enter_context(TemporaryDirectory(prefix="agent-")))
        rig = Rig(bundle, top / "i", top / "source", top / "store", fork=fork)
        rig.source.mkdir()
        for path in PROGRAMS.glob("with_*.py"):
            shutil.copy(path, rig.source)
        job = rig.job(
            SCRIPT, launcher="torchrun", args=[str(top / "log")], env=TRAINS,
            checkpoint_every_s=0.0, preload=PRELOADED,
        )  # fmt: skip
        stack.callback(rig.end)
        yield rig, rig.ready(job)


def newest(client: Client, trial: str) -> Checkpointed:
    every = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    return [fact for fact in every if fact.trial == trial][-1]


def logged(rig: Rig, trial: str) -> list[dict[str, Any]]:
    """What was written down of each step: the mean loss of all ranks and micro-batches, of the last
    attempt that has made it.
    """
    steps: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted(rig.folder.parent.glob(f"log-{trial}*")):
        for line in map(json.loads, path.read_text().splitlines()):
            attempts = steps.setdefault(line["step"], {})
            attempts.setdefault(line["attempt"], []).append(line)
    last = [attempts[max(attempts, key=int)] for _, attempts in sorted(steps.items())]
    return [
        {**lines[0], "loss": sum(line["loss"] for line in lines) / len(lines)} for lines in last
    ]


def move(client: Client, trial: str) -> None:
    """Train on one rank, on two, and on one; stopped when something has been reported and saved."""
    names: tuple[str, ...] = ()
    for attempt, gpus in ((1, (0,)), (2, (0, 1)), (3, (1,))):
        client.start(trial, attempt=attempt, gpus=gpus, checkpoints=names)
        if attempt < 3:
            saved = (trial, attempt)
            client.until(
                Checkpointed, lambda fact, saved=saved: (fact.trial, fact.attempt) == saved
            )
            client.stop(trial, attempt=attempt, grace_s=60.0)
        end = client.exit_of(trial, attempt=attempt)
        assert end.cause == ("asked" if attempt < 3 else "finished"), end.tail
        names = (newest(client, trial).name,)


def both(
    agent: tuple[Rig, Client], program: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was written down by a trial that was moved, and by one that was left alone beside it."""
    rig, client = agent
    moved, whole = f"{program}-moved", f"{program}-whole"
    client.start(whole, gpus=(2,))
    move(client, moved)
    end = client.exit_of(whole)
    assert end.cause == "finished", end.tail
    one, other = logged(rig, moved), logged(rig, whole)
    assert {line["world"] for line in one} == {1, 2}
    # A framework's checkpoint has its model, though nothing was given to trial.track. On a busy
    # machine an import may be quiet for long.
    complaints = {
        fact.what
        for fact in client.facts
        if isinstance(fact, Complained) and fact.trial in (moved, whole)
    }
    assert complaints <= {"quiet", "promised"}
    assert {line["world"] for line in other} == {1}
    for trial in (moved, whole):
        assert {*sums(client, trial)} == set(range(1, 11))
    return one, other


def unpacked(agent: tuple[Rig, Client], program: str, to: Path) -> list[Path]:
    """What was saved last by the trial that was moved, and by the other."""
    rig, client = agent
    for trial in (f"{program}-moved", f"{program}-whole"):
        folders.unpack(rig.store / trial / f"{newest(client, trial).name}.pt", to / trial)
    return [to / f"{program}-moved", to / f"{program}-whole"]


def test_transformers_goes_on_as_if_nothing_had_happened(
    agent: tuple[Rig, Client], tmp_path: Path
) -> None:
    one, other = both(agent, "transformers")
    assert [line["step"] for line in one] == [line["step"] for line in other]
    assert [line["step"] for line in one] == list(range(1, 81))
    for mine, theirs in zip(one, other, strict=True):
        assert mine["learning_rate"] == theirs["learning_rate"]
        assert mine["epoch"] == theirs["epoch"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-4)
    kept = unpacked(agent, "transformers", tmp_path)
    models = [load_file(folder / "model.safetensors") for folder in kept]
    assert models[0].keys() == models[1].keys()
    for name, weights in models[0].items():
        assert np.allclose(weights, models[1][name], atol=1e-3)
    for folder in kept:
        assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    state = json.loads((kept[0] / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"]) == (80, 10.0)
    assert not (kept[0] / "training_args.bin").exists()


LOADS = """
import json, sys
from with_lightning import Small
modules = [Small.load_from_checkpoint(path) for path in {paths!r}]
with open(sys.argv[1] + "-weights", "w") as out:
    json.dump([[v for p in one.parameters() for v in p.flatten().tolist()] for one in modules], out)
"""


def test_lightning_goes_on_as_if_nothing_had_happened(
    agent: tuple[Rig, Client], tmp_path: Path
) -> None:
    """All weights are the same too, as `load_from_checkpoint` has them: in a trial, since the
    program calls `seerd.trial()` when it is imported.
    """
    one, other = both(agent, "lightning")
    assert [line["step"] for line in one] == list(range(80))
    for mine, theirs in zip(one, other, strict=True):
        assert (mine["step"], mine["epoch"]) == (theirs["step"], theirs["epoch"])
        assert mine["rate"] == pytest.approx(theirs["rate"], rel=1e-9, abs=1e-12)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5)
    paths = [str(path / "lightning.ckpt") for path in unpacked(agent, "lightning", tmp_path)]
    rig, client = agent
    (rig.source / "with_loading.py").write_text(LOADS.format(paths=paths))
    client.start("loading")
    end = client.exit_of("loading")
    assert end.cause == "finished", end.tail
    models = json.loads((rig.folder.parent / "log-weights").read_text())
    assert models[0] == pytest.approx(models[1], rel=1e-3, abs=1e-4)


def test_a_loop_with_accelerate_goes_on_on_two_ranks_with_the_same_numbers(
    agent: tuple[Rig, Client],
) -> None:
    _, client = agent
    names: tuple[str, ...] = ()
    for attempt, gpus in ((1, (0,)), (2, (0, 1)), (3, (2,))):
        client.start("accelerate-moved", attempt=attempt, gpus=gpus, checkpoints=names)
        end = client.exit_of("accelerate-moved", attempt=attempt)
        assert end.cause == "finished", end.tail
        names = (newest(client, "accelerate-moved").name,)
        if attempt == 2:
            moved = [fact for fact in client.facts if isinstance(fact, Reported)][-1]
    assert (moved.epoch, moved.metrics["ranks"]) == (6, 2.0)
    client.start("accelerate-whole")
    assert client.exit_of("accelerate-whole").cause == "finished"
    whole = [fact for fact in client.facts if isinstance(fact, Reported)][-1]
    assert whole.metrics["accuracy"] == pytest.approx(moved.metrics["accuracy"], rel=1e-5)


@pytest.mark.parametrize("program", ["lightning", "transformers"])
def test_a_trial_that_leaves_at_the_end_of_an_epoch_has_reported_it(
    agent: tuple[Rig, Client], program: str
) -> None:
    """It is asked to leave within the last step of its second epoch."""
    _, client = agent
    trial = f"{program}-leaves"
    client.start(trial)
    assert client.exit_of(trial).cause == "finished"
    assert {*sums(client, trial)} == {1, 2}
    client.start(trial, attempt=2, checkpoints=(newest(client, trial).name,))
    end = client.exit_of(trial, attempt=2)
    assert end.cause == "finished", end.tail
    assert {*sums(client, trial)} == set(range(1, 11))


def sums(client: Client, trial: str) -> dict[int, float | None]:
    found = (fact for fact in client.facts if isinstance(fact, Reported) and fact.trial == trial)
    return {fact.epoch: fact.metrics["accuracy"] for fact in found}


def test_a_sharded_model_goes_on_on_any_number_of_ranks(agent: tuple[Rig, Client]) -> None:
    _, client = agent
    for attempt, gpus in ((1, (0, 1)), (2, (0,)), (3, (0, 1))):
        names = (newest(client, "fsdp-moved").name,) if attempt > 1 else ()
        client.start("fsdp-moved", attempt=attempt, gpus=gpus, checkpoints=names)
        end = client.exit_of("fsdp-moved", attempt=attempt)
        assert end.cause == "finished", end.tail
    client.start("fsdp-whole", attempt=3)
    end = client.exit_of("fsdp-whole", attempt=3)
    assert end.cause == "finished", end.tail
    assert sorted(sums(client, "fsdp-moved")) == list(range(1, 10))
    assert sums(client, "fsdp-moved") == pytest.approx(sums(client, "fsdp-whole"), rel=1e-4)


def test_a_sharded_optimizer_is_not_given_to_a_model_that_is_not(
    agent: tuple[Rig, Client],
) -> None:
    _, client = agent
    client.start("fsdp-plain", gpus=(0, 1))
    assert client.exit_of("fsdp-plain").cause == "finished"
    saved = newest(client, "fsdp-plain").name
    client.start("fsdp-plain", attempt=2, checkpoints=(saved,))
    end = client.exit_of("fsdp-plain", attempt=2)
    assert end.cause == "crashed"
    assert "'optimizer' of a sharded model, and here the model is not sharded" in end.tail[-1]
