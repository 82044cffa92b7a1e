"""How each kind of value in a spec is read, by one small function per kind: it takes any TOML value
and returns the checked one, or raises `ValueError` with a sentence that says what is allowed.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

from seerd.agent.arguments import is_inside
from seerd.agent.patterns import NUMBER_PLACE, NumberPattern
from seerd.planner.gpu_parts import DIVISIONS, MOST_PARTS
from seerd.planner.model import MetricConstraint
from seerd.planner.parameter import Condition, Parameter, Value, ends
from seerd.units import parse_duration, parse_gpu_time, parse_money, parse_size

CONSTRAINT = re.compile(r"([^\s<>=]+)\s*(<=|>=|<|>)\s*(\S+)")  # a metric, the sign, and the number
Read = Callable[[Any], Any]
LARGEST = 2**53  # larger integers are not exact in some JSON readers, and a journal holds 64 bits
TINY, HUGE = 1e-300, 1e300  # half a step beyond these there may be no float
MOST_TAGS = 40  # EC2 takes 50 on one resource, seerd's own included
ADDRESS = re.compile(r"[^\s@/\x00-\x20\x7f-][^\s@/\x00-\x20\x7f]*")
LAST_PORT = 65535


def text(value: Any) -> str:
    """Take a string that is not blank and has no NUL, as a program's argument needs."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text in quotes is needed")
    if "\0" in value:
        raise ValueError("a text without the character NUL is needed")
    return value


def printed_name(value: Any) -> str:
    """Take a name that is shown: a text without control characters."""
    if not text(value).isprintable():
        raise ValueError("a name without tabs, line breaks and other control characters is needed")
    return text(value)


def command(value: Any) -> str:
    """Take a command, as a shell would read it, or one word."""
    try:
        shlex.split(text(value))
    except ValueError as error:
        raise ValueError(f"a name, a path or a command is needed: {error}") from None
    return text(value)


def matching(pattern: str, needed: str) -> Read:
    """Take a string that this regular expression matches as a whole."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(needed)
        return value

    return read


name = matching(  # can be part of a file name
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "letters, digits, '.', '_' and '-' are allowed, 64 at most, the first a letter or digit",
)
job_name = matching(  # begins the names of the job's trials
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "a name of at most 32 letters, digits, _ and - is needed"
)


def whole(least: int) -> Read:
    """Take an integer of at least `least`."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"a whole number of at least {least} is needed")
        if value > LARGEST:
            raise ValueError(f"a whole number of at most {LARGEST} is needed")
        return value

    return read


def gpus(value: Any) -> float:
    """Take a number of GPUs: whole ones, or a half, a quarter, ... of one, `0.25` or `"1/4"`."""
    try:
        number = Fraction(str(value)) if isinstance(value, str | float) else whole(1)(value)
    except (ValueError, ZeroDivisionError):
        number = Fraction(0)
    if number in (Fraction(1, parts) for parts in DIVISIONS[1:]):
        return float(number)
    if number < 1 or number.denominator != 1 or number > LARGEST:
        raise ValueError(f'a whole number of GPUs, or "1/2", "1/4" ... "1/{MOST_PARTS}" is needed')
    return int(number)


def parts(value: Any) -> int | None:
    """Take how many trials may share a GPU; None: `"auto"`."""
    if value == "auto":
        return None
    if isinstance(value, bool) or value not in DIVISIONS:
        raise ValueError(f'one of {", ".join(map(str, DIVISIONS))} or "auto" is needed')
    return int(value)


def real(is_allowed: Callable[[float], bool], needed: str) -> Read:
    """Take a number that is allowed."""

    def read(value: Any) -> float:
        if not _is_number(value) or not is_allowed(value):
            raise ValueError(needed)
        return float(value)

    return read


def more_than(bound: float) -> Read:
    """Take a finite number greater than `bound`."""
    return real(
        lambda value: bound < value < math.inf, f"a number greater than {bound:g} is needed"
    )


number = real(math.isfinite, "a finite number is needed")
# a weight beside others
weight = real(lambda value: 0.001 <= value <= 1000, "a number from 0.001 to 1000 is needed")


def yes_or_no(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def one_of(*allowed: str) -> Read:
    """Take one of these words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} is allowed")
        return str(value)

    return read


def list_of(read_item: Read) -> Read:
    """Take a list of values of one kind."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("a list in [ ] is needed")
        good, wrong = [], []
        for number, item in enumerate(value, 1):
            try:
                good.append(read_item(item))
            except (ValueError, OverflowError) as error:
                wrong.append(str(error) if len(value) == 1 else f"number {number}: {error}")
        if wrong:
            raise ValueError("; ".join(wrong))
        return tuple(good)

    return read


def modules(value: Any) -> tuple[str, ...]:
    """Take a list of modules; `false` is none."""
    if value is False:
        return ()
    if value is True:
        raise ValueError("a list of modules or false is needed; leave it out for true")
    names: tuple[str, ...] = list_of(text)(value)
    wrong = [name for name in names if not all(map(str.isidentifier, name.split(".")))]
    if wrong:
        raise ValueError(f"{wrong[0]!r} cannot be the name of a module")
    return names


def metric_constraints(value: Any) -> tuple[MetricConstraint, ...]:
    """Take one constraint on a metric, or a list of them: `latency_ms < 20`."""
    return tuple(list_of(_metric_constraint)(value if isinstance(value, list) else [value]))


def _metric_constraint(value: Any) -> MetricConstraint:
    match = CONSTRAINT.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit) or not value.isprintable():
        raise ValueError('a metric, <, <=, > or >=, and a number are needed: "latency_ms < 20"')
    return MetricConstraint(match[1], match[2], limit)  # type: ignore[arg-type]


def objectives(value: Any) -> dict[str, str]:
    """Take the modes of metrics: `{ latency_ms = "min" }`."""
    if not isinstance(value, dict) or not value:
        raise ValueError('a table of metrics is needed, for example { latency_ms = "min" }')
    _check_quoted(value)
    return {printed_name(metric): one_of("max", "min")(mode) for metric, mode in value.items()}


def reports(value: Any) -> dict[str, str]:
    """Take a pattern, for the spec's metric (the name is empty), or patterns by metric."""
    patterns = {"": value} if isinstance(value, str) else value
    if not isinstance(patterns, dict) or not patterns:
        raise ValueError("a pattern, or a table of patterns by the names of metrics, is needed")
    for metric, pattern in patterns.items():
        if metric:
            printed_name(metric)
        try:
            with warnings.catch_warnings():  # of what may mean something else in a later Python
                warnings.simplefilter("ignore", FutureWarning)
                groups = NumberPattern(text(pattern)).groups
        except re.error as error:
            raise ValueError(f"{pattern!r:.80} is no regular expression: {error}") from None
        if groups < 1:
            raise ValueError(
                f"{pattern!r:.80} needs {NUMBER_PLACE} where the number stands, "
                f"as in 'acc={NUMBER_PLACE}'"
            )
    return dict(patterns)


def saved_path(value: Any) -> str:
    """Take a path, or a pattern of paths, below the folder in which a script runs."""
    path = text(value)
    if not is_inside(path) or "**" in path:
        raise ValueError(
            "a relative path without '..' is needed, as \"out/last.pt\"; "
            "* stands for parts of a name"
        )
    return PurePosixPath(path).as_posix()


def texts(value: Any) -> dict[str, str]:
    """Take a table of strings."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError('a table of texts is needed, for example { DEBUG = "1" }')
    return dict(value)


def environment(value: Any) -> dict[str, str]:
    """Take environment variables that execve(2) accepts."""
    variables = texts(value)
    for name, content in variables.items():
        if not name or "=" in name or "\0" in name + content:
            wrong = "cannot be the name of an environment variable, or its value has a NUL"
            raise ValueError(f"{name!r:.80} {wrong}")
    return variables


def variable(value: Any) -> str:
    """Take the name of an environment variable."""
    if not text(value).isidentifier():
        raise ValueError(f"{value!r:.80} cannot be the name of an environment variable")
    return str(value)


def image(value: Any) -> str:
    """Take the name of a container's image."""
    if not text(value) or value.startswith("-") or value.split() != [value]:
        raise ValueError('an image\'s name is needed, as "docker.io/pytorch/pytorch:2.5.1"')
    return str(value)


def mount(value: Any) -> str:
    """Take the path of a folder that a container sees too."""
    if not text(value).startswith("/") or set(value) & set(",:\0"):
        raise ValueError("an absolute path without comma and colon is needed")
    return str(value)


def tags(value: Any) -> dict[str, str]:
    """Take the user's tags (docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html). Those of
    seerd are refused, since they mark what it may end.
    """
    own_tags = texts(value)
    for name, content in own_tags.items():
        if name.lower().startswith(("aws:", "seerd:")):
            raise ValueError(f"{name!r:.80} is not yours to give: aws: and seerd: are reserved")
        if not 0 < len(name) <= 128 or len(content) > 256:
            raise ValueError(
                f"{name!r:.80}: a tag has a name of 1 to 128 characters, and a value of at most 256"
            )
    if len(own_tags) > MOST_TAGS:
        raise ValueError(f"at most {MOST_TAGS} tags are allowed beside those of seerd")
    return own_tags


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of `provider = "hosts"`."""

    address: str  # host name or IP address
    user: str | None  # login; None: ssh's own choice
    port: int  # the port of SSH
    gpus: int  # CUDA devices (`cuda`), or CPU slots
    cuda: bool  # whether they are CUDA devices


def host(value: Any) -> Host:
    """Take the table of one machine."""
    if not isinstance(value, dict):
        raise ValueError(
            'a table is needed, for example { address = "10.0.0.5", user = "ubuntu", gpus = 8 }'
        )
    _only(value, {"address", "user", "port", "gpus", "slots"}, "a host")
    if not isinstance(value.get("address"), str) or not ADDRESS.fullmatch(value["address"]):
        raise ValueError(
            "a host needs its address: a name or a number, without spaces, the user apart"
        )
    if whole(1)(value.get("port", 22)) > LAST_PORT:
        raise ValueError(f"port = {value['port']:.6g} is not one of 1 to {LAST_PORT}")
    if ("gpus" in value) == ("slots" in value):
        raise ValueError("a host needs either gpus, or slots: how many trials its CPU runs at once")
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
    """What every instance fetches once."""

    source: str  # s3://bucket/prefix: all objects below it
    to: str  # the folder inside the source folder that they are put into


def data(value: Any) -> Data:
    """Take one entry of `train.data`."""
    if not isinstance(value, dict):
        raise ValueError(
            'a table is needed, for example { from = "s3://bucket/prefix", to = "data" }'
        )
    _only(value, {"from", "to"}, "data")
    source, to = value.get("from"), value.get("to")
    if not isinstance(source, str) or not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]*(/.*)?", source):
        raise ValueError("from has to be s3://bucket/prefix")
    if not isinstance(to, str) or not to or to.startswith("/") or ".." in to.split("/"):
        raise ValueError("to has to be a folder inside the source, for example data")
    return Data(source, to)


def _only(value: dict[str, Any], keys: set[str], what: str) -> None:
    if unknown := set(value) - keys:
        raise ValueError(f"{what} has {', '.join(sorted(keys))}, not {', '.join(sorted(unknown))}")


def config(value: Any) -> dict[str, Value]:
    """Take a configuration, or a part of one."""
    _check_quoted(value)
    if not isinstance(value, dict) or not value or not all(map(_is_value, value.values())):
        raise ValueError("a table of values is needed, for example { lr = 0.1, width = 64 }")
    return {name: _frozen(it) for name, it in value.items()}


def parameter(key: str, value: Any) -> Parameter:
    """Take one dimension of the search space: choices (which may be lists), a fixed value, a range
    or a normal. Whether its conditions can hold is checked elsewhere.
    """
    if set("{}") & set(printed_name(key)):
        raise ValueError("a name without braces is needed, since {name} stands for a value")
    if isinstance(value, list):
        return Parameter(key, choices=_choices(value))
    if not isinstance(value, dict):
        if not _is_value(value):
            raise ValueError(
                "a list of choices, { low = ..., high = ... }, { mean = ..., std = ... } or a "
                "fixed number, text or boolean is needed"
            )
        return Parameter(key, choices=_choices([value]))
    if not {"values", "when"} & value.keys() and set(map(type, value.values())) & {dict, list}:
        _check_quoted({key: value})
    if "values" in value:
        _only(value, {"values", "when"}, "a list of values")
        return Parameter(key, choices=_choices(value["values"]), when=_conditions(value))
    return _range(key, value)


def _choices(value: Any) -> tuple[Value, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_value, value)):
        raise ValueError("a list of at least one number, text, boolean, or list of these is needed")
    return tuple(map(_frozen, value))


def _range(key: str, value: dict[str, Any]) -> Parameter:
    """Take a range or, by its mean and std, a normal."""
    is_normal = bool({"mean", "std"} & set(value))
    needed = ("mean", "std") if is_normal else ("low", "high")
    allowed = {*needed, "low", "high", "step", "log", "when"}
    _only(value, allowed, "a normal" if is_normal else "a range")
    if not all(_is_number(value.get(name)) for name in needed):
        raise ValueError(f"{' and '.join(needed)} are needed, both numbers up to 1.8e308")
    for name in ("low", "high", "step"):
        if name in value and not _is_number(value[name]):
            raise ValueError(f"{name} must be a number")
    if not isinstance(log := value.get("log", False), bool):
        raise ValueError("log must be true or false")
    names = ("mean", "std", "low", "high", "step")
    numbers: dict[str, Any] = {name: float(value[name]) for name in names if name in value}
    step = numbers.get("step")
    if is_normal:
        _check_step(*ends(numbers["mean"], numbers["std"], None, log=log), step)
        low, high = ends(numbers["mean"], numbers["std"], step, log=log)
        numbers = {"low": low, "high": high, **numbers}
    _check_step(numbers["low"], numbers["high"], step)
    whole = (isinstance(value[name], int) for name in numbers.keys() & value.keys() - {"std"})
    return Parameter(
        key,
        **numbers,
        log=log,
        integer=all(whole) and (step is not None or not is_normal),
        when=_conditions(value),
    )


def _check_step(low: float, high: float, step: float | None) -> None:
    if step is not None and 0 < step < (high - low) / LARGEST:
        raise ValueError(f"step = {step:g} is too small for this range; leave it out")
    if step is not None and any(n and not TINY < abs(n) < HUGE for n in (low, high, step)):
        ends = f"between {TINY:g} and {HUGE:g}"
        raise ValueError(f"with a step, numbers are 0, or {ends}; leave the step out")


def _conditions(value: dict[str, Any]) -> tuple[Condition, ...]:
    when = value.get("when", {})
    if not isinstance(when, dict) or ("when" in value and not when):
        raise ValueError('when must be a table, for example when = { optimizer = "sgd" }')
    try:
        _check_quoted(when)
        return tuple(
            Condition(name, _choices(values if isinstance(values, list) else [values]))
            for name, values in when.items()
        )
    except ValueError as error:
        raise ValueError(f"when: {error}") from error


def _check_quoted(table: Any) -> None:
    """Raise `ValueError` for nested tables, which TOML makes of an unquoted name with points."""
    for name, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict):
            path = f"{name}.{next(iter(value), 'lr')}"
            raise ValueError(
                f'tables are not nested here: a name with points is quoted, "{path}" = ...'
            )


def _is_value(value: Any, deepest: int = 2) -> bool:
    if isinstance(value, list) and deepest:
        return all(_is_value(item, deepest - 1) for item in value)
    return isinstance(value, (bool, int, float, str))


def _frozen(value: Any) -> Any:
    """Return the value, lists as tuples. Raises `ValueError` for a number that cannot be kept."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("every number must be finite")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"whole numbers of at most {LARGEST} are allowed")
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    """Return whether this is a number that a float can hold."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _with_unit(parse: Callable[[str], float], units: str, what: str) -> Read:
    """Take a text with one of these units, more than 0."""

    def read(value: Any) -> float:
        if _is_number(value):
            raise ValueError(f"a number needs its unit: {units}")
        number = parse(text(value))
        if not 0 < number < math.inf:
            raise ValueError(f"{what} must be more than 0, and finite")
        return number

    return read


duration = _with_unit(parse_duration, "90s, 30m, 1h30m or 2h", "a duration")  # as seconds
gpu_time = _with_unit(parse_gpu_time, "480gpu-min, 8gpu-h or 90gpu-s", "GPU time")  # GPU-seconds
money = _with_unit(parse_money, "$40 or 40usd", "an amount of money")  # as USD
size = _with_unit(parse_size, "12GB, 500MB or 1.5TB", "a size")  # as GB
