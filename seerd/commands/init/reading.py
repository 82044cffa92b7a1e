"""What a training script shows of itself in its text: options, what it prints and saves, and whose
training loop it has.

The one rule: the script, and modules of its own that lie beside it, are read, never run; what
cannot be read off is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seerd.commands.init.options import ScriptOption, called, command_of, options_of, value_of
from seerd.commands.init.printing import (
    PrintedMetric,
    lines_of,
    logged_of,
    metrics_of,
    metrics_of_loops,
)
from seerd.commands.init.saving import OUT, Saves, saves_of
from seerd.errors import UsageError

FRAMEWORKS = {
    "seerd": "seerd",
    "transformers": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}
OF_TRAINER = [
    ScriptOption("--learning_rate", "float", 5e-5),
    ScriptOption("--weight_decay", "float", 0.01),
    ScriptOption("--num_train_epochs", "float", 3),
    ScriptOption("--output_dir", "str", required=True),
    ScriptOption("--resume_from_checkpoint", "str"),
]
"""What transformers' `TrainingArguments` adds to the options of a script."""
DISTRIBUTED = ("torch.distributed", "torch.nn.parallel.Distributed")
MOST_MODULES = 40
"""How many modules of the script's own are read."""


@dataclass(slots=True)
class ScriptFacts:
    """What a script shows.

    options      that it takes
    printed      metrics, the likeliest goal first
    saves        where it saves
    again        arguments with which it goes on from a checkpoint; empty: it has none
    frameworks   among `FRAMEWORKS`
    distributed  whether it is started once for each GPU
    logged       what Lightning's callbacks know its metrics by, the likeliest goal first
    given        arguments that it needs in any case
    hydra        whether Hydra reads its configuration
    """

    options: list[ScriptOption] = field(default_factory=list)
    printed: list[PrintedMetric] = field(default_factory=list)
    saves: Saves = field(default_factory=lambda: Saves([]))
    again: list[str] = field(default_factory=list)
    frameworks: set[str] = field(default_factory=set)
    distributed: bool = False
    logged: list[PrintedMetric] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    hydra: bool = False

    @property
    def by_options(self) -> bool:
        """Whether it is given hyperparameters as arguments: it, or its framework, has no other
        way.
        """
        takes = bool(self.options) or self.hydra
        return "seerd" not in self.frameworks and (takes or not self.frameworks)


def read(script: Path) -> ScriptFacts:
    """Read a script, and the modules beside it that it imports.

    Raises `UsageError` if it is a notebook or another program, `OSError`, `ValueError` or
    `SyntaxError` if it cannot be read as Python.
    """
    if script.suffix == ".ipynb":
        raise UsageError(
            f"{script} is a notebook, and trials are scripts with options: jupyter nbconvert --to "
            f"script {script}, give its hyperparameters options (argparse), then seerd init "
            f"{script.with_suffix('.py')}"
        )
    if script.suffix in (".sh", ".bash", ".R", ".jl"):
        raise UsageError(
            f'{script} is no Python: write the spec with launcher = "command" (docs/scripts.md), '
            "or name the Python script that it starts"
        )
    trees = [ast.parse(script.read_text(encoding="utf-8"))]
    for module in _own_modules(script, trees):
        try:
            trees.append(ast.parse(module.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):
            continue  # the script may never come to it
    return facts_of(trees)


def facts_of(trees: list[ast.Module]) -> ScriptFacts:
    """Return what a script shows: its tree, and those of its own modules."""
    imported = {name for tree in trees for name in _imports(tree)}
    modules = {name.partition(".")[0] for name in imported}
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    options = options_of(trees, modules)
    parses = "transformers.HfArgumentParser" in imported
    options += OF_TRAINER if parses else []
    lines = [lines_of(tree) for tree in trees]
    printed = [*metrics_of_loops(trees[0], modules), *metrics_of(lines[0])]
    saves = saves_of(trees[:1], options)
    if parses:
        saves = Saves([f"{OUT}/checkpoint-*"])
    elif not saves.paths:
        saves = saves_of(trees, options)
    return ScriptFacts(
        options=options,
        printed=printed or metrics_of([line for one in lines[1:] for line in one]),
        saves=saves,
        again=_again(trees, options),
        frameworks={FRAMEWORKS[name] for name in modules & set(FRAMEWORKS)},
        distributed=any(name.startswith(DISTRIBUTED) for name in imported)
        and not any(called(call) == "spawn" for call in calls),
        given=_given(trees, modules, parses=parses),
        hydra="hydra" in modules,
        logged=[
            PrintedMetric(name, "")
            for tree in trees
            for name in logged_of(tree)
            if "train" not in name
        ],
    )


def _given(trees: list[ast.Module], modules: set[str], *, parses: bool) -> list[str]:
    """Return the command that trains, and what keeps Hydra in the attempt's folder, or has
    transformers' Trainer train, evaluate and save.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    given = [command] if (command := command_of(nodes)) else []
    if "hydra" in modules:
        given.append("hydra.run.dir=.")
    if parses:
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        given += [f"--{name}" for name in ("do_train", "do_eval") if name in names]
        given += ["--eval_strategy=epoch", "--save_strategy=epoch"]
    return given


def _own_modules(script: Path, trees: list[ast.Module]) -> Iterator[Path]:
    """Yield files below the script's folder that it imports, and those that they import."""
    seen = {script}
    for tree in trees:  # which grows
        for name in _imports(tree):
            path = script.parent.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file not in seen and len(seen) <= MOST_MODULES and file.is_file():
                    seen.add(file)
                    yield file


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{one.name}" for one in node.names))


def _again(trees: list[ast.Module], options: list[ScriptOption]) -> list[str]:
    """Return the arguments with which a script goes on from a checkpoint."""
    for option in options:
        if option.word in RESUMES and option.choices == ():
            return option.arguments("{checkpoint}")
    compared = {
        called(node.left)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and value_of(node.comparators[0]) == "resume"
        if not isinstance(node.left, ast.Call)
    }
    return next((one.arguments("resume") for one in options if one.name in compared), [])


RESUMES = (
    *("resume", "resume_from_checkpoint", "resume_from", "resume_path", "resume_ckpt"),
    *("ckpt_path", "checkpoint", "checkpoint_path", "load_checkpoint", "restore_file"),
)
"""What an option is called that takes the checkpoint to go on from."""
