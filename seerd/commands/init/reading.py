"""What a training script shows of itself in its text: options, what it prints and saves, and whose
training loop it has.

The one rule: the script is read, never run; what cannot be read off is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

METRICS = (
    *("accuracy", "acc", "f1", "auc", "bleu", "score", "reward", "perplexity", "ppl"),
    *("error", "mse", "mae", "loss"),
)
"""Words that name a metric, the likeliest goal first."""
LESS_IS_BETTER = ("perplexity", "ppl", "error", "mse", "mae", "loss")
WORD_BEFORE = re.compile(r"([A-Za-z_][\w ]*?)\W{1,4}$")
FRAMEWORKS = {
    "seerd": "seerd",
    "transformers": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}
DISTRIBUTED = ("torch.distributed", "torch.nn.parallel")


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """An option that the script reads with argparse.

    flag     as it is written, "--lr"
    kind     the name of its type: "float", "int", "str", "Path", "bool" for a flag; empty: not said
    default  None if there is none, or it cannot be read
    choices  what it may be; empty: anything
    """

    flag: str
    kind: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """What the script calls its value."""
        return self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class PrintedMetric:
    """A metric that the script prints.

    name     the word before it
    pattern  what finds it in a line
    """

    name: str
    pattern: str

    @property
    def mode(self) -> str:
        """Whether more or less of it is better, by its name."""
        return "min" if any(word in self.name for word in LESS_IS_BETTER) else "max"


@dataclass(slots=True)
class ScriptFacts:
    """What a script shows.

    options      of argparse
    printed      metrics, the likeliest goal first
    saved        paths that it saves to
    frameworks   among `FRAMEWORKS`
    distributed  whether it is made for several processes
    parses       whether it reads the options of transformers' `HfArgumentParser`
    """

    options: list[ScriptOption] = field(default_factory=list)
    printed: list[PrintedMetric] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    frameworks: set[str] = field(default_factory=set)
    distributed: bool = False
    parses: bool = False


def shown(text: str) -> ScriptFacts:
    """Read a script. Raises `SyntaxError` if it is no Python."""
    tree = ast.parse(text)
    found = ScriptFacts()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _note_import(node, found)
        elif isinstance(node, ast.Call):
            _note_call(node, found)
    values = {f"args.{one.name}": str(one.default) for one in found.options if one.default}
    found.saved = list(dict.fromkeys(_saved(tree, _constants(tree) | values)))
    found.printed = sorted(dict.fromkeys(_printed(tree)), key=_rank)
    return found


def _note_import(node: ast.Import | ast.ImportFrom, found: ScriptFacts) -> None:
    if isinstance(node, ast.Import):
        modules = [one.name for one in node.names]
    else:
        modules = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
    for module in modules:
        if name := FRAMEWORKS.get(module.split(".")[0]):
            found.frameworks.add(name)
        found.distributed |= module.startswith(DISTRIBUTED)
        found.parses |= module.endswith(".HfArgumentParser")


def _note_call(call: ast.Call, found: ScriptFacts) -> None:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
        option = _option(call)
        if option is not None:
            found.options.append(option)


def _option(call: ast.Call) -> ScriptOption | None:
    flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
    long = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
    if not long:
        return None
    given = {one.arg: one.value for one in call.keywords if one.arg}
    action = _value(given.get("action"))
    if action in ("store_true", "store_false", "help", "version", "count"):
        return ScriptOption(long[0], "bool", action == "store_false")
    default = _value(given.get("default"))
    kind = ast.unparse(given["type"]).split(".")[-1] if "type" in given else ""
    choices = _value(given.get("choices"))
    return ScriptOption(
        long[0],
        kind or (type(default).__name__ if default is not None else ""),
        default,
        tuple(choices) if isinstance(choices, list | tuple) else (),
    )


def _value(node: ast.expr | None) -> Any:
    """Return the value of what is written out, `Path("out")` included; None for anything else."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Path") and node.args:
        return _value(node.args[0])
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _constants(tree: ast.Module) -> dict[str, str]:
    """Find texts that are given a name at the top of the script."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _value(node.value)
            if isinstance(value, str):
                found[node.targets[0].id] = value
    return found


def _saved(tree: ast.Module, values: dict[str, str]) -> Iterator[str]:
    """Yield paths that `torch.save` and the like are given, as far as they can be read off; what
    changes from save to save is a `*`.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        place = {"save": 1, "save_checkpoint": 0, "save_state": 0, "save_pretrained": 0}
        at = place.get(node.func.attr)
        if at is None or len(node.args) <= at:
            continue
        path = _path(node.args[at], values)
        if path.strip("*./") and not path.startswith("/") and ".." not in path:
            yield PurePosixPath(path).as_posix()


def _path(node: ast.expr, values: dict[str, str]) -> str:
    text = ast.unparse(node)
    if text in values:
        return values[text]
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _path(one.value if isinstance(one, ast.FormattedValue) else one, values)
            for one in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
        between = "/" if isinstance(node.op, ast.Div) else ""
        return f"{_path(node.left, values)}{between}{_path(node.right, values)}"
    if (
        isinstance(node, ast.Call)
        and node.args
        and text.startswith(("os.path.join", "Path", "str"))
    ):
        return "/".join(_path(one, values) for one in node.args)
    return "*"


def _printed(tree: ast.Module) -> Iterator[PrintedMetric]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _prints(node.func):
            for argument in node.args:
                if isinstance(argument, ast.JoinedStr):
                    yield from _in_text(argument)
            yield from _in_arguments(node.args)


def _prints(function: ast.expr) -> bool:
    name = ast.unparse(function)
    return name == "print" or name.endswith((".info", ".write", ".print"))


def _in_text(text: ast.JoinedStr) -> Iterator[PrintedMetric]:
    """Yield what an f-string has after the word of a metric."""
    for before, value in pairwise(text.values):
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue):
            yield from _metric(str(before.value))


def _in_arguments(arguments: list[ast.expr]) -> Iterator[PrintedMetric]:
    """Yield what `print("accuracy", accuracy)` has after the word of a metric."""
    for before, value in pairwise(arguments):
        if isinstance(before, ast.Constant) and not isinstance(value, ast.Constant):
            yield from _metric(f"{before.value!s} ")


def _metric(before: str) -> Iterator[PrintedMetric]:
    found = WORD_BEFORE.search(before)
    words = found[1].lower().split() if found else []
    if not found or not any(word in words[-1] for word in METRICS):
        return
    kept = " ".join(found[1].split()[-2:])
    tail = before[found.end(1) :]
    name = re.sub(r"\W+", "_", kept.lower()).strip("_")
    yield PrintedMetric(name, f"{re.escape(kept)}{_loosely(tail)}([-+.0-9eE]+)".replace("\\ ", " "))


def _loosely(text: str) -> str:
    """Return a pattern for punctuation between a word and its number."""
    return re.sub(r"\s+", r"\\s+", re.escape(text).replace("\\ ", " "))


def _rank(printed: PrintedMetric) -> tuple[int, int]:
    tested = any(word in printed.name for word in ("val", "test", "eval", "dev"))
    trained = "train" in printed.name
    kind = next(place for place, word in enumerate(METRICS) if word in printed.name)
    return (2 * trained - tested, kind)


def script_text(path: Path) -> str:
    """Read the script's text."""
    return path.read_text(encoding="utf-8")
