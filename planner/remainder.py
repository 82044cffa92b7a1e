"""Use of the remainder: what a plan leaves where whole instances are paid, whether used or not.

The one rule: policies plan as published and do not know whether idle GPUs are paid. What follows
from `Problem.whole` is decided here, and in `seerd.planner.fixed_cluster`,
`seerd.planner.narrowing` and `seerd.planner.seer_capped`.

Forecasts are careful, a cloud is late, trials and rounds are whole numbers: something is left at
the end of the last stage, and is used until the deadline or the budget.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from seerd.planner.caching import per_problem
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Plan, Problem, View
from seerd.planner.protocol import Policy


def open_ended(policy: Policy) -> Policy:
    """Let the last stage of a clock-based policy go on if whole instances are paid.

    The policy is never shown a time at or after that stage's end.
    """

    @per_problem
    def end_s(problem: Problem) -> float:
        outline = policy.outline(problem)
        return math.inf if isinstance(outline, Impossible) else outline.stages[-1].end_s

    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        if not problem.whole:
            return policy.plan(problem, memory, view)
        before_s = min(view.now_s, math.nextafter(end_s(problem), 0.0))
        wanted, after = policy.plan(problem, memory, replace(view, now_s=before_s))
        last = wanted.ask_at_s == end_s(problem)
        return replace(wanted, ask_at_s=None if last else wanted.ask_at_s), after

    return Policy(policy.outline, plan)


def longest(problem: Problem, published: Fraction, affordable: Fraction) -> Fraction:
    """Choose how long to train: as published at most, or all that is affordable if whole instances
    are paid.
    """
    return affordable if problem.whole else min(published, affordable)
