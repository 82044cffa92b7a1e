"""`seerd init`: a script is read, and what comes out is a spec that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from seerd import cli
from seerd.commands.init.guessing import dimension
from seerd.commands.init.reading import ScriptOption, shown
from seerd.spec.spec import Spec, load_spec

ROOT = Path(__file__).parent.parent
DISTRIBUTED = "from torch.nn.parallel import DistributedDataParallel\n"
HF = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model, args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
LIGHTNING = "import lightning as L\nL.Trainer(max_epochs=3).fit(Module())\n"
PLAIN = "import torch\nfor epoch in range(3):\n    train()\n"
OPTIONS = """
import argparse
import torch
p = argparse.ArgumentParser()
p.add_argument("-l", "--learning-rate", type=float, default=3e-4)
p.add_argument("--wd", default=0.0, type=float)
p.add_argument("--dropout", type=float, default=0.1)
p.add_argument("--batch-size", type=int, default=32)
p.add_argument("--opt", choices=["sgd", "adam"], default="adam")
p.add_argument("--amp", action="store_true")
p.add_argument("--data", type=Path, default=Path("data"))
p.add_argument("--max-steps", type=int, default=100)
p.add_argument("--save-dir", default="runs")
args = p.parse_args()
print(f"train loss: {loss:.3f} | val loss: {val:.3f}")
torch.save(model.state_dict(), f"{args.save_dir}/model_{step}.pt")
"""


def init(path: Path) -> str:
    done = CliRunner().invoke(cli.app, ["init", str(path)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def spec_for(folder: Path, text: str) -> tuple[Spec, str]:
    (folder / "train.py").write_text(text)
    said = init(folder / "train.py")
    return load_spec(folder / "spec.toml"), said


def test_options_become_a_space(tmp_path: Path) -> None:
    spec, said = spec_for(tmp_path, OPTIONS)
    names = [parameter.name for parameter in spec.space.parameters]
    assert names == ["learning_rate", "wd", "dropout", "batch_size", "opt"]
    assert spec.train.args[:4] == ("--learning-rate", "{learning_rate}", "--wd", "{wd}")
    assert spec.train.args[-2:] == ("--max-steps", "1000")
    assert (spec.metric.name, spec.metric.mode) == ("val_loss", "min")
    assert spec.train.observed is not None
    assert spec.train.observed.checkpoint == "runs/model_*.pt"
    assert (spec.train.launcher, spec.policy.p_max) == ("python", 1)
    text = (tmp_path / "spec.toml").read_text()
    assert "# --amp --data --save-dir could be tuned too" in text
    assert text.count("# guess") >= 8
    assert "to do" not in said


@pytest.mark.parametrize(
    ("printed", "line", "number"),
    [
        ('print(f"val loss: {x:.3f}")', "train loss: 3.1 | val loss: 2.5", "2.5"),
        ('print("Accuracy", x)', "Accuracy 0.5", "0.5"),
        ('log.info(f"[{e}] val_acc={x}")', "[3] val_acc=1e-05", "1e-05"),
        ('print(f"Test Error = {x}%")', "Test Error = 12.5%", "12.5"),
    ],
)
def test_what_is_printed_is_found_by_its_pattern(printed: str, line: str, number: str) -> None:
    import re

    found = re.search(shown(printed).printed[0].pattern, line)
    assert found is not None
    assert found[1] == number


@pytest.mark.parametrize(
    ("text", "launcher", "to_do"),
    [
        (HF, "torchrun", ""),
        (LIGHTNING, "torchrun", "to do: use seerd.lightning.Callback"),
        ("import transformers\n" + PLAIN, "torchrun", "to do: use seerd.transformers.Callback"),
        ("import accelerate\n" + PLAIN, "torchrun", "to do: use trial.track()"),
        ("import seerd\n" + PLAIN, "torchrun", ""),
        (DISTRIBUTED + OPTIONS, "torchrun", ""),
        (PLAIN, "python", "to do: it is not seen what the script prints"),
    ],
)
def test_every_kind_of_script_has_a_valid_spec(
    tmp_path: Path, text: str, launcher: str, to_do: str
) -> None:
    spec, said = spec_for(tmp_path, text)
    assert spec.train.launcher == launcher
    assert to_do in said if to_do else "to do" not in said


def test_what_is_left_of_the_options_of_a_trainer(tmp_path: Path) -> None:
    spec, _ = spec_for(tmp_path, HF)
    assert spec.train.observed is not None
    assert spec.train.observed.checkpoint == "out/checkpoint-*"
    assert spec.train.observed.resume == ["--resume_from_checkpoint", "{checkpoint}"]
    assert "learning_rate" in [one.name for one in spec.space.parameters]


def test_the_examples_can_be_read(tmp_path: Path) -> None:
    spec, said = spec_for(tmp_path, (ROOT / "examples/argparse/train.py").read_text())
    assert spec.train.observed == load_spec(
        ROOT / "examples/argparse/spec.toml"
    ).train.observed or (
        spec.train.observed is not None and spec.train.observed.checkpoint == "out/last.pt"
    )
    assert "to do" not in said


@pytest.mark.parametrize(
    ("option", "guess"),
    [
        (ScriptOption("--lr", "float", 0.1), "{ low = 0.003, high = 3.0, log = true }"),
        (ScriptOption("--lr", "float", None), "{ low = 3e-05, high = 0.03, log = true }"),
        (ScriptOption("--hidden-size", "int", 1), "{ low = 1, high = 2 }"),
        (ScriptOption("--batch-size", "int", 1), "[1, 2]"),
        (ScriptOption("--optimizer", "str", "a", ("a", "b")), '["a", "b"]'),
        (ScriptOption("--seed", "int", 0), ""),
        (ScriptOption("--lr", "float", True), "{ low = 3e-05, high = 0.03, log = true }"),
    ],
)
def test_guesses_about_options(option: ScriptOption, guess: str) -> None:
    assert dimension(option) == guess


def test_without_a_script_there_is_one_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert "seerd run" in init(folder)
    spec = load_spec(folder / "spec.toml")
    assert spec.train.observed is not None
    assert spec.limits.deadline_s == 60
    compile((folder / "train.py").read_text(), "train.py", "exec")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OPTIONS)
    (tmp_path / "spec.toml").write_text("mine")
    for what in (tmp_path / "train.py", tmp_path):
        done = CliRunner().invoke(cli.app, ["init", str(what)])
        assert done.exit_code != 0
    assert (tmp_path / "spec.toml").read_text() == "mine"
    assert (tmp_path / "train.py").read_text() == OPTIONS


@pytest.mark.parametrize("content", [b"def broken(", b"\xff\xfe", b"\0"])
def test_what_is_no_script_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.py").write_bytes(content)
    done = CliRunner().invoke(cli.app, ["init", str(tmp_path / "train.py")])
    assert done.exit_code != 0
    assert not (tmp_path / "spec.toml").exists()
