"""The examples train, and their models can be evaluated: until the first checkpoint."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from seerd.spec.spec import load_spec
from tests.commands import run_command

ROOT = Path(__file__).parent.parent
NO_COMPILER = ROOT / "tests" / "no_compiler"
SMALL = (
    "--deadline",
    "3m",
    "--budget",
    "6gpu-min",
    "--set",
    "cluster.gpus=2",
    "--set",
    "policy.t_min=5s",
    "--set",
    "train.preload=false",
)
"""Of one trial, for which nothing has to be imported beforehand."""
MAPPED = """
import sys
exec(open("evaluate.py").read())
print(open("/proc/self/smaps").read(), file=sys.stderr)
"""
"""Evaluates, and prints the memory maps while the model is loaded."""
WORST = {"max": "0.0", "min": "1000.0"}
"""A target that the first checkpoint meets."""
LIGHT = {
    "digits": "width = 32",
    "fashion": "momentum = 0.9",
    "lora": "rank = 1",
    "shapes": "width = 4",
    "text": "embedding = 8, layers = 1",
}
"""Values for the first trial, with which an epoch is as short as can be."""
COMPILED = {"lora"}  # transformers imports torch's compiler
NAMES = sorted(spec.parent.name for spec in (ROOT / "examples").glob("*/evaluate.py"))


def tuned(name: str, home: Path, *options: str, code: int = 0) -> str:
    """What a run of an example prints."""
    environment = {**os.environ, "SEERD_HOME": str(home), **data_in(home)}
    if name not in COMPILED:
        environment["PYTHONPATH"] = str(NO_COMPILER)
    folder = ROOT / "examples" / name
    ended = run_command(["run", "spec.toml", *options], folder, environment)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def data_in(folder: Path) -> dict[str, str]:
    """Variables that name what examples read, or make, in this folder."""
    base = {"BASE": str(folder / "base"), "BASE_STEPS": "1", "HF_HUB_OFFLINE": "1"}
    return {"FASHION_MNIST": str(folder), **base}


def few_images(folder: Path) -> None:
    """Write files like those of Fashion-MNIST, with grey images."""
    for name, count in (("train", 5_600), ("t10k", 100)):
        pixels, classes = bytes(16) + b"\x40" * (count * 784), bytes(8) + b"\x03" * count
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels, 1))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(classes, 1))


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_its_model_is_evaluated(name: str, tmp_path: Path) -> None:
    few_images(tmp_path)
    mode = load_spec(ROOT / "examples" / name / "spec.toml").goal.mode
    first = ("--set", f"metric.target={WORST[mode]}", "--set", "limits.max_gpus=1")
    light = ("--set", f"policy.start=[{{ {LIGHT[name]} }}]")
    plain = () if name == "digits" else ("--set", 'train.launcher="python"')
    told = json.loads(tuned(name, tmp_path, "--json", *SMALL, *first, *light, *plain))
    assert told["status"] == "target"
    model = Path(told["best"]["checkpoint"]).parent  # as `seerd best --to` copies it
    how = ["-c", MAPPED] if name == "lora" else ["evaluate.py"]
    evaluated = subprocess.run(
        [sys.executable, *how, str(model)],
        cwd=ROOT / "examples" / name,
        env={**os.environ, **data_in(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert re.search(r"test [\w ]+ [\d.]+$", evaluated.stdout.strip())
    if name == "lora":
        base, checkpoint = tmp_path / "base" / "model.safetensors", model / "checkpoint.pt"
        assert 10 * checkpoint.stat().st_size < base.stat().st_size
        _, _, mapped = evaluated.stderr.partition(str(base))
        size, anonymous = (
            int(re.findall(rf"{of}: +(\d+)", mapped)[0]) for of in ("Rss", "Anonymous")
        )
        assert size > 0.9 * base.stat().st_size / 1024
        assert anonymous == 0


def test_without_its_images_fashion_says_where_they_are_from(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from data import fashion; fashion('train')"],
        cwd=ROOT / "examples" / "fashion",
        env={**os.environ, "FASHION_MNIST": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "apt-get install dataset-fashion-mnist" in ended.stderr


def test_each_has_figures_and_they_are_those_that_were_measured() -> None:
    """Check that the table has a row for each example, and each its own page."""
    by_hand = runpy.run_path(str(ROOT / "bench" / "examples.py"))["BY_HAND"]
    assert sorted(by_hand) == NAMES
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| [{name}]({name}) |" in table
        assert (ROOT / "examples" / name / "README.md").exists()


@pytest.mark.parametrize(
    ("name", "model", "optim"), [("overrides", "model.", "optim."), ("yaml", "", "")]
)
def test_hyperparameters_reach_a_script_that_knows_nothing_of_seerd(
    name: str, model: str, optim: str, tmp_path: Path
) -> None:
    guess = f'"{model}layers" = [64, 32], "{model}activation" = "tanh", "{optim}lr" = 1e-5'
    first = ("metric.target=0.0", "policy.name=random", "policy.trials=1")
    keys = [word for key in (*first, f"policy.start=[{{ {guess} }}]") for word in ("--set", key)]
    told = tuned(name, tmp_path, "--json", *SMALL, *keys)
    best = json.loads(told)["best"]
    _, _, got = pickle.loads(Path(best["checkpoint"]).read_bytes())
    if name == "yaml":
        got = {**got["model"], **got["optimizer"]}
        assert got["beta"] == best["config"].get("beta")
    assert {key: got[key] for key in best["config"]} == best["config"]
    assert isinstance(best["config"][f"{model}layers"], list)


def test_one_number_at_the_end_gives_the_best_configuration(tmp_path: Path) -> None:
    """No trial is paused: each starts once. With three trials the run ends long before its limits."""
    few = ("--set", "policy.trials=3", "--set", "policy.start=[{ C = 10.0, gamma = 1e-3 }]")
    printed = tuned("one_number", tmp_path, "--plain", *few)
    assert "a trial that is stopped begins anew" in printed
    started = re.findall(r"(t\d+) trains\b", printed)
    assert sorted(started) == ["t0001", "t0002", "t0003"], printed
    assert re.search(
        r"^best configuration: t\d+, accuracy 0\.9\d+ at report 1, C=", printed, re.MULTILINE
    )
    assert re.search(
        r"s  the best configuration is t\d+, accuracy 0\.9.*; no model was saved: ", printed
    )
