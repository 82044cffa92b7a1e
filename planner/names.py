"""Ids of trials. The one rule: they sort in the order in which trials were asked for."""

from __future__ import annotations


def trial_name(number: int, width: int = 4) -> str:
    """The id of the trial that was asked for as number `number` (from 1); `width`: digits of the largest number."""
    return f"t{number:0{max(4, width)}d}"


def same_trial(name: str, said: str) -> bool:
    """Whether a person who says so means the trial of this id: t3 is t0003, and so is 3."""
    if name == said:
        return True
    digits = said.lstrip("t").lstrip("0")
    return bool(digits) and name.lstrip("t").lstrip("0") == digits
