"""Units: what people write is understood, what is told can be read back, a bare number is refused
with the units it takes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1m30s", 90),
        ("0.5s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "gpu_seconds"),
    [("480gpu-min", 28800), ("8gpu-h", 28800), ("90gpu-s", 90), ("1.5 gpu-h", 5400)],
)
def test_gpu_time(text: str, gpu_seconds: float) -> None:
    assert units.parse_gpu_time(text) == gpu_seconds


@pytest.mark.parametrize(("text", "usd"), [("$40", 40), ("40usd", 40), ("$0.5", 0.5), ("3 USD", 3)])
def test_money(text: str, usd: float) -> None:
    assert units.parse_money(text) == usd


@pytest.mark.parametrize(("text", "gb"), [("12GB", 12), ("500 MB", 0.5), ("1.5TB", 1500)])
def test_sizes(text: str, gb: float) -> None:
    assert units.parse_size(text) == gb


@pytest.mark.parametrize("text", ["12", "12gb", "12GiB", "-1GB", "GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"12GB, 500MB or 1\.5TB"):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "m", "-5m", "5 minutes", "1m1h", "∞", "1e3s", "5m "])
def test_what_is_no_duration(text: str) -> None:
    if text.strip() == "5m":
        assert units.parse_duration(text) == 300
        return
    with pytest.raises(ValueError, match="90s, 30m, 1h30m or 2h"):
        units.parse_duration(text)


@given(st.integers(0, 10**9))
def test_durations_are_told_as_they_are_read(millis: int) -> None:
    assert units.parse_duration(units.format_duration(millis / 1000)) == pytest.approx(
        millis / 1000, abs=1e-6
    )


@given(st.integers(0, 10**9))
def test_gpu_time_is_told_as_it_is_read(thousandths: int) -> None:
    assert units.parse_gpu_time(units.format_gpu_time(thousandths * 0.06)) == pytest.approx(
        thousandths * 0.06, abs=1e-4
    )


def test_money_is_never_told_as_less_than_it_is() -> None:
    assert units.format_money(1.001) == "$1.01"
    assert units.format_money(1.1) == "$1.10"
