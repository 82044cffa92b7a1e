"""Which options of a script are hyperparameters, in what range to search, and what sets those of a
script without options: Hydra's configuration or its environment. Only well-known names count.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from seerd.commands.init.options import ScriptOption, calls_in, keywords_of, value_of

# how long a script trains: it should train for longer than a trial is likely to last
LENGTHS = (
    *("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs", "niter"),
    *("steps", "max_steps", "num_steps", "max_train_steps", "max_iters", "num_iters", "iterations"),
)

RATE = ("lr", "learning_rate", "base_lr", "max_lr", "blr", "lr0", "eta")
DECAY = ("weight_decay", "wd", "l2", "alpha", "reg_lambda", "c")
SHARES = (
    *("dropout", "drop", "drop_rate", "label_smoothing", "smoothing", "drop_path", "warmup_ratio"),
    "mixup",
)
MOMENTA = ("momentum", "beta1", "adam_beta1")
COUNTS = ("layers", "num_layers", "nlayers", "n_layer", "n_layers", "depth", "max_depth")
SIZES = (
    *("width", "hidden", "hidden_size", "hidden_dim", "dim", "units", "embed_dim", "channels"),
    *("heads", "num_heads", "nhead", "n_head", "filters", "nhid", "emsize", "n_embd", "nz", "ngf"),
)
BATCHES = ("batch_size", "batch", "bs", "train_batch_size", "per_device_train_batch_size")
CHOSEN = ("optimizer", "opt", "scheduler", "activation", "loss", "arch", "model")


def dimension(option: ScriptOption) -> str:
    """Return the range of a hyperparameter as in `[space]`; empty if the option is none."""
    if option.choices:
        return _list(option.choices) if option.word in CHOSEN else ""
    for names, usual, guess in GUESSES:
        if option.word in names and option.kind not in ("bool", "list"):
            default = option.default
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            has_one = is_number and math.isfinite(default) and default > 0
            return guess(float(default) if has_one else usual)
    return ""


def tuned_of(options: list[ScriptOption]) -> list[ScriptOption]:
    """Return the options that look like hyperparameters. Of several learning rates, one of which
    may be made of another, it is those with a default.
    """
    tuned = [one for one in options if dimension(one)]
    rates = [one for one in tuned if one.word in RATE]
    with_default = [one for one in rates if one.default is not None]
    return [one for one in tuned if one not in rates or one in with_default or not with_default]


def _log(low: float, high: float) -> str:
    low, high = (float(f"{value:.1g}") for value in (low, high))
    return f"{{ low = {low!r}, high = {high!r}, log = true }}"


def _list(values: Iterable[object]) -> str:
    known = [one if isinstance(one, int | float) else str(one) for one in values]
    return json.dumps(known, ensure_ascii=False)


def _around(middle: float) -> tuple[int, int, int]:
    """Return half of a whole number, itself and twice of it: sizes often have to divide others."""
    size = round(middle)
    return max(1, size // 2), max(1, size), max(2, size * 2)


# The names of options, their usual default, and the range around a default.
GUESSES: tuple[tuple[tuple[str, ...], float, Callable[[float], str]], ...] = (
    (RATE, 1e-3, lambda middle: _log(middle / 30, min(middle * 30, max(middle, 10.0)))),
    (DECAY, 1e-4, lambda middle: _log(middle / 100, middle * 10)),
    (SHARES, 0.0, lambda _: "{ low = 0.0, high = 0.5 }"),
    (MOMENTA, 0.9, lambda middle: _list(sorted({0.8, 0.9, 0.95, 0.99, middle}))),
    (COUNTS, 4.0, lambda middle: "{{ low = {0}, high = {2} }}".format(*_around(middle))),
    ((*SIZES, *BATCHES), 64.0, lambda middle: _list(sorted({*_around(middle)}))),
)

# ------------------------------------------------------------ scripts without options

OF_YAML = re.compile(r"(?P<indent> *)(?P<key>[\w./-]+) *:(?:\s+(?P<value>[^#\n]*?))?\s*(?:#.*)?$")
IN_A_GROUP = re.compile(r"\s*- *(?P<group>[\w/]+) *: *(?P<name>[\w.-]+)\s*(?:#.*)?$")
WORDS_OF_YAML = {"true": True, "false": False, "null": None, "~": None}
MISSING = "???"  # stands for a value that must be given
ENVIRONMENT = "$"  # how an option begins that is an environment variable


def config_of_hydra(script: ast.Module, roots: Iterable[Path]) -> Path | None:
    """Return the configuration that `hydra.main` names, in one of these folders, or None."""
    for call in calls_in(ast.walk(script)):
        if ast.unparse(call.func) != "hydra.main":
            continue
        texts = {
            name: [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
            for name, value in keywords_of(call).items()
        }
        path, name = (str([*texts.get(key, []), ""][0]) for key in ("config_path", "config_name"))
        for place in roots:
            file = (place / path / name).with_suffix(".yaml").resolve()
            if name and file.is_file():
                return file
    return None


def options_of_yaml(file: Path, begin: str = "") -> Iterator[ScriptOption]:
    """Yield the keys of a configuration, and of those that its `defaults` name, as overrides."""
    above: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if (named := IN_A_GROUP.match(line)) and [key for _, key in above] == ["defaults"]:
            inner = (file.parent / named["group"] / named["name"]).with_suffix(".yaml")
            if inner.is_file():
                yield from options_of_yaml(inner, f"{begin}{named['group'].replace('/', '.')}.")
        if not (pair := OF_YAML.match(line)):
            continue
        indent = len(pair["indent"])
        above = [*((at, key) for at, key in above if at < indent), (indent, pair["key"])]
        text = (pair["value"] or "").strip("'\"")
        if text and not text.startswith(("$", "[", "{", "|", ">")) and pair["key"][0] != "_":
            value = _of_yaml(text)
            yield ScriptOption(
                f"{begin}{'.'.join(key for _, key in above)}=",
                "choice" if isinstance(value, bool) else type(value).__name__,
                None if text == MISSING else value,
                required=text == MISSING,
            )


def _of_yaml(text: str) -> object:
    for kind in (WORDS_OF_YAML.__getitem__, int, float):
        with suppress(ValueError, KeyError):
            return kind(text)
    return text


def of_environment(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield the variables of its environment that a script reads."""
    for node in nodes:
        read = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if found := re.match(r"(?:os\.)?(?:getenv\(|environ\.get\(|environ\[)'(\w+)'", read):
            default = next(map(value_of, getattr(node, "args", ())[1:2]), None)
            known = None if default is None else _of_yaml(str(default))
            yield ScriptOption(f"{ENVIRONMENT}{found[1]}", default=known)
