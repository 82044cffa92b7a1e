"""Tables for people are whole wherever they are printed: what a pipe or a narrow terminal would cut
cannot be copied.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from seerd.commands.common import tell
from seerd.planner.clouds import JOB, assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from seerd.planning.planned import others, plan_for
from seerd.telling.plan_json import plan_json
from seerd.telling.tables import ledger_table, plan_view, runs_table

RUN = "imagenet-resnet50-on-spot-instances-20261122-005956-37fb"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_runs_have_their_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    best, began = {"metric": 0.987654}, datetime.now().astimezone()
    row = {
        "run": RUN,
        "status": "interrupted",
        "trials": 64,
        "best": best,
        "elapsed_s": 5400.0,
        "deadline_s": 7200.0,
        "gpu_min": 479.99,
        "budget_gpu_min": 480.0,
        "usd": 3.5,
        "cost_usd": 40.0,
        "began": began.isoformat(),
        "metric": {"name": "accuracy"},
    }
    tell([row], runs_table, json=False)
    head, line = capsys.readouterr().out.splitlines()
    heads = ["run", "began", "status", "trials", "metric", "best", "time", "GPU time", "money"]
    assert head.split() == " ".join(heads).split()
    cells = [RUN, began.strftime("%Y-%m-%d %H:%M"), "interrupted", "64", "accuracy", "0.987654"]
    limits = ["1h30m of 2h", "479.99 of 480gpu-min", "$3.50 of $40.00"]
    assert line.split() == " ".join([*cells, *limits]).split()
    assert not line.endswith(" "), "no wider than what is in it"


def test_charges_have_whole_instances(capsys: pytest.CaptureFixture[str]) -> None:
    charge: dict[str, Any] = {
        "what": "instance",
        "instance": "i-0123456789abcdef0",
        "gpus": 8,
        "since_s": 1.0,
        "until_s": 601.5,
    }
    sums = {
        "spent_gpu_min": 80.0,
        "budget_gpu_min": 480.0,
        "spent_usd": 73.41,
        "committed_gpu_min": 80.0,
    }
    tell(
        {"charges": [{**charge, "gpu_min": 80.07, "usd": 73.41}], **sums}, ledger_table, json=False
    )
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == [
        "instance",
        "i-0123456789abcdef0",
        "8",
        "1.0s",
        "601.5s",
        "80.07",
        "73.41",
    ]


def test_plans_have_whole_figures(capsys: pytest.CaptureFixture[str]) -> None:
    space = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
    problem = Problem(
        Limits(1800.0, 28800.0), space, PolicyParams(), JOB.scaling, gpus_per_instance=4
    )
    cluster, profile = ClusterFacts("rented", 4, usd_per_gpu_h=3.06), assumed(rented=True)
    tell(
        plan_json(plan_for(problem, cluster, profile), others(problem, cluster, profile)),
        plan_view,
        json=False,
    )
    out = capsys.readouterr().out
    assert "e-hyperband" in out
    assert "\u2026" not in out, "nothing is cut"
