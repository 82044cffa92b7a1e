"""How each kind of value in a spec is read: one small function per kind, from what TOML holds to what seerd works with.

The one rule: a function takes any TOML value and returns the good one, or raises `ValueError` with a sentence that says what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.space import Parameter
from seerd.units import parse_duration, parse_gpu_time, parse_money

Read = Callable[[Any], Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def text(value: Any) -> str:
    """Any string but an empty one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text in quotes is needed")
    return value


def name(value: Any) -> str:
    """A string that can be part of a file name."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError("letters, digits, '.', '_' and '-' are allowed, 64 at most, the first a letter or digit")
    return value


def whole(least: int) -> Read:
    """An integer of at least this."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"a whole number of at least {least} is needed")
        return value

    return read


def more_than(bound: float) -> Read:
    """A finite number greater than this."""

    def read(value: Any) -> float:
        if not _is_number(value) or not bound < value < math.inf:
            raise ValueError(f"a number greater than {bound:g} is needed")
        return float(value)

    return read


def one_of(*allowed: str) -> Read:
    """One of these words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} is allowed")
        return str(value)

    return read


def list_of(read_item: Read) -> Read:
    """A list of values of one kind."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("a list in [ ] is needed")
        return tuple(read_item(item) for item in value)

    return read


def texts(value: Any) -> dict[str, str]:
    """A table of strings."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError('a table of texts is needed, for example { DEBUG = "1" }')
    return dict(value)


def table(value: Any) -> dict[str, Any]:
    """Any table, kept as it is."""
    if not isinstance(value, dict):
        raise ValueError("a table in { } is needed")
    return value


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of `provider = "hosts"`. `user` None: as ssh itself would choose; `gpus` are CUDA devices (`cuda`) or CPU slots."""

    address: str
    user: str | None
    port: int
    gpus: int
    cuda: bool


def host(value: Any) -> Host:
    """One machine."""
    if not isinstance(value, dict):
        raise ValueError('a table is needed, for example { address = "10.0.0.5", user = "ubuntu", gpus = 8 }')
    _only(value, {"address", "user", "port", "gpus", "slots"}, "a host")
    if not isinstance(value.get("address"), str) or not value["address"]:
        raise ValueError("a host needs its address")
    if ("gpus" in value) == ("slots" in value):
        raise ValueError(
            "a host needs either gpus, how many GPUs it has, or slots, how many trials its CPU may run at once"
        )
    user = value.get("user")
    return Host(
        address=value["address"],
        user=None if user is None else text(user),
        port=whole(1)(value.get("port", 22)),
        gpus=whole(1)(value.get("gpus", value.get("slots"))),
        cuda="gpus" in value,
    )


@dataclass(frozen=True, slots=True)
class Data:
    """What every instance fetches once: the objects below `source` (s3://bucket/prefix), into the folder `to` of the source."""

    source: str
    to: str


def data(value: Any) -> Data:
    """One entry of `train.data`."""
    if not isinstance(value, dict):
        raise ValueError('a table is needed, for example { from = "s3://bucket/prefix", to = "data" }')
    _only(value, {"from", "to"}, "data")
    source, to = value.get("from"), value.get("to")
    if not isinstance(source, str) or not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]*(/.*)?", source):
        raise ValueError("from has to be s3://bucket/prefix")
    if not isinstance(to, str) or not to or to.startswith("/") or ".." in to.split("/"):
        raise ValueError("to has to be a folder inside the source, for example data")
    return Data(source, to)


def _only(value: dict[str, Any], known: set[str], what: str) -> None:
    unknown = set(value) - known
    if unknown:
        raise ValueError(f"{what} has {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}")


def duration(value: Any) -> float:
    """Seconds, more than none."""
    return _positive(parse_duration(_with_unit(value, "90s, 30m, 1h30m or 2h")), "a duration")


def gpu_time(value: Any) -> float:
    """GPU-seconds, more than none."""
    return _positive(parse_gpu_time(_with_unit(value, "480gpu-min, 8gpu-h or 90gpu-s")), "GPU time")


def money(value: Any) -> float:
    """US dollars, more than none."""
    return _positive(parse_money(_with_unit(value, "$40 or 40usd")), "an amount of money")


def parameter(key: str, value: Any) -> Parameter:
    """One dimension of the search space: a list of choices, or a range."""
    if isinstance(value, list):
        if not value or not all(isinstance(item, (bool, int, float, str)) for item in value):
            raise ValueError("a list of at least one number, text or boolean is needed")
        if any(isinstance(item, float) and not math.isfinite(item) for item in value):
            raise ValueError("every number must be finite")
        return Parameter(key, choices=tuple(value))
    if not isinstance(value, dict):
        raise ValueError("a list of choices or { low = ..., high = ... } is needed")
    return _range(key, value)


def _range(key: str, value: dict[str, Any]) -> Parameter:
    unknown = set(value) - {"low", "high", "step", "log"}
    if unknown:
        raise ValueError(f"a range has low, high, step and log, not {', '.join(sorted(unknown))}")
    if not all(_is_number(value.get(end)) for end in ("low", "high")):
        raise ValueError("low and high are needed, both numbers")
    step, log = value.get("step"), value.get("log", False)
    if step is not None and not _is_number(step):
        raise ValueError("step must be a number")
    if not isinstance(log, bool):
        raise ValueError("log must be true or false")
    integer = all(isinstance(value.get(end, 0), int) for end in ("low", "high", "step"))
    return Parameter(
        key,
        low=float(value["low"]),
        high=float(value["high"]),
        step=None if step is None else float(step),
        log=log,
        integer=integer,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _with_unit(value: Any, units: str) -> str:
    if _is_number(value):
        raise ValueError(f"a number needs its unit: {units}")
    return text(value)


def _positive(value: float, what: str) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{what} must be more than 0, and finite")
    return value
