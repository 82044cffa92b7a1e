"""Guesses about a script's options: which are hyperparameters, and between what they should be
looked for.

The one rule: only what has a well-known name is guessed to be a hyperparameter; whatever else there
is, is shown to the person.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from seerd.commands.init.reading import ScriptOption

FIXED = ("epochs", "num_epochs", "max_epochs", "steps", "max_steps", "num_train_epochs")
"""How long a script trains: it should train for longer than a trial is likely to last."""
RESUMES = ("resume", "resume_from_checkpoint", "resume_from", "ckpt_path", "checkpoint")

RATE = ("lr", "learning_rate", "base_lr", "max_lr")
DECAY = ("weight_decay", "wd", "l2")
SHARES = ("dropout", "drop", "drop_rate", "label_smoothing", "drop_path", "warmup_ratio", "mixup")
MOMENTA = ("momentum", "beta1", "adam_beta1")
SIZES = (
    *("width", "hidden", "hidden_size", "hidden_dim", "dim", "units", "embed_dim", "channels"),
    *("layers", "num_layers", "depth", "heads", "num_heads", "filters"),
)
BATCHES = ("batch_size", "batch", "bs", "train_batch_size", "per_device_train_batch_size")
CHOSEN = ("optimizer", "opt", "scheduler", "activation", "loss", "arch", "model")


def dimension(option: ScriptOption) -> str:
    """Return what a hyperparameter should be looked for between, as in `[space]`; empty if the
    option is none.
    """
    if option.choices:
        return _list(option.choices) if option.name in CHOSEN else ""
    for names, guess in GUESSES:
        if option.name in names:
            return guess(option)
    return ""


def resumes(option: ScriptOption) -> bool:
    """Tell whether the script is given a checkpoint with this option."""
    return option.name in RESUMES and option.kind != "bool"


def _rate(option: ScriptOption) -> str:
    middle = _number(option, 1e-3)
    return _log(middle / 30, min(middle * 30, 10.0))


def _decay(option: ScriptOption) -> str:
    middle = _number(option, 1e-4)
    return _log(middle / 100, middle * 10)


def _share(_: ScriptOption) -> str:
    return "{ low = 0.0, high = 0.5 }"


def _momentum(_: ScriptOption) -> str:
    return "[0.8, 0.9, 0.95, 0.99]"


def _size(option: ScriptOption) -> str:
    middle = round(_number(option, 64))
    return f"{{ low = {max(1, middle // 2)}, high = {max(2, middle * 2)} }}"


def _batch(option: ScriptOption) -> str:
    middle = round(_number(option, 64))
    return _list(sorted({max(1, middle // 2), max(1, middle), middle * 2}))


GUESSES: tuple[tuple[tuple[str, ...], Callable[[ScriptOption], str]], ...] = (
    (RATE, _rate),
    (DECAY, _decay),
    (SHARES, _share),
    (MOMENTA, _momentum),
    (SIZES, _size),
    (BATCHES, _batch),
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
