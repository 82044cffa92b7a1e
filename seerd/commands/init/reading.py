"""What a training script shows in its text: options, what it prints and saves, and whose training
loop it has. The script and its own modules are read, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from seerd.commands.init.hyperparameters import (
    config_of_hydra,
    of_environment,
    options_of_yaml,
    tuned_of,
)
from seerd.commands.init.options import (
    DEFINITIONS,
    PARSERS,
    ScriptOption,
    by_name,
    called,
    calls_in,
    command_of,
    given_to,
    keywords_of,
    options_of,
    value_of,
    walked,
)
from seerd.commands.init.printing import (
    PrintedMetric,
    lines_of,
    logged_by,
    metrics_of,
    metrics_of_loops,
)
from seerd.commands.init.saving import OUT, Saves, saves_of
from seerd.errors import UsageError

FRAMEWORKS = {
    "seerd": "seerd",
    "transformers": "transformers",
    "trl": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}
# what transformers' `TrainingArguments` adds to the options of a script
OF_TRAINER = [
    ScriptOption("--learning_rate", "float", 5e-5),
    ScriptOption("--weight_decay", "float", 0.01),
    ScriptOption("--num_train_epochs", "float", 3),
    ScriptOption("--output_dir", "str", required=True),
    ScriptOption("--resume_from_checkpoint", "str"),
]
DISTRIBUTED = ("torch.distributed", "torch.nn.parallel.Distributed")
MOST_FOLDERS = 4  # folders above the script that may belong to its project
OF_PROJECT = (".git", "pyproject.toml", "setup.py")  # what lies at the top of a project
MOST_MODULES = 40  # modules of the script's own that are read


@dataclass(slots=True)
class ScriptFacts:
    """What a script shows."""

    options: list[ScriptOption]  # options that it takes
    printed: list[PrintedMetric]  # metrics, the likeliest goal first
    saves: Saves  # where it saves
    again: list[str]  # arguments with which it goes on from a checkpoint; empty: there are none
    frameworks: set[str]  # among `FRAMEWORKS`
    distributed: bool  # whether it is started once for each GPU
    logged: list[PrintedMetric]  # metrics by Lightning's names for them, the likeliest goal first
    given: list[str]  # arguments that it needs in any case
    hydra: bool  # whether Hydra reads its configuration
    unread: list[str]  # classes of other packages that it has options made of
    # the way to the folder above the script in which its modules and configuration lie; empty: none
    above: str

    @property
    def by_options(self) -> bool:
        """Whether it takes hyperparameters as arguments: it, or its framework, has no other way."""
        takes = bool(self.options) or self.hydra
        return "seerd" not in self.frameworks and (takes or not self.frameworks)


def read(script: Path) -> ScriptFacts:
    """Read a script, and the modules beside it that it imports. Raises `UsageError` if it is a
    notebook or another program, `OSError`, `ValueError` or `SyntaxError` if it cannot be read as
    Python.
    """
    if script.suffix == ".ipynb":
        raise UsageError(
            f"{script} is a notebook: jupyter nbconvert --to script {script}, give its "
            f"hyperparameters options (argparse), then seerd init {script.with_suffix('.py')}"
        )
    if script.suffix in (".sh", ".bash", ".R", ".jl"):
        raise UsageError(
            f'{script} is no Python: write the spec with launcher = "command" (docs/scripts.md), '
            "or name the Python script that it starts"
        )
    trees = [ast.parse(script.read_text(encoding="utf-8"))]
    script = script.resolve()
    up = 0
    # its folder, and those above it as far as its package or its project goes
    above = [script.parent, *script.parent.parents[:MOST_FOLDERS]]
    tops = [place for place in above if any((place / name).exists() for name in OF_PROJECT)]
    packages = takewhile(lambda place: (place / "__init__.py").is_file(), above)
    roots = above[: (above.index(tops[0]) if tops else len(list(packages))) + 1]
    for module, root in _own_modules(script, roots, trees):
        try:
            trees.append(ast.parse(module.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):
            continue  # the script may never come to it
        up = max(up, roots.index(root))
    config = config_of_hydra(trees[0], roots)
    while config and not config.is_relative_to(script.parents[up]):
        up += 1
    trees = _reached(trees)
    imported = {name for tree in trees for name in _imports(tree)}
    modules = {name.partition(".")[0] for name in imported}
    nodes = walked(trees)
    calls = calls_in(nodes)
    defined = {node.name for node in nodes if isinstance(node, DEFINITIONS)}
    options = list(options_of_yaml(config)) if config else []
    options = options or options_of(trees, modules)
    frameworks = {FRAMEWORKS[name] for name in modules & set(FRAMEWORKS)}
    parses = any(name.endswith(PARSERS) for name in imported)
    options += OF_TRAINER if parses else []
    if not tuned_of(options) and (options or not frameworks) and "hydra" not in modules:
        options = by_name([*options, *of_environment(walked(trees[:1]))])
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
        again=_again(nodes, options),
        frameworks=frameworks,
        unread=sorted(
            name
            for name in {*given_to(PARSERS, nodes)}
            if name and name not in defined and not name.endswith("TrainingArguments")
        ),
        distributed=any(name.startswith(DISTRIBUTED) for name in imported)
        and not any(called(call) == "spawn" for call in calls),
        given=_given(nodes, modules, parses=parses),
        hydra="hydra" in modules,
        logged=[PrintedMetric(name, "") for name in logged_by(calls) if "train" not in name],
        above="/".join([".."] * up),
    )


def _given(nodes: list[ast.AST], modules: set[str], *, parses: bool) -> list[str]:
    """Return the arguments that it always needs: the command that trains, what keeps Hydra in the
    attempt's folder, or has transformers' Trainer train, evaluate and save.
    """
    given = [command] if (command := command_of(nodes)) else []
    clis = [call for call in calls_in(nodes) if called(call).endswith("LightningCLI")]
    given += ["fit" for call in clis if "run" not in keywords_of(call)]
    if "hydra" in modules:
        given.append("hydra.run.dir=.")
    if parses:
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        given += [f"--{name}" for name in ("do_train", "do_eval") if name in names]
        given += ["--eval_strategy=epoch", "--save_strategy=epoch"]
    return given


def _reached(trees: list[ast.Module]) -> list[ast.Module]:
    """Return the script's tree, and of its modules what it uses: functions and classes that it
    names, or that those name.
    """
    own = {one.name for one in trees[0].body if isinstance(one, DEFINITIONS)}
    left: list[ast.stmt] = []
    for node in [node for tree in trees[1:] for node in tree.body]:
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if not is_main and getattr(node, "name", "") not in own:
            left.append(node)
    used, names = set(), _names(trees[:1])
    while taken := [
        node for node in left if not isinstance(node, DEFINITIONS) or node.name in names
    ]:
        left = [node for node in left if node not in taken]
        used.update(taken)
        names |= _names(taken)
    modules = ([node for node in tree.body if node in used] for tree in trees[1:])
    return [trees[0], *(ast.Module(body, []) for body in modules)]


def _names(trees: Iterable[ast.AST]) -> set[str]:
    return {called(node) for node in walked(trees) if isinstance(node, ast.Name | ast.Attribute)}


def _own_modules(
    script: Path, roots: list[Path], trees: list[ast.Module]
) -> Iterator[tuple[Path, Path]]:
    """Yield files below these folders that the script imports, and those that they import, each
    with its folder.
    """
    seen = {script}
    for tree in trees:  # which grows
        for name in _imports(tree):
            for root in roots:
                path = root.joinpath(*name.split("."))
                for file in (path.with_suffix(".py"), path / "__init__.py"):
                    if file not in seen and len(seen) <= MOST_MODULES and file.is_file():
                        seen.add(file)
                        yield file, root


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{one.name}" for one in node.names))


def _again(nodes: list[ast.AST], options: list[ScriptOption]) -> list[str]:
    for option in options:
        if option.word in RESUMES and option.choices == ():
            return option.arguments("{checkpoint}")
    compared = {
        called(node.left)
        for node in nodes
        if isinstance(node, ast.Compare) and value_of(node.comparators[0]) == "resume"
        if not isinstance(node.left, ast.Call)
    }
    return next((one.arguments("resume") for one in options if one.name in compared), [])


# options that take the checkpoint to go on from
RESUMES = (
    *("resume", "resume_from_checkpoint", "resume_from", "resume_path", "resume_ckpt"),
    *("ckpt_path", "checkpoint", "checkpoint_path", "load_checkpoint", "restore_file"),
)
