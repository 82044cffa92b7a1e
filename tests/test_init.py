"""`seerd init`: a script is read, and what comes out is a spec that can be run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seerd import cli
from seerd.agent.patterns import NumberPattern
from seerd.commands.init.hyperparameters import dimension
from seerd.commands.init.options import ScriptOption
from seerd.errors import SpecError
from seerd.spec.spec import Spec, load_spec
from tests.commands import run_command
from tests.init_scripts import NO_RESUME, RUN, SHAPES, Shape

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
    return completed(folder / "spec.toml"), said


def completed(path: Path) -> Spec:
    """Read a spec; where no hyperparameter was seen, with the one that it suggests."""
    text = path.read_text()
    if "\n# lr = {" in text:
        with pytest.raises(SpecError, match="at least one parameter is needed"):
            load_spec(path)
        args = 'args     = ["--lr", "{lr}"]'
        text = text.replace("\n# lr = {", "\nlr = {").replace("args     = []", args)
        path.write_text(text)
    return load_spec(path)


def test_options_become_a_space(tmp_path: Path) -> None:
    spec, said = spec_for(tmp_path, OPTIONS)
    names = [parameter.name for parameter in spec.space.parameters]
    assert names == ["learning_rate", "wd", "dropout", "batch_size", "opt"]
    assert spec.train.args[:4] == ("--learning-rate", "{learning_rate}", "--wd", "{wd}")
    assert spec.train.args[-2:] == ("--max-steps", "1000")
    assert (spec.goal.metric, spec.goal.mode) == ("val_loss", "min")
    assert spec.train.observed is not None
    assert spec.train.observed.checkpoint == "runs/model_*.pt"
    assert (spec.train.launcher, spec.policy.p_max) == ("python", 1)
    text = (tmp_path / "spec.toml").read_text()
    assert text.count("# guess") >= 8
    assert said.count("to do") == 1
    assert NO_RESUME in said


@pytest.mark.parametrize(
    ("printed", "line", "number"),
    [
        ('print(f"val loss: {x:.3f}")', "train loss: 3.1 | val loss: 2.5", "2.5"),
        ('print("Accuracy", x)', "Accuracy 0.5", "0.5"),
        ('log.info(f"[{e}] val_acc={x}")', "[3] val_acc=1e-05", "1e-05"),
        ('print(f"Test Error = {x}%")', "Test Error = 12.5%", "12.5"),
        ('print("Val Acc {:.4f}".format(x))', "Epoch 1 | Val Acc 0.5123", "0.5123"),
        ('print("rmse %8.3f" % x)', "rmse    0.125", "0.125"),
        ('log.info("loss %s at %d", x, n)', "loss 0.25 at 3", "0.25"),
        ('print({"eval_f1": f, "step": n})', "{'eval_f1': 0.8, 'step': 3}", "0.8"),
        ('print("dice: " + str(x))', "dice: 0.7", "0.7"),
        ("bar.set_postfix(loss=x)", "10%|# | 1/9 [00:01, loss=0.125]", "0.125"),
        ('line = f"mIoU {x:.2f}"; print(line)', "mIoU 0.55", "0.55"),
    ],
)
def test_what_is_printed_is_found_by_its_pattern(
    tmp_path: Path, printed: str, line: str, number: str
) -> None:
    spec, _ = spec_for(tmp_path, printed)
    assert read_by(spec, line) == float(number)


def read_by(spec: Spec, line: str) -> float | None:
    """The number that the spec's pattern reads from this line."""
    assert spec.train.observed is not None
    found = NumberPattern(spec.train.observed.report[spec.goal.metric]).read(line)
    return found[0] if found else None


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_public_scripts_are_read(tmp_path: Path, shape: Shape) -> None:
    """What a script needs, prints and saves is in its spec, or is asked for."""
    lay_out(tmp_path, shape)
    script = tmp_path / shape.path
    done = CliRunner().invoke(cli.app, ["init", str(script)])
    assert done.exit_code == 0, done.output
    asked = [line for line in done.output.splitlines() if line.startswith("to do: ")]
    needs = [line.partition(": put")[0] for line in asked if "the script needs" in line]
    assert needs == ([f"to do: the script needs {shape.needs}"] if shape.needs else [])
    for words in shape.asks:
        assert [line for line in asked if words in line], (words, asked)
    assert len(asked) == len(needs) + len(shape.asks), asked
    text = script.with_name("spec.toml").read_text()
    assert all(f"# {line}" in text for line in asked)
    spec = completed(script.with_name("spec.toml"))
    assert (spec.train.source / spec.train.script).samefile(script)
    assert spec.train.env == shape.env
    assert (spec.goal.metric, spec.train.launcher) == (shape.metric, shape.launcher)
    assert " ".join(shape.args) in " ".join(spec.train.args) or set(shape.args) <= set(
        spec.train.args
    )
    for line, number in shape.lines.items():
        assert read_by(spec, line) == (float(number) if number else None), line
    if spec.train.observed is not None:
        assert spec.train.observed.checkpoint == shape.checkpoint
        assert tuple(spec.train.observed.resume) == shape.resume
    else:
        assert not shape.checkpoint


def lay_out(folder: Path, shape: Shape) -> None:
    for name, content in {shape.path: shape.text, **shape.beside}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.mark.parametrize("name", RUN)
def test_their_specs_run(tmp_path: Path, name: str) -> None:
    """With what `to do` asks for, and nothing else, a model comes back. A script that goes on does
    so from its own checkpoint, and the values of a trial reach it.
    """
    folder = tmp_path / "project"
    shape = SHAPES[name]
    lay_out(folder, shape)
    own = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    init(folder / "train.py")
    spec = folder / "spec.toml"
    args = load_spec(spec).train.args
    done = run_command(
        [
            *("run", str(spec), "--plain", "--deadline", "60s", "--budget", "2gpu-min"),
            *("--set", "policy.t_min=2s", "--set", "cluster.gpus=2", "--set", "policy.trials=3"),
            *("--set", "policy.max_reports=6"),
            *("--set", f"train.args={json.dumps([*args, *RUN[name]])}"),
        ],
        tmp_path,
        {**os.environ, "SEERD_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert "no Python file of the source" not in done.stdout + done.stderr
    assert list((tmp_path / "home").glob("*/best/checkpoint.pt"))
    logs = list((tmp_path / "home").glob("*/instances/*/trials/*/*/logs/**/*.log"))
    prefixes = {log.read_text().partition("prefix ")[2].partition("\n")[0] for log in logs}
    assert name != "number" or prefixes == {str(own)}


@pytest.mark.parametrize(
    ("files", "python"),
    [
        ([".venv/bin/python", "uv.lock"], ".venv/bin/python"),
        (["venv/bin/python"], "venv/bin/python"),
        (["uv.lock", "environment.yml"], "uv run python"),
        (["poetry.lock"], "poetry run python"),
        (["environment.yml"], "conda run -n vision --no-capture-output python"),
        (["../.venv/bin/python"], "../.venv/bin/python"),
        (["../uv.lock"], "uv run python"),
        (["../uv.lock", ".git/HEAD"], None),
        (["requirements.txt"], None),
    ],
)
def test_the_environment_of_a_project_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], python: str | None
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "a" / "project"
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("name: vision\nchannels: []\n")
    folder.mkdir(exist_ok=True)
    spec, _ = spec_for(folder, OPTIONS)
    assert spec.train.python == python


def test_the_environment_that_is_active_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seerd may be a tool with an environment of its own, in which trials would find no torch:
    wandb/wandb#1190.
    """
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    spec, _ = spec_for(tmp_path, OPTIONS)
    assert spec.train.python == f"{tmp_path}/env/bin/python"


def test_a_path_that_needs_too_many_names_is_asked_for(tmp_path: Path) -> None:
    doubled = "".join(f"a{n + 1} = a{n} + a{n}\n" for n in range(40))
    _, said = spec_for(tmp_path, f'import torch\na0 = "x"\n{doubled}torch.save(model, a40)\n')
    assert "it is not seen what the script saves" in said


def test_a_notebook_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text('{"cells": []}')
    done = CliRunner().invoke(cli.app, ["init", str(tmp_path / "train.ipynb")])
    assert done.exit_code != 0
    assert "jupyter nbconvert --to script" in str(done.exception)
    assert not (tmp_path / "spec.toml").exists()


@pytest.mark.parametrize(
    ("text", "launcher", "to_do"),
    [
        (HF, "torchrun", ""),
        (LIGHTNING, "torchrun", "to do: use seerd.lightning.Callback"),
        ("import transformers\n" + PLAIN, "torchrun", "to do: use seerd.transformers.Callback"),
        ("import accelerate\n" + PLAIN, "torchrun", "to do: use trial.track()"),
        ("import seerd\n" + PLAIN, "torchrun", ""),
        (DISTRIBUTED + OPTIONS, "torchrun", f"to do: {NO_RESUME}"),
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
        (ScriptOption("--hidden-size", "int", 1), "[1, 2]"),
        (ScriptOption("--hiddenSize", "int", 64), "[32, 64, 128]"),
        (ScriptOption("--num-layers", "int", 4), "{ low = 2, high = 8 }"),
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
