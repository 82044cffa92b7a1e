"""What the run has cost, what it is committed to, and when the budget will be used up.

A charge lasts from when something begins to cost until it has ended, by the times at its place. Two
ways of billing share one table of charges:

per trial     (local, hosts) a charge is one attempt: its GPUs from its start until its processes
              are gone; while its start is unknown, from the order, or from its last wait for GPUs
per instance  (ec2) a charge is one instance: all its GPUs from running until terminated, at least
              `minimum_s` (60 seconds: aws.amazon.com/ec2/pricing/on-demand)

Sums over the open charges are kept up to date, so that asking is as fast with ten thousand trials.

A charge may have a price of its own. From the first one on `money` is a second ledger with the same
charges, in which a GPU that costs half as much is half a GPU: budgets of GPU time are compared with
the one, budgets of money with the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

NONE = 1e-9  # fewer GPUs are none: sums of fractions are not exact
LOST = "lost"  # first word of the key of a charge whose record a damaged journal has lost


@dataclass(frozen=True, slots=True)
class Charge:
    """GPUs that are paid for some time. Times are in seconds since the run began."""

    what: str  # what the charge is for, its key in the ledger
    instance: str  # instance of the GPUs
    gpus: float  # how many; a part of a GPU is a fraction
    since_s: float  # when it began
    until_s: float | None = None  # when it ended; None: it goes on
    minimum_s: float = 0.0  # seconds that are billed at least
    usd_per_gpu_h: float | None = None  # USD for one GPU for one hour; None: the ledger's

    def gpu_s(self, now_s: float) -> float:
        """Return the GPU-seconds billed up to `now_s`."""
        return self.gpus * max(self.minimum_s, self.end_s(now_s) - self.since_s)

    def end_s(self, now_s: float) -> float:
        """Return when it ended; `now_s` if it goes on."""
        return now_s if self.until_s is None else self.until_s


@dataclass(slots=True)
class Ledger:
    """All charges of a run. `end`, `void` and `begin_at` raise `KeyError` if no charge is open."""

    usd_per_gpu_h: float = 0.0  # USD for one GPU for one hour; 0 for machines that are not rented
    closed: list[Charge] = field(default_factory=list)  # charges that have ended
    open: dict[str, Charge] = field(default_factory=dict)  # what is charged -> its open charge
    least_s: float = -math.inf  # no charge ends before this, in seconds since the run began
    money: Ledger | None = None  # the charges by what they cost; None: all cost the same
    _closed_gpu_s: float = 0.0
    _open_gpus: float = 0
    _open_gpu_since: float = 0.0
    _grown_by: float = -math.inf

    def start(self, charge: Charge) -> None:
        """Open a charge. Raises `ValueError` if a charge for the same thing is open already."""
        if charge.what in self.open:
            raise ValueError(f"{charge.what} is charged already")
        if self.money is None and charge.usd_per_gpu_h is not None and self.usd_per_gpu_h:
            self.money = self.copy()
        self._add(charge)
        if self.money is not None:
            self.money.start(self._by_cost(charge))

    def _add(self, charge: Charge) -> None:
        self.open[charge.what] = charge
        self._open_gpus += charge.gpus
        self._open_gpu_since += charge.gpus * charge.since_s
        if charge.minimum_s:
            self._grown_by = max(self._grown_by, charge.since_s + charge.minimum_s)

    def end(self, what: str, at_s: float, now_s: float) -> None:
        """Close the charge for `what`; an end before its beginning counts as `now_s`."""
        charge = self._take(what)
        ended_s = at_s if at_s >= charge.since_s else max(now_s, charge.since_s)
        until_s = max(ended_s, self.least_s)
        ended = replace(charge, until_s=until_s)
        self.closed.append(ended)
        self._closed_gpu_s += ended.gpu_s(until_s)
        if self.money is not None:
            self.money.least_s = self.least_s
            self.money.end(what, at_s, now_s)

    def void(self, what: str) -> None:
        """Remove the open charge for `what`, which never cost anything."""
        self._take(what)
        if self.money is not None:
            self.money.void(what)

    def begin_at(self, what: str, since_s: float) -> None:
        """Correct when the open charge for `what` began."""
        self._add(replace(self._take(what), since_s=since_s))
        if self.money is not None:
            self.money.begin_at(what, since_s)

    def price(self, what: str, usd_per_gpu_h: float) -> None:
        """Set what a GPU of the open charge for `what` costs for an hour, from its beginning."""
        if self.usd_per_gpu_h:
            charge = replace(self._take(what), usd_per_gpu_h=usd_per_gpu_h)
            if self.money is not None:
                self.money.void(what)
            self.start(charge)

    def resize(self, what: str, gpus: float) -> None:
        """Set of how many GPUs the open charge for `what` is, from its beginning."""
        charge = replace(self._take(what), gpus=gpus)
        if self.money is not None:
            self.money.void(what)
        self.start(charge)

    def name(self, what: str, instance: str) -> None:
        """Set the name of the instance that is charged for `what`."""
        self.open[what] = replace(self.open[what], instance=instance)

    def reprice(self, what: str, at_s: float, usd_per_gpu_h: float) -> None:
        """Set what a GPU of the open charge for `what` costs for an hour from `at_s` on. What it
        has cost until then is a charge of its own.
        """
        charge = self.open[what]
        used_s = at_s - charge.since_s
        if used_s <= 0:
            self.price(what, usd_per_gpu_h)
            return
        self.void(what)
        self.start(replace(charge, minimum_s=min(charge.minimum_s, used_s)))
        self.end(what, at_s, at_s)
        least_s = max(0.0, charge.minimum_s - used_s)
        more = replace(charge, since_s=at_s, minimum_s=least_s, usd_per_gpu_h=usd_per_gpu_h)
        self.start(more)

    def copy(self) -> Ledger:
        """Return a copy to look ahead with."""
        money = None if self.money is None else self.money.copy()
        return replace(self, closed=list(self.closed), open=dict(self.open), money=money)

    def _by_cost(self, charge: Charge) -> Charge:
        """Return a charge with as many GPUs at the ledger's price as cost the same."""
        if charge.usd_per_gpu_h is None or not self.usd_per_gpu_h:
            return charge
        gpus = charge.gpus * charge.usd_per_gpu_h / self.usd_per_gpu_h
        return replace(charge, gpus=gpus, usd_per_gpu_h=None)

    def _take(self, what: str) -> Charge:
        charge = self.open.pop(what)
        self._open_gpus -= charge.gpus
        self._open_gpu_since -= charge.gpus * charge.since_s
        return charge

    def charges(self) -> Iterable[Charge]:
        """Return every charge, ended ones first."""
        yield from self.closed
        yield from self.open.values()

    def between_gpu_s(self, since_s: float, until_s: float) -> float:
        """Return the GPU-seconds charged from `since_s` until `until_s`; open charges go on."""
        gpu_s = 0.0  # `sum` rounds otherwise from Python 3.12 on, and journals are read again
        for charge in self.charges():
            end_s = min(charge.end_s(until_s), until_s)
            gpu_s += charge.gpus * max(0.0, end_s - max(charge.since_s, since_s))
        return gpu_s

    def spent_gpu_s(self, now_s: float) -> float:
        """Return the GPU-seconds billed up to `now_s`."""
        gpu_s = self._closed_gpu_s + self._open_gpus * now_s - self._open_gpu_since
        if now_s >= self._grown_by:
            return gpu_s
        ages = ((charge, now_s - charge.since_s) for charge in self.open.values())
        return gpu_s + sum(c.gpus * max(0.0, c.minimum_s - age_s) for c, age_s in ages)

    def committed_gpu_s(self, now_s: float, release_s: float) -> float:
        """Return the GPU-seconds if all is given back from now on, within `release_s` seconds."""
        return self.spent_gpu_s(now_s + release_s)

    def within(self, budget_gpu_s: float, at_s: float) -> bool:
        """Return whether `spent_gpu_s(at_s)` stays within the budget."""
        return self.spent_gpu_s(at_s) <= budget_gpu_s

    def exhausted_at(self, budget_gpu_s: float, release_s: float) -> float:
        """Return the last moment, in seconds since the run began, at which giving everything back
        still keeps the budget; infinite if nothing costs. Never too late, and exact once every open
        charge is past its minimum.
        """
        if self._open_gpus < NONE:
            return math.inf
        left_gpu_s = budget_gpu_s - self._closed_gpu_s + self._open_gpu_since
        past_minimum = left_gpu_s / self._open_gpus - release_s
        if past_minimum + release_s >= self._grown_by:
            return past_minimum
        if self.committed_gpu_s(past_minimum, release_s) <= budget_gpu_s:
            return past_minimum
        return self._last_affordable(budget_gpu_s, release_s, past_minimum)

    @property
    def open_gpus(self) -> float:
        """How many GPUs are charged now."""
        return self._open_gpus

    def usd(self, gpu_s: float) -> float:
        """Return the price of so many GPU-seconds in USD, at the ledger's own price."""
        return gpu_s / 3600 * self.usd_per_gpu_h

    def spent_usd(self, now_s: float) -> float:
        """Return what is billed up to `now_s`, in USD."""
        return self.usd((self.money or self).spent_gpu_s(now_s))

    def committed_usd(self, now_s: float, release_s: float) -> float:
        """Return the USD if all is given back from now on, within `release_s` seconds."""
        return self.spent_usd(now_s + release_s)

    def charged_usd(self, charge: Charge, now_s: float) -> float:
        """Return what a charge has cost up to `now_s`, in USD."""
        return self.usd(self._by_cost(charge).gpu_s(now_s))

    def part_usd(self, gpu_s: float, now_s: float) -> float:
        """Return the price of a part of what is billed up to `now_s`, at its mean price."""
        if self.money is None or not (spent_gpu_s := self.spent_gpu_s(now_s)):
            return self.usd(gpu_s)
        return gpu_s / spent_gpu_s * self.spent_usd(now_s)

    def _last_affordable(self, budget_gpu_s: float, release_s: float, past_minimum: float) -> float:
        """Compute `exhausted_at` where minimums are the corners of a piecewise linear cost: where
        the piece between two corners crosses the budget.
        """
        low_s, low_gpu_s = -math.inf, 0.0
        for corner_s in sorted(c.since_s + c.minimum_s - release_s for c in self.open.values()):
            gpu_s = self.spent_gpu_s(corner_s + release_s)
            if gpu_s > budget_gpu_s:
                if low_s == -math.inf:
                    return low_s
                share = (budget_gpu_s - low_gpu_s) / (gpu_s - low_gpu_s)
                return low_s + share * (corner_s - low_s)
            low_s, low_gpu_s = corner_s, gpu_s
        return past_minimum
