"""A run whose instances have different numbers of GPUs, on the rig."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.testbed.ec2_world import FOUR_GPUS, ONE_GPU, Job
from bench.testbed.rig import Rig
from bench.testbed.rig.prices import PRICES
from tests.test_ec2_runs import Coordinator, assert_accounted, assert_model, write

POLICY = 'name = "random"\ntrials = 8\np_max = 1'


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path) -> Iterator[Coordinator]:
    rig.set_boot(pending_s=1.0, boot_s=0.5)
    with Coordinator(rig, tmp_path) as made:
        yield made


def test_where_the_preferred_type_is_short_both_train_in_one_run_also_after_a_resume(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    for number, zone in enumerate(rig.subnets):
        rig.set_capacity(FOUR_GPUS, zone, 0 if number else 1)
    write(coordinator, Job("110s", "30gpu-min", policy=POLICY, limits="max_gpus = 8"))
    text = coordinator.spec.read_text()
    types = f'instance_type = ["{FOUR_GPUS}", "{ONE_GPU}"]'
    coordinator.spec.write_text(text.replace(f'instance_type = "{FOUR_GPUS}"', types))
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says(": ready with ", times=5)
    coordinator.trained(reports=14)
    run.kill()
    run.wait()
    resumed = coordinator.start("resume", "last", "--plain")
    coordinator.trained(reports=40)
    coordinator.interrupt(resumed)
    coordinator.ends(resumed, 130)
    account = rig.account()
    assert sorted(one.type for one in account.values()) == [FOUR_GPUS, *[ONE_GPU] * 4]
    told = assert_model(coordinator)
    lives = [
        json.dumps(coordinator.json("replay", "last", "--trial", trial["trial"]))
        for trial in told["all_trials"]
    ]
    assert {*re.findall(r'"instance": "(i-\w+)"', "\n".join(lives))} == {*account}
    assert_accounted(coordinator)
    usd = gpu_min = 0.0
    for one in account.values():
        assert one.since is not None
        assert one.until is not None
        ran_s = max(60.0, one.until - one.since)
        usd += PRICES[one.type] * ran_s / 3600
        gpu_min += one.gpus * ran_s / 60
    told = coordinator.json("ledger", "last")
    assert usd <= told["spent_usd"] <= usd * 1.05
    assert gpu_min <= told["spent_gpu_min"] <= gpu_min * 1.05
