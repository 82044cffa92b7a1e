"""Guesses about a script's options: which are hyperparameters, and in what range to search. Only
well-known names are guessed; all other options are shown to the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from seerd.commands.init.options import ScriptOption

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
    return "[" + ", ".join(map(_toml, values)) + "]"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _sizes(size: int) -> str:
    """Return the size, half and twice of it: sizes often have to divide each other."""
    return _list(sorted({max(1, size // 2), max(1, size), max(2, size * 2)}))


def _counts(middle: int) -> str:
    return f"{{ low = {max(1, middle // 2)}, high = {max(2, middle * 2)} }}"


# The names of options, their usual default, and the range around a default.
GUESSES: tuple[tuple[tuple[str, ...], float, Callable[[float], str]], ...] = (
    (RATE, 1e-3, lambda middle: _log(middle / 30, min(middle * 30, max(middle, 10.0)))),
    (DECAY, 1e-4, lambda middle: _log(middle / 100, middle * 10)),
    (SHARES, 0.0, lambda _: "{ low = 0.0, high = 0.5 }"),
    (MOMENTA, 0.9, lambda middle: _list(sorted({0.8, 0.9, 0.95, 0.99, middle}))),
    (COUNTS, 4.0, lambda middle: _counts(round(middle))),
    ((*SIZES, *BATCHES), 64.0, lambda middle: _sizes(round(middle))),
)
