"""Policies of one job, by their names. Each is imported when it is first asked: a command needs one
or none, and numpy with all of them takes 0.16 s to import.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from seerd.planner.model import Policy


def _later(name: str, *changes: str) -> Policy:
    """Return the policy `module.NAME`, changed by these functions in turn."""

    def attribute(path: str) -> Any:
        module, _, name = path.partition(".")
        return getattr(import_module(f"seerd.planner.{module}"), name)

    @cache
    def policy() -> Policy:
        made: Policy = attribute(name)
        for change in changes:
            made = attribute(change)(made)
        return made

    return Policy(
        lambda problem: policy().outline(problem),
        lambda problem, memory, view: policy().plan(problem, memory, view),
    )


_BY_THE_CLOCK = ("adapted.renewed", "adapted.open_ended")
_BY_REPORTS = ("adapted.unpaused",)

POLICIES: dict[str, Policy] = {
    "seer+": _later("seer_plus.SEER_PLUS"),
    "seer": _later("seer_capped.SEER", *_BY_THE_CLOCK),
    "random": _later("baselines.RANDOM", *_BY_THE_CLOCK),
    "grid": _later("baselines.GRID", *_BY_THE_CLOCK),
    "sha": _later("halving.SHA", *_BY_REPORTS),
    "hyperband": _later("hyperband.HYPERBAND", *_BY_REPORTS),
    "e-hyperband": _later("hyperband.E_HYPERBAND", *_BY_THE_CLOCK),
    "e-grid": _later("baselines.E_GRID", *_BY_THE_CLOCK),
    "asha": _later("asha.ASHA", *_BY_REPORTS),
    "hypersched": _later("hypersched.HYPERSCHED", *_BY_REPORTS),
    "bohb": _later("bohb.BOHB", *_BY_REPORTS),
    "gp-ucb": _later("gp_ucb.GP_UCB", *_BY_REPORTS),
}  # every policy by its name in the spec

PROFILE = _later("measure.MEASURE")  # the policy of `seerd profile`, which a spec cannot name
# ask for all of their trials when they begin
AT_ONCE = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband", "sha", "profile"})
# have rounds that are planned when they begin: other limits are planned anew
BY_THE_CLOCK = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband"})
# choose by comparing trials while they train, and learn nothing else
NEED_CURVES = frozenset({"asha", "e-grid", "e-hyperband", "hyperband", "hypersched", "seer", "sha"})
# end with their last rung, whatever time and budget there are
TO_THE_LAST_RUNG = frozenset({"sha", "profile"})


def named(name: str) -> Policy:
    """Return the policy of this name."""
    return PROFILE if name == "profile" else POLICIES[name]
