"""The registry of search policies by their names.

The one rule: callers that have a problem ask its policy through this module. A policy is imported
when it is first asked: a command needs one of them, and many need none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Problem, View
from seerd.planner.protocol import Policy

__all__ = [
    "AT_ONCE",
    "INTERNAL",
    "POLICIES",
    "TO_THE_LAST_RUNG",
    "Policy",
    "outline_of",
    "plan_of",
    "policy_of",
]


def _seer_plus() -> Policy:
    from seerd.planner.seer_plus import SEER_PLUS

    return SEER_PLUS


def _seer() -> Policy:
    from seerd.planner.remainder import open_ended
    from seerd.planner.renewed import renewed
    from seerd.planner.seer_capped import SEER

    return open_ended(renewed(SEER))


def _random() -> Policy:
    from seerd.planner.random_search import RANDOM
    from seerd.planner.remainder import open_ended
    from seerd.planner.renewed import renewed

    return open_ended(renewed(RANDOM))


def _grid() -> Policy:
    from seerd.planner.grid import GRID
    from seerd.planner.remainder import open_ended
    from seerd.planner.renewed import renewed

    return open_ended(renewed(GRID))


def _sha() -> Policy:
    from seerd.planner.halving import SHA
    from seerd.planner.unpaused import unpaused

    return unpaused(SHA)


def _hyperband() -> Policy:
    from seerd.planner.hyperband import HYPERBAND
    from seerd.planner.unpaused import unpaused

    return unpaused(HYPERBAND)


def _e_hyperband() -> Policy:
    from seerd.planner.elastic_hyperband import E_HYPERBAND
    from seerd.planner.remainder import open_ended
    from seerd.planner.renewed import renewed

    return open_ended(renewed(E_HYPERBAND))


def _e_grid() -> Policy:
    from seerd.planner.elastic_grid import E_GRID
    from seerd.planner.remainder import open_ended
    from seerd.planner.renewed import renewed

    return open_ended(renewed(E_GRID))


def _asha() -> Policy:
    from seerd.planner.asha import ASHA
    from seerd.planner.unpaused import unpaused

    return unpaused(ASHA)


def _hypersched() -> Policy:
    from seerd.planner.hypersched import HYPERSCHED
    from seerd.planner.unpaused import unpaused

    return unpaused(HYPERSCHED)


def _bohb() -> Policy:
    from seerd.planner.bohb import BOHB
    from seerd.planner.unpaused import unpaused

    return unpaused(BOHB)


def _gp_ucb() -> Policy:
    from seerd.planner.gp_ucb import GP_UCB
    from seerd.planner.unpaused import unpaused

    return unpaused(GP_UCB)


def _measure() -> Policy:
    from seerd.planner.measure import MEASURE

    return MEASURE


def _jobs() -> Policy:
    from seerd.planner.jobs import JOBS

    return JOBS


def _later(imported: Callable[[], Policy]) -> Policy:
    """Make a policy that is imported, once, when it is first asked."""
    policy = cache(imported)
    return Policy(
        lambda problem: policy().outline(problem),
        lambda problem, memory, view: policy().plan(problem, memory, view),
    )


POLICIES: dict[str, Policy] = {
    "seer+": _later(_seer_plus),
    "seer": _later(_seer),
    "random": _later(_random),
    "grid": _later(_grid),
    "sha": _later(_sha),
    "hyperband": _later(_hyperband),
    "e-hyperband": _later(_e_hyperband),
    "e-grid": _later(_e_grid),
    "asha": _later(_asha),
    "hypersched": _later(_hypersched),
    "bohb": _later(_bohb),
    "gp-ucb": _later(_gp_ucb),
}
"""Every policy by its name in the spec."""

INTERNAL: dict[str, Policy] = {"profile": _later(_measure), "jobs": _later(_jobs)}
"""Policies that only a command uses or that several jobs need, and that a spec cannot name."""


AT_ONCE = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband", "sha", "profile"})
"""Policies that ask for all of their trials when they begin."""
BY_THE_CLOCK = frozenset({"seer", "random", "grid", "e-grid", "e-hyperband"})
"""Policies whose rounds are planned when they begin: other limits are planned anew."""
TO_THE_LAST_RUNG = frozenset({"sha", "profile"})
"""Policies whose plan ends with its last rung, whatever time and budget there are."""


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
