"""Laws and latencies from samples: known laws come out again, what was measured stays as it was."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seerd.planner.fitting import Law, deviation, fit, latency, report_latency
from seerd.planner.profile import BUNDLED

SECONDS = st.floats(1e-3, 1e4)
COUNTS = st.sets(st.integers(1, 64), min_size=1, max_size=7)


def samples(law: Law, counts: set[int]) -> dict[int, list[float]]:
    return {gpus: [law.seconds(gpus)] for gpus in counts}


@settings(deadline=None)  # the first call imports scipy
@given(serial=SECONDS, work=SECONDS, counts=COUNTS)
def test_amdahl_s_law_comes_out_again(serial: float, work: float, counts: set[int]) -> None:
    assume(len(counts) > 1)
    assume(0.05 < work / serial < 20)  # otherwise one term is lost in what counts as close
    law = Law(serial, work)
    made = fit(samples(law, counts))
    assert made.error < 1e-6
    for gpus in (1, 2, 8, 64, 100):
        assert made.law.seconds(gpus) == pytest.approx(law.seconds(gpus), rel=1e-3)


@settings(deadline=None)
@given(work=SECONDS, shares=st.tuples(*[st.floats(0.01, 0.5)] * 3))
def test_a_law_with_every_term_is_exact_on_a_machine_s_powers_of_two(
    work: float, shares: tuple[float, float, float]
) -> None:
    law = Law(work * shares[0], work, work * shares[1], work * shares[2])
    made = fit(samples(law, {1, 2, 4, 8, 16}))
    assert made.error <= 0.01, "either all terms, or fewer that explain the points"
    assert min(made.law.serial_s, made.law.work_s, made.law.exchange_s, made.law.contention_s) >= 0


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(1, 64), st.lists(SECONDS, min_size=1, max_size=5), min_size=1, max_size=6
    )
)
def test_measured_points_stay_and_the_error_is_the_largest_deviation(
    measured: dict[int, list[float]],
) -> None:
    made = fit(measured)
    medians = {
        gpus: sorted(values)[len(values) // 2]
        for gpus, values in measured.items()
        if len(values) % 2
    }
    for gpus, seconds in medians.items():
        assert made.one_gpu_s / made.scaling.speed(gpus) == pytest.approx(seconds)
    assert made.measured == tuple(sorted(measured))
    points = {gpus: made.one_gpu_s / made.scaling.speed(gpus) for gpus in measured}
    assert made.error == pytest.approx(deviation(made.law, points))
    assert all(math.isfinite(speed) and speed > 0 for _, speed in made.scaling.points)


def test_fitted_points_lie_beyond_the_last_measured_one_and_follow_the_law() -> None:
    made = fit(samples(Law(1.0, 9.0), {1, 2, 4}))
    assert [gpus for gpus, _ in made.scaling.points] == [1, 2, 4, 8, 16, 32, 64]
    assert made.scaling.speed(64) == pytest.approx(10 / (1 + 9 / 64))


def test_a_curve_that_turns_is_kept_as_measured() -> None:
    made = fit({1: [1.0], 2: [0.6], 4: [0.7]})
    assert made.scaling.speed(2) == pytest.approx(1 / 0.6)
    assert made.scaling.speed(4) == pytest.approx(1 / 0.7)
    assert 0 < made.error < 0.1


def test_one_gpu_is_fitted_where_trials_have_more() -> None:
    made = fit(samples(Law(0.2, 1.6), {2, 4}))
    assert made.one_gpu_s == pytest.approx(1.8)
    assert made.measured == (2, 4)


def test_one_gpu_is_not_slower_than_the_fewest_that_were_measured() -> None:
    made = fit({2: [1.0], 4: [2.0]})
    assert made.one_gpu_s == max(made.law.seconds(1), 1.0)
    assert made.one_gpu_s < 2.0


def test_from_one_point_nothing_is_known_but_that_point() -> None:
    made = fit({2: [3.0]})
    assert made.scaling.points == ((1, 1.0), (2, 2.0))
    assert made.error == 0.0
    assert made.scaling.speed(8) == pytest.approx(8.0)


@pytest.mark.parametrize(
    "bad", [{}, {1: []}, {1: [0.0]}, {1: [math.nan]}, {2: [1.0], 4: [math.inf]}]
)
def test_what_is_no_time_is_refused(bad: dict[int, list[float]]) -> None:
    with pytest.raises(ValueError):
        fit(bad)


@pytest.mark.parametrize("name", BUNDLED)
def test_the_published_curves_fit(name: str) -> None:
    made = fit({gpus: [60 / speed] for gpus, speed in BUNDLED[name].points})
    assert made.error < 0.05


@given(st.lists(SECONDS, min_size=1, max_size=50))
def test_a_latency_lies_within_its_samples(values: list[float]) -> None:
    made = latency(values)
    assert min(values) <= made.p50_s <= made.p95_s <= max(values)


def test_how_reports_vary_is_taken_from_all_numbers_of_gpus() -> None:
    made = report_latency({1: [10.0], 4: [2.0, 3.0, 4.0]}, 10.0)
    assert made.p50_s == 10.0
    assert 10.0 < made.p95_s <= 10.0 * 4 / 3


def test_planning_does_not_wait_for_scipy() -> None:
    look = (
        "import sys, seerd.planning.profiles, seerd.commands.profiling; sys.exit('scipy' "
        "in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", look], check=True)
