"""What counts as a manifest, at its bounds, and how checkpoints are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import KEPT
from seerd.agent.manifest import (
    LARGEST,
    CheckpointError,
    Comparison,
    Manifest,
    allows,
    best_of,
    by_number,
    count_of,
    is_safe,
    metrics_of,
    needed,
    small_file,
    versions_of,
)

GOOD: dict[str, Any] = {
    "name": "1",
    "epoch": 4,
    "metrics": {"a": 0.5},
    "sha256": "0a" * 32,
    "size": 7,
}


def parsed(expected: str | None = "1", /, **other: Any) -> Manifest:
    body = {key: value for key, value in {**GOOD, **other}.items() if value is not ...}
    return Manifest.parse(json.dumps(body).encode(), expected)


def test_a_manifest_is_what_it_says() -> None:
    assert parsed() == Manifest("1", 4, {"a": 0.5}, "0a" * 32, 7, {})
    assert parsed(versions={"torch": "2.1"}).versions == {"torch": "2.1"}
    assert parsed(None, name="a-1").name == "a-1"


@pytest.mark.parametrize(
    "other",
    [
        {"epoch": 0},
        {"epoch": LARGEST},
        {"size": 0},
        {"size": 5 << 40},
        {"metrics": {}},
        {"metrics": {str(number): 1 for number in range(64)}},
        {"versions": {str(number): "1" for number in range(16)}},
        {"other": "x"},
    ],
)
def test_at_these_bounds_it_is_one(other: dict[str, Any]) -> None:
    assert parsed(**other).name == "1"


@pytest.mark.parametrize(
    "other",
    [
        *({"epoch": -1}, {"epoch": LARGEST + 1}, {"epoch": True}, {"epoch": 1.0}, {"epoch": ...}),
        *({"size": -1}, {"size": (5 << 40) + 1}, {"size": 1.0}, {"size": True}, {"size": ...}),
        *({"name": "2"}, {"name": 1}, {"name": ...}, {"sha256": "0A" * 32}, {"sha256": "0a" * 31}),
        *({"sha256": "0a" * 32 + "0"}, {"sha256": 7}, {"sha256": ...}, {"metrics": []}),
        *({"metrics": {"a": "1"}}, {"metrics": {"a": True}}, {"metrics": ...}),
        {"metrics": {str(number): 1 for number in range(65)}},
        *({"versions": []}, {"versions": {"a": 1}}),
        {"versions": {str(number): "1" for number in range(17)}},
    ],
)
def test_beyond_them_it_is_none(other: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="this is no manifest of 1"):
        parsed(**other)


def test_the_name_is_the_expected_one_or_one_that_may_be_a_files() -> None:
    with pytest.raises(CheckpointError, match="no manifest of a checkpoint"):
        parsed(None, name="../x")
    with pytest.raises(CheckpointError, match="no manifest of other"):
        parsed("other")


@pytest.mark.parametrize(("size", "fits"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_a_manifest_is_small(tmp_path: Path, size: int, *, fits: bool) -> None:
    raw = json.dumps(GOOD).encode()
    path = tmp_path / "1.json"
    path.write_bytes(raw + b" " * (size - len(raw)))
    if fits:
        assert Manifest.read(path).epoch == 4
    else:
        with pytest.raises(CheckpointError, match="the manifest of 1 is too large"):
            Manifest.read(path)
    path.write_bytes(b" " * (1 << 20))
    assert len(small_file(path)) == (1 << 16) + 1
    with pytest.raises(CheckpointError, match=f"{tmp_path}/2.json cannot be read: No such file"):
        small_file(tmp_path / "2.json")


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"\xff", b"[" * 60_000, b"{}"])
def test_rubbish_is_no_manifest(raw: bytes) -> None:
    with pytest.raises(CheckpointError):
        Manifest.parse(raw)


def test_numbers_that_are_not_finite_are_none_and_names_are_cut() -> None:
    assert metrics_of({"a": 10**400, "b": math.inf, "c": None, "d": math.nan, "e": 3}) == {
        "a": None,
        "b": None,
        "c": None,
        "d": None,
        "e": 3.0,
    }
    long = "x" * 63
    assert metrics_of({f"{long}yz": 1}) == {f"{long}y": 1.0}
    assert versions_of({f"{long}yz": f"{long}vw"}) == {f"{long}y": f"{long}v"}
    assert versions_of({"a\ud800": "\udc00"}) == {"a?": "?"}


def test_a_count_is_a_whole_number() -> None:
    assert [count_of(0), count_of(LARGEST)] == [0, LARGEST]
    for wrong in (-1, LARGEST + 1, 1.0, True, "1", None):
        with pytest.raises(ValueError, match="is no number of reports"):
            count_of(wrong)


def test_names_that_may_be_parts_of_paths() -> None:
    for name in ("a", "-", "_", "A.b", "0" * 64):
        assert is_safe(name)
    for name in ("", ".", "..", ".a", "a/b", "0" * 65, "a b", "a\n", 1, None):
        assert not is_safe(name)


def test_more_or_less_is_better() -> None:
    metrics = {"a": 2.0, "b": None}
    assert Comparison("a", "max").worth(metrics) == 2.0
    assert Comparison("a", "min").worth(metrics) == -2.0
    assert Comparison("b", "min").worth(metrics) is None
    assert Comparison("c", "max").worth(metrics) is None
    assert Comparison("a", "min").worth({"a": 0.0}) == 0.0


@pytest.mark.parametrize(
    ("sign", "holds"),
    [("<", (True, False, False)), ("<=", (True, True, False)), (">", (False, False, True))],
)
def test_a_constraint_holds_or_not(sign: str, holds: tuple[bool, ...]) -> None:
    told = tuple(allows([f"a {sign} 2"], {"a": value}) for value in (1.0, 2.0, 3.0))
    assert told == holds
    assert allows(["a >= 2"], {"a": 2.0})
    assert not allows(["a >= 2"], {"a": 1.9})


def test_all_constraints_have_to_hold_of_the_metrics_that_are_there() -> None:
    both = ["a < 2", "b < 2"]
    assert allows(both, {"a": 1.0, "b": 1.0})
    assert not allows(both, {"a": 1.0, "b": 3.0})
    assert not allows(both, {"a": 3.0, "b": 1.0})
    assert allows(both, {"a": 1.0})
    assert allows(both, {})
    assert not allows(["a < 2"], {"a": None})
    assert allows([], {"a": None})


def test_the_newest_stay_and_the_best_of_equals_the_newest() -> None:
    worths: dict[str, float | None] = {"1": 0.5, "2": 0.9, "3": 0.9, "4": None, "5": 0.1, "6": 0.2}
    assert best_of(worths) == "3"
    assert needed(worths) == {"3", *list(worths)[-KEPT:]}
    assert best_of({"1": None}) is None
    assert needed(dict.fromkeys(("1", "2", "3", "4"))) == set(("1", "2", "3", "4")[-KEPT:])
    assert best_of({}) is None
    assert best_of({"1": -1.0, "2": -2.0}) == "1"


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["999999-00999999", "1000000-01000000", "000004-00000040", "a10", "a9"]
    assert sorted(names, key=by_number) == [
        *("000004-00000040", "999999-00999999", "1000000-01000000", "a9", "a10"),
    ]
