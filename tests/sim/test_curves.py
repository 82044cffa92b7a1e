"""Files of curves: every rule of their format, and a clear error for every way in which one can be
broken.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.testbed.checked_world import Behaviour
from seerd.errors import UsageError
from seerd.planner.profile import LINEAR, JobProfile, Profile, parse_scaling
from seerd.planner.space import Condition, Space
from seerd.sim.curves import CURVE, Curves, load_curves
from seerd.sim.setting import alone, behaviour_of
from tests.sim.hand import IDEAL, limits

NAN, INF = float("nan"), float("inf")
GOOD: dict[str, Any] = {
    "metric": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
    "seconds": [10.0, 20.0],
    "mode": "max",
}


def write(folder: Path, **changes: Any) -> Path:
    """The good file with some arrays changed, or left out (None)."""
    path = folder / "curves.npz"
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(path, **arrays)
    return path


def load(folder: Path, **changes: Any) -> Curves:
    return load_curves(write(folder, **changes))


def reports(curves: Curves, row: int = 0) -> list[float | None]:
    return [curves.at({CURVE: row}, epoch) for epoch in range(1, curves.epochs + 1)]


def seconds(curves: Curves, row: int = 0) -> list[float]:
    return [curves.unit_s({CURVE: row}, epoch) for epoch in range(1, curves.epochs + 1)]


class TestWhatAFileMeans:
    def test_a_row_is_a_configuration_and_a_column_a_report(self, tmp_path: Path) -> None:
        curves = load(tmp_path)
        assert reports(curves, 0) == [0.1, 0.2, 0.3]
        assert reports(curves, 1) == [0.4, 0.5, 0.6]
        assert (curves.epochs, curves.mode, curves.best_final) == (3, "max", 0.6)

    def test_after_the_end_of_a_curve_its_last_value_holds(self, tmp_path: Path) -> None:
        assert reports(load(tmp_path, metric=[[0.1, 0.2, NAN, NAN]] * 2)) == [0.1, 0.2, 0.2, 0.2]

    def test_a_nan_before_the_end_is_a_nan_that_the_trial_reported(self, tmp_path: Path) -> None:
        assert reports(load(tmp_path, metric=[[NAN, 0.2, NAN, 0.3, NAN]] * 2)) == [
            None,
            0.2,
            None,
            0.3,
            0.3,
        ]

    def test_a_curve_that_ends_infinite_stays_so(self, tmp_path: Path) -> None:
        curves = load(tmp_path, metric=[[0.9, INF, NAN], [0.1, 0.2, 0.3]])
        assert reports(curves) == [0.9, None, None]
        assert curves.best_final == 0.3, "a model that diverged is not the best one"

    def test_a_curve_without_any_value_reports_nan_for_ever(self, tmp_path: Path) -> None:
        curves = load(tmp_path, metric=[[NAN, NAN], [0.1, 0.2]])
        assert reports(curves) == [None, None]
        assert curves.best_final == 0.2

    def test_seconds_are_of_a_whole_curve_or_of_each_report(self, tmp_path: Path) -> None:
        assert seconds(load(tmp_path), 1) == [20.0, 20.0, 20.0]
        each = load(tmp_path, seconds=[[1.0, 2.0, 3.0], [4.0, 5.0, NAN]])
        assert seconds(each, 0) == [1.0, 2.0, 3.0]
        assert seconds(each, 1) == [4.0, 5.0, 5.0], "of what comes after the end of a curve, too"

    def test_as_many_configurations_as_reports_leave_no_doubt(self, tmp_path: Path) -> None:
        square = load(tmp_path, metric=[[0.1, 0.2], [0.3, 0.4]], seconds=[10.0, 20.0])
        assert seconds(square, 0) == [10.0, 10.0]

    def test_curves_are_of_one_gpu_unless_the_file_says_another_number(
        self, tmp_path: Path
    ) -> None:
        assert load(tmp_path).gpus == 1
        assert load(tmp_path, gpus=8).gpus == 8

    def test_less_is_better_where_the_mode_is_min(self, tmp_path: Path) -> None:
        curves = load(tmp_path, mode="min")
        assert curves.best_final == 0.3
        assert curves.regret(0.5) == pytest.approx(0.2)
        assert load(tmp_path).regret(0.5) == pytest.approx(0.1)

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1", ">f8"])
    def test_any_kind_of_number_will_do(self, tmp_path: Path, dtype: str) -> None:
        curves = load(
            tmp_path, metric=np.array([[1, 2], [3, 4]], dtype), seconds=np.array([10, 20], dtype)
        )
        assert reports(curves, 1) == [3.0, 4.0]
        assert seconds(curves, 1) == [20.0, 20.0]

    def test_a_compressed_file_and_arrays_it_does_not_know_will_do(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "c.npz", **GOOD, notes="recorded last week", more=[1, 2])
        assert load_curves(tmp_path / "c.npz").epochs == 3


class TestConfigurations:
    def space(self, folder: Path, configs: Any) -> Space:
        return load(folder, configs=json.dumps(configs)).space()

    def test_without_them_a_configuration_is_its_row(self, tmp_path: Path) -> None:
        assert load(tmp_path).space().table == ({CURVE: 0}, {CURVE: 1})

    def test_they_are_what_the_policies_choose_from(self, tmp_path: Path) -> None:
        space = self.space(tmp_path, [{"lr": 0.1, "opt": "sgd"}, {"lr": 0.2, "opt": "adam"}])
        assert space.table == (
            {CURVE: 0, "lr": 0.1, "opt": "sgd"},
            {CURVE: 1, "lr": 0.2, "opt": "adam"},
        )
        assert {p.name: p.choices for p in space.parameters} == {
            "lr": (0.1, 0.2),
            "opt": ("adam", "sgd"),
        }

    def test_many_numbers_are_a_range(self, tmp_path: Path) -> None:
        rows = 20
        configs = [{"lr": 10.0 ** -(i / 4), "layers": i + 1, "same": 1} for i in range(rows)]
        curves = load(
            tmp_path,
            metric=np.ones((rows, 2)),
            seconds=np.ones(rows),
            configs=json.dumps(configs),
            mode="min",
        )
        lr, layers = curves.space().parameters
        assert (lr.name, lr.high, lr.log, lr.integer) == ("lr", 1.0, True, False)
        assert (layers.name, layers.low, layers.high, layers.log, layers.integer) == (
            "layers",
            1,
            20,
            False,
            True,
        )

    def test_what_some_lack_is_active_on_the_condition_that_they_tell(self, tmp_path: Path) -> None:
        configs = [
            {"beta": 0.9, "opt": "adam", "lr": 0.1},
            {"beta": 0.99, "opt": "adam", "lr": 0.2},
            {"momentum": 0.9, "opt": "sgd", "lr": 0.1, "nesterov": False},
            {"momentum": 0.8, "opt": "sgd", "lr": 0.3, "nesterov": True, "damp": 0.5},
            {"momentum": 0.7, "opt": "lion", "lr": 0.3, "damp": 0.1},
            {"odd": 1, "opt": "sgd", "momentum": 0.5, "lr": 0.3, "nesterov": True},
        ]
        curves = load(
            tmp_path,
            metric=np.ones((6, 2)),
            seconds=np.ones(6),
            configs=json.dumps(configs),
            mode="min",
        )
        space = curves.space()
        assert {p.name: p.when for p in space.parameters} == {
            "opt": (),
            "lr": (),
            "beta": (Condition("opt", ("adam",)),),
            "momentum": (Condition("opt", ("lion", "sgd")),),
            "nesterov": (Condition("opt", ("sgd",)),),
        }, "nothing tells who has damp"
        for row in space.table:
            for p in space.parameters:
                assert p.active(row) == (p.name in row)

    def test_what_is_no_value_is_left_out(self, tmp_path: Path) -> None:
        odd = {"lr": NAN, "none": None, "list": [1], "huge": 10**400, "fine": True}
        assert self.space(tmp_path, [odd, {"fine": False}]).table == (
            {CURVE: 0, "fine": True},
            {CURVE: 1, "fine": False},
        )

    @pytest.mark.parametrize(
        "key", ["study", "trial", "iteration", "nan_train_loss", "global_step", "score"]
    )
    def test_what_is_only_bookkeeping_is_no_hyperparameter(self, tmp_path: Path, key: str) -> None:
        configs = json.dumps([{"lr": 0.1, key: 1}, {"lr": 0.2, key: 2}])
        curves = load_curves(write(tmp_path, configs=configs))
        assert curves.configs == ({"lr": 0.1}, {"lr": 0.2})
        assert [parameter.name for parameter in curves.space().parameters] == ["lr"]

    def test_no_hyperparameter_can_stand_in_for_the_row(self, tmp_path: Path) -> None:
        assert self.space(tmp_path, [{CURVE: 7}, {CURVE: "x"}]).table == ({CURVE: 0}, {CURVE: 1})


class TestSpeed:
    def unit_s(self, curves: Curves, scaling: str, gpus: int) -> float:
        profile = Profile(JobProfile(scaling=parse_scaling(scaling)))
        behaviour: Behaviour = behaviour_of(alone(curves, limits(), IDEAL, profile))
        return behaviour.unit_s({CURVE: 0}, 1, gpus)

    def test_a_trial_is_as_many_times_as_fast_as_lambda_says(self, tmp_path: Path) -> None:
        curves = load(tmp_path)
        times = [self.unit_s(curves, "1:1,2:1.6,4:2.5", gpus) for gpus in (1, 2, 4)]
        assert times == pytest.approx([10.0, 10 / 1.6, 4.0])

    def test_curves_of_many_gpus_are_slower_on_one(self, tmp_path: Path) -> None:
        curves = load(tmp_path, gpus=4)
        times = [self.unit_s(curves, "1:1,2:1.6,4:2.5", gpus) for gpus in (1, 2, 4)]
        assert times == pytest.approx([25.0, 25 / 1.6, 10.0])

    def test_the_median_whole_curve_can_be_made_to_last(self, tmp_path: Path) -> None:
        curves = load(tmp_path, metric=np.ones((3, 4)), seconds=[1.0, 2.0, 9.0])
        longer = curves.lasting(3600.0, LINEAR.speed(curves.gpus))
        assert sum(seconds(longer, 1)) == pytest.approx(3600.0)
        assert sum(seconds(longer, 2)) == pytest.approx(3600.0 * 4.5), "their proportions stay"
        assert reports(longer) == reports(curves)

    def test_it_lasts_so_long_on_one_gpu_whatever_it_was_recorded_on(self, tmp_path: Path) -> None:
        scaling = "1:1,2:1.6,4:2.5"
        curves = load(tmp_path, metric=np.ones((1, 4)), seconds=[7.0], gpus=4)
        longer = curves.lasting(3600.0, parse_scaling(scaling).speed(4))
        assert 4 * self.unit_s(longer, scaling, 1) == pytest.approx(3600.0)
        assert 4 * self.unit_s(longer, scaling, 4) == pytest.approx(3600.0 / 2.5)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"metric": None}, "has no metric"),
    ({"seconds": None, "mode": None}, "has no mode, seconds"),
    ({"metric": [0.1, 0.2]}, r"metric is \[configs, epochs\], not of shape \[2\]"),
    ({"metric": np.ones((2, 3, 4))}, r"not of shape \[2, 3, 4\]"),
    ({"metric": np.ones((0, 3))}, r"not of shape \[0, 3\]"),
    ({"metric": np.ones((2, 0))}, r"not of shape \[2, 0\]"),
    ({"metric": 1.0}, r"not of shape \[\]"),
    ({"metric": np.full((2, 3), NAN)}, "no curve that ends with a finite value"),
    ({"metric": np.full((2, 3), INF)}, "no curve that ends with a finite value"),
    ({"metric": [["a", "b"], ["c", "d"]]}, "metric has numbers, not <U1"),
    ({"metric": np.ones((2, 3), complex)}, "metric has numbers, not complex128"),
    ({"metric": np.ones((2, 3), bool)}, "metric has numbers, not bool"),
    ({"metric": np.zeros((2, 3), "M8[s]")}, "metric has numbers, not datetime64"),
    ({"metric": np.zeros((2, 3), [("a", "f8"), ("b", "i4")])}, "metric has numbers"),
    ({"metric": np.zeros((2, 3), "V8")}, r"metric has numbers, not \|V8"),
    ({"seconds": ["10", "20"]}, "seconds has numbers, not <U2"),
    ({"seconds": 10.0}, r"seconds is \[configs\] or \[configs, epochs\] = \[2, 3\], not \[\]"),
    ({"seconds": [1.0, 2.0, 3.0]}, r"not \[3\]"),
    ({"seconds": np.ones((3, 2))}, r"not \[3, 2\]"),
    ({"seconds": [10.0, -1.0]}, "seconds are positive"),
    ({"seconds": [10.0, 0.0]}, "seconds are positive"),
    ({"seconds": [10.0, NAN]}, "seconds are positive"),
    ({"seconds": [10.0, INF]}, "seconds are positive"),
    ({"seconds": [[NAN, 1.0, 1.0], [1.0, 1.0, 1.0]]}, "seconds are positive"),
    ({"mode": "best"}, "mode is max or min, not 'best'"),
    ({"mode": 1}, "mode is max or min, not '1'"),
    ({"gpus": 0}, "gpus is a whole number, at least 1, not 0"),
    ({"gpus": 1.5}, "gpus is a whole number"),
    ({"gpus": "four"}, "gpus is a whole number"),
    ({"gpus": [1, 2]}, "gpus is a whole number"),
    ({"configs": "[{]"}, "configs is not JSON"),
    ({"configs": "[" * 100_000}, "configs is not JSON"),
    ({"configs": b"\xff"}, "configs is not JSON"),
    ({"configs": "{}"}, "configs is a list of 2 objects"),
    ({"configs": "[{}]"}, "configs is a list of 2 objects"),
    ({"configs": "[1, 2]"}, "configs is a list of 2 objects"),
    ({"mode": "?", "gpus": 0, "metric": [1.0]}, "metric is .*; mode is .*; gpus is "),
]


@pytest.mark.parametrize(("changes", "says"), BROKEN)
def test_a_broken_file_is_told_what_is_wrong_with_it(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(UsageError, match=says) as caught:
        load_curves(path)
    assert str(path) in str(caught.value)


class Bomb:
    """Pickled, it leaves a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


class TestFilesThatAreNone:
    def refused(self, path: Path) -> str:
        with pytest.raises(UsageError, match="cannot be read as curves") as caught:
            load_curves(path)
        return str(caught.value)

    def test_pickled_objects_are_never_run(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        inside = np.array([[Bomb(trace)]], dtype=object)
        for name in ("metric", "mode", "anything"):
            self.refused(write(tmp_path, **{name: inside}))
        (tmp_path / "bare.npz").write_bytes(pickle.dumps(Bomb(trace)))
        self.refused(tmp_path / "bare.npz")
        assert not trace.exists()
        pickle.loads(pickle.dumps(Bomb(trace)))
        assert trace.exists(), "it would have"

    @pytest.mark.parametrize(
        "content", [b"", b"P", b"PK", b"PK\3\4", b"metric,seconds\n1,2\n", b"\x80\x04N."]
    )
    def test_something_else_is_not_read(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.npz").write_bytes(content)
        self.refused(tmp_path / "x.npz")

    def test_one_array_is_no_file_of_curves(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", GOOD["metric"])
        assert "numpy.savez" in self.refused(tmp_path / "x.npy")

    def test_no_file_and_no_right_to_read(self, tmp_path: Path) -> None:
        assert "No such file" in self.refused(tmp_path / "none.npz")
        assert "Is a directory" in self.refused(tmp_path)

    def test_a_zip_of_other_files_has_no_arrays(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
            file.writestr("metric", "1 2 3")
            file.writestr("seconds.txt", "1 2 3")
        with pytest.raises(UsageError, match="has no metric, mode, seconds"):
            load_curves(tmp_path / "x.npz")

    def test_damage_anywhere_is_noticed_or_harmless(self, tmp_path: Path) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, **GOOD)
        good = stream.getvalue()
        path = tmp_path / "x.npz"
        for at in range(0, len(good), 7):
            for damaged in (good[:at], good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]):
                path.write_bytes(damaged)
                try:
                    assert load_curves(path).epochs == 3
                except UsageError as error:
                    assert str(path) in str(error)

    @pytest.mark.parametrize("shape", [(10**15, 3), (2**62, 2**62)])
    def test_a_file_that_claims_to_be_enormous_is_refused(
        self, tmp_path: Path, shape: tuple[int, ...]
    ) -> None:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f8", "fortran_order": False, "shape": shape}
        )
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
            file.writestr("metric.npy", head.getvalue())
        self.refused(tmp_path / "x.npz")
