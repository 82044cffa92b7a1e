"""Ids of trials, which sort in the order in which trials were asked for. Where jobs share a run, an
id is that of its job, a point, and the id that the job's own policy has given it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct


class Names(Struct, frozen=True, array_like=True):
    """The ids of a run's trials."""

    prefix: str  # what each begins with
    offset: int  # what is added to a trial's number
    width: Annotated[int, Meta(ge=1)]  # digits of that sum

    def of(self, number: int) -> str:
        """Return the id of the trial that was asked for as number `number` (from 1)."""
        return f"{self.prefix}{self.offset + number:0{self.width}d}"


POINT = "."  # separates a job's id, which has none, from the rest


def job_of(trial: str) -> str:
    """Return the job of a trial; empty where the run is one job."""
    return trial.rpartition(POINT)[0]


def in_job(job: str, own: str) -> str:
    """Return a trial's id in the run; `own`: the id that its job's policy has given it."""
    return f"{job}{POINT}{own}"


def own_id(trial: str) -> str:
    """Return the id that a trial's own policy has given it."""
    return trial.rpartition(POINT)[2]


def names(width: int = 4) -> Names:
    """Return a run's ids; `width`: digits of the largest number."""
    return Names("t", 0, max(4, width))


def names_after(last: str, number: int, more: int) -> Names:
    """Return ids for `more` further trials that sort after `last`, the id of number `number`."""
    match = re.fullmatch(r"(.*?)([0-9]*)", last, re.DOTALL)
    prefix, digits = match.groups() if match else (last, "")
    width = max(1, len(digits))
    before = int(digits or 0)
    while before + more >= 10**width:
        before, width = before * 10, width + 1
    return Names(prefix, before - number, width)


def trial_name(number: int, width: int = 4) -> str:
    """Return the id of trial number `number` (from 1); `width`: digits of the largest number."""
    return names(width).of(number)


def trial_number(name: str) -> int:
    """Return the number of the trial with this id; 0 if the id has none."""
    digits = own_id(name).removeprefix("t")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def in_order(names: Iterable[str]) -> list[str]:
    """Order ids by the number of their trials, even if they differ in width."""
    return sorted(names, key=lambda name: (trial_number(name), name))


def highest(names: Iterable[str]) -> int:
    """Return the highest number of a trial: ids after it are free."""
    return max((trial_number(name) for name in names), default=0)


def same_trial(name: str, other: str) -> bool:
    """Return whether a user who writes `other` means it: 3 and t3 are t0003, J.t3 J.t0003."""
    if name == other:
        return True
    digits = own_id(other).lstrip("t").lstrip("0")
    same = bool(digits) and own_id(name).lstrip("t").lstrip("0") == digits
    return same and job_of(name) == job_of(other)
