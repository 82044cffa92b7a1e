"""Guesses about a script's options: which are hyperparameters, and between what they should be
looked for.

The one rule: only what has a well-known name is guessed to be a hyperparameter; whatever else there
is, is shown to the person.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from seerd.commands.init.options import ScriptOption

LENGTHS = (
    *("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs", "niter"),
    *("steps", "max_steps", "num_steps", "max_train_steps", "max_iters", "num_iters", "iterations"),
)
"""How long a script trains: it should train for longer than a trial is likely to last."""

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
    """Return what a hyperparameter should be looked for between, as in `[space]`; empty if the
    option is none.
    """
    if option.choices:
        return _list(option.choices) if option.word in CHOSEN else ""
    for names, guess in GUESSES:
        if option.word in names and option.kind not in ("bool", "list"):
            return guess(option)
    return ""


def tuned_of(options: list[ScriptOption]) -> list[ScriptOption]:
    """Return the options that look like hyperparameters. Of several learning rates, one of which
    is made of another if it is not given, it is those with a default.
    """
    tuned = [one for one in options if dimension(one)]
    rates = [one for one in tuned if one.word in RATE]
    known = [one for one in rates if one.default is not None]
    return [one for one in tuned if one not in rates or one in known or not known]


def _rate(option: ScriptOption) -> str:
    middle = _number(option, 1e-3)
    return _log(middle / 30, min(middle * 30, max(middle, 10.0)))


def _decay(option: ScriptOption) -> str:
    middle = _number(option, 1e-4)
    return _log(middle / 100, middle * 10)


def _share(_: ScriptOption) -> str:
    return "{ low = 0.0, high = 0.5 }"


def _momentum(option: ScriptOption) -> str:
    return _list(sorted({0.8, 0.9, 0.95, 0.99, _number(option, 0.9)}))


def _count(option: ScriptOption) -> str:
    middle = round(_number(option, 4))
    return f"{{ low = {max(1, middle // 2)}, high = {max(2, middle * 2)} }}"


def _size(option: ScriptOption) -> str:
    """Return the size, half and twice of it: sizes often have to divide each other."""
    middle = round(_number(option, 64))
    return _list(sorted({max(1, middle // 2), max(1, middle), max(2, middle * 2)}))


GUESSES: tuple[tuple[tuple[str, ...], Callable[[ScriptOption], str]], ...] = (
    (RATE, _rate),
    (DECAY, _decay),
    (SHARES, _share),
    (MOMENTA, _momentum),
    (COUNTS, _count),
    ((*SIZES, *BATCHES), _size),
)


def _number(option: ScriptOption, otherwise: float) -> float:
    value = option.default
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and value > 0 else otherwise


def _log(low: float, high: float) -> str:
    return f"{{ low = {_short(low)}, high = {_short(high)}, log = true }}"


def _short(value: float) -> str:
    return repr(float(f"{value:.1g}"))


def _list(values: object) -> str:
    return "[" + ", ".join(_toml(one) for one in values) + "]"  # type: ignore[attr-defined]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
