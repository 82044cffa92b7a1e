"""`seerd run` on rented instances, as people use it: the real command, real logins, real agents, and the rig as the judge of what was paid."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ec2_world import Coordinator, Job
from tests.rig import Rig

WITHIN_S = 1.0
"""How far the ledger may be from the rig's account, per instance."""
BOOT_S = 0.5


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path) -> Iterator[Coordinator]:
    rig.set_boot(boot_s=BOOT_S)
    with Coordinator(rig, tmp_path) as made:
        yield made


def assert_accounted(coordinator: Coordinator) -> None:
    """Every instance of the rig is in the ledger, for as long as it ran and at most a second more; none is left."""
    account = coordinator.rig.account()
    told = coordinator.json("ledger", "last")
    charges = {charge["instance"]: charge for charge in told["charges"] if charge["instance"] in account}
    assert set(charges) == {one.id for one in account.values() if one.since is not None}
    for instance, charge in charges.items():
        there = account[instance]
        assert there.since is not None
        assert there.until is not None, f"{instance} is {there.state}"
        ran_s = there.until - there.since
        counted_s = charge["until_s"] - charge["since_s"]
        assert -0.05 <= counted_s - ran_s <= WITHIN_S + 0.05, (charge, there)
    assert told["spent_gpu_min"] <= told["budget_gpu_min"]
    assert coordinator.rig.instances() == []


def assert_model(coordinator: Coordinator) -> dict[str, Any]:
    """A model in hand, within deadline and budget, and a journal that says why."""
    told: dict[str, Any] = coordinator.json("show", "last")
    assert told["best"] is not None, coordinator.lines()
    assert Path(told["best"]["checkpoint"]).is_file()
    assert told["elapsed_s"] <= told["deadline_s"]
    assert told["gpu_min"] <= told["budget_gpu_min"]
    assert coordinator.json("replay", "last")["same"]
    return told


def test_a_run_over_several_stages_with_a_trial_on_two_instances_and_a_notice(coordinator: Coordinator) -> None:
    rig = coordinator.rig
    policy = 'eta = 2\nnu = 4\np_min = 2\np_max = 8\nt_min = "6s"'
    coordinator.write(Job("50s", "16gpu-min", launcher="torchrun", policy=policy, limits="max_gpus = 16", market="spot"))
    zone = next(iter(rig.subnets))
    rig.set_capacity("g4dn.12xlarge", zone, 0, "spot")
    began = time.time()
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("report 2", within_s=30)
    coordinator.says("stage 2 of 2", within_s=30)
    coordinator.until(lambda: len(rig.instances()) == 1, "scaled down")
    rig.spot_notice(rig.instances()[0].id, 20.0)
    coordinator.ends(run, 0)
    print(coordinator.lines(), time.time() - began)
    print(rig.account())
    assert_model(coordinator)
    assert_accounted(coordinator)
