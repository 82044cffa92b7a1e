"""Ids of trials. The one rule: they sort in the order in which trials were asked for."""

from __future__ import annotations


def trial_name(number: int, width: int = 4) -> str:
    """The id of the trial that was asked for as number `number` (from 1); `width`: digits of the largest number."""
    return f"t{number:0{max(4, width)}d}"
