"""The first run on an account where instances are of no use, or where credentials end: the cause is
told with what to type, and no more is paid for than one instance and one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.testbed.ec2_world import ROOT, Job
from bench.testbed.rig import Rig
from bench.testbed.rig.guest import client
from tests.test_ec2_runs import Coordinator, write

EPOCHS = 'SEERD_TEST_EPOCHS = "12"'
PATIENCE_S = 200.0  # two boots in vain, and a wait between them
ONE_TRIAL = 'name = "random"\ntrials = 1\nt_min = "20s"'
WORDS = "explicit deny in a VPC endpoint policy"


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path) -> Iterator[Coordinator]:
    rig.set_boot(pending_s=4.0, boot_s=0.5)
    with Coordinator(rig, tmp_path) as made:
        yield made


def begin(coordinator: Coordinator, cluster: str = "") -> None:
    """Two instances of four GPUs would do from the start."""
    write(coordinator, Job("6m", "48gpu-min", limits="max_gpus = 8", scout="true"))
    text = coordinator.spec.read_text()
    coordinator.spec.write_text(text.replace("[cluster]\n", f"[cluster]\n{cluster}"))


def test_where_nobody_can_log_in_two_instances_are_paid_for_and_the_command_is_told(
    coordinator: Coordinator,
) -> None:
    """The group lets in its own network alone."""
    rig = coordinator.rig
    begin(coordinator, 'address = "public"\nboot = "12s"\n')
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.ends(run, 5, PATIENCE_S)
    account, lines = rig.account(), coordinator.lines()
    assert len(account) == 2
    for instance in account:
        assert f"{instance}: launched (" in lines
        assert f"{instance}: runs, and is billed" in lines
    assert "only 1 of 2 instances: whether an instance can be used here is tried with one" in lines
    group = f"--region us-east-1 --group-id {rig.security_group} --protocol tcp --port 22"
    assert f"aws ec2 authorize-security-group-ingress {group}" in lines
    assert "longer --deadline" not in lines
    charges = coordinator.json("ledger", "last")["charges"]
    assert {charge["instance"] for charge in charges} == set(account)
    assert coordinator.json("replay", "last")["same"]


def test_where_the_store_refuses_instances_each_subnet_is_tried_with_one(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    begin(coordinator)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("launched (", within_s=PATIENCE_S)
    rig.fail("s3:PutObject", "AccessDenied", times=None, message=WORDS, status=403)
    coordinator.ends(run, 5, PATIENCE_S)
    account, lines = rig.account(), coordinator.lines()
    assert len({one.zone for one in account.values()}) == len(account) == 2
    assert WORDS in lines
    assert "so a policy of the bucket or of an endpoint of vpc-" in lines
    assert "0 instances, 0 volumes left" in lines


def test_where_the_store_refuses_later_the_run_ends_and_its_model_comes_over_ssh(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    write(coordinator, Job("6m", "48gpu-min", limits="max_gpus = 4", policy=ONE_TRIAL))
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.until(lambda: any("/0001-" in name for name in coordinator.stored()), "stored")
    rig.fail("s3:PutObject", "AccessDenied", times=None, message=WORDS, status=403)
    coordinator.ends(run, 0, PATIENCE_S)
    lines, told = coordinator.lines(), coordinator.json("show", "last")
    assert "no checkpoint can be stored (t0001 on i-" in lines
    assert "so a policy of the bucket or of an endpoint of vpc-" in lines
    assert "no checkpoint could be stored for 6" in lines
    assert told["status"] == "failed"
    best = max(trial["metric"] for trial in told["all_trials"])
    assert told["best"]["metric"] == best, "the last one, which nobody could store"
    assert "0 instances, 0 volumes left" in lines
    assert coordinator.json("replay", "last")["same"]


def test_where_instances_cannot_reach_s3_the_endpoint_is_told(coordinator: Coordinator) -> None:
    """As in a default network, at a private address."""
    ec2 = client(coordinator.rig, "ec2")
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    begin(coordinator)
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says("has no way to S3", "aws ec2 create-vpc-endpoint", within_s=PATIENCE_S)
    coordinator.ends(run, 5, PATIENCE_S)
    assert len(coordinator.rig.account()) <= 2
    assert "0 instances, 0 volumes left" in coordinator.lines()


def test_what_the_organisation_forbids_is_not_asked_of_the_users_policy(
    coordinator: Coordinator,
) -> None:
    coordinator.rig.deny("ec2:RunInstances", by="service control policy")
    begin(coordinator)
    coordinator.ends(coordinator.start("run", str(coordinator.spec), "--plain"), 5, PATIENCE_S)
    assert "explicit deny in a service control policy" in coordinator.lines()
    assert "no policy of this account helps" in coordinator.lines()
    assert "prints a policy" not in coordinator.lines()


class LoggedIn(Coordinator):
    """Its user has logged in: the credentials are in a file, and end."""

    @property
    def keys(self) -> Path:
        return self.folder / "credentials"

    def log_in(self) -> str:
        """Write those of a new session there; return their access key."""
        made = client(self.rig, "sts").get_session_token()["Credentials"]
        secret, token = made["SecretAccessKey"], made["SessionToken"]
        lines = (
            f"aws_access_key_id = {made['AccessKeyId']}",
            f"aws_secret_access_key = {secret}",
            f"aws_session_token = {token}",
        )
        self.keys.write_text("\n".join(("[default]", *lines, "")))
        return str(made["AccessKeyId"])

    def environment(self, path: str = str(ROOT)) -> dict[str, str]:
        own = super().environment(path) | {"AWS_SHARED_CREDENTIALS_FILE": str(self.keys)}
        return {name: value for name, value in own.items() if "ACCESS_KEY" not in name}


def test_credentials_that_end_in_mid_run_are_read_anew_from_their_file(
    rig: Rig, tmp_path: Path
) -> None:
    """They end while an instance is asked for, and only who asks again sees it come."""
    rig.set_boot(pending_s=4.0, boot_s=0.5)
    with LoggedIn(rig, tmp_path) as coordinator:
        first = coordinator.log_in()
        write(coordinator, Job("3m", "12gpu-min", limits="max_gpus = 4", env=EPOCHS))
        run = coordinator.start("run", str(coordinator.spec), "--plain")
        coordinator.says("launched (", within_s=PATIENCE_S)
        rig.end_session(first)
        asked = rig.calls["ec2:DescribeInstances"]
        coordinator.until(lambda: rig.calls["ec2:DescribeInstances"] > asked + 1, "asked in vain")
        coordinator.log_in()
        coordinator.ends(run, 0, PATIENCE_S)
        assert "0 instances, 0 volumes left" in coordinator.lines()
        assert coordinator.json("best", "last")["checkpoint"]


def test_credentials_that_end_while_trials_train_cost_no_model(rig: Rig, tmp_path: Path) -> None:
    """URLs that they have signed end with them: agents get others once there are new ones."""
    with LoggedIn(rig, tmp_path) as coordinator:
        first = coordinator.log_in()
        write(coordinator, Job("70s", "12gpu-min", limits="max_gpus = 4"))
        run = coordinator.start("run", str(coordinator.spec), "--plain")
        coordinator.trained(reports=4)
        rig.end_session(first)
        coordinator.trained(reports=40)
        coordinator.log_in()
        coordinator.ends(run, 0, PATIENCE_S)
        shown = coordinator.json("show", "last")
        assert shown["best"]["metric"] == shown["best_report"]["metric"]
