"""Studies: many runs on all cores, and what is told of them."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest

from seerd.commands.simulate import Study, row_json, rows, runs
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.planner.policies import POLICIES
from seerd.sim.setting import Outcome, alone
from tests.sim.hand import PER_INSTANCE, curves

KEYS = {
    *(
        "policy",
        "deadline_s",
        "budget_gpu_min",
        "best",
        "mean",
        "stderr",
        "regret",
        "gpu_min",
        "elapsed_s",
        "trials",
    ),
    *("violations", "without_model"),
}
"""As docs/json.md lists them; `impossible` only where it is."""

RISING = curves(*([(1 - 0.9**k) * (1 - row / 25) for k in range(1, 61)] for row in range(24)))
MINUTE = 60.0


def study(names: tuple[str, ...], limits: tuple[Limits, ...], seeds: int = 2) -> Study:
    setting = alone(RISING, limits[0], PER_INSTANCE, assumed(rented=True))
    return Study(setting, tuple(PolicyParams(name=name) for name in names), limits, seeds)


def told(made: Study) -> list[dict]:
    return [row_json(row) for row in rows(made, lambda: None)]


def test_a_row_for_each_policy_under_each_pair_of_limits_in_their_order() -> None:
    pairs = tuple(Limits(t * MINUTE, b * MINUTE) for t in (15, 20) for b in (120, 150))
    ticks: list[None] = []
    made = study(("random", "sha"), pairs, seeds=1)
    found = [row_json(row) for row in rows(made, lambda: ticks.append(None))]
    assert [(row["deadline_s"], row["budget_gpu_min"], row["policy"]) for row in found] == [
        (t * MINUTE, b, name) for t in (15, 20) for b in (120, 150) for name in ("random", "sha")
    ]
    assert len(ticks) == runs(made) == 8
    assert all(set(row) == KEYS for row in found)
    assert json.loads(json.dumps(found)) == found


def test_the_order_of_policies_and_the_number_of_seeds_change_no_run() -> None:
    limits = (Limits(15 * MINUTE, 120 * MINUTE),)
    names = "seer", "asha", "bohb"
    forwards, backwards = told(study(names, limits)), told(study(names[::-1], limits))
    assert forwards == backwards[::-1]
    more = told(study(names, limits, seeds=3))
    assert [row["best"] for row in forwards] == [row["best"][:2] for row in more]


def test_no_policy_breaks_a_limit_in_what_is_billed() -> None:
    pairs = tuple(Limits(t * MINUTE, b * MINUTE) for t, b in ((8, 60), (15, 120), (40, 90)))
    for row in rows(study(tuple(POLICIES), pairs, seeds=1), lambda: None):
        for outcome in row.outcomes:
            assert outcome.elapsed_s <= row.limits.deadline_s, row.params.name
            assert outcome.gpu_s <= row.limits.budget_gpu_s, row.params.name
        assert row_json(row)["violations"] == 0


def test_money_is_a_limit_as_well() -> None:
    limits = Limits(15 * MINUTE, 1e6, cost_usd=4.0)
    (row,) = rows(study(("seer",), (limits,)), lambda: None)
    assert row.outcomes
    assert all(outcome.gpu_s / 3600 * PER_INSTANCE.usd_per_gpu_h <= 4.0 for outcome in row.outcomes)


def test_limits_that_fit_nothing_give_a_row_that_says_so() -> None:
    fits, none = told(
        study(("seer",), (Limits(15 * MINUTE, 120 * MINUTE), Limits(15 * MINUTE, 1.0)))
    )
    assert set(fits) == KEYS
    assert set(none) == {*KEYS, "impossible"}
    assert "GPU" in none["impossible"]
    assert (none["best"], none["mean"], none["stderr"], none["regret"], none["violations"]) == (
        [],
        None,
        None,
        None,
        0,
    )


def test_a_policy_whose_package_is_missing_gives_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seerd.planner.bohb.find_spec", lambda name: None)
    bohb, random = told(study(("bohb", "random"), (Limits(15 * MINUTE, 120 * MINUTE),), seeds=1))
    assert "pip install" in bohb["impossible"]
    assert random["mean"] is not None


OUTCOME = Outcome(0.5, 0.25, 600.0, 50.0, 4, 10, "done", within_deadline=True, within_budget=True)


def row_of(*outcomes: Outcome) -> dict:
    (row,) = rows(study(("random",), (Limits(15 * MINUTE, 120 * MINUTE),), seeds=1), lambda: None)
    return row_json(replace(row, outcomes=outcomes))


def test_means_and_their_error_are_of_what_was_found() -> None:
    other = replace(OUTCOME, metric=0.8, regret=-0.05, gpu_s=1200.0, elapsed_s=70.0, trials=6)
    none = replace(OUTCOME, metric=None, regret=None)
    row = row_of(OUTCOME, other, none)
    assert row["best"] == [0.5, 0.8, None]
    assert row["mean"] == pytest.approx(0.65)
    assert row["stderr"] == pytest.approx(statistics.stdev([0.5, 0.8]) / 2**0.5)
    assert row["regret"] == pytest.approx(0.1)
    assert row["gpu_min"] == pytest.approx((10 + 20 + 10) / 3)
    assert (row["without_model"], row["trials"]) == (1, pytest.approx(14 / 3))


def test_a_broken_limit_is_counted_once_for_each_run() -> None:
    late = replace(OUTCOME, within_deadline=False)
    both = replace(late, within_budget=False)
    assert row_of(OUTCOME, late, both)["violations"] == 2


def test_in_the_ideal_setting_every_gpu_is_paid_by_itself() -> None:
    """SEER to the letter: three trials for a third of the time, the best of them to the end."""
    cluster = ClusterFacts("held", 8, instant=True)
    setting = alone(RISING, Limits(120.0, 240.0), cluster, assumed(rented=False))
    params = PolicyParams(name="seer", eta=2, p_max=1, t_min_s=30.0)
    (row,) = rows(Study(setting, (params,), (setting.limits,), 1, ideal=True), lambda: None)
    assert row_json(row)["gpu_min"] == pytest.approx((3 * 40 + 80) / 60)
    assert row_json(row)["elapsed_s"] == 120.0
