"""`seerd run` on rented instances, as people use it: the real command, real logins, real agents,
and the rig as the judge of what was paid.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.testbed import ec2_world
from bench.testbed.ec2_world import FOUR_GPUS, MEASURED, MEASURED_IN_LIFE, ONE_GPU, ROOT, Job
from bench.testbed.rig import Rig, RigInstance, search
from bench.testbed.rig.guest import client
from seerd.backends.ec2.fleet import CALM_S
from seerd.planning.measured import Measured
from tests.commands import Command

WITHIN_S = 3.0
"""How far the ledger may be above the rig's account: EC2 is asked every second or so, and a busy
machine hears the answer late.
"""
UNSEEN_S = WITHIN_S + 0.5
"""The same for what ended while no daemon watched: EC2 tells of it in whole seconds."""
STORM_S = 6.0
"""The same while EC2 does not answer most questions: one is given up after 5 s."""
ROUNDING_S = 0.01
LONG = bool(os.environ.get("SEERD_RIG_LONG"))
"""Set by `make rig`: the whole lease of 60 s, starts that take as long as EC2's, and eight ranks on
two 4-GPU instances, which are more processes than a small machine likes.
"""
EPOCH_S = 0.8
"""Of trainer.py: each report costs agent, daemon and rig a call or several."""
REPORTS_S = {gpus: [EPOCH_S + 0.02, EPOCH_S + 0.03, EPOCH_S + 0.05] for gpus in (1, 2, 4)}
MEASURED_SOONER = replace(MEASURED_IN_LIFE, pending_s=[5.0, 6.0, 7.0], boot_s=[8.0, 10.0, 12.0])
"""On a rig whose instances start sooner than EC2's, and end as slowly."""
LEASE_S = 60.0
PENDING_S = 22.0 if LONG else 8.0
"""From launch to an address, at most."""
SOON_S = 15.0
"""What "within seconds" may mean on a machine that does other things too."""
ONE_TRIAL = 'name = "seer"\neta = 2\np_min = {gpus}\np_max = {gpus}\nt_min = "20s"'
JOBS = """
name = "job"
[limits]
deadline = "3m"
budget = "24gpu-min"
max_gpus = 8
[cluster]
{cluster}
[[job]]
spec = "spec.toml"
name = "one"
[[job]]
spec = "spec.toml"
name = "two"
budget = "1gpu-min"
"""
STAGES = 'name = "seer"\neta = 2\nnu = 4\np_min = 2\np_max = 8\nt_min = "12s"'


class Coordinator(ec2_world.Coordinator):
    """Its commands are forks, unless they are another version's."""

    def popen(self, args: tuple[str, ...], path: str = str(ROOT), **streams: Any) -> Any:
        if path != str(ROOT):
            return super().popen(args, path, **streams)
        log = streams["stdout"] if streams["stdout"] != subprocess.PIPE else None
        merged = streams["stderr"] == subprocess.STDOUT
        process: Any = Command(args, self.folder, self.environment(), merged=merged, log=log)
        self.processes.append(process)
        return process

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for process in self.processes:
            process.__exit__(None, None, None)


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path) -> Iterator[Coordinator]:
    rig.set_boot(boot_s=0.5)
    with Coordinator(rig, tmp_path) as made:
        yield made


def write(coordinator: Coordinator, job: Job, measured: Measured = MEASURED) -> None:
    """The spec of this job, whose reports take `EPOCH_S`."""
    env = f'SEERD_TEST_EPOCH_S = "{EPOCH_S}"' + (job.env and f", {job.env}")
    coordinator.write(replace(job, env=env), replace(measured, report_s=REPORTS_S))


def test_stages_a_trial_on_two_instances_and_a_notice_end_with_the_best_model(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    first, second, third = list(rig.subnets)[:3]
    rig.set_capacity(FOUR_GPUS, first, 0, "spot")
    shutil.copytree(coordinator.project / "light", coordinator.project, dirs_exist_ok=True)
    job = Job(
        "75s",
        "24gpu-min",
        launcher="torchrun",
        policy=STAGES,
        limits="max_gpus = 12",
        market="spot",
        # done long before the deadline, so that stages can be long enough for a busy machine
        env='SEERD_TEST_EPOCHS = "36"',
    )
    write(coordinator, job)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("stage 2 of 2")
    coordinator.until(lambda: len(rig.instances()) == 1, "scaled down")
    taken = rig.instances()[0].id
    rig.spot_notice(taken, 20.0)
    coordinator.ends(run, 0)
    lines = coordinator.lines()
    assert f"the cloud takes {taken} away" in lines
    assert "must save and go on elsewhere" in lines
    assert "goes on after report" in lines
    assert "0 instances, 0 volumes left" in lines
    account = rig.account()
    assert len(account) == 4
    zones = [one.zone for one in account.values()]
    assert (zones.count(second), zones.count(third)) == (3, 1), "a pool that took one back rests"
    for trial in coordinator.json("show", "last")["all_trials"]:
        assert "training from 0" in coordinator.text("logs", "last", trial["trial"]), (
            "the instances are gone"
        )
    assert_model(coordinator)
    assert_accounted(coordinator)


def test_an_instance_is_left_before_its_maintenance_unless_that_comes_after_the_run(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    policy = ONE_TRIAL.format(gpus=4)
    job = Job("75s", "24gpu-min", policy=policy, limits="max_gpus = 4")
    write(coordinator, replace(job, env='SEERD_TEST_EPOCHS = "40"'))
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("report 1:")
    (machine,) = rig.instances()
    left = machine.id
    (log,) = Path(f"/proc/{machine.pid}/root/home/seerd/.seerd").glob("*/agent.log")
    rig.maintain(left, 86_400.0)
    coordinator.until(lambda: "notice of the cloud" in log.read_text(), "noticed")
    rig.maintain(left, None)
    coordinator.says(f"the cloud has canceled the maintenance of {left}")
    rig.maintain(left, 45.0)
    coordinator.says("goes on after report")
    (other,) = (one.id for one in coordinator.live() if one.id != left)
    rig.maintain(other, 86_400.0)
    coordinator.ends(run, 0, 180)
    lines = coordinator.lines()
    assert f"the cloud will reboot or stop {left} at " in lines
    assert f"{left} has been given back" in lines
    assert f"stop {other}" not in lines
    assert len(rig.account()) == 2
    assert_model(coordinator)


def test_on_an_ec2_as_slow_as_it_is_rounds_end_with_a_model_and_nothing_left_and_ask_little(
    coordinator: Coordinator,
) -> None:
    """Instances shut down for minutes, as those with GPUs do: nobody waits, since it costs nothing.
    Each command has another session of its role.
    """
    rig = coordinator.rig
    rig.reset(fast=False)
    if not LONG:
        rig.set_boot(pending_s=5.0, boot_s=3.0, nologin_s=0.5, hidden_s=0.5, address_s=1.5)
        rig.set_cold(4.0)
    limit_s, measured = (115, MEASURED_IN_LIFE) if LONG else (90, MEASURED_SOONER)
    job = Job(
        f"{limit_s}s",
        "16gpu-min",
        policy='t_min = "6s"' + ("" if LONG else "\ntrials = 8"),
        limits="max_gpus = 8",
        # done long before the deadline, which has room for a busy machine
        env="" if LONG else 'SEERD_TEST_EPOCHS = "14"',
    )
    write(coordinator, job, measured)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.ends(run, 0, 180)
    last_billed = max(one.until or math.inf for one in rig.account().values())
    assert time.time() - last_billed < SOON_S
    lines = coordinator.lines()
    assert "the best model is that of" in lines
    assert "0 instances, 0 volumes left (" in lines
    assert "still shutting down, not billed any more)" in lines
    assert_asked_little(coordinator)
    assert_model(coordinator)
    assert_accounted(coordinator)
    swept = coordinator.json("sweep")
    assert swept["found"] == []
    assert set(rig.account()) <= set(swept["ending"]), "they are ours, whoever asks as our role"


def third(coordinator: Coordinator) -> Path:
    """The spec of a job with a source of its own, and with data."""
    folder = coordinator.project.with_name("third")
    folder.mkdir()
    shutil.copy(coordinator.project / "trainer.py", folder / "base.py")
    (folder / "trainer.py").write_text(
        "#!/usr/bin/env python3\n"
        "from pathlib import Path\n"
        "assert Path('data/words.txt').read_text() == 'of the third job'\n"
        "import base\n"
    )
    (folder / "trainer.py").chmod(0o755)
    data = f'[{{ from = "s3://{coordinator.rig.bucket}/corpus", to = "data" }}]'
    text = coordinator.spec.read_text().replace("[train]", f"[train]\ndata = {data}")
    (folder / "spec.toml").write_text(
        re.sub("^name = .*", 'name = "three"', text, flags=re.MULTILINE)
    )
    return folder / "spec.toml"


def test_jobs_share_rented_instances_and_each_hands_back_its_model(
    coordinator: Coordinator,
) -> None:
    """One comes while the run goes on, with data: to instances that are there, and to later
    ones.
    """
    rig = coordinator.rig
    write(coordinator, Job("3m", "24gpu-min", policy='t_min = "5s"'))
    group = coordinator.project / "group.toml"
    cluster = coordinator.spec.read_text().partition("[cluster]")[2]
    group.write_text(JOBS.format(cluster=cluster))
    run = coordinator.start("run", str(group), "--plain")
    coordinator.trained(reports=8)
    bucket = {"Bucket": rig.bucket, "Key": "corpus/words.txt"}
    client(rig, "s3").put_object(**bucket, Body=b"of the third job")
    assert coordinator.json("add", "last", str(third(coordinator)))["job"] == "three"
    run.kill()
    run.wait()
    resumed = coordinator.start("resume", "last", "--plain")
    reported = re.compile(r"(\w+)\.t\d+ report 3:")
    coordinator.until(
        lambda: {*reported.findall(coordinator.lines())} == {"one", "two", "three"}, "trained", 90
    )
    coordinator.interrupt(resumed)
    coordinator.ends(resumed, 130)
    told = coordinator.json("show", "last")
    assert told["elapsed_s"] <= told["deadline_s"]
    jobs = {job["job"]: job for job in told["jobs"]}
    assert jobs.keys() == {"one", "two", "three"}
    for job in jobs.values():
        assert Path(job["best"]["checkpoint"]).is_file()
    assert jobs["two"]["gpu_min"] <= 1.0
    assert coordinator.json("replay", "last")["same"]
    assert_accounted(coordinator, UNSEEN_S)


def test_a_killed_daemon_a_lost_instance_and_one_that_does_not_answer(
    coordinator: Coordinator,
) -> None:
    """It is another version that takes the run up; agents of its protocol go on."""
    rig = coordinator.rig
    write(
        coordinator,
        Job(
            "110s",
            "60gpu-min",
            limits="max_gpus = 12",
            policy='name = "seer"\neta = 2\np_max = 4\nt_min = "60s"',
        ),
    )
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says(": ready with ", times=3)
    coordinator.trained(reports=15)
    run.kill()
    run.wait()
    assert_no_secrets(coordinator)  # nobody gives an instance back meanwhile
    before = coordinator.json("show", "last")
    lost, silent, kept = (one.id for one in coordinator.live())
    rig.lose(lost)
    rig.vanish(silent)
    resumed = coordinator.start("resume", "last", "--plain", another_version=True)
    coordinator.says(f"{silent} is lost: {silent} (seerd@")
    told_loss = coordinator.lines().index(f"{silent} is lost")
    coordinator.until(
        lambda: "goes on after report" in coordinator.lines()[told_loss:], "gone on elsewhere"
    )
    coordinator.interrupt(resumed)
    coordinator.ends(resumed, 130)
    lines = coordinator.lines()
    there = re.search(r"resumed after .+; instances that are still there: ([\w, -]+)", lines)
    assert there is not None
    # Whether the silent one is known to be lost by then depends on how busy this machine is.
    assert {*there[1].split(", ")} - {silent} == {kept}
    assert f"{kept} is lost" not in lines
    told = assert_model(coordinator, same=False)
    configs = {trial["trial"]: trial["config"] for trial in before["all_trials"]}
    assert configs == {trial["trial"]: trial["config"] for trial in told["all_trials"]}
    saved = {trial["trial"]: trial["checkpoint_epoch"] or 0 for trial in before["all_trials"]}
    for name, epoch in restarts(lines.partition("resumed;")[2]):
        assert epoch >= saved[name], (
            f"{name} went on after report {epoch} and had saved up to {saved[name]}"
        )
    account = rig.account()
    assert account[silent].reason == "Client.UserInitiatedShutdown"
    assert len({one.token for one in account.values()}) == len(account)
    assert_accounted(coordinator, UNSEEN_S)


def test_a_rank_that_fails_ends_the_attempt_on_both_instances_and_is_named(
    coordinator: Coordinator,
) -> None:
    job = Job(
        "5m" if LONG else "150s",
        "200gpu-min" if LONG else "20gpu-min",
        script="two_nodes.py",
        launcher="torchrun",
        policy=ONE_TRIAL.format(gpus=8 if LONG else 2),
        limits=f"max_gpus = {8 if LONG else 2}",
        env='SEERD_TEST_GUILTY = "1"',
        kind=FOUR_GPUS if LONG else ONE_GPU,
    )
    write(coordinator, job)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    words = f"RuntimeError: rank 1 of {8 if LONG else 2} has had enough"
    coordinator.says("ended with exit status 1 (rank 1 on i-", words)
    coordinator.says("t0001 trains", "goes on after report")
    coordinator.rig.lose(coordinator.live()[1].id)
    (other,) = coordinator.live()
    coordinator.until(
        lambda: not search.in_processes(other, ["two_nodes.py"]), "ended on the other node", SOON_S
    )
    coordinator.says("goes on after report", times=2)
    coordinator.interrupt(run)
    coordinator.ends(run, 130)
    assert_accounted(coordinator)


def test_without_a_daemon_instances_save_and_end_themselves_within_the_limits(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    limits_of_time = ("5m", "200gpu-min") if LONG else ("60s", "12gpu-min")
    write(coordinator, Job(*limits_of_time, limits="max_gpus = 8"))
    began = time.time()
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.trained(reports=8)  # early: half of the time is left to train alone
    run.kill()
    run.wait()
    alone = {one.id for one in rig.instances()}
    assert alone
    gone_by = time.time() + LEASE_S + SOON_S if LONG else began + 60
    stored = len(coordinator.stored())
    coordinator.until(lambda: not rig.instances(), "ended by themselves", gone_by - time.time())
    for one in (one for one in rig.account().values() if one.id in alone):
        assert one.reason == "Client.InstanceInitiatedShutdown"
        assert one.until is not None
        assert one.until <= gone_by
    assert len(coordinator.stored()) > stored, "what was trained alone was saved"
    resumed = coordinator.start("resume", "last", "--plain")
    if LONG:
        coordinator.says("resumed;")
        coordinator.interrupt(resumed)
    coordinator.ends(resumed, 130 if LONG else 0)
    assert_model(coordinator, in_time=LONG)  # its instances have ended in time by themselves
    assert_accounted(coordinator, UNSEEN_S)


def test_sick_instances_are_given_back_and_replaced_in_a_storm_of_errors(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    rig.set_boot(boot_s=5.0)  # time to hurt them before their agents look at them
    rig.throttle("ec2:*", rate=0.3)
    rig.fail("ec2:*", "InternalError", times=None, rate=0.1)
    rig.throttle("s3:*", rate=0.2)
    write(coordinator, Job("80s", "40gpu-min", limits="max_gpus = 8"))
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: len(coordinator.live()) == 2, "launched")
    few, full = (one.id for one in coordinator.live())
    rig.set_gpus(few, 3)
    rig.fill_disk(full, 1 << 20)
    coordinator.says("report 5:", within_s=60)
    coordinator.until(
        lambda: not {few, full} & {one.id for one in rig.instances()}, "given back", SOON_S
    )
    lines = coordinator.lines()
    assert "no instance: nvidia-smi lists 3 GPUs where 4 are expected" in lines
    assert "no instance: 0.0 GiB are free" in lines or "No space left on device" in lines, (
        "told by the agent, or before"
    )
    coordinator.interrupt(run)
    coordinator.ends(run, 130)
    assert "0 instances, 0 volumes left" in coordinator.lines()
    assert_accounted(coordinator, STORM_S)


def test_without_capacity_or_permission_nothing_is_left_and_the_status_says_so(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    for zone in rig.subnets:
        rig.set_capacity(FOUR_GPUS, zone, 0)
    write(coordinator, Job("10m", "12gpu-min", limits="max_gpus = 4"))
    run = ("run", str(coordinator.spec), "--plain")
    coordinator.ends(coordinator.start(*run, "--set", "cluster.wait=40s"), 5)
    lines = coordinator.lines()
    assert lines.count("s  no instance: ") == 2, "the third time is as the others"
    of_type = [{"Name": "instance-type", "Values": [FOUR_GPUS]}]
    offers = client(rig, "ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=of_type
    )["InstanceTypeOfferings"]
    zones = {offer["Location"] for offer in offers}
    assert {zone for zone in rig.subnets if zone in lines} == zones
    assert "sufficient g4dn.12xlarge capacity" in lines
    rig.deny("ec2:RunInstances")
    coordinator.ends(coordinator.start(*run), 5)
    told = coordinator.lines().removeprefix(lines)
    assert "ec2:RunInstances" in told
    assert told.count("s  no instance: ") == 1, "asking again would not help"
    assert "Traceback" not in told
    assert rig.account() == {}


def test_ctrl_c_leaves_nothing_while_instances_boot_and_twice_while_trials_are_deaf(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    rig.set_boot(boot_s=30.0)
    write(coordinator, Job("60s", "20gpu-min", limits="max_gpus = 8", env='SEERD_TEST_DEAF = "1"'))
    booting = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: len(coordinator.live()) == 2, "launched")
    coordinator.interrupt(booting)
    coordinator.ends(booting, 130, SOON_S)
    assert_accounted(coordinator)
    rig.set_boot(boot_s=0.5)
    deaf = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("report 3:")
    coordinator.interrupt(deaf)
    coordinator.says("stopping: trials save", times=2)
    coordinator.interrupt(deaf)
    coordinator.ends(deaf, 130, SOON_S)
    assert "stopping at once" in coordinator.lines()
    assert coordinator.lines().count("0 instances, 0 volumes left") == 2
    assert rig.instances() == []


def _ran_s(one: RigInstance) -> float:
    return (one.until or math.inf) - (one.since or 0.0)


def assert_asked_little(coordinator: Coordinator) -> None:
    """No more of EC2 than instances and time explain, and nothing that its limits refused. Prints
    all calls (docs/aws.md has them).
    """
    calls, rented = coordinator.rig.calls, len(coordinator.rig.account())
    took_s = coordinator.json("show", "last")["elapsed_s"]
    print(f"{rented} instances, {took_s:.0f} s: {calls}, throttled {coordinator.rig.throttled}")
    assert coordinator.rig.throttled == {}
    assert calls["ec2:RunInstances"] == rented
    assert calls["ec2:TerminateInstances"] <= rented
    # Each start is looked for twice a second, and each launch and termination asks at once.
    looked = 2 * rented * PENDING_S
    assert calls["ec2:DescribeInstances"] <= took_s / CALM_S + 10 + looked


def assert_accounted(coordinator: Coordinator, within_s: float = WITHIN_S) -> None:
    """Every instance of the rig is in the ledger, for as long as it ran and at most so much more;
    none is left.
    """
    told = coordinator.json("ledger", "last")
    assert told["spent_gpu_min"] <= told["budget_gpu_min"]
    account = {
        name: one for name, one in coordinator.rig.account().items() if one.since is not None
    }  # others cost nothing
    charges = {charge["instance"]: charge for charge in told["charges"]}
    # Of those that were never ready, the ledger has the launch's name in the place of the
    # instance's.
    nameless = sorted(
        (c for c in told["charges"] if c["instance"] not in account), key=lambda c: c["until_s"]
    )
    unready = sorted(
        (one for one in account.values() if one.id not in charges), key=lambda one: one.until or 0.0
    )
    # One that was called off in the moment in which it began to run may be taken for one that never
    # did.
    for unseen in sorted(unready, key=_ran_s)[: max(0, len(unready) - len(nameless))]:
        assert _ran_s(unseen) <= within_s
        unready.remove(unseen)
    pairs = [
        *zip(unready, nameless, strict=True),
        *((account[name], charges[name]) for name in charges.keys() & account),
    ]
    for one, charge in pairs:
        assert one.since is not None
        assert one.until is not None, f"{one.id} is {one.state}"
        more_s = charge["until_s"] - charge["since_s"] - (one.until - one.since)
        least_s = -ROUNDING_S - (0.0 if one.id in charges else 1.0)  # EC2 tells whole seconds
        assert least_s <= more_s <= within_s, (charge, one)
    assert coordinator.rig.instances() == []


def assert_model(
    coordinator: Coordinator, *, same: bool = True, in_time: bool = True
) -> dict[str, Any]:
    """A model in hand, within deadline and budget, and a journal that says why; `same`: this
    version decided all of it; `in_time`: a coordinator was there by the deadline.
    """
    told: dict[str, Any] = coordinator.json("show", "last")
    assert told["best"] is not None
    assert Path(told["best"]["checkpoint"]).is_file()
    assert told["elapsed_s"] <= told["deadline_s"] or not in_time
    assert told["gpu_min"] <= told["budget_gpu_min"]
    assert coordinator.json("replay", "last")["same"] is same
    return told


def assert_no_secrets(coordinator: Coordinator) -> None:
    """No instance has the person's credentials or a key that opens another instance, and no URL is
    written down anywhere.
    """
    rig, run = coordinator.rig, coordinator.run_folder
    account = [rig.env["AWS_ACCESS_KEY_ID"], rig.env["AWS_SECRET_ACCESS_KEY"], "X-Amz-Signature"]
    keys = {path: path.read_text().splitlines()[4] for path in (run / "keys").iterdir()}
    client = keys[run / "keys" / "id_ed25519"]
    shown = set()
    for instance in coordinator.live():
        files = search.on_disk(instance, [run.name, *account, *keys.values()])
        found = {text for _, text in files}
        assert run.name in found, "the search finds what is there"
        assert len(found) == 2, sorted(file for file in files if run.name not in file)
        (own,) = found - {run.name}
        assert own in set(keys.values()) - {client}
        shown.add(own)
        assert any(text.startswith("seerd-agent\n") for text in search.processes(instance))
        assert search.in_processes(instance, [*account, *keys.values()]) == []
    assert len(shown) == 3, "each has its own host key, and no other"
    written = {
        path for path, _ in search.in_files([run, coordinator.log], [*account, *keys.values()])
    }
    assert all(Path(path).parent == run / "keys" for path in written)
    assert (run / "keys").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def restarts(lines: str) -> Iterator[tuple[str, int]]:
    """Which trials went on after which report."""
    for line in lines.splitlines():
        before, found, after = line.partition(" goes on after report ")
        if found:
            yield before.split()[-1], int(after.split()[0])
