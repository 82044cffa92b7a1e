"""The search bench (bench/search): every family counts the same, runs are compared seed by seed, and
the same answer comes from any number of processes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.search.figures import (
    Floats,
    Regrets,
    best_of_them,
    by_family,
    interval,
    medians,
    ranks,
    ratio,
    steps,
    student,
    worse_than_others,
    worse_with_more,
)
from bench.search.play import WORST, play, problem_for, setting_of
from bench.search.tasks import Bench, Case, Cell, Task
from bench.search_quality import FOLDER, played, summary
from seerd.planner.policies import POLICIES

FILES = tuple(Path(name) for name in ("a_1.npz", "a_2.npz", "a_3.npz", "b_1.npz"))
LESS, MORE = Cell(900.0, 8), Cell(900.0, 16)
LCBENCH = FOLDER / "lcbench_167149.npz"


def regrets(values: Floats) -> Regrets:
    """Of two policies, one family and two cells."""
    return Regrets(("mine", "other"), ("a",), (LESS, MORE), values[:, None])


class TestFigures:
    def test_a_family_counts_once_however_many_files_it_has(self) -> None:
        bench = Bench(FILES, "fixed", ("seer+",), 1, 1.0, 3600.0)
        assert bench.families == {"a": [0, 1, 2], "b": [3]}
        values = np.array([[[[1.0]], [[1.0]], [[1.0]], [[3.0]]]])
        grouped = list(bench.families.values())
        assert by_family(values, grouped).mean() == 2.0
        assert medians(values, grouped).tolist() == [2.0]

    def test_equal_runs_share_a_rank(self) -> None:
        assert ranks(np.array([0.1, 0.2, 0.1, 0.5])).tolist() == [1.5, 3.0, 1.5, 4.0]

    def test_the_best_of_them_may_be_another_in_each_cell(self) -> None:
        values = np.array([[[0.0, 0.0]], [[0.1, 0.4]], [[0.3, 0.2]]])[..., None]
        found = Regrets(("mine", "one", "two"), ("a",), (LESS, MORE), values)
        assert best_of_them(found).tolist() == [[0.1, 0.2]]

    def test_the_interval_of_a_ratio_is_over_families(self) -> None:
        mine = np.array([[0.1], [0.3]])
        assert ratio(mine, np.array([[0.2], [0.2]])) == [1.0, 0.5, 1.5]

    @pytest.mark.parametrize(
        ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (100, 1.984)]
    )
    def test_students_quantile_is_that_of_the_tables(self, freedom: int, quantile: float) -> None:
        assert student(freedom) == pytest.approx(quantile, rel=0.01)

    def test_one_seed_proves_nothing(self) -> None:
        assert interval(np.array([0.5])) == (0.5, -np.inf, np.inf)


class TestByFamily:
    NOISE = np.random.default_rng(0).uniform(0.2, 0.8, (2, 10))

    def test_pairs_of_seeds_show_what_their_spread_would_hide(self) -> None:
        found = regrets(np.stack([self.NOISE + 0.05, self.NOISE]))
        assert worse_than_others(found)["worse"] == 1

    def test_less_than_the_margin_is_not_worse(self) -> None:
        found = regrets(np.stack([self.NOISE + 0.02, self.NOISE]))
        assert worse_than_others(found)["worse"] == 0

    def test_a_chance_difference_is_not_worse(self) -> None:
        other = np.random.default_rng(1).uniform(0.1, 0.7, (2, 10))
        found = worse_than_others(regrets(np.stack([self.NOISE, other])))
        assert found["tests"][0]["difference"] > 0.03
        assert found["worse"] == 0

    def test_more_budget_that_is_worse_is_found(self) -> None:
        worse = np.stack([self.NOISE[0], self.NOISE[0] + 0.1])
        found = worse_with_more(regrets(np.stack([worse, self.NOISE])))
        assert found["worse"] == 1
        assert found["tests"][0]["step"] == [
            {"deadline_min": 15, "gpus": 8},
            {"deadline_min": 15, "gpus": 16},
        ]
        better = np.stack([self.NOISE[0] + 0.1, self.NOISE[0]])
        assert worse_with_more(regrets(np.stack([better, self.NOISE])))["worse"] == 0

    def test_a_step_is_to_the_next_cell_with_more_of_one(self) -> None:
        cells = Bench((), "rented", ("seer",), 1, 1.0, 3600.0).cells
        assert len(cells) == 9
        found = steps(cells)
        assert len(found) == 12
        for less, more in found:
            longer = cells[more].deadline_s > cells[less].deadline_s
            assert longer != (cells[more].gpus > cells[less].gpus)


class TestRuns:
    @pytest.mark.parametrize(("told", "reports"), [(1.0, 50), (4.0, 200), (0.25, 12), (None, 256)])
    def test_others_are_told_r_wrong_or_not_at_all(self, told: float | None, reports: int) -> None:
        case = Case(LCBENCH, "fixed", Cell(1800.0, 2), "asha", told, 3600.0)
        params = problem_for(case, setting_of(case)).params
        assert (256 if params.max_reports is None else params.max_reports) == reports

    def test_the_one_under_test_is_never_told_r(self) -> None:
        case = Case(LCBENCH, "fixed", Cell(1800.0, 2), "seer+", 1.0, 3600.0)
        assert problem_for(case, setting_of(case)).params.max_reports is None

    def test_decisions_are_timed_and_the_policy_is_left_as_it_was(self) -> None:
        before = POLICIES["asha"]
        case = Case(LCBENCH, "rented", Cell(900.0, 8), "asha", 1.0, 3600.0)
        timed, untimed = play(Task(case, 0, timed=True)), play(Task(case, 0))
        assert len(timed.decisions_s) > 1
        assert untimed.decisions_s == ()
        assert timed.regret == untimed.regret
        assert POLICIES["asha"] is before

    def test_limits_that_fit_nothing_count_as_no_model(self) -> None:
        case = Case(LCBENCH, "rented", Cell(30.0, 8), "seer", 1.0, 3600.0)
        came = play(Task(case, 0))
        assert came.impossible
        assert came.regret == WORST

    def test_the_answer_is_the_same_on_any_number_of_processes(self) -> None:
        bench = Bench((LCBENCH,), "fixed", ("random", "seer"), 2, 1.0, 1200.0)
        told = [summary(bench, played(bench, jobs)) for jobs in (1, 2)]
        for one in told:
            del one["cpu_s_per_decision"]
        assert told[0] == told[1]
        assert told[0]["runs"] == 32
        assert set(told[0]["policies"]) == {"random", "seer", "best of them"}
        assert (
            told[0]["policies"]["best of them"]["regret"] == told[0]["policies"]["seer"]["regret"]
        )
