"""Instances that cost less, or more, than the price that a run was planned with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.core.commands import Launch
from seerd.core.events import InstanceAwaited, InstanceLost, InstancePriced, LaunchRefused
from seerd.core.ledger import Charge, Ledger
from seerd.core.limits import exhausted_at, release_s
from seerd.telling.run_json import ledger
from tests.conftest import small_facts
from tests.core.test_provisioning import GPUS, Cloud, MakeFacts

DEAREST = 1.0  # USD for a GPU and hour, with which the run was planned


def priced(cloud: Cloud, launch: Launch, at: float, usd_per_gpu_h: float | None) -> None:
    usd = None if usd_per_gpu_h is None else usd_per_gpu_h * GPUS
    cloud.tell(
        InstanceAwaited(at=at, command=launch.id, instance="i-1", what="launched", usd_per_h=usd)
    )


@pytest.fixture
def cloud(facts: MakeFacts) -> Cloud:
    """A run with money for 40,000 GPU-seconds of the dearest type, and GPU time for more."""
    limits = {"budget_gpu_s": 100_000.0, "cost_usd": 40_000.0 / 3600}
    return Cloud(facts, {"usd_per_gpu_h": DEAREST}, **limits)


def usd(cloud: Cloud) -> float:
    return cloud.state.ledger.spent_usd(cloud.state.now) * 3600 / GPUS


def test_an_instance_costs_what_its_type_costs_from_the_clouds_answer_on(cloud: Cloud) -> None:
    first, second, third = cloud.open
    priced(cloud, first, 20.0, 0.5)
    assert usd(cloud) == pytest.approx(60 * 0.5 + 60 + 60), "nobody knows the others' yet"
    priced(cloud, second, 20.0, None)
    cloud.come(first, "a", 30.0)
    cloud.come(second, "b", 30.0)
    cloud.refuse(third, 31.0)
    assert usd(cloud) == pytest.approx(60 * 0.5 + 60), "at least a minute"
    cloud.tell(InstanceLost(at=130.0, instance="b", why="power failure"))
    others = len([name for name in cloud.state.ledger.open if name != "a"])
    assert usd(cloud) == pytest.approx(100 * 0.5 + 100 + 60 * others)
    rows = {row["what"]: row for row in ledger(cloud.state, 130.0)["charges"]}
    assert rows["a"]["gpu_min"] == rows["b"]["gpu_min"]
    assert rows["a"]["usd"] == pytest.approx(rows["b"]["usd"] / 2, abs=1e-4)


def test_half_the_price_is_twice_the_time(facts: MakeFacts) -> None:
    def ends(*prices: float) -> float:
        limits = {"budget_gpu_s": 100_000.0, "cost_usd": 40_000.0 / 3600}
        run = Cloud(facts, {"usd_per_gpu_h": DEAREST}, **limits)
        for number, (launch, price) in enumerate(zip(run.open, prices, strict=True)):
            priced(run, launch, 0.0, price)
            run.come(launch, f"i{number}", 0.0)
        return exhausted_at(run.state) + release_s(run.state)

    assert ends(1.0, 1.0, 1.0) == pytest.approx(40_000 / (3 * GPUS))
    assert ends(0.5, 0.5, 0.5) == pytest.approx(80_000 / (3 * GPUS))
    assert ends(0.5, 1.0, 1.5) == pytest.approx(40_000 / (3 * GPUS))
    assert ends(0.1, 0.1, 0.1) == pytest.approx(100_000 / (3 * GPUS)), "GPU time is limited too"


def test_an_instance_that_was_never_ready_costs_its_own_price(cloud: Cloud) -> None:
    (launch, *others) = cloud.open
    priced(cloud, launch, 1.0, 0.5)
    for other in others:
        cloud.refuse(other, 2.0)
    cloud.tell(
        LaunchRefused(
            at=102.0, command=launch.id, why="no", retry=True, running_since=2.0, ended=102.0
        )
    )
    closed = [charge for charge in cloud.state.ledger.closed if charge.what == launch.id]
    assert [cloud.state.ledger.charged_usd(one, 200.0) for one in closed] == [
        pytest.approx(100 * GPUS * 0.5 / 3600)
    ]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "void", "begin", "price"]),
        st.integers(0, 3),
        st.floats(0.0, 300.0),
        st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    ),
    max_size=30,
)


@given(STEPS, st.floats(300.0, 900.0))
def test_whatever_happens_to_charges_money_is_the_sum_of_what_each_costs(
    steps: list[tuple[str, int, float, float]], now_s: float
) -> None:
    book = Ledger(2.0)
    for what, number, at_s, price in steps:
        name = f"i{number}"
        if what == "start" and name not in book.open:
            book.start(Charge(name, name, 4, at_s, minimum_s=60.0))
        elif what != "start" and name in book.open:
            match what:
                case "end":
                    book.end(name, at_s, 300.0)
                case "void":
                    book.void(name)
                case "begin":
                    book.begin_at(name, at_s)
                case _:
                    book.price(name, price)
    each = [book.charged_usd(charge, now_s) for charge in book.charges()]
    assert book.spent_usd(now_s) == pytest.approx(math.fsum(each), abs=1e-9)
    assert book.spent_gpu_s(now_s) == pytest.approx(
        math.fsum(charge.gpu_s(now_s) for charge in book.charges())
    )
    assert book.copy().spent_usd(now_s) == book.spent_usd(now_s)
    part = book.part_usd(book.spent_gpu_s(now_s) / 2, now_s)
    assert part == pytest.approx(book.spent_usd(now_s) / 2, abs=1e-9)
    if not book.open and book.money is not None:
        assert book.money.exhausted_at(1e9, 1.0) == math.inf


# ---------------------------------------------------------------- prices that change

MOST, LAG_S = 4.0, 30.0


@pytest.fixture
def spot(facts: MakeFacts) -> Cloud:
    """Planned with the present price, which may rise to four times as much."""
    cluster = {"usd_per_gpu_h": DEAREST, "most_usd_per_gpu_h": MOST, "price_lag_s": LAG_S}
    return Cloud(facts, cluster, budget_gpu_s=100_000.0, cost_usd=40_000.0 / 3600)


def changed(cloud: Cloud, instance: str, at: float, usd_per_gpu_h: float, since: float) -> None:
    usd = usd_per_gpu_h * GPUS
    cloud.tell(InstancePriced(at=at, instance=instance, usd_per_h=usd, since=since))


def test_an_instance_counts_at_the_most_until_its_price_is_known(spot: Cloud) -> None:
    first, *others = spot.open
    for other in others:
        spot.refuse(other, 1.0)
    assert usd(spot) == pytest.approx(60 * MOST)
    priced(spot, first, 2.0, 0.5)
    assert usd(spot) == pytest.approx(60 * 0.5)
    changed(spot, "i-1", 3.0, 0.25, 3.0)
    assert usd(spot) == pytest.approx(60 * 0.5), "it may have cost more for a moment"
    changed(spot, "i-1", 4.0, 0.75, 4.0)
    assert usd(spot) == pytest.approx(60 * 0.75)


def test_a_change_counts_from_when_it_was_not_from_when_it_was_heard_of(spot: Cloud) -> None:
    priced(spot, spot.open[0], 2.0, 0.5)
    for number, launch in enumerate(spot.open, 1):
        spot.come(launch, f"i-{number}", 10.0)
    changed(spot, "i-1", 160.0, 1.5, 110.0)
    for price, since in ((1.5, 110.0), (0.5, 5.0), (1.5, 110.0)):  # again, after a restart
        changed(spot, "i-1", 161.0, price, since)
    rows = [charge for charge in spot.state.ledger.charges() if charge.what == "i-1"]
    assert [(row.since_s, row.until_s, row.usd_per_gpu_h) for row in rows] == [
        (10.0, 110.0, 0.5),
        (110.0, None, 1.5),
    ]
    each = [spot.state.ledger.charged_usd(row, 160.0) * 3600 / GPUS for row in rows]
    assert each == [pytest.approx(100 * 0.5), pytest.approx(50 * 1.5)]


@given(
    st.lists(st.sampled_from([0.25, 1.0, 2.0, MOST]), min_size=3, max_size=3),
    st.floats(0.0, LAG_S),
)
def test_no_rise_passes_the_budget_of_money(prices: list[float], late_s: float) -> None:
    cluster = {"usd_per_gpu_h": DEAREST, "most_usd_per_gpu_h": MOST, "price_lag_s": LAG_S}
    run = Cloud(small_facts, cluster, budget_gpu_s=100_000.0, cost_usd=40_000.0 / 3600)
    for number, launch in enumerate(run.open):
        priced(run, launch, 0.0, prices[number])
        run.come(launch, f"i{number}", 0.0)
    state = run.state
    ends_s, free_s = exhausted_at(state), exhausted_at(state) + release_s(state)
    book = state.ledger.copy()
    for name in list(book.open):
        book.reprice(name, max(0.0, ends_s - late_s), MOST)
    assert book.spent_usd(free_s) <= 40_000.0 / 3600 * (1 + 1e-9)


def test_a_minimum_that_a_change_divides_is_billed_once() -> None:
    book = Ledger(1.0)
    book.start(Charge("i", "i", 1, 0.0, minimum_s=60.0, usd_per_gpu_h=1.0))
    book.reprice("i", 20.0, 2.0)
    assert book.spent_gpu_s(30.0) == 60.0
    assert book.spent_usd(30.0) == pytest.approx((20.0 + 40.0 * 2.0) / 3600)
    assert book.spent_usd(100.0) == pytest.approx((20.0 + 80.0 * 2.0) / 3600)
