"""Other versions of seerd: each process of the daemon may have other rules, and another policy.

The one rule: a version is a value that is drawn from the seed; what it does not change is as in
the present one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from seerd.core.asking import PlanFunction
from seerd.core.rules import RULES, Rules
from seerd.planner.memory import Json, Memory
from seerd.planner.model import Plan, Problem, View
from seerd.planner.policy import plan_of

MOST = 6
"""Processes of a run whose versions are drawn; later ones are of the last of them."""
KILL_S = 1.5
"""Killing takes as long as it takes: no version may think that it takes less."""
OTHER_RULES, NOT_KNOWN, SAMPLES = "another version", "memory not known", "samples otherwise"
NAMES = (OTHER_RULES, NOT_KNOWN, SAMPLES)


@dataclass(frozen=True, slots=True)
class Version:
    """One of them.

    memory    what it makes of the memory of those before it
    sampling  is added to the seed of its draws
    """

    rules: Rules = RULES
    memory: Literal["known", "none", "another"] = "known"
    sampling: int = 0


def some_versions(rng: random.Random) -> tuple[Version, ...]:
    """Of the first process, the second, and so on: half of the runs are of one."""
    if rng.random() < 0.5:
        return ()
    versions = [some_version(rng)]
    while len(versions) < MOST:
        versions.append(some_version(rng) if rng.random() < 0.7 else versions[-1])
    return tuple(versions)


def some_version(rng: random.Random) -> Version:
    """One."""
    memory: Literal["known", "none", "another"] = rng.choice(
        ["known", "known", "known", "none", "another"]
    )
    return Version(some_rules(rng), memory, rng.choice([0, 0, 1, 2]))


def some_rules(rng: random.Random) -> Rules:
    """Every one of them another, none of them senseless."""
    return Rules(
        kept_checkpoints=rng.choice([1, 2, 3]),
        max_crashes=rng.choice([0, 1, 2, 4]),
        max_losses=rng.choice([3, 10, 20]),
        grace_min_s=rng.uniform(2.0, 8.0),
        grace_max_s=rng.uniform(20.0, 60.0),
        kill_s=rng.uniform(KILL_S, 2 * KILL_S),
        publish_s=rng.uniform(0.5, 3.0),
        shortest_s=rng.uniform(2.0, 10.0),
        lease_s=rng.uniform(20.0, 90.0),
        orphan_timeout_s=rng.uniform(300.0, 900.0),
        last_s=rng.uniform(30.0, 200.0),
        notice_margin_s=rng.uniform(2.0, 10.0),
        timer_slack_s=rng.uniform(0.0, 0.1),
        max_refusals=rng.choice([2, 3, 5]),
        patience_share=rng.uniform(5.0, 20.0),
        retry_s=rng.uniform(5.0, 40.0),
        retry_most_s=rng.uniform(60.0, 240.0),
        retry_share=rng.uniform(10.0, 40.0),
        worth_packing=rng.uniform(0.5, 1.0),
        slow_share=rng.uniform(0.1, 0.5),
        max_failures=rng.choice([2, 3, 4]),
        ask_again_s=rng.uniform(0.2, 5.0),
    )


def planning(version: Version, injected: Counter[str]) -> PlanFunction:
    """How the policy of this version plans; `injected` counts when it does otherwise."""
    plan: PlanFunction = plan_of
    if version.sampling:
        plan = sampling(plan, version.sampling, injected)
    return plan if version.memory == "known" else Forgetful(plan, version.memory, injected)


def sampling(plan: PlanFunction, more: int, injected: Counter[str]) -> PlanFunction:
    """With other draws."""

    def plan_otherwise(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        other = replace(problem, params=replace(problem.params, seed=problem.params.seed + more))
        wanted, after = plan(other, memory, view)
        injected[SAMPLES] += bool(wanted.new)
        return wanted, after

    return plan_otherwise


class Forgetful:
    """Has no use for the memory of any version but its own."""

    def __init__(
        self, plan: PlanFunction, how: Literal["none", "another"], injected: Counter[str]
    ) -> None:
        self._plan = plan
        self._how = how
        self._injected = injected
        self._own: list[Mapping[str, Json]] = []

    def __call__(self, problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """As a first question is answered, if the memory is another's."""
        if not memory.values or any(memory.values == own for own in self._own[-2:]):
            wanted, after = self._plan(problem, memory, view)
        else:
            self._injected[NOT_KNOWN] += 1
            known = {} if self._how == "none" else {**memory.values, "version": 99}
            wanted, fresh = self._plan(problem, Memory(known), view)
            gone: dict[str, Json] = dict.fromkeys(memory.values)
            after = memory.after({**gone, **fresh.values})
        self._own.append(after.values)
        return wanted, after
