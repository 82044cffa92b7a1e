"""The agent's clock: steady, and the same for all agents of one boot in one folder."""

from __future__ import annotations

import time

import pytest

from seerd.agent import clock


@pytest.fixture
def set_clock(monkeypatch):
    """Sets this process's wall clock so many seconds ahead."""
    real = time.time

    def set_to(ahead_s):
        monkeypatch.setattr(time, "time", lambda: real() + ahead_s)

    return set_to


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(clock._Anchor, "zero", clock._Anchor.zero)


@pytest.mark.parametrize("ahead_s", [-3600.0, 30.0])
def test_it_does_not_follow_the_wall_clock(tmp_path, set_clock, ahead_s):
    clock.begin(tmp_path, "one")
    assert clock.now() == pytest.approx(time.time(), abs=0.1)
    before = clock.now()
    set_clock(ahead_s)
    assert before <= clock.now() < before + 1.0


@pytest.mark.parametrize(("boot", "moved_s"), [("one", 0.0), ("another", -3600.0), ("", -3600.0)])
def test_a_later_agent_of_the_same_boot_goes_on_with_it(tmp_path, set_clock, boot, moved_s):
    """Where the system names no boot it may be another one."""
    clock.begin(tmp_path, "one" if boot else "")
    before = clock.now()
    set_clock(-3600.0)
    clock.begin(tmp_path, boot)
    assert clock.now() == pytest.approx(before + moved_s, abs=0.1)


def test_a_file_that_tells_nothing_is_replaced(tmp_path):
    for text in ("", "[]", '{"boot": "one"}', '{"boot": "one", "zero": "x"}'):
        (tmp_path / clock.FILE).write_text(text)
        assert clock.zero_of(tmp_path, "one") is None
        clock.begin(tmp_path, "one")
        assert clock.zero_of(tmp_path, "one") == clock._Anchor.zero


def test_a_damaged_file_is_replaced_and_one_of_an_earlier_version_counts(tmp_path):
    clock.begin(tmp_path, "one")
    path, zero = tmp_path / clock.FILE, clock._Anchor.zero
    whole = path.read_text()
    digit = str(int(zero))[0]
    path.write_text(whole.replace(digit, str(int(digit) + 1), 1))
    assert clock.zero_of(tmp_path, "one") is None
    clock.begin(tmp_path, "one")
    assert clock.now() == pytest.approx(time.time(), abs=0.1)
    path.write_text(f'{{"boot": "one", "zero": {zero + 7.0}}}')
    clock.begin(tmp_path, "one")
    assert clock._Anchor.zero == zero + 7.0


def test_moments_of_other_clocks_are_those_of_the_same_moment(tmp_path, set_clock):
    clock.begin(tmp_path, "one")
    set_clock(500.0)
    for moment in (clock.of_wall(time.time()), clock.of_boot(clock.since_boot())):
        assert moment == pytest.approx(clock.now(), abs=0.1)
    assert clock.to_wall(clock.now()) == pytest.approx(time.time(), abs=0.1)
    assert clock.to_boot(clock.now()) == pytest.approx(clock.since_boot(), abs=0.1)
