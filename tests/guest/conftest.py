"""A whole system on the rig: `make guest` makes its disk, and says where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.testbed.rig import Rig
from tests.guest.kit import Guests


@pytest.fixture
def distribution() -> Path:
    """The disk that all guests boot from, which they only read."""
    return Path(os.environ["SEERD_GUEST"]).resolve()


@pytest.fixture
def guests(
    rig: Rig, tmp_path: Path, distribution: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Guests]:
    """Makes guests of that disk with these layers on it."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)

    def make(*layers: Path, **facts: float) -> Guests:
        image = rig.add_distribution(*layers, distribution)
        (tmp_path / "coordinator").mkdir()
        return Guests(rig, image, tmp_path / "coordinator", **facts)

    return make
