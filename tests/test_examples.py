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

ROOT = Path(__file__).parent.parent
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
WORST = {"max": "0.0", "min": "1000.0"}
"""A target that the first checkpoint meets."""
LIGHT = {
    "digits": "width = 32",
    "fashion": "momentum = 0.9",
    "shapes": "width = 4",
    "text": "embedding = 8, layers = 1",
}
"""Values for the first trial, with which an epoch is as short as can be."""
NAMES = sorted(spec.parent.name for spec in (ROOT / "examples").glob("*/evaluate.py"))


def output_of(name: str, environment: dict[str, str], *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT / "examples" / name,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def few_images(folder: Path) -> Path:
    """Write files like those of Fashion-MNIST, with grey images."""
    for name, count in (("train", 5_600), ("t10k", 100)):
        pixels, classes = bytes(16) + b"\x40" * (count * 784), bytes(8) + b"\x03" * count
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels, 1))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(classes, 1))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_its_model_is_evaluated(name: str, tmp_path: Path) -> None:
    environment = {"SEERD_HOME": str(tmp_path), "FASHION_MNIST": str(few_images(tmp_path))}
    mode = load_spec(ROOT / "examples" / name / "spec.toml").goal.mode
    first = ("--set", f"metric.target={WORST[mode]}", "--set", "limits.max_gpus=1")
    light = ("--set", f"policy.start=[{{ {LIGHT[name]} }}]")
    plain = () if name == "digits" else ("--set", 'train.launcher="python"')
    run = ("-m", "seerd.cli", "run", "spec.toml", "--json", *SMALL, *first, *light, *plain)
    told = json.loads(output_of(name, environment, *run))
    assert told["status"] == "target"
    model = Path(told["best"]["checkpoint"]).parent  # as `seerd best --to` copies it
    printed = output_of(name, environment, "evaluate.py", str(model))
    assert re.search(r"test [\w ]+ [\d.]+$", printed.strip())


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
    first = ("--set", "metric.target=0.0", "--set", "policy.name=random")
    run = ("-m", "seerd.cli", "run", "spec.toml", "--json", *SMALL, *first)
    told = output_of(
        name,
        {"SEERD_HOME": str(tmp_path)},
        *run,
        "--set",
        f"policy.start=[{{ {guess} }}]",
        "--set",
        "policy.trials=1",
    )
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
    ended = subprocess.run(
        [sys.executable, "-m", "seerd.cli", "run", "spec.toml", "--plain", *few],
        cwd=ROOT / "examples" / "one_number",
        env={**os.environ, "SEERD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert "a trial that is stopped begins anew" in ended.stdout
    started = re.findall(r"(t\d+) trains on", ended.stdout)
    assert sorted(started) == ["t0001", "t0002", "t0003"]
    assert re.search(
        r"^best configuration: t\d+, accuracy 0\.9\d+ at report 1, C=", ended.stdout, re.MULTILINE
    )
