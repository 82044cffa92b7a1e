"""Instances that cost less, or more, than the price that a run was planned with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.core.commands import Launch
from seerd.core.events import InstanceAwaited, InstanceLost, LaunchRefused
from seerd.core.ledger import Charge, Ledger
from seerd.core.limits import exhausted_at, release_s
from seerd.telling.run_json import ledger
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
