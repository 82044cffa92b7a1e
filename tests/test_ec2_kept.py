"""Instances that one run keeps for the next, on the rig: what stays on them, who gets them, what
they cost, and how they end if nobody comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.testbed.ec2_world import FOUR_GPUS, Job
from bench.testbed.rig import Rig, RigInstance, search
from bench.testbed.rig.guest import client
from bench.testbed.rig.prices import PRICES
from tests.test_ec2_runs import WITHIN_S, Coordinator, write

KEEP_S = 120.0
NVME = "/opt/nvme"
SECRET, WORDS = "kept-secret-4711", "words of the data"
READY = re.compile(r"([\d.]+)s  (i-\w+): ready with")
SHORT = Job(
    "100s",
    "60gpu-min",
    policy='name = "random"\ntrials = 1\np_max = 4',
    limits='max_gpus = 4\ncost = "$20"',
    env='SEERD_TEST_EPOCHS = "3"',
)


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    monkeypatch.setenv("SEERD_TEST_SECRET", SECRET)
    rig.set_boot(pending_s=4.0, boot_s=4.0)
    with Coordinator(rig, tmp_path) as made:
        yield made


def prepare(coordinator: Coordinator, job: Job) -> None:
    """A spec that keeps instances, with data and a secret."""
    bucket = coordinator.rig.bucket
    client(coordinator.rig, "s3").put_object(
        Bucket=bucket, Key="corpus/words.txt", Body=WORDS.encode()
    )
    write(coordinator, job)
    text = coordinator.spec.read_text().replace("[cluster]", '[cluster]\nkeep = "2m"')
    more = f'data = [{{ from = "s3://{bucket}/corpus", to = "data" }}]\n'
    more += 'secrets = ["SEERD_TEST_SECRET"]'
    coordinator.spec.write_text(text.replace("[train]", f"[train]\n{more}"))


def kept(coordinator: Coordinator) -> RigInstance:
    """The instance that waits, after a run that has ended in order."""
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.ends(run, 0)
    assert "is kept for 1m" in coordinator.lines() or "is kept for 2m" in coordinator.lines()
    (instance,) = coordinator.live()
    return instance


def test_nothing_stays_on_the_instance_store_either(coordinator: Coordinator) -> None:
    prepare(coordinator, replace(SHORT, script="leaver.py"))
    text = coordinator.spec.read_text()
    coordinator.spec.write_text(text.replace("[cluster]", f'[cluster]\nscratch = "{NVME}"'))
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: len(coordinator.live()) == 1, "launched")
    (instance,) = coordinator.live()
    coordinator.rig.mount_disk(instance.id, NVME)
    coordinator.ends(run, 0)
    assert "is kept for" in coordinator.lines()
    root = Path(f"/proc/{instance.pid}/root")
    assert list((root / NVME.lstrip("/")).rglob("*")) == [root / f"{NVME}/seerd".lstrip("/")]
    assert not search.on_disk(instance, [SECRET, WORDS])


def bill(instance: RigInstance) -> float:
    """What the rig bills, in USD."""
    assert instance.since is not None
    assert instance.until is not None
    return PRICES[instance.type] * max(60.0, instance.until - instance.since) / 3600


def spent(coordinator: Coordinator) -> dict[str, float]:
    """What each run has paid, in USD."""
    runs = sorted(path.name for path in coordinator.home.glob("job-*"))
    return {run: coordinator.json("ledger", run)["spent_usd"] for run in runs}


def test_the_next_run_begins_at_once_on_a_machine_that_has_nothing_of_the_last(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    prepare(coordinator, replace(SHORT, script="leaver.py"))
    assert "set aside" in coordinator.text("plan", str(coordinator.spec))
    instance = kept(coordinator)
    before = coordinator.lines()
    (first,) = spent(coordinator)
    texts = [SECRET, WORDS, "SEERD_TEST_EPOCHS", first]
    left = {(path, text) for path, text in search.on_disk(instance, texts)}
    assert {text for _, text in left} <= {first}, left
    assert all("/cloud/" in path or "/run/" in path or "auth" in path for path, _ in left), left
    assert search.in_processes(instance, [SECRET, "98765", "seerd-agent", first]) == []
    found = coordinator.json("sweep", "--dry-run")["found"]
    assert [(one["id"], one["waits"], one["run"]) for one in found] == [(instance.id, True, first)]

    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: len(READY.findall(coordinator.lines())) == 2, "ready")
    (cold, _), (warm, again) = READY.findall(coordinator.lines())
    print(f"ready after {cold} s, and after {warm} s on the machine that was kept")
    assert again == instance.id
    assert float(warm) < float(cold)
    assert search.in_processes(instance, ["seerd-agent"]), "its agent is the second run's"
    root = Path(f"/proc/{instance.pid}/root")
    timer = (root / "run/seerd-ends").read_text().strip()
    timers = root / "run/systemd/transient"
    assert [path.name for path in timers.glob("seerd-*end*.timer")] == [f"{timer}.timer"]
    ends_in_s = int((timers / f"{timer}.timer").read_text().partition("OnActiveSec=")[2])
    assert ends_in_s > 600, "at the hard end of the second run"
    coordinator.ends(run, 0)
    assert len(rig.account()) == 1
    assert "is kept" in coordinator.lines().removeprefix(before)
    swept = coordinator.json("sweep")
    assert [one["ended"] for one in swept["found"]] == [True]
    coordinator.until(lambda: not rig.instances(), "ended")
    (one,) = rig.account().values()
    costs = spent(coordinator)
    print(f"billed ${bill(one):.4f}, in the ledgers ${sum(costs.values()):.4f}")
    unused = PRICES[FOUR_GPUS] * (2 * KEEP_S + 60.0 + WITHIN_S) / 3600  # both waits, and a minute
    assert bill(one) <= sum(costs.values()) <= bill(one) + unused


def test_a_machine_that_nobody_takes_ends_itself_in_time_though_its_run_was_killed(
    coordinator: Coordinator,
) -> None:
    """The run dies between leaving the machine and letting others have it."""
    rig = coordinator.rig
    prepare(coordinator, replace(SHORT, script="leaver.py"))
    rig.fail("ec2:CreateTags", "InternalError", times=None)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: bool([*coordinator.home.glob("job-*/keys/let-go-*")]), "left")
    run.kill()
    run.wait()
    rig.no_faults()
    (instance,) = coordinator.live()
    coordinator.ends(coordinator.start("resume", "last", "--plain"), 0)
    assert [one.id for one in coordinator.live()] == [instance.id], "it is not this run's any more"
    charge = coordinator.json("ledger", "last")["charges"][-1]
    coordinator.until(lambda: not rig.instances(), "ended by itself", KEEP_S)
    one = rig.account()[instance.id]
    assert one.reason == "Client.InstanceInitiatedShutdown"
    assert bill(one) <= spent(coordinator)[coordinator.run_folder.name]
    assert charge["until_s"] - charge["since_s"] <= (one.until or 0.0) - (one.since or 0.0) + 40.0


def test_who_is_killed_while_it_takes_a_machine_goes_on_with_it(coordinator: Coordinator) -> None:
    rig = coordinator.rig
    prepare(coordinator, replace(SHORT, script="leaver.py"))
    instance = kept(coordinator)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    taken = "job-*/keys/taken-*"
    coordinator.until(lambda: bool([*coordinator.home.glob(taken)]), "taken")
    run.kill()
    run.wait()
    resumed = coordinator.start("resume", "last", "--plain")
    coordinator.until(lambda: len(READY.findall(coordinator.lines())) == 2, "ready")
    assert READY.findall(coordinator.lines())[1][1] == instance.id
    coordinator.interrupt(resumed)
    coordinator.ends(resumed, 130)
    assert "0 instances, 0 volumes left" in coordinator.lines()
    assert rig.instances() == []
    (one,) = rig.account().values()
    assert bill(one) <= sum(spent(coordinator).values())


def test_a_machine_that_does_not_answer_is_ended_and_another_one_launched(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    prepare(coordinator, replace(SHORT, script="leaver.py"))
    instance = kept(coordinator)
    rig.vanish(instance.id)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: len(READY.findall(coordinator.lines())) == 2, "ready", 90)
    assert rig.account()[instance.id].reason == "Client.UserInitiatedShutdown"
    coordinator.interrupt(run)
    coordinator.ends(run, 130)
    assert rig.instances() == []
    assert sum(map(bill, rig.account().values())) <= sum(spent(coordinator).values())
