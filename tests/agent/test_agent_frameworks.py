"""transformers' and Lightning's own training loops under a real agent: stopped, resumed, moved from
one rank to two and back, and compared number by number with a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bench.testbed.agents import Client, Rig
from seerd.agent import folders
from seerd.agent.protocol import Checkpointed, Complained, Reported

PROGRAMS = Path(__file__).parents[1] / "programs"
COMPILER = "torch._dynamo"
"""Each process of DDP, or with an optimizer, imports it: more than a second."""
NO_COMPILER = {"PYTHONPATH": str(PROGRAMS.parent / "no_compiler")}
PRELOADED = {
    "accelerate": ["accelerate", COMPILER],
    "fsdp": [COMPILER],
    # torchmetrics, which it imports, asks for the rank.
    "lightning": ["torch", "torch.onnx", "matplotlib.pyplot", "scipy.stats", "scipy.signal"],
    "transformers": ["transformers.trainer", "transformers.models.bert.modeling_bert", COMPILER],
}
"""The parts that take long: to import a package alone imports few of its modules."""


def begin(rig: Rig, program: str, log: Path, **env: str) -> Client:
    """All starts are forks of one process that has imported the framework, which takes long."""
    text = (PROGRAMS / f"with_{program}.py").read_text()
    if COMPILER not in PRELOADED[program]:
        env |= NO_COMPILER
    job = rig.job(
        text, launcher="torchrun", args=[str(log)], env=env, checkpoint_every_s=0.0,
        preload=PRELOADED[program],
    )  # fmt: skip
    return rig.ready(job)


def newest(client: Client, trial: str = "t1") -> Checkpointed:
    every = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    return [fact for fact in every if fact.trial == trial][-1]


def logged(log: Path) -> list[dict[str, Any]]:
    """What was written down of each step: the mean loss of all ranks and micro-batches, of the last
    attempt that has made it.
    """
    steps: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted(log.parent.glob(f"{log.name}*")):
        for line in map(json.loads, path.read_text().splitlines()):
            attempts = steps.setdefault(line["step"], {})
            attempts.setdefault(line["attempt"], []).append(line)
    last = [attempts[max(attempts, key=int)] for _, attempts in sorted(steps.items())]
    return [
        {**lines[0], "loss": sum(line["loss"] for line in lines) / len(lines)} for lines in last
    ]


def move(client: Client) -> None:
    """Train on one rank, on two, and on one; stopped when something has been reported and saved."""
    names: tuple[str, ...] = ()
    for attempt, gpus in ((1, (0,)), (2, (0, 1)), (3, (1,))):
        client.start(attempt=attempt, gpus=gpus, checkpoints=names)
        if attempt < 3:
            saved = ("t1", attempt)
            client.until(
                Checkpointed, lambda fact, saved=saved: (fact.trial, fact.attempt) == saved
            )
            client.stop(attempt=attempt, grace_s=60.0)
        end = client.exit_of(attempt=attempt)
        assert end.cause == ("asked" if attempt < 3 else "finished"), end.tail
        names = (newest(client).name,)


def both(
    rig: Rig, program: str, folder: Path, **env: str
) -> tuple[Client, list[dict[str, Any]], list[dict[str, Any]]]:
    """What was written down by a trial that was moved, and by one that was left alone beside it."""
    client = begin(rig, program, folder / "log", **env)
    client.start("whole", gpus=(2,))
    move(client)
    end = client.exit_of("whole")
    assert end.cause == "finished", end.tail
    one, other = (logged(folder / f"log-{trial}") for trial in ("t1", "whole"))
    assert {line["world"] for line in one} == {1, 2}
    # A framework's checkpoint has its model, though nothing was given to trial.track. On a busy
    # machine an import may be quiet for long.
    complaints = {fact.what for fact in client.facts if isinstance(fact, Complained)}
    assert complaints <= {"quiet"}
    assert {line["world"] for line in other} == {1}
    return client, one, other


def unpacked(rig: Rig, trial: str, client: Client, to: Path) -> Path:
    folders.unpack(rig.store / trial / f"{newest(client, trial).name}.pt", to)
    return to


def test_transformers_goes_on_as_if_nothing_had_happened(rig: Rig, tmp_path: Path) -> None:
    env = {"STEPS": "80", "PAUSE_S": "0.05"}
    client, one, other = both(rig, "transformers", tmp_path, **env)
    assert [line["step"] for line in one] == [line["step"] for line in other]
    assert [line["step"] for line in one] == list(range(1, 81))
    for mine, theirs in zip(one, other, strict=True):
        assert mine["learning_rate"] == theirs["learning_rate"]
        assert mine["epoch"] == theirs["epoch"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-4)
    reports = {fact.epoch for fact in client.facts if isinstance(fact, Reported)}
    assert reports == set(range(1, 11))
    kept = [unpacked(rig, trial, client, tmp_path / f"{trial}-model") for trial in ("t1", "whole")]
    models = [load_file(folder / "model.safetensors") for folder in kept]
    assert models[0].keys() == models[1].keys()
    for name, weights in models[0].items():
        assert np.allclose(weights, models[1][name], atol=1e-3)
    for folder in kept:
        assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    state = json.loads((tmp_path / "t1-model" / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"]) == (80, 10.0)
    assert not (tmp_path / "t1-model" / "training_args.bin").exists()


def test_lightning_goes_on_as_if_nothing_had_happened(rig: Rig, tmp_path: Path) -> None:
    env = {"EPOCHS": "10", "PAUSE_S": "0.03"}
    client, one, other = both(rig, "lightning", tmp_path, **env)
    assert [line["step"] for line in one] == list(range(80))
    for mine, theirs in zip(one, other, strict=True):
        assert (mine["step"], mine["epoch"]) == (theirs["step"], theirs["epoch"])
        assert mine["rate"] == pytest.approx(theirs["rate"], rel=1e-9, abs=1e-12)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5)
    reports = {fact.epoch for fact in client.facts if isinstance(fact, Reported)}
    assert reports == set(range(1, 11))
    kept = [unpacked(rig, trial, client, tmp_path / f"{trial}-model") for trial in ("t1", "whole")]
    models = Small(tmp_path).load(kept)
    assert models[0] == pytest.approx(models[1], rel=1e-3, abs=1e-4)


class Small:
    """The module of the program, loaded by `load_from_checkpoint` in a process of its own, since
    the program calls `seerd.trial()` when it is imported.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "spec.toml").write_text("[space]\nlr = [0.1]\n")

    def load(self, kept: Sequence[Path]) -> list[list[float]]:
        """All its weights, as each of these has them."""
        paths = [str(folder / "lightning.ckpt") for folder in kept]
        script = (
            "import sys, json; sys.argv.append('-'); from with_lightning import Small\n"
            f"modules = [Small.load_from_checkpoint(path) for path in {paths!r}]\n"
            "print(json.dumps([[v for p in one.parameters() for v in p.flatten().tolist()]"
            " for one in modules]))"
        )
        env = {**os.environ, "PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[1]}"}
        told = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self._folder, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: list[list[float]] = json.loads(told.stdout.splitlines()[-1])
        return found


def test_a_loop_with_accelerate_goes_on_on_two_ranks_with_the_same_numbers(
    rig: Rig, tmp_path: Path
) -> None:
    client = begin(rig, "accelerate", tmp_path / "log")
    client.start()
    assert client.exit_of().cause == "finished"
    for attempt, gpus in ((2, (0, 1)), (3, (2,))):
        client.start(attempt=attempt, gpus=gpus, checkpoints=(newest(client).name,))
        end = client.exit_of(attempt=attempt)
        assert end.cause == "finished", end.tail
        if attempt == 2:
            moved = [fact for fact in client.facts if isinstance(fact, Reported)][-1]
    assert (moved.epoch, moved.metrics["ranks"]) == (6, 2.0)
    text = (rig.source / "train.py").read_text()
    (rig.source / "train.py").write_text(text.replace("trial.epoch == 3", "trial.epoch == 6"))
    client.start("whole")
    assert client.exit_of("whole").cause == "finished"
    whole = [fact for fact in client.facts if isinstance(fact, Reported)][-1]
    assert whole.metrics["accuracy"] == pytest.approx(moved.metrics["accuracy"], rel=1e-5)


def sums(client: Client, trial: str) -> dict[int, float | None]:
    found = (fact for fact in client.facts if isinstance(fact, Reported) and fact.trial == trial)
    return {fact.epoch: fact.metrics["accuracy"] for fact in found}


def test_a_sharded_model_goes_on_on_any_number_of_ranks(rig: Rig, tmp_path: Path) -> None:
    client = begin(rig, "fsdp", tmp_path / "log")
    for attempt, gpus in ((1, (0, 1)), (2, (0,)), (3, (0, 1))):
        names = (newest(client).name,) if attempt > 1 else ()
        client.start(attempt=attempt, gpus=gpus, checkpoints=names)
        end = client.exit_of(attempt=attempt)
        assert end.cause == "finished", end.tail
    client.start("whole", attempt=3)
    end = client.exit_of("whole", attempt=3)
    assert end.cause == "finished", end.tail
    assert sorted(sums(client, "t1")) == list(range(1, 10))
    assert sums(client, "t1") == pytest.approx(sums(client, "whole"), rel=1e-4)


def test_a_sharded_optimizer_is_not_given_to_a_model_that_is_not(rig: Rig, tmp_path: Path) -> None:
    client = begin(rig, "fsdp", tmp_path / "log", PLAIN="1")
    client.start(gpus=(0, 1))
    assert client.exit_of().cause == "finished"
    client.start(attempt=2, checkpoints=(newest(client).name,))
    end = client.exit_of(attempt=2)
    assert end.cause == "crashed"
    assert "'optimizer' of a sharded model, and here the model is not sharded" in end.tail[-1]
