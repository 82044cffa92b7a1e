"""The policy of a problem: that of its one job, or the one that shares a run among several."""

from __future__ import annotations

from seerd.planner import policies
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Outline, Plan, Policy, Problem, View


def policy_of(problem: Problem) -> Policy:
    """Return the policy that the problem's parameters name."""
    if problem.params.name != "jobs":
        return policies.named(problem.params.name)
    from seerd.planner.jobs import JOBS  # with numpy, which a run of one job may not need

    return JOBS


def outline_of(problem: Problem) -> Outline | Impossible:
    """Outline the whole run as the problem's policy would have it, or say why it cannot."""
    return policy_of(problem).outline(problem)


def plan_of(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the problem's policy what it wants now, and what to remember for the next question."""
    return policy_of(problem).plan(problem, memory, view)
