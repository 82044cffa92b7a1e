"""Many tenants on one pool that trains one model at a time: who is served, with which model, until
the cost is used up.

Loss is what the paper calls accuracy loss (appendix A): how far a tenant's best result so far is
from the best that can be had; without a result, from nothing. Models that cannot be had on a
tenant's data are not among its candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.many.rules import (
    at_random,
    expected_improvement,
    hybrid,
    largest_gap,
    most_gain,
    tightened,
)
from bench.many.tables import Table
from seerd.planner.dividing import (
    Freeze,
    Offer,
    first_come,
    greedy,
    round_robin,
    watched,
)
from seerd.planner.gp_ucb import Floats, Prior, before_results, beta, chosen, upper_bounds

Serving = Literal["fcfs", "round-robin", "random", "greedy", "hybrid"]
Step = Literal["ucb", "ei", "order", "random order"]
PAPERS = "quality vectors"


@dataclass(frozen=True, slots=True)
class Strategy:
    """Who is served next, and with what.

    serving     which tenant is next
    step        how a tenant's next model is chosen
    prior       which prior it has
    cost_aware  whether costs count in what is chosen; the gains of `ei` are then per cost
    by_gain     greedy takes, of its candidates, the one with the most gain, not the largest gap
    """

    serving: Serving = "hybrid"
    step: Step = "ucb"
    prior: str = PAPERS
    cost_aware: bool = True
    by_gain: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """One game.

    spent  cost after each step, as a share of that of all models of all tenants, shape [steps]
    loss   mean loss of the tenants after each step, shape [steps]
    """

    spent: Floats
    loss: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """Tenants that are served, and what is known of others.

    table     the tenants that are served
    priors    by name
    order     models in the order of the fixed order, best on average for other tenants first
    """

    table: Table
    priors: dict[str, Prior]
    order: NDArray[np.int64]


class Tenant:
    """One tenant: what it believes, and what it would do next."""

    def __init__(self, game: Game, user: int, strategy: Strategy, rng: np.random.Generator):
        self._strategy, self._quality = strategy, game.table.quality[user]
        self.name = str(user)
        self.untried = ~np.isnan(self._quality)
        aware = strategy.cost_aware
        self._costs = game.table.cost[user] if aware else np.ones(len(self._quality))
        dearest = float(game.table.cost.max()) if aware else 1.0
        self._beta = lambda step: beta(
            step, len(self._quality), jobs=len(game.table.quality), dearest=dearest
        )
        self._belief = before_results(game.priors[strategy.prior])
        order = rng.permutation(len(game.order)) if strategy.step == "random order" else game.order
        self._order = -np.argsort(order).astype(float)
        self._steps = 0
        self._tight: float | None = None
        self._surplus: float | None = None
        self.best: float | None = None
        self.next = self._chosen()

    def step(self) -> int:
        """Train the next model; return which it was."""
        assert self.next is not None
        trained, result = self.next, float(self._quality[self.next])
        self._tight, self._surplus = tightened(self._tight, float(self._bounds[trained]), result)
        self.untried[trained] = False
        self.best = result if self.best is None else max(self.best, result)
        self._steps += 1
        if self._strategy.step in ("ucb", "ei"):
            self._belief = self._belief.observed(trained, result)
        self.next = self._chosen()
        return trained

    def offer(self) -> Offer:
        """Tell what the next step may come to."""
        if self.next is None:
            return Offer(self.name, best=self.best, surplus=self._surplus, open=False)
        bound = float(np.max(self._bounds[self.untried]))
        gain = float(self._gains[self.next])
        return Offer(self.name, bound, self.best, self._surplus, gain)

    def _chosen(self) -> int | None:
        self._bounds = self._gains = self._order
        if self._strategy.step not in ("ucb", "ei"):
            return chosen(self._order, self.untried)
        self._bounds = upper_bounds(self._belief, self._beta(self._steps + 1), self._costs)
        if self._strategy.step == "ucb":
            return chosen(self._bounds, self.untried)
        best = 0.0 if self.best is None else self.best
        self._gains = expected_improvement(self._belief, best) / self._costs
        return chosen(self._gains, self.untried)


def play(game: Game, strategy: Strategy, seed: int, most: float, *, runs: bool = False) -> Course:
    """Serve until this share of the cost of everything is spent; `runs`: every model costs the
    same.
    """
    rng = np.random.default_rng(seed)
    table, rule = game.table, most_gain if strategy.by_gain else largest_gap
    best = np.nanmax(table.quality, axis=1)
    costs = np.ones_like(table.cost) if runs else table.cost
    total = float(costs[~np.isnan(table.quality)].sum())
    tenants = {str(u): Tenant(game, u, strategy, rng) for u in range(len(best))}
    offers = {name: tenant.offer() for name, tenant in tenants.items()}
    left, lost, spent = best.copy(), float(best.sum()), 0.0
    courses, last, watch = [(0.0, lost / len(best))], None, Freeze()
    while spent < most * total:
        there = list(offers.values())
        if strategy.serving == "fcfs":
            last = first_come(there)
        elif strategy.serving == "round-robin":
            last = round_robin(there, last)
        elif strategy.serving == "random":
            last = at_random(there, rng.random())
        elif strategy.serving == "greedy":
            last = greedy(there, rule)
        else:
            watch = watched(watch, there)
            last = hybrid(there, watch, last, rule)
        if last is None:
            break
        user, tenant = int(last), tenants[last]
        spent += float(costs[user, tenant.step()])
        offers[last] = tenant.offer()
        loss = best[user] - (tenant.best or 0.0)
        lost, left[user] = lost - left[user] + loss, loss
        courses.append((spent / total, lost / len(best)))
    found = np.array(courses)
    return Course(found[:, 0], np.maximum(found[:, 1], 0.0))
