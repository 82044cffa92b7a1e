"""The protocol that every search policy follows, and the registry of their names.

The one rule: a policy is a deterministic function of the views it has been shown, in order. Same problem, same views, same plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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


class Policy(Protocol):
    """Made from a `Problem`; asked for an outline before the run, then for a plan at every boundary and change."""

    def outline(self) -> Outline | Impossible:
        """The whole run as it would go ideally; pure, may be asked at any time, changes nothing."""

    def plan(self, view: View) -> Plan:
        """What is wanted now. Asking again before anything changed gives the same allocations and nothing new."""


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
