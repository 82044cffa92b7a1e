"""What doctor says of a spec: on the rig with one thing wrong at a time, on real sshds, and on this
machine.
"""

from __future__ import annotations

import asyncio
import fnmatch
import getpass
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.rig import Rig, guest
from seerd.aws.network import Rule, SecurityGroup
from seerd.aws.policy import Needs, partition, policy
from seerd.backends.ec2.doctor import clock
from seerd.backends.ec2.doctor.network import access, among
from seerd.backends.examining import Finding, denied_action
from seerd.commands import doctor
from seerd.commands.doctor import exit_code, findings_json
from seerd.errors import UsageError
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.spec.spec import load_spec
from tests.commands import run_command
from tests.shell.sshd import Sshd, sshds

ROOT = Path(__file__).parent.parent
SPEC = """
name = "try"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
launcher = "command"
[space]
lr = {{ low = 0.001, high = 0.9 }}
[policy]
eta = 2
t_min = "30s"
p_max = 4
[limits]
deadline = "20m"
budget = "300gpu-min"
[cluster]
{cluster}
"""


class Patient:
    """A spec, and a home for what runs would leave."""

    def __init__(self, folder: Path) -> None:
        self.spec = folder / "spec.toml"
        self.home = Home(folder / "home")
        (folder / "train.py").write_text("pass\n")
        (folder / "train.py").chmod(0o755)

    def write(self, cluster: dict[str, Any]) -> None:
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in cluster.items() if value is not None
        ]
        self.spec.write_text(SPEC.format(cluster="\n".join(lines)))

    def examine(self, **sets: str) -> list[Finding]:
        return doctor.examine(
            self.spec, [(key.replace("__", "."), value) for key, value in sets.items()], self.home
        )


class OnRig(Patient):
    """The same for the rig."""

    def __init__(self, folder: Path, rig: Rig) -> None:
        super().__init__(folder)
        self.rig = rig

    def see(self, **changes: Any) -> list[Finding]:
        """What is said with these keys of `[cluster]` changed."""
        self.write(
            {
                "provider": "ec2",
                "region": "us-east-1",
                "instance_type": ["g4dn.12xlarge"],
                "image": self.rig.image,
                "subnets": [self.rig.subnets["us-east-1a"], self.rig.subnets["us-east-1b"]],
                "security_groups": [self.rig.security_group],
                "store": f"s3://{self.rig.bucket}/runs",
            }
            | changes
        )
        return self.examine()


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


@pytest.fixture
def ill(tmp_path: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> OnRig:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)
    return OnRig(tmp_path, rig)


def of(findings: list[Finding], check: str) -> Finding:
    """The one line of this check."""
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def problems(findings: list[Finding]) -> list[str]:
    return [f"{f.check}: {f.found}" for f in findings if f.level == "problem"]


# ---------------------------------------------------------------- EC2


def test_a_spec_that_can_be_run_has_no_problem_and_nothing_is_started(ill: OnRig) -> None:
    findings = ill.see()
    assert problems(findings) == []
    assert exit_code(findings) == 0
    checks = {finding.check for finding in findings if finding.level == "ok"}
    assert checks >= {
        *(
            "seerd",
            "home",
            "spec",
            "region",
            "clock",
            "credentials",
            "types",
            "price",
            "quota",
            "image",
            "subnets",
            "routes",
            "disk key",
        ),
        *("zones", "SSH", "launch", "permissions", "instances", "store"),
    }
    assert "instances of 4 GPUs" in of(findings, "plan").found
    assert "user/moto (from env)" in of(findings, "credentials").found
    assert ill.rig.account() == {}
    listed = guest.client(ill.rig, "s3")
    assert listed.list_objects_v2(Bucket=ill.rig.bucket)["KeyCount"] == 0
    assert listed.list_multipart_uploads(Bucket=ill.rig.bucket).get("Uploads", []) == []


def test_an_image_by_its_parameter_and_spot(ill: OnRig) -> None:
    findings = ill.see(image=f"ssm:{ill.rig.image_parameter}", market="spot")
    assert problems(findings) == []
    assert "AWS spot history" in of(findings, "price").found
    role = of(findings, "spot role")
    assert role.level == "warning"
    assert "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com" in role.todo
    guest.client(ill.rig, "iam").create_role(
        RoleName="AWSServiceRoleForEC2Spot", AssumeRolePolicyDocument="{}"
    )
    findings = ill.see(image=f"ssm:{ill.rig.image_parameter}", market="spot")
    assert of(findings, "spot role").level == "ok"
    launch = of(findings, "launch")
    assert "neither quota nor capacity" in launch.found
    assert "would launch" not in launch.found
    ill.rig.deny("ssm:GetParameter")
    denied = of(ill.see(image=f"ssm:{ill.rig.image_parameter}"), "image")
    assert (denied.level, denied.missing) == ("problem", ("ssm:GetParameter",))


NAMED = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
"""Calls whose permission has another name."""


@pytest.mark.parametrize(
    ("level", "actions"),
    [
        ("problem", ("ec2:RunInstances", "s3:PutObject")),
        ("problem", ("ec2:TerminateInstances", "s3:GetObject")),
        ("problem", ("ec2:DescribeInstances", "s3:DeleteObject")),
        ("problem", ("ec2:DescribeVolumes", "s3:HeadBucket")),
        ("problem", ("ec2:DescribeImages", "s3:ListMultipartUploads")),
        ("problem", ("ec2:DescribeSubnets", "s3:AbortMultipartUpload")),
        ("problem", ("ec2:DescribeInstanceTypes",)),
        (
            "warning",
            (
                "ec2:DescribeInstanceTypeOfferings",
                "ec2:DescribeSecurityGroups",
                "pricing:GetProducts",
                "servicequotas:GetServiceQuota",
            ),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_a_missing_permission_is_named_as_iam_has_it(
    ill: OnRig, level: str, actions: tuple[str, ...]
) -> None:
    """Those that are missing together are of checks that know nothing of each other."""
    for action in actions:
        ill.rig.deny(action)
    findings = ill.see()
    found = [finding for finding in findings if finding.missing]
    named = {NAMED.get(action, action) for action in actions}
    assert {action for finding in found for action in finding.missing} == named
    assert {finding.level for finding in found if finding.check != "quota"} <= {level}
    assert exit_code(findings) == (5 if level == "problem" else 0)
    assert set(findings_json(findings)["missing"]) == named
    assert of(findings, "seerd").level == "ok"


def test_a_launch_that_may_not_tag_is_told_from_one_that_may_not_be(ill: OnRig) -> None:
    why = (
        "You are not authorized to perform: ec2:CreateTags on resource: "
        "arn:aws:ec2:us-east-1:123456789012:volume/*"
    )
    ill.rig.fail("ec2:RunInstances", "UnauthorizedOperation", times=None, message=why)
    assert of(ill.see(), "launch").missing == ("ec2:CreateTags",)


def test_what_another_policy_forbids_is_no_missing_permission(ill: OnRig) -> None:
    ill.rig.deny("ec2:RunInstances", by="service control policy")
    ill.rig.deny("s3:PutObject", by="resource-based policy")
    findings = ill.see()
    launch, store = of(findings, "launch"), of(findings, "store")
    assert (launch.level, store.level) == ("problem", "problem")
    assert "no policy of this account helps" in launch.found
    assert "aws s3api get-bucket-policy" in store.found
    assert findings_json(findings)["missing"] == []
    assert not [f for f in findings if "--policy" in f.todo or f.check == "permissions"]


def test_wrong_names_are_told_one_by_one_and_none_hides_another(ill: OnRig) -> None:
    findings = ill.see(
        instance_type=["g4dn.99xlarge"],
        image="ami-0123456789abcdef0",
        subnets=["subnet-0123456789abcdef0"],
        store="s3://no-bucket-of-ours/runs",
    )
    wrong = {finding.check for finding in findings if finding.level == "problem"}
    assert wrong >= {"types", "image", "subnets", "store"}
    assert "no instance type g4dn.99xlarge" in of(findings, "types").found
    assert "no such bucket" in of(findings, "store").found
    assert exit_code(findings) in (2, 5)
    key = of(ill.see(key="nobodys"), "launch")
    assert key.level == "problem"
    assert "no such key pair in this region; check `cluster.key`" in key.found
    assert "nobodys" in key.found


def test_types_of_different_sizes_and_types_without_gpus(ill: OnRig) -> None:
    sizes = of(ill.see(instance_type=["p3.8xlarge", "g4dn.xlarge"]), "types")
    assert sizes.level == "ok"
    assert "p3.8xlarge (4 V100, 32 vCPUs), g4dn.xlarge (1 T4, 4 vCPUs)" in sizes.found
    none = ill.see(instance_type=["m5.large"], price="$1")
    assert "m5.large has no GPU" in of(none, "types").found
    bare = of(ill.see(instance_type=["p3.8xlarge"], scratch="/opt/dlami/nvme"), "types")
    assert "cluster.scratch: p3.8xlarge has no instance store" in bare.found
    assert of(ill.see(scratch="/opt/dlami/nvme"), "types").level == "ok"
    part = of(ill.see(instance_type=["g6f.large"], price="$1"), "types")
    assert (part.level, part.found) == ("ok", "g6f.large (1 L4, 2 vCPUs)")
    wrong = of(ill.see(instance_type=["g6f.large"], price="$1", gpus=4), "types")
    assert "cluster.gpus = 4 is not so: g6f.large 1" in wrong.found


def test_an_image_of_another_architecture(ill: OnRig) -> None:
    ec2 = guest.client(ill.rig, "ec2")
    arm = next(
        i["ImageId"]
        for i in ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["arm64"]}])[
            "Images"
        ]
    )
    found = of(ill.see(image=arm), "image")
    assert (found.level, "does not run on g4dn.12xlarge" in found.found) == ("problem", True)


def test_a_quota_below_the_plans_peak(ill: OnRig) -> None:
    ill.rig.set_quota("G", 48)
    findings = ill.see()
    quota = of(findings, "quota")
    assert quota.level == "problem"
    assert "request-service-quota-increase" in quota.found
    assert exit_code(findings) == 5
    either = [
        finding
        for finding in ill.see(instance_type=["g4dn.12xlarge", "p3.8xlarge"])
        if finding.check == "quota"
    ]
    assert [finding.level for finding in either] == ["warning", "ok"]


def test_a_group_that_lets_nobody_in(ill: OnRig) -> None:
    ec2 = guest.client(ill.rig, "ec2")
    closed = ec2.create_security_group(GroupName="closed", Description="nobody")["GroupId"]
    found = of(ill.see(security_groups=[closed]), "SSH")
    assert found.level == "problem"
    assert (
        f"authorize-security-group-ingress --group-id {closed} --protocol tcp --port 22"
        in found.todo
    )
    public = of(ill.see(address="public"), "SSH")
    assert public.level == "warning"
    assert "checkip.amazonaws.com" in public.todo


def test_trials_larger_than_an_instance_need_a_group_that_is_open_inside(ill: OnRig) -> None:
    findings = ill.see(instance_type=["g4dn.xlarge"])
    assert of(findings, "among instances").level == "ok"
    ec2 = guest.client(ill.rig, "ec2")
    closed = ec2.create_security_group(GroupName="closed", Description="nobody")["GroupId"]
    findings = ill.see(instance_type=["g4dn.xlarge"], security_groups=[closed])
    assert of(findings, "among instances").level == "problem"


def test_a_public_address_needs_a_route_to_an_internet_gateway(ill: OnRig) -> None:
    ec2 = guest.client(ill.rig, "ec2")
    assert of(ill.see(address="public"), "routes").level == "ok"
    (table,) = ec2.describe_route_tables(
        Filters=[{"Name": "association.main", "Values": ["true"]}]
    )["RouteTables"]
    ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    found = of(ill.see(address="public"), "routes")
    assert found.level == "problem"
    assert f"aws ec2 create-route --route-table-id {table['RouteTableId']}" in found.todo
    assert of(ill.see(), "routes").level == "ok", "S3 has its endpoint"


def test_a_private_address_needs_a_way_to_s3(ill: OnRig) -> None:
    ec2 = guest.client(ill.rig, "ec2")
    found = of(ill.see(), "routes")
    assert "reaches nothing else" in found.found
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    found = of(ill.see(), "routes")
    assert found.level == "problem"
    assert "has no way to S3, so no checkpoint can be stored" in found.found
    assert f"create-vpc-endpoint --vpc-id {endpoint['VpcId']} --route-table-ids rtb-" in found.todo
    assert found.todo.endswith("--service-name com.amazonaws.us-east-1.s3")
    assert of(ill.see(address="public"), "routes").level == "ok"
    ill.rig.deny("ec2:DescribeRouteTables")
    denied = of(ill.see(), "routes")
    assert (denied.level, denied.missing) == ("warning", ("ec2:DescribeRouteTables",))


def test_the_key_that_encrypts_disks_is_looked_at_and_in_the_policy(ill: OnRig) -> None:
    ec2, kms = (guest.client(ill.rig, name) for name in ("ec2", "kms"))
    assert "AWS's own" in of(ill.see(), "disk key").found
    spec = load_spec(ill.spec, [])
    assert "DiskKey" not in str(asyncio.run(clusters.of(spec).policy(spec)))
    key = kms.create_key()["KeyMetadata"]
    ec2.modify_ebs_default_kms_key_id(KmsKeyId=key["Arn"])
    assert of(ill.see(), "disk key").level == "ok"
    by_sid = {one["Sid"]: one for one in asyncio.run(clusters.of(spec).policy(spec))["Statement"]}
    assert by_sid["DiskKey"]["Resource"] == key["Arn"]
    kms.disable_key(KeyId=key["KeyId"])
    found = of(ill.see(), "disk key")
    assert found.level == "problem"
    assert f"aws kms enable-key --region us-east-1 --key-id {key['Arn']}" in found.todo


def test_what_is_still_an_examples_is_a_mistake(ill: OnRig) -> None:
    findings = ill.see(store="s3://YOUR-BUCKET/seerd", security_groups=["sg-0123456789abcdef0"])
    found = of(findings, "spec")
    assert found.level == "problem"
    assert 'cluster.store = "s3://YOUR-BUCKET/seerd"' in found.found
    assert 'cluster.security_groups = "sg-0123456789abcdef0"' in found.found
    spec = load_spec(ill.spec, [])
    with pytest.raises(UsageError, match="put your own there"):
        asyncio.run(clusters.of(spec).policy(spec))


def test_temporary_credentials_of_the_environment_are_no_surprise(
    ill: OnRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guest.client(ill.rig, "sts").get_session_token()["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", made["SessionToken"])
    found = of(ill.see(), "credentials")
    assert found.level == "warning"
    assert "they are temporary, do not say when they end, and nothing renews them" in found.found
    (said,) = clusters.of(load_spec(ill.spec, [])).doubts(1200.0)
    assert said.startswith("the credentials from env are temporary")
    assert "a run takes up to 30m" in said


def test_no_credentials_stop_the_questions_to_aws_and_nothing_else(
    ill: OnRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    findings = ill.see()
    assert "there are no AWS credentials here" in of(findings, "credentials").found
    assert of(findings, "spec").level == "ok"
    assert exit_code(findings) == 5
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODYNOBODYNOBO")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    findings = ill.see()
    assert "AWS does not know these credentials" in of(findings, "credentials").found
    assert of(findings, "AWS").level == "warning"


def test_credentials_that_end_during_a_run(ill: OnRig, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1200))
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", soon)
    found = of(ill.see(), "credentials")
    assert found.level == "warning"
    assert "they end in 19m" in found.found or "they end in 20m" in found.found


class _LateSts(http.server.BaseHTTPRequestHandler):
    """STS, with a clock that is ten minutes ahead of ours."""

    def do_POST(self) -> None:
        body = (
            b"<ErrorResponse><Error><Code>RequestExpired</Code><Message>Request has "
            b"expired.</Message></Error></ErrorResponse>"
        )
        self.send_response_only(403)
        self.send_header("Date", formatdate(time.time() + 600.0, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def late_sts() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _LateSts)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_clock_that_is_off_is_told_though_aws_refuses(
    ill: OnRig, late_sts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", late_sts)
    findings = ill.see()
    found = of(findings, "clock")
    assert found.level == "problem"
    assert "behind AWS's" in found.found
    assert "or this machine's clock is wrong" in of(findings, "credentials").found


@pytest.mark.parametrize(
    ("ahead_s", "level"),
    [
        (0.4, "ok"),
        (-59.0, "ok"),
        (61.0, "warning"),
        (-239.0, "warning"),
        (241.0, "problem"),
        (-900.0, "problem"),
    ],
)
def test_how_wrong_a_clock_may_be(ahead_s: float, level: str) -> None:
    (found,) = clock(ahead_s)
    assert found.level == level
    assert clock(None) == []


def test_the_command_its_json_and_its_policy(ill: OnRig) -> None:
    ill.rig.deny("ec2:TerminateInstances")
    ill.see()

    def seerd(*args: str, code: int) -> str:
        environment = {**os.environ, "SEERD_HOME": str(ill.home.path)}
        done = run_command(["doctor", str(ill.spec), *args], ROOT, environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    text = seerd(code=5)
    assert "problem  permissions: not permitted: ec2:TerminateInstances" in text
    assert (
        "missing permissions: ec2:TerminateInstances\nthe whole policy: seerd doctor "
        f"{ill.spec} --policy" in text
    )
    told = json.loads(seerd("--json", code=5))
    assert (told["problems"], told["missing"]) == (1, ["ec2:TerminateInstances"])
    assert {"check", "level", "found", "todo", "missing"} == set(told["checks"][0])
    document = json.loads(seerd("--policy", code=0))
    assert f"arn:aws:s3:::{ill.rig.bucket}/runs/*" in json.dumps(document)
    assert ":123456789012:security-group/" in json.dumps(document)


def test_the_policy_permits_every_call_that_a_run_and_doctor_make(ill: OnRig) -> None:
    ill.see(image=f"ssm:{ill.rig.image_parameter}", market="spot", key=None)
    spec = load_spec(ill.spec)
    document = asyncio.run(clusters.rented(spec).policy(spec))
    permitted = {action for statement in document["Statement"] for action in statement["Action"]}
    iam = {
        "s3:HeadBucket": "s3:ListBucket",
        "s3:ListObjects": "s3:ListBucket",
        "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
        "s3:CreateMultipartUpload": "s3:PutObject",
    }
    called = {iam.get(action, action) for action in ill.rig.calls}
    assert called <= permitted | {"s3:CreateBucket"}


def test_the_words_of_aws_are_told_where_it_refuses(ill: OnRig) -> None:
    """A bucket that is encrypted with a key which may not be used is refused as AccessDenied."""
    words = (
        "User: arn:aws:iam::123456789012:user/rig is not authorized to perform: "
        "kms:GenerateDataKey on resource: arn:aws:kms:us-east-1:123456789012:key/1234"
    )
    ill.rig.fail("s3:PutObject", "AccessDenied", times=None, message=words)
    store = of(ill.see(), "store")
    assert store.missing == ("kms:GenerateDataKey",)
    assert "key/1234" in store.found
    ill.rig.no_faults()
    ill.rig.fail("ec2:TerminateInstances", "UnauthorizedOperation", times=None, message="Not you.")
    (denied,) = [f for f in ill.see() if "ec2:TerminateInstances" in f.missing]
    assert "AWS says: Not you." in denied.found


# ---------------------------------------------------------------- pure parts


NEEDS = Needs(
    "eu-west-1", "42", "ami-1", ("subnet-1",), ("sg-1",), "mine", False, ("b", "p/q"), (("d", "x"),)
)


def test_what_the_policy_restricts() -> None:
    by_sid = {statement["Sid"]: statement for statement in policy(NEEDS)["Statement"]}
    assert by_sid["EndInstances"]["Condition"] == {"StringLike": {"aws:ResourceTag/seerd:run": "*"}}
    assert by_sid["LaunchWhatIsTagged"]["Condition"] == {
        "StringLike": {"aws:RequestTag/seerd:run": "*"}
    }
    assert by_sid["LaunchFrom"]["Resource"] == [
        "arn:aws:ec2:eu-west-1::image/ami-1",
        "arn:aws:ec2:eu-west-1:42:subnet/subnet-1",
        "arn:aws:ec2:eu-west-1:42:security-group/sg-1",
        "arn:aws:ec2:eu-west-1:42:key-pair/mine",
    ]
    assert by_sid["Checkpoints"]["Resource"] == "arn:aws:s3:::b/p/q/*"
    assert by_sid["Data"]["Resource"] == ["arn:aws:s3:::d/x*"]
    keys = by_sid["EncryptedBuckets"]
    assert keys["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert keys["Condition"]["StringLike"] == {
        "kms:ViaService": "s3.*.amazonaws.com*",
        "kms:EncryptionContext:aws:s3:arn": [
            "arn:aws:s3:::b",
            "arn:aws:s3:::b/p/q/*",
            "arn:aws:s3:::d",
            "arn:aws:s3:::d/x*",
        ],
    }
    for statement in by_sid.values():
        changing = [a for a in statement["Action"] if not fnmatch.fnmatch(a, "*:[DGL][ei][st]*")]
        assert not changing or statement["Resource"] != "*"
    regions = {
        "cn-north-1": "aws-cn",
        "us-gov-west-1": "aws-us-gov",
        "us-east-1": "aws",
        "*": "aws",
    }
    assert {region: partition(region) for region in regions} == regions


def test_the_permission_that_a_refusal_names() -> None:
    text = (
        "You are not authorized. User: arn:aws:iam::1:user/me is not authorized to "
        "perform: ec2:CreateTags on resource: x"
    )
    assert denied_action(text, "ec2:RunInstances") == "ec2:CreateTags"
    assert (
        denied_action("You are not authorized to perform this operation.", "ec2:RunInstances")
        == "ec2:RunInstances"
    )


def group(*rules: Rule) -> list[SecurityGroup]:
    return [SecurityGroup("sg-1", "seerd", "vpc-1", rules)]


SSH_FROM = {
    "world": Rule("tcp", 22, 22, ("0.0.0.0/0",), ()),
    "office": Rule("tcp", 22, 22, ("198.51.100.0/24",), ()),
    "vpc": Rule("tcp", 0, 65535, ("10.0.0.0/16",), ()),
    "group": Rule("-1", None, None, (), ("sg-1",)),
    "web": Rule("tcp", 443, 443, ("0.0.0.0/0",), ()),
    "udp": Rule("udp", 22, 22, ("0.0.0.0/0",), ()),
    "six": Rule("tcp", 22, 22, ("fd00::/8",), ()),
}


@pytest.mark.parametrize(
    ("rules", "address", "level"),
    [
        (["world"], "public", "ok"),
        (["office"], "public", "warning"),
        (["group"], "public", "problem"),
        (["web", "udp"], "public", "problem"),
        (["vpc"], "private", "ok"),
        (["office"], "private", "warning"),
        (["six"], "private", "warning"),
        (["group"], "private", "ok"),
        (["web", "udp"], "private", "problem"),
        ([], "private", "problem"),
    ],
)
def test_who_gets_in(rules: list[str], address: str, level: str) -> None:
    def ours(to: str) -> str:
        return "" if ":" in to else "10.0.3.4"

    assert access(group(*(SSH_FROM[name] for name in rules)), address, ours).level == level
    assert among(group(SSH_FROM["group"]), 8).level == "ok"
    assert among(group(SSH_FROM["vpc"], SSH_FROM["world"]), 8).level == "problem"


# ---------------------------------------------------------------- hosts, this machine


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sshd]]:
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with sshds(3) as servers:
        (ssh / "id_ed25519").write_bytes(servers[0].user_key.read_bytes())
        (ssh / "id_ed25519").chmod(0o600)
        (ssh / "known_hosts").write_text(
            "".join(f"[127.0.0.1]:{s.port} {s.host_key}" for s in servers[:2])
        )
        yield servers


def test_hosts_are_asked_and_each_has_its_line(
    patient: Patient, machines: list[Sshd], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    machines[1].stop()
    rows = [
        f'{{ address = "127.0.0.1", user = "{getpass.getuser()}", port = {server.port}, slots '
        "= 2 }"
        for server in machines
    ]
    patient.write({"provider": "hosts", "store": str(shared)})
    patient.spec.write_text(patient.spec.read_text() + f"hosts = [{', '.join(rows)}]\n")
    findings = patient.examine()
    first, second, third = (
        of(findings, f"host {getpass.getuser()}@127.0.0.1:{s.port}") for s in machines
    )
    assert first.level == "ok", first
    assert "2 CPU slots" in first.found
    assert "connection refused" in second.found
    assert "its host key is not known" in third.found
    assert exit_code(findings) == 5

    wanting = (
        patient.spec.read_text().replace("slots = 2", "gpus = 2").replace(str(shared), "/no/such")
    )
    patient.spec.write_text(wanting)
    first = of(patient.examine(), f"host {getpass.getuser()}@127.0.0.1:{machines[0].port}")
    assert first.level == "problem"
    assert "the store /no/such is not there" in first.found
    assert "nvidia-smi fails" in first.found or "GPUs; the spec says 2" in first.found


def test_this_machine(patient: Patient) -> None:
    patient.write({"provider": "local", "gpus": 2})
    findings = patient.examine()
    assert exit_code(findings) == 0
    assert {"seerd", "home", "spec", "plan", "GPUs"} == {finding.check for finding in findings}
    script = patient.spec.parent / "train.py"
    script.chmod(0o644)
    assert f"chmod +x {script}" in of(patient.examine(), "spec").found
    torch = of(patient.examine(train__launcher="torchrun"), "torch")
    assert torch.level == "ok", torch
    broken = of(patient.examine(train__launcher="torchrun", train__python="/bin/false"), "torch")
    assert (broken.level, exit_code([broken])) == ("problem", 2)
    none = of(patient.examine(train__launcher="torchrun", train__python="/no/python"), "torch")
    assert "cannot be started" in none.found


def test_parts_of_a_gpu_to_which_nothing_holds_trials_are_a_warning(patient: Patient) -> None:
    for parts, level in ((None, "ok"), (4, "warning")):
        patient.write({"provider": "local", "gpus": 2, "parts": parts})
        finding = of(patient.examine(), "spec")
        assert finding.level == level
    assert "nothing holds a trial to its part of a GPU's memory" in finding.found


def test_torch_is_asked_for_only_where_it_is_needed(patient: Patient) -> None:
    """A script of JAX has a Python without torch, which a command of its project starts."""
    patient.write({"provider": "local", "gpus": 2})
    folder = patient.spec.parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (folder / "enter.sh").write_text('exec .venv/bin/python "$@"')
    for python in (".venv/bin/python", "sh enter.sh"):
        sets = {"train__launcher": "python", "train__python": python}
        (folder / "train.py").write_text("import jax")
        found = patient.examine(**sets)
        assert of(found, "python").level == "ok", found
        assert not [finding for finding in found if finding.check == "torch"]
        (folder / "train.py").write_text("import torch")
        assert "cannot import torch" in of(patient.examine(**sets), "torch").found
    broken = of(patient.examine(train__launcher="python", train__python="/no/python"), "torch")
    assert "cannot be started" in broken.found


def test_a_spec_with_mistakes_or_too_small_limits(patient: Patient) -> None:
    patient.write({"provider": "local", "gups": 2})
    findings = patient.examine()
    assert "did you mean gpus" in of(findings, "spec").found
    assert exit_code(findings) == 2
    patient.write({"provider": "local"})
    assert of(patient.examine(limits__deadline="1s"), "plan").level == "problem"
    patient.spec.write_text(patient.spec.read_text().replace('budget = "300gpu-min"', ""))
    unlimited = of(patient.examine(), "plan")
    assert unlimited.level == "warning", "limits may come with the run"
    assert "give a budget: --budget" in unlimited.found
    assert "deadline" not in unlimited.found
