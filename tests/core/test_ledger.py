"""The ledger: billed seconds by both rules, and the last moment to give everything back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from seerd.core.ledger import Charge, Ledger


def test_held_gpus_cost_from_the_order_until_they_are_free() -> None:
    ledger = Ledger()
    ledger.start(Charge("t1/1", "i", 2, 10.0))
    assert ledger.spent_gpu_s(25.0) == 30.0
    ledger.end("t1/1", 40.0, 40.0)
    assert ledger.spent_gpu_s(100.0) == 60.0


def test_an_end_before_its_beginning_costs_until_it_was_known() -> None:
    """It can only be of a clock that was set: what has cost something never costs nothing."""
    ledger = Ledger()
    ledger.start(Charge("t1/1", "i", 2, 10.0))
    ledger.end("t1/1", 9.0, 25.0)
    assert ledger.spent_gpu_s(100.0) == 30.0
    assert [charge.until_s for charge in ledger.charges()] == [25.0]


def test_a_rented_instance_costs_at_least_a_minute() -> None:
    ledger = Ledger()
    ledger.start(Charge("i", "i", 4, 10.0, minimum_s=60.0))
    assert ledger.spent_gpu_s(11.0) == 240.0
    assert ledger.spent_gpu_s(80.0) == 280.0
    ledger.end("i", 30.0, 30.0)
    assert ledger.spent_gpu_s(500.0) == 240.0


def test_money_is_gpu_time_at_the_price_of_a_gpu_hour() -> None:
    assert Ledger(usd_per_gpu_h=3.06).usd(7200.0) == pytest.approx(6.12)


def test_a_charge_is_not_opened_twice() -> None:
    ledger = Ledger()
    ledger.start(Charge("t1/1", "i", 2, 10.0))
    with pytest.raises(ValueError, match="charged already"):
        ledger.start(Charge("t1/1", "i", 2, 10.0))


def test_nothing_held_is_never_exhausted() -> None:
    assert Ledger().exhausted_at(100.0, 5.0) == math.inf


def test_held_gpus_are_given_back_so_that_the_release_is_still_paid() -> None:
    ledger = Ledger()
    ledger.start(Charge("t1/1", "i", 2, 0.0))
    assert ledger.exhausted_at(100.0, 5.0) == 45.0


Rows = list[tuple[int, float, float | None]]
charges = st.lists(
    st.tuples(st.integers(1, 8), st.floats(0, 100), st.one_of(st.none(), st.floats(0, 200))),
    min_size=1,
    max_size=8,
)
minima = st.sampled_from([0.0, 60.0])


def _ledger(rows: Rows, minimum_s: float) -> Ledger:
    ledger = Ledger()
    for number, (gpus, since, length) in enumerate(rows):
        ledger.start(Charge(str(number), "i", gpus, since, minimum_s=minimum_s))
        if length is not None:
            ledger.end(str(number), since + length, since + length)
    return ledger


@given(charges, minima, st.floats(300, 1000))
def test_running_sums_equal_the_sum_over_all_charges(
    rows: Rows, minimum_s: float, now: float
) -> None:
    ledger = _ledger(rows, minimum_s)
    assert ledger.spent_gpu_s(now) == pytest.approx(sum(c.gpu_s(now) for c in ledger.charges()))


YOUNG = [(4, 0.0, None), (8, 30.0, None), (8, 60.0, None), (2, 90.0, None)]


@given(charges, minima, st.floats(1, 5000), st.floats(0, 30))
@example(YOUNG, 60.0, 1500.0, 20.0)
@example(YOUNG, 60.0, 2000.0, 20.0)
def test_exhaustion_is_the_last_moment_that_keeps_the_budget(
    rows: Rows, minimum_s: float, budget: float, release: float
) -> None:
    ledger = _ledger(rows, minimum_s)
    moment = ledger.exhausted_at(budget, release)
    if moment == math.inf:
        assert not ledger.open
        return
    if moment > -math.inf:
        assert ledger.spent_gpu_s(moment + release) <= budget + 1e-6
        assert ledger.spent_gpu_s(moment + release + 0.01) > budget - 1e-6
    else:
        assert ledger.spent_gpu_s(-1e9) > budget - 1e-6


def test_what_is_committed_is_what_will_have_been_billed_when_all_is_given_back() -> None:
    ledger = Ledger()
    ledger.start(Charge("i", "i", 4, 10.0, minimum_s=60.0))
    assert ledger.committed_gpu_s(20.0, 5.0) == 240.0
    assert ledger.committed_gpu_s(70.0, 5.0) == 4 * 65.0


class Plain:
    """The same by definition: a table of charges, added up whenever anybody asks."""

    def __init__(self) -> None:
        self.table: dict[str, Charge] = {}

    def spent_gpu_s(self, now_s: float) -> float:
        return math.fsum(charge.gpu_s(now_s) for charge in self.table.values())

    def exhausted_at(self, budget_gpu_s: float, release_s: float, low_s: float) -> float | None:
        """By halving, from `low_s` on; None if it is too late even then."""
        if all(charge.until_s is not None for charge in self.table.values()):
            return math.inf
        if self.spent_gpu_s(low_s + release_s) > budget_gpu_s:
            return None
        high_s = low_s + budget_gpu_s
        for _ in range(100):
            middle_s = (low_s + high_s) / 2
            if self.spent_gpu_s(middle_s + release_s) <= budget_gpu_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "end", "void", "begin"]),
        st.integers(0, 9),
        st.integers(1, 8),
        st.floats(0, 100),
        st.sampled_from([0.0, 0.0, 60.0]),
    ),
    min_size=1,
    max_size=25,
)


def both(steps: list[tuple[str, int, int, float, float]]) -> tuple[Ledger, Plain]:
    """Up to ten charges at a time that begin, end, turn out to be nothing, or to have begun at
    another time.
    """
    ledger, plain = Ledger(), Plain()
    for number, (what, index, gpus, at_s, minimum_s) in enumerate(steps):
        if what == "start":
            charge = Charge(f"c{number}", "i", gpus, at_s, minimum_s=minimum_s)
            ledger.start(charge)
            plain.table[charge.what] = charge
        elif ledger.open:
            name = list(ledger.open)[index % len(ledger.open)]
            old = plain.table[name]
            if what == "end":
                ledger.end(name, at_s, at_s)
                plain.table[name] = replace(old, until_s=max(old.since_s, at_s))
            elif what == "void":
                ledger.void(name)
                del plain.table[name]
            else:
                ledger.begin_at(name, at_s)
                plain.table[name] = replace(old, since_s=at_s)
    return ledger, plain


@given(steps, st.floats(100, 400))
def test_whatever_happens_to_charges_what_is_spent_is_their_sum(
    steps: list[tuple[str, int, int, float, float]], now: float
) -> None:
    ledger, plain = both(steps)
    assert ledger.spent_gpu_s(now) == pytest.approx(plain.spent_gpu_s(now), abs=1e-6)
    assert {charge.what for charge in ledger.charges()} == plain.table.keys()


@given(steps, st.floats(100, 400), st.floats(0.5, 1.5))
def test_within_is_a_comparison_with_what_is_spent(
    steps: list[tuple[str, int, int, float, float]], now: float, share: float
) -> None:
    ledger, plain = both(steps)
    spent = plain.spent_gpu_s(now)
    budget = spent * share
    assume(abs(budget - spent) > 1e-6 * (1 + spent))
    assert ledger.within(budget, now) == (spent <= budget)


@given(steps, st.floats(1, 20_000), st.floats(0, 30))
def test_the_last_moment_is_the_one_that_halving_finds(
    steps: list[tuple[str, int, int, float, float]], budget: float, release: float
) -> None:
    ledger, plain = both(steps)
    found, wanted = ledger.exhausted_at(budget, release), plain.exhausted_at(budget, release, 100.0)
    if wanted is None:
        assert found <= 100.0 + 1e-6
    else:
        assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("at_s", "most_gpu_s"), [(59.0, 240.0), (60.0, 240.0), (61.0, 244.0)])
def test_a_budget_is_kept_up_to_its_last_second_whatever_the_minimum(
    at_s: float, most_gpu_s: float
) -> None:
    ledger = Ledger()
    ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
    assert ledger.within(most_gpu_s, at_s)
    assert not ledger.within(most_gpu_s - 0.1, at_s)
