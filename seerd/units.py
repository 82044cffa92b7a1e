"""Durations, GPU time, money and sizes as people write and read them. Inside seerd these are floats
of seconds, GPU-seconds, USD and GB.

The one rule: a number always has its unit. A `ValueError` says which units can be written.
"""

from __future__ import annotations

import math
import re

SLOW_S = 2.0  # longer work is announced, seconds
SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
GPU_SECONDS = {"gpu-h": 3600.0, "gpu-min": 60.0, "gpu-s": 1.0}
GIGABYTES = {"TB": 1000.0, "GB": 1.0, "MB": 0.001}

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")
_GPU_TIME = re.compile(rf"({_NUMBER}) ?(gpu-h|gpu-min|gpu-s)")
_SIZE = re.compile(rf"({_NUMBER}) ?(TB|GB|MB)")
_MONEY = re.compile(rf"\$({_NUMBER})|({_NUMBER}) ?(?:usd|USD)")


def parse_duration(text: str) -> float:
    """Read `90s`, `30m`, `1h30m` or `2h` as seconds. Raises `ValueError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError("write a duration with its units: 90s, 30m, 1h30m or 2h")
    return sum(
        float(part) * unit
        for part, unit in zip(match.groups(), SECONDS.values(), strict=True)
        if part
    )


def parse_gpu_time(text: str) -> float:
    """Read `480gpu-min`, `8gpu-h` or `90gpu-s` as GPU-seconds. Raises `ValueError`."""
    match = _GPU_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("write GPU time with its unit: 480gpu-min, 8gpu-h or 90gpu-s")
    return float(match[1]) * GPU_SECONDS[match[2]]


def parse_money(text: str) -> float:
    """Read `$40` or `40usd` as USD. Raises `ValueError`."""
    match = _MONEY.fullmatch(text.strip())
    if match is None:
        raise ValueError("write money with its unit: $40 or 40usd")
    return float(match[1] or match[2])


def parse_size(text: str) -> float:
    """Read `12GB`, `500MB` or `1.5TB` as GB (10^9 bytes). Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("write a size with its unit: 12GB, 500MB or 1.5TB")
    return float(match[1]) * GIGABYTES[match[2]]


def format_duration(seconds: float) -> str:
    """Write seconds as `parse_duration` reads them, to the millisecond: 1830.0 -> "30m30s"."""
    millis = round(seconds * 1000)
    hours, rest = divmod(millis, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    parts = [(hours, "h"), (minutes, "m")]
    text = "".join(f"{number}{unit}" for number, unit in parts if number)
    return text + f"{_plain(rest / 1000)}s" if rest or not text else text


def format_gpu_time(gpu_seconds: float) -> str:
    """Write GPU-seconds as `parse_gpu_time` reads them: in GPU-minutes, to three decimals."""
    return f"{_plain(gpu_seconds / 60)}gpu-min"


def format_money(usd: float) -> str:
    """Write USD in whole cents, rounded up, so that no bill is higher than shown."""
    return f"${math.ceil(round(usd * 100, 6)) / 100:.2f}"


def format_size(count: int) -> str:
    """Write bytes to three digits: 1234567 -> "1.23MB"; less than a MB in KB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count / 1e3:.3g}KB"


def _plain(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def count(number: int, what: str) -> str:
    """Write a number with its noun: 1 trial, 2 trials."""
    return f"{number} {what}{'s' * (number != 1)}"


def ordinal(number: int) -> str:
    """Write a place: 1st, 2nd, 3rd, 4th."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
