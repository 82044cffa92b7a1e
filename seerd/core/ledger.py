"""What the run has cost, what it is committed to, and when the budget will be used up.

The one rule: a charge is opened when something begins to cost and closed when it has ended, both
with the time at which that was so where it happened; everything else is arithmetic on charges. Two
ways of billing, one table of charges:

held    (local, hosts) a charge is one attempt of a trial: its GPUs from the order to start until
        its processes are gone
rented  (ec2) a charge is one instance: all its GPUs from running until terminated, at least
        `minimum_s` (Amazon EC2 bills Linux instances by the second with a minimum of 60 seconds:
        aws.amazon.com/ec2/pricing/on-demand)

Sums over the open charges are kept up to date, so that asking costs the same with one trial as with
ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Charge:
    """`gpus` GPUs of `instance`, paid from `since_s` to `until_s` (None: still going on) for
    `what`.
    """

    what: str
    instance: str
    gpus: int
    since_s: float
    until_s: float | None = None
    minimum_s: float = 0.0

    def gpu_s(self, now_s: float) -> float:
        """GPU-seconds billed up to `now_s`."""
        until_s = now_s if self.until_s is None else self.until_s
        return self.gpus * max(self.minimum_s, until_s - self.since_s)


@dataclass(slots=True)
class Ledger:
    """All charges of a run. `usd_per_gpu_h`: price of one GPU for one hour, 0 for machines that are
    not rented.
    """

    usd_per_gpu_h: float = 0.0
    closed: list[Charge] = field(default_factory=list)
    open: dict[str, Charge] = field(default_factory=dict)
    _closed_gpu_s: float = 0.0
    _open_gpus: int = 0
    _open_gpu_since: float = 0.0
    _young: dict[str, Charge] = field(default_factory=dict)
    _floor_gpu_s: float = 0.0
    _grown_by: float = -math.inf

    def start(self, charge: Charge) -> None:
        """Open a charge; what it is for must not be open already."""
        if charge.what in self.open:
            raise ValueError(f"{charge.what} is charged already")
        self.open[charge.what] = charge
        self._open_gpus += charge.gpus
        self._open_gpu_since += charge.gpus * charge.since_s
        if charge.minimum_s:
            self._young[charge.what] = charge
            self._floor_gpu_s += charge.gpus * charge.minimum_s
            self._grown_by = max(self._grown_by, charge.since_s + charge.minimum_s)

    def end(self, what: str, at_s: float) -> None:
        """Close the charge for `what`, never before it began."""
        charge = self._take(what)
        ended = replace(charge, until_s=max(at_s, charge.since_s))
        self.closed.append(ended)
        self._closed_gpu_s += ended.gpu_s(at_s)

    def void(self, what: str) -> None:
        """What was charged never cost anything."""
        self._take(what)

    def begin_at(self, what: str, since_s: float) -> None:
        """An open charge began at another time than was thought."""
        self.start(replace(self._take(what), since_s=since_s))

    def copy(self) -> Ledger:
        """To look ahead: what is charged there leaves this one as it is, to the last bit."""
        return replace(
            self, closed=list(self.closed), open=dict(self.open), _young=dict(self._young)
        )

    def _take(self, what: str) -> Charge:
        charge = self.open.pop(what)
        if self._young.pop(what, None):
            self._floor_gpu_s -= charge.gpus * charge.minimum_s
        self._open_gpus -= charge.gpus
        self._open_gpu_since -= charge.gpus * charge.since_s
        return charge

    def charges(self) -> Iterable[Charge]:
        """Every charge, ended ones first."""
        yield from self.closed
        yield from self.open.values()

    def spent_gpu_s(self, now_s: float) -> float:
        """GPU-seconds billed up to now."""
        return self._linear_gpu_s(now_s) + self._shortfall(now_s)

    def committed_gpu_s(self, now_s: float, release_s: float) -> float:
        """GPU-seconds billed if everything that costs were given back from now on, which takes
        `release_s`.
        """
        return self.spent_gpu_s(now_s + release_s)

    def within(self, budget_gpu_s: float, at_s: float) -> bool:
        """Whether what is billed up to `at_s` stays within the budget. As exact as `spent_gpu_s`,
        and cheap where the answer is clear.
        """
        linear = self._linear_gpu_s(at_s)
        if at_s >= self._grown_by:
            return linear <= budget_gpu_s
        if linear + self._floor_gpu_s <= budget_gpu_s:
            return True
        return linear + self._shortfall(at_s) <= budget_gpu_s

    def exhausted_at(self, budget_gpu_s: float, release_s: float) -> float:
        """The last moment (seconds since the run began) at which giving everything back still stays
        within the budget.

        Infinite if nothing costs. Exact once every open charge is past its minimum, and never too
        late before that, since a charge under its minimum already counts in full.
        """
        if self._open_gpus == 0:
            return math.inf
        past_minimum = (
            budget_gpu_s - self._closed_gpu_s + self._open_gpu_since
        ) / self._open_gpus - release_s
        if past_minimum + release_s >= self._grown_by:
            return past_minimum
        if self.committed_gpu_s(past_minimum, release_s) <= budget_gpu_s:
            return past_minimum
        return self._last_affordable(budget_gpu_s, release_s)

    def usd(self, gpu_s: float) -> float:
        """Money for so many GPU-seconds."""
        return gpu_s / 3600 * self.usd_per_gpu_h

    def _linear_gpu_s(self, now_s: float) -> float:
        """What would have been billed without a minimum for what is still open."""
        return self._closed_gpu_s + self._open_gpus * now_s - self._open_gpu_since

    def _shortfall(self, now_s: float) -> float:
        """What the open charges under their minimum cost beyond the time they have run."""
        if now_s >= self._grown_by:
            return 0.0
        return sum(
            c.gpus * max(0.0, c.minimum_s - (now_s - c.since_s)) for c in self._young.values()
        )

    def _last_affordable(self, budget_gpu_s: float, release_s: float) -> float:
        """As `exhausted_at`, walking through the moments at which a charge passes its minimum; the
        sum is piecewise linear.
        """
        corners = sorted(c.since_s + c.minimum_s - release_s for c in self.open.values())
        affordable = -math.inf
        for corner in corners:
            cost = self.committed_gpu_s(corner, release_s)
            if cost > budget_gpu_s:
                return self._interpolate(affordable, corner, budget_gpu_s, release_s)
            affordable = corner
        return (
            affordable
            + (budget_gpu_s - self.committed_gpu_s(affordable, release_s)) / self._open_gpus
        )

    def _interpolate(
        self, low_s: float, high_s: float, budget_gpu_s: float, release_s: float
    ) -> float:
        """Where the linear piece between two corners crosses the budget; `low_s` itself if it is
        already past it.
        """
        if low_s == -math.inf:
            return low_s
        low, high = (self.committed_gpu_s(t, release_s) for t in (low_s, high_s))
        return (
            low_s if high == low else low_s + (budget_gpu_s - low) / (high - low) * (high_s - low_s)
        )
