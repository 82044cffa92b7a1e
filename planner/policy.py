"""What a search policy is, and the registry of their names.

The one rule: a policy is two functions. What it remembers from one question to the next is a value that it is given back; nothing else of it
lasts, so any process, and any later version, can ask the next question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.asha import Asha
from planner.elastic_grid import elastic_grid
from planner.elastic_hyperband import elastic_hyperband
from planner.grid import grid_search
from planner.halving import sha
from planner.hyperband import hyperband
from planner.hypersched import HyperSched
from planner.measure import Measure
from planner.model import Impossible, Outline, Plan, Problem, View
from planner.random_search import random_search
from planner.seer import Seer


@dataclass(frozen=True, slots=True)
class Policy:
    """A search policy.

    outline  the whole run as it would go ideally
    plan     what is wanted now, and what to remember for the next question. Asking again before anything changed, with the new memory,
             gives the same allocations and nothing new. Raises `ValueError` if the limits fit nothing, which `outline` tells before
    """

    outline: Callable[[Problem], Outline | Impossible]
    plan: Callable[[Problem, Memory, View], tuple[Plan, Memory]]


def _bohb(problem: Problem) -> Policy:
    """Imported when it is asked for: with it comes Optuna, which is an extra."""
    from planner.bohb import Bohb

    return Bohb(problem)


POLICIES: dict[str, Callable[[Problem], Policy]] = {
    "seer": Seer,
    "random": random_search,
    "grid": grid_search,
    "sha": sha,
    "hyperband": hyperband,
    "e-hyperband": elastic_hyperband,
    "e-grid": elastic_grid,
    "asha": Asha,
    "hypersched": HyperSched,
    "bohb": _bohb,
}
"""Every policy by its name in the spec."""

INTERNAL: dict[str, Callable[[Problem], Policy]] = {"profile": Measure}
"""Policies of commands of their own, which a spec cannot name."""


def make_policy(problem: Problem) -> Policy:
    """The policy that the problem's parameters name."""
    name = problem.params.name
    return (POLICIES.get(name) or INTERNAL[name])(problem)
