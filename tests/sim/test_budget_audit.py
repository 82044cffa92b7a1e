"""Fifty runs of the budget audit: nothing over the limits, the ledger as the cloud's account,
and no more left unused than there was.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.account import CAUSES, allowed_gpu_s, audited, usable_gpu_s
from bench.drawn import PLENTY, Drawn, Phases, draw
from seerd.planner.model import Limits
from seerd.planning.planned import plan_for
from seerd.sim.setting import problem_of

BENCH = Path(__file__).parents[2] / "bench" / "budget_audit.py"


def audit(*args: str) -> dict[str, Any]:
    told = subprocess.run(
        [sys.executable, BENCH, *args], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(told)  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
def test_fifty_runs_keep_their_limits_and_use_their_budgets() -> None:
    told = audit("--runs", "50")
    assert told["runs"] == 50
    assert told["overshoot"] | {"nearest": 0, "latest": 0} == {
        "gpu_min": 0.0,
        "usd": 0.0,
        "deadline_s": 0.0,
        "nearest": 0,
        "latest": 0,
    }
    assert told["ledger_apart"]["gpu_s"] <= 1e-6
    assert told["used"]["median"] >= 0.95
    assert told["by_weather"]["calm"]["p25"] >= 0.75
    for name in ("asha", "hypersched"):
        assert told["by_policy"][name]["median"] >= 0.95


def test_the_answer_does_not_depend_on_the_number_of_cores() -> None:
    assert audit("--runs", "6", "--jobs", "1") == audit("--runs", "6", "--jobs", "2")


def drawn(number: int) -> Drawn:
    return draw(number, 0, ["asha"])


@pytest.mark.parametrize("number", range(4))
def test_every_unused_gpu_second_has_one_cause(number: int) -> None:
    one = drawn(number)
    planned = plan_for(problem_of(one.setting, one.params), one.setting.cluster, one.believed)
    account = audited(one, planned.problem, planned.outline)
    assert set(account.unused) == set(CAUSES)
    assert all(gpu_s >= 0 for gpu_s in account.unused.values())
    assert math.isclose(
        math.fsum(account.unused.values()), account.allowed_gpu_s - account.billed_gpu_s
    )
    assert account.elapsed_s <= account.deadline_s


def test_a_number_is_a_run() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3).setting.limits != drawn(4).setting.limits


def test_the_cloud_has_little_in_some_phases() -> None:
    phases = Phases((0.0, 100.0, 500.0), (0, PLENTY, 2))
    assert [phases(at) for at in (0.0, 99.0, 100.0, 499.0, 500.0)] == [0, 0, PLENTY, PLENTY, 2]


def test_the_tighter_of_gpu_time_and_money_counts_and_whole_instances_can_use_it() -> None:
    limits = Limits(100.0, 7200.0, 10, 3.6)
    assert allowed_gpu_s(limits, 3.6) == 3600.0
    assert usable_gpu_s(limits, 3600.0, 4) == 800.0
