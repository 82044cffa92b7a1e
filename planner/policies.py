"""Policies by their names. Each is imported when it is first asked: a command needs one or none,
and numpy with all of them takes 0.16 s to import.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Policy, Problem, View


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
}  # every policy of one job by its name in the spec

# those that a spec cannot name: of `seerd profile`, and of a run that several jobs share
OTHERS = {"profile": _later("measure.MEASURE"), "jobs": _later("jobs.JOBS")}
# ask for all of their trials when they begin
AT_ONCE = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband", "sha", "profile"})
# have rounds that are planned when they begin: other limits are planned anew
BY_THE_CLOCK = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband"})
# end with their last rung, whatever time and budget there are
TO_THE_LAST_RUNG = frozenset({"sha", "profile"})


def named(name: str) -> Policy:
    """Return the policy of this name."""
    return OTHERS.get(name) or POLICIES[name]


def policy_of(problem: Problem) -> Policy:
    """Return the policy that the problem's parameters name."""
    return named(problem.params.name)


def outline_of(problem: Problem) -> Outline | Impossible:
    """Outline the whole run as the problem's policy would have it, or say why it cannot."""
    return policy_of(problem).outline(problem)


def plan_of(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the problem's policy what it wants now, and what to remember for the next question."""
    return policy_of(problem).plan(problem, memory, view)
