"""The registry of search policies by their names.

The one rule: callers that have a problem ask its policy through this module.
"""

from __future__ import annotations

from collections.abc import Callable

from seerd.planner.asha import ASHA
from seerd.planner.elastic_grid import E_GRID
from seerd.planner.elastic_hyperband import E_HYPERBAND
from seerd.planner.grid import GRID
from seerd.planner.halving import SHA
from seerd.planner.hyperband import HYPERBAND
from seerd.planner.hypersched import HYPERSCHED
from seerd.planner.measure import MEASURE
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Problem, View
from seerd.planner.protocol import Policy
from seerd.planner.random_search import RANDOM
from seerd.planner.remainder import open_ended
from seerd.planner.seer_capped import SEER

__all__ = ["INTERNAL", "POLICIES", "Policy", "outline_of", "plan_of", "policy_of"]


def _bohb() -> Policy:
    """Import BOHB only when it is asked for: it needs Optuna, an optional package."""
    from seerd.planner.bohb import BOHB

    return BOHB


def _seer_plus() -> Policy:
    """Import SEER+ only when it is asked for: numpy takes longer than a command that only reads."""
    from seerd.planner.seer_plus import SEER_PLUS

    return SEER_PLUS


def _later(policy: Callable[[], Policy]) -> Policy:
    return Policy(
        lambda problem: policy().outline(problem),
        lambda problem, memory, view: policy().plan(problem, memory, view),
    )


POLICIES: dict[str, Policy] = {
    "seer+": _later(_seer_plus),
    "seer": open_ended(SEER),
    "random": open_ended(RANDOM),
    "grid": open_ended(GRID),
    "sha": SHA,
    "hyperband": HYPERBAND,
    "e-hyperband": open_ended(E_HYPERBAND),
    "e-grid": open_ended(E_GRID),
    "asha": ASHA,
    "hypersched": HYPERSCHED,
    "bohb": _later(_bohb),
}
"""Every policy by its name in the spec."""

INTERNAL: dict[str, Policy] = {"profile": MEASURE}
"""Policies that only a command uses, and that a spec cannot name."""


def policy_of(problem: Problem) -> Policy:
    """Return the policy that the problem's parameters name."""
    name = problem.params.name
    return POLICIES.get(name) or INTERNAL[name]


def outline_of(problem: Problem) -> Outline | Impossible:
    """Outline the whole run as the problem's policy would have it, or say why it cannot."""
    return policy_of(problem).outline(problem)


def plan_of(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the problem's policy what it wants now, and what to remember for the next question."""
    return policy_of(problem).plan(problem, memory, view)
