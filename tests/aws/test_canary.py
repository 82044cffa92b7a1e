"""`seerd canary` as a person runs it, against the rig: all is well, much is wrong, Ctrl-C; and its
pure parts.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import client, until
from seerd.aws import prices
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind, kind_of
from seerd.aws.policy import Needs, canary_policy, policy
from seerd.aws.prices import Price
from seerd.aws.userdata import POWER
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ssh import connecting
from seerd.backends.ssh.connecting import RemoteMachine
from seerd.commands import canary
from seerd.commands.canary import (
    inside,
    launching,
    parts,
    planned,
    terminals,
)
from seerd.commands.canary.expedition import CanaryResult
from seerd.commands.canary.expedition import fly as fly_over
from seerd.commands.canary.inside import Facts, judged
from seerd.commands.canary.launching import CanaryPlan
from seerd.commands.canary.outcome import (
    CAP_USD,
    CAPACITY,
    CHECKS,
    CREDENTIALS,
    DISKS,
    FALLBACK,
    GPU_CAP_USD,
    GPU_CHECKS,
    GPU_PARTS,
    LONGEST_GPU_S,
    LONGEST_S,
    SCRATCH,
    WAY_IN,
    CanaryRental,
    CheckOutcome,
    OutcomeLog,
    Result,
    WatchedLaunch,
    check_cap,
    most_usd,
    timeline,
)
from seerd.commands.canary.parts import USES
from seerd.commands.canary.report import canary_view, kept_times, names_of, redacted, report_json
from seerd.commands.options import SpecOptions
from seerd.errors import CapError, UsageError
from seerd.shell.home import Home
from seerd.spec.spec import Spec, load_spec
from tests.aws.iam_lint import lint
from tests.commands import Command, forked

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "bench" / "testbed" / "rig" / "image"
FLIGHT_S = 120.0
SPEC = """
name = "digits"
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
python = "gpu-python"
[space]
lr = { low = 0.1, high = 0.9 }
[limits]
deadline = "20m"
budget = "60gpu-min"
[cluster]
"""

Fly = Callable[..., Command]


@pytest.fixture
def write(rig: Rig, tmp_path: Path) -> Callable[..., Path]:
    """Writes a spec for the rig, whose `[cluster]` has these keys."""

    def written(**changed: Any) -> Path:
        cluster = {
            "provider": "ec2",
            "region": "us-east-1",
            "instance_type": ["g4dn.xlarge"],
            "image": rig.image,
            "security_groups": [rig.security_group],
            "store": f"s3://{rig.bucket}/models",
        } | changed
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in cluster.items())
        (tmp_path / "spec.toml").write_text(SPEC + lines)
        (tmp_path / "train.py").write_text("import seerd\n")
        return tmp_path / "spec.toml"

    return written


@pytest.fixture
def fly(rig: Rig, write: Callable[..., Path], tmp_path: Path) -> Fly:
    """Starts seerd with this command for such a spec."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nothing = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    own |= rig.env | nothing | {"SEERD_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    own |= forked()

    def start(command: str, *options: str, **changed: Any) -> Command:
        return Command([command, str(write(**changed)), *options], ROOT, own)

    return start


def came_back(process: Command, code: int = 0) -> tuple[str, str]:
    out, said = process.communicate()
    assert process.returncode == code, f"exit status {process.returncode}\n{out}\n{said}"
    return out, said


def results(told: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["result"] for one in told["checks"]}


def assert_nothing_left(rig: Rig) -> None:
    """A volume goes with its instance, a moment after that has ended."""
    assert rig.instances() == []
    mine = [{"Name": "tag-key", "Values": ["seerd:run"]}]
    until(lambda: not client(rig, "ec2").describe_volumes(Filters=mine)["Volumes"])
    assert client(rig, "s3").list_objects_v2(Bucket=rig.bucket)["KeyCount"] == 0
    assert client(rig, "s3").list_multipart_uploads(Bucket=rig.bucket).get("Uploads", []) == []


def wait_for_three(rig: Rig) -> None:
    end = time.monotonic() + FLIGHT_S
    while len(rig.instances()) < 3:
        assert time.monotonic() < end
        time.sleep(0.1)


# ---------------------------------------------------------------- on the rig


def test_on_the_rig_everything_passes_and_plans_use_its_times(
    rig: Rig, fly: Fly, tmp_path: Path
) -> None:
    """So it is though the first answer to each launch is lost."""
    rig.set_boot(pending_s=2.0, boot_s=0.3, address_s=0.5)
    rig.set_cold(2.0)
    rig.lose_reply("ec2:RunInstances", times=4)
    out, said = came_back(fly("canary", "--gpu", "--json"))
    told = json.loads(out)
    unused = dict.fromkeys(USES, "untried")
    assert results(told) == dict.fromkeys(CHECKS, "passed") | unused, told["checks"]
    assert "untried  capacity: the spec has no cluster.capacity" in said
    (way,) = (check for check in told["checks"] if check["check"] == WAY_IN)
    assert way["said"] == "straight to the private address"
    assert f"It costs at most ${told['most_usd']:.3f}, of $0.20 that" in said
    assert told["usd"] < told["most_usd"] <= told["cap_usd"] == GPU_CAP_USD
    assert_nothing_left(rig)
    took_s = {one["check"]: one["seconds"] for one in told["checks"]}
    assert took_s["torch, warm"] < 2.0 <= took_s["torch, cold"]

    small = [one for one in told["launches"] if one["instance_type"] == "t3.small"]
    ends = {"Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"}
    assert len(small) == 3
    assert {one["end"] for one in small} == ends
    for one in told["launches"]:
        steps = ("answered", "running", "address", "port", "login", "agent")
        times = [one[f"{step}_s"] for step in steps]
        assert all(later > earlier - 0.05 for earlier, later in pairwise(times))
        assert 2.0 <= one["running_s"] <= 6.0
    codes = {one["check"]: (one["code"], one["status"]) for one in told["checks"] if one["code"]}
    assert codes == {
        "wrong image": ("InvalidAMIID.NotFound", 400),
        "wrong zone": ("InvalidParameterValue", 400),
        "wrong price": ("SpotMaxPriceTooLow", 400),
        "expired URL": ("AccessDenied", 403),
    }

    names = [rig.image, rig.bucket, rig.security_group, *rig.subnets.values(), *rig.account()]
    names += ["123456789012", rig.env["AWS_ACCESS_KEY_ID"], str(tmp_path), "arn:", "canary-2"]
    names += [one.address for one in rig.account().values()]
    assert [name for name in names if name in out] == []
    page = (ROOT / "docs" / "json.md").read_text()
    keys = {*told, *told["checks"][0], *told["launches"][0]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    (report,) = (tmp_path / "home" / "canaries").glob("*.json")
    assert json.loads(report.read_text()) == told

    planned = json.loads(came_back(fly("plan", "--json"))[0])
    told_of = " ".join(planned["adjusted"])
    assert "as seerd canary measured on g4dn.xlarge in us-east-1" in told_of


def test_each_part_that_a_spec_uses_is_tried(rig: Rig, fly: Fly) -> None:
    """Spot with on-demand behind it, disks that are faster, and the instance store, which an image
    mounts when it is up.
    """
    nvme = "/opt/dlami/nvme"
    parts = {"market": ["spot", "on-demand"], "iops": 4000, "throughput": 250, "scratch": nvme}
    process = fly("canary", "--gpu", "--json", **parts)

    def gpu() -> list[str]:
        return [i.id for i in rig.instances() if i.type == "g4dn.xlarge" and i.pid is not None]

    (instance,) = until(gpu, FLIGHT_S)
    until(lambda: mounted(rig, instance, nvme), FLIGHT_S)
    told = json.loads(came_back(process)[0])
    tried = dict.fromkeys(CHECKS, "passed") | {CAPACITY: "untried"}
    assert results(told) == tried, told["checks"]
    words = {check["check"]: check["said"] for check in told["checks"]}
    assert (
        words[FALLBACK]
        == "spot was refused (SpotMaxPriceTooLow), and on-demand was given in its place"
    )
    assert words[DISKS] == "4000 IOPS and 250 MiB/s"
    assert words[SCRATCH].startswith("the agent's home is on it, and ")
    assert told["usd"] < told["most_usd"] <= GPU_CAP_USD
    markets = {one.market for one in rig.account().values()}
    assert markets == {"on-demand"}
    assert_nothing_left(rig)


def mounted(rig: Rig, instance: str, folder: str) -> bool:
    """Mount a disk there, if the instance is up."""
    try:
        rig.mount_disk(instance, folder)
    except ValueError:
        return False
    return True


def test_what_was_bought_is_looked_at_and_nothing_small_is_launched_there(
    rig: Rig, fly: Fly
) -> None:
    zone = next(iter(rig.subnets))
    bought = rig.buy("p3.8xlarge", zone, 2)
    out, _ = came_back(fly("canary", "--json", capacity=bought, instance_type=[]))
    told = json.loads(out)
    assert results(told)[CAPACITY] == "passed", told["checks"]
    (found,) = (check for check in told["checks"] if check["check"] == CAPACITY)
    assert f"2 of 2 p3.8xlarge in {zone} are free" in found["said"]
    assert results(told)[FALLBACK] == "untried"
    assert {one.type for one in rig.account().values()} == {"t3.small"}


def test_credentials_that_end_before_a_run_of_the_spec_are_found(
    rig: Rig, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "credentials"

    def log_in(ends_s: float) -> None:
        made = client(rig, "sts").get_session_token()["Credentials"]
        ends = datetime.fromtimestamp(time.time() + ends_s, UTC).isoformat()
        lines = {
            "aws_access_key_id": made["AccessKeyId"],
            "aws_secret_access_key": made["SecretAccessKey"],
            "aws_session_token": made["SessionToken"],
            "aws_expiration": ends,
        }
        keys.write_text("[default]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items()))

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    own = {name: value for name, value in rig.env.items() if "ACCESS_KEY" not in name}
    for name, value in (own | {"AWS_SHARED_CREDENTIALS_FILE": str(keys)}).items():
        monkeypatch.setenv(name, value)
    asked = SpecOptions(write())

    async def examined() -> CheckOutcome:
        plan = await planned(asked.job(), asked, Home(tmp_path / "home"), gpu=False)
        (found,) = await parts.credentials(plan)
        return found

    log_in(600.0)
    short = asyncio.run(examined())
    assert (short.check, short.result) == (CREDENTIALS, "failed")
    assert "end in " in short.said
    assert "log in again first, or use a role" in short.said
    log_in(36_000.0)
    long = asyncio.run(examined())
    assert long.result == "passed"
    assert long.said.endswith("; read anew, they are the same caller's")


def test_why_nobody_can_log_in_is_said_while_it_is_waited_for(
    rig: Rig, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group lets in its own network alone."""
    for name, value in (rig.env | forked()).items():
        monkeypatch.setenv(name, value)
    asked, heard = SpecOptions(write(address="public", boot="6s")), []

    async def flight() -> CanaryResult:
        plan = await planned(asked.job(), asked, Home(tmp_path / "home"), gpu=False)
        plan = replace(plan, unreached_s=1.0)
        return await fly_over(plan, OutcomeLog(print, heard.append), tmp_path / "flight")

    result = asyncio.run(flight())
    found = {outcome.check: outcome for outcome in result.outcomes}
    assert found["port 22"].result == "failed"
    assert found[WAY_IN].said == "nobody was let in; tried straight to the public address"
    let_in = "aws ec2 authorize-security-group-ingress"
    assert let_in in found["port 22"].said
    assert any("cannot be used yet: timed out" in line and let_in in line for line in heard)


def test_what_is_wrong_is_found_and_nothing_stays(rig: Rig, fly: Fly, tmp_path: Path) -> None:
    """No timer, metadata for everybody, a user who may do anything, a reboot that is not permitted,
    and a zone that is refused in words that nobody knows.
    """
    layer = tmp_path / "layer"
    for folder in ("usr/bin", "usr/local/lib/rig", "etc/sudoers.d"):
        (layer / folder).mkdir(parents=True)
    (layer / "etc/sudoers.d/zz-everything").write_text("seerd ALL=(ALL) NOPASSWD: ALL\n")
    (layer / "etc/sudoers.d/zz-everything").chmod(0o440)
    shutil.copy(IMAGE / "systemd-run", layer / "usr/local/lib/rig/systemd-run")
    (layer / "usr/local/lib/rig/systemd-run").chmod(0o755)
    (layer / "usr/bin/systemd-run").write_text(
        '#!/bin/sh\ncase "$*" in *seerd-hard-end*) exit 0 ;; esac\n'
        'exec /usr/local/lib/rig/systemd-run "$@"\n'
    )
    (layer / "usr/bin/systemd-run").chmod(0o755)
    rig.forget_tokens()
    rig.deny("ec2:RebootInstances")
    rig.deny("sts:GetFederationToken")
    out, said = came_back(fly("canary", "--json", image=rig.add_layer(layer)), code=1)
    found = results(json.loads(out))
    wrong = {"timer", "user data", "IMDSv1", "sudo"}
    assert {check for check, result in found.items() if result == "failed"} == wrong, out
    unknown = {check for check, result in found.items() if result == "unknown"}
    assert unknown == {"reboot", "printed policy"}
    assert "failed   timer: there is no timer" in said
    assert_nothing_left(rig)


def test_a_machine_that_shows_another_key_is_not_let_in(rig: Rig, fly: Fly, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    for folder in ("usr/sbin", "usr/local/lib/rig"):
        (layer / folder).mkdir(parents=True)
    shutil.copy("/usr/sbin/sshd", layer / "usr/local/lib/rig/sshd")
    (layer / "usr/sbin/sshd").write_text(
        "#!/bin/sh\nrm -f /etc/ssh/ssh_host_*\n"
        "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key\n"
        'exec /usr/local/lib/rig/sshd "$@"\n'
    )
    (layer / "usr/sbin/sshd").chmod(0o755)
    out, _ = came_back(fly("canary", "--json", image=rig.add_layer(layer), boot="2s"), code=1)
    told = json.loads(out)
    found = results(told)
    assert (found["port 22"], found["right key"], found["agent"]) == ("passed", "failed", "unknown")
    (key,) = (one for one in told["checks"] if one["check"] == "right key")
    assert "host key mismatch" in key["said"]
    assert found["nothing left"] == "passed"
    assert_nothing_left(rig)


def test_ctrl_c_ends_the_instances(rig: Rig, fly: Fly) -> None:
    rig.set_boot(boot_s=60)
    process = fly("canary")
    wait_for_three(rig)
    process.send_signal(signal.SIGINT)
    out, said = came_back(process, code=130)
    assert "interrupted; giving everything back" in out
    assert "interrupted; 0 instances, 0 volumes left" in said
    assert_nothing_left(rig)


@pytest.mark.parametrize("command", ["doctor", "canary"])
def test_ctrl_c_takes_the_object_of_a_doctor_out_of_the_bucket(
    rig: Rig, fly: Fly, command: str
) -> None:
    rig.set_boot(boot_s=60)
    rig.throttle("s3:CreateMultipartUpload", times=None)  # comes after the object was put
    process, s3 = fly(command), client(rig, "s3")
    end = time.monotonic() + FLIGHT_S
    put = 2 if command == "canary" else 1  # by the canary's own doctor, and by the one beside it
    seen: set[str] = set()
    while len(seen) < put:
        assert time.monotonic() < end
        time.sleep(0.2)
        seen |= {one["Key"] for one in s3.list_objects_v2(Bucket=rig.bucket).get("Contents", [])}
    process.send_signal(signal.SIGINT)
    rig.no_faults()
    process.communicate()
    assert s3.list_objects_v2(Bucket=rig.bucket)["KeyCount"] == 0


def test_ctrl_c_waits_for_no_end_and_empties_the_bucket(rig: Rig, fly: Fly) -> None:
    """It comes while the end of the GPU is refused, and while an instance puts parts."""
    rig.set_shutting_down(60.0)
    for call in ("ec2:TerminateInstances", "s3:UploadPart"):
        rig.throttle(call, times=None)
    process = fly("canary", "--gpu")
    end = time.monotonic() + FLIGHT_S
    s3 = client(rig, "s3")
    while not {"ec2:TerminateInstances", "s3:UploadPart"} <= set(rig.calls):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert s3.list_multipart_uploads(Bucket=rig.bucket)["Uploads"]
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    rig.no_faults()
    out, said = came_back(process, code=130)
    assert time.monotonic() - began < 30.0
    assert "passed   torch, warm" in out
    assert "interrupted; 0 instances, 0 volumes left" in said
    assert s3.list_objects_v2(Bucket=rig.bucket).get("Contents", []) == []
    assert s3.list_multipart_uploads(Bucket=rig.bucket).get("Uploads", []) == []


def test_credentials_that_expire_end_it_and_what_may_run_is_named(
    rig: Rig, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (rig.env | forked()).items():
        monkeypatch.setenv(name, value)
    rig.set_boot(boot_s=60)
    asked = SpecOptions(write())

    async def flight() -> CanaryResult:
        plan = await planned(asked.job(), asked, Home(tmp_path / "home"), gpu=False)
        plan = replace(plan, work_s=15.0, mend_s=2.0)
        task = asyncio.create_task(fly_over(plan, OutcomeLog(print), tmp_path / "flight"))
        await asyncio.to_thread(wait_for_three, rig)
        await asyncio.sleep(2.0)
        rig.fail("ec2:*", "RequestExpired", times=None)
        return await task

    began = time.monotonic()
    result = asyncio.run(flight())
    assert time.monotonic() - began < FLIGHT_S / 2
    left = result.outcomes[-1]
    assert (left.check, left.result) == ("nothing left", "failed")
    for one in rig.instances():
        assert f"instance {one.id} (t3.small) may still run, and powers itself off by" in left.said
    assert "the credentials have expired" in left.said


def test_more_than_the_cap_is_not_begun(
    rig: Rig, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dear(cloud: Cloud, kind: str) -> Price:
        return Price(9.9, "price list", time.time())

    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(prices, "on_demand", dear)
    asked = SpecOptions(write())
    with pytest.raises(CapError, match=r"nothing was started: it might cost \$5\.9") as refused:
        canary.canary(asked, Home(tmp_path / "home"), gpu=False, policy_only=False, json=False)
    assert refused.value.exit_code == 3
    assert rig.account() == {}


# ---------------------------------------------------------------- money

SMALL = CanaryRental("t3.small", 3, 0.0208, LONGEST_S, 75, bursts=True)
WITH_GPU = CanaryRental("g4dn.xlarge", 1, 0.526, LONGEST_GPU_S, 75)


def test_the_most_that_it_may_cost() -> None:
    hours = 3 * LONGEST_S / 3600
    fast = replace(WITH_GPU, speed_usd_per_h=0.2)
    assert fast.most_usd - WITH_GPU.most_usd == pytest.approx(0.2 * LONGEST_GPU_S / 3600)
    disks = hours * 75 * 0.152 / 730
    assert SMALL.most_usd == pytest.approx(hours * (0.0208 + 0.08 + 0.005) + disks)
    assert check_cap([SMALL]) == most_usd([SMALL]) < CAP_USD
    assert check_cap([SMALL, WITH_GPU]) == most_usd([SMALL, WITH_GPU]) < GPU_CAP_USD
    dearest = replace(SMALL, usd_per_h=0.0336), replace(WITH_GPU, usd_per_h=0.894)
    assert check_cap(dearest) < GPU_CAP_USD, "so it can fly in sa-east-1, too"
    assert replace(SMALL, longest_s=1.0).most_usd == pytest.approx(SMALL.most_usd / 12)
    with pytest.raises(CapError, match="leave --gpu away"):
        check_cap([SMALL, replace(WITH_GPU, usd_per_h=3.0)])
    with pytest.raises(CapError, match="a smaller disk"):
        check_cap([replace(SMALL, disk_gb=2000)])
    with pytest.raises(CapError):
        check_cap([replace(SMALL, usd_per_h=float("nan"))])


def test_what_ran_is_billed_for_a_minute_at_least() -> None:
    assert WatchedLaunch().billed_s(100.0) == 0.0
    assert WatchedLaunch(running=10.0, ending=15.0).billed_s(100.0) == 60.0
    assert WatchedLaunch(running=10.0).billed_s(100.0) == 90.0


# ---------------------------------------------------------------- what is told to strangers

HEX = st.text("0123456789abcdef", min_size=17, max_size=17)
DIGITS = st.text("0123456789", min_size=12, max_size=12)
ADDRESSES = st.ip_addresses().map(str)
PLACES = ["/opt/the-bucket", "/home/jane", "~jane", "~", "../jane", "/Users/jane(lab),x"]
UPPER = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=16, max_size=16)
IDS = st.one_of(
    st.builds(
        "{}-{}".format,
        st.sampled_from(["i", "vol", "ami", "subnet", "sg", "vpc", "eni", "snap", "rtb", "sir"]),
        HEX,
    ),
    DIGITS,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda one: one.exploded),
    st.builds("AKIA{}".format, UPPER),
    st.builds("arn:aws:iam::{}:user/jane.doe".format, DIGITS),
    st.builds("arn:aws:sts::{}:assumed-role/Lab/jane@example.com".format, DIGITS),
    st.builds("s3://the-bucket/{}".format, HEX),
    st.builds("https://the-bucket.s3.us-east-1.amazonaws.com/x?X-Amz-Signature={}".format, HEX),
    st.uuids().map(str),
    st.builds("arn:aws:iam::{}:role/Acme,Lab=x+jane@the-bucket".format, DIGITS),
    st.builds("{}/{}/.venv/bin/python".format, st.sampled_from(PLACES), HEX),
    st.builds("jane-{}.local".format, HEX),
    st.builds("{}.the-bucket.example:8080".format, HEX),
    st.builds("s3.us-east-1.amazonaws.com/the-bucket/{}".format, HEX),
    st.builds("alias/jane-{}".format, HEX),
    st.from_regex(r"[0-9]{4}-[0-9]{4}-[0-9]{4}", fullmatch=True),
    st.builds(
        "ip-{}.ec2.internal".format, st.ip_addresses(v=4).map(lambda a: str(a).replace(".", "-"))
    ),
)
WORDS = st.lists(st.sampled_from(["EC2", "refused", "it:", "for", "12m", "(why)", "'"]), max_size=4)


@given(before=WORDS, found=IDS, after=WORDS, quote=st.sampled_from(["", "'", '"', "(", "["]))
def test_no_id_is_left_in_a_text(
    before: list[str], found: str, after: list[str], quote: str
) -> None:
    close = {"(": ")", "[": "]"}.get(quote, quote)
    text = " ".join([*before, f"{quote}{found}{close}", *after])
    told = redacted(text)
    assert found not in told
    assert "jane" not in told
    assert "the-bucket" not in told
    assert all(word in told for word in [*before, *after])


@given(said=IDS, code=IDS, reason=IDS)
def test_no_id_is_left_in_a_report(said: str, code: str, reason: str) -> None:
    result = CanaryResult(
        [CheckOutcome("wrong zone", "failed", f"it said '{said}'", None, code, 400)],
        launches=[("t3.small", WatchedLaunch(reason=reason))],
    )
    shown = json.dumps(report_json(plan_of(Path("/nowhere")), result, 0.0, ()))
    assert [text for text in (said, code, reason) if json.dumps(text)[1:-1] in shown] == []


def test_names_that_are_words_of_the_report_leave_it_as_it_is() -> None:
    own = ["passed", "failed", "Linux", "request", "EC2", "the launch", "us-east-1", "t3.small"]
    outcomes = [
        CheckOutcome("request", "passed", "it passed"),
        CheckOutcome("lease", "failed", "no", None, "NewCode", 400),
    ]
    told = report_json(plan_of(Path("/nowhere")), CanaryResult(outcomes), 0.0, own)
    assert [one["result"] for one in told["checks"]] == ["passed", "failed"]
    assert [one["proves"] for one in told["checks"]] == [CHECKS["request"], CHECKS["lease"]]
    assert told["checks"][0]["said"] == "it <name>"
    assert (told["region"], told["checks"][1]["code"]) == ("us-east-1", "NewCode")
    canary_view(told)


def test_a_user_without_an_entry_in_passwd_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    names = list(names_of(plan_of(tmp_path)))
    assert {"Acme-Lab", "jane@example.com", "/opt/pytorch/bin/python", str(tmp_path)} <= {*names}
    assert "train.py" in names


def test_a_tag_that_is_a_word_of_the_report_does_not_break_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, spec_of(tags={"stage": "passed", "request": "failed"}))
    told = report_json(plan, flown_of("passed"), 0.0, tuple(names_of(plan)))
    assert told["checks"][0]["result"] == "passed"
    canary_view(told)


def test_what_overlaps_is_taken_out_whole() -> None:
    assert redacted("by jane@acme.example.", ["jane"]) == "by <mail>."
    assert redacted("in /home/jane/my files/x", ["/home/jane/my files"]) == "in <name>"
    assert redacted("acme-i-0123456789abcdef0-prod", ["acme-i-0123456789abcdef0-prod"]) == "<name>"
    assert redacted("'/home/jane/my files/x' is 5 MB/s", []) == "'<path>' is 5 MB/s"
    assert redacted("path ARN", ["path", "ARN"]) == "<name> <name>"


def test_names_are_taken_out_and_words_are_left() -> None:
    text = "role secret-lab of my at /home/me/spec: the army of my-bucket in us-east-1 took 1.23s"
    told = redacted(text, ["secret-lab", "my", "/home/me", "root", ""])
    assert (
        told == "role <name> of <name> at <name>: the army of <name>-bucket in us-east-1 took 1.23s"
    )
    assert redacted("seerd 0.1.0, Python 3.11.7, status 403, 2026-11-25") == (
        "seerd 0.1.0, Python 3.11.7, status 403, 2026-11-25"
    )


# ---------------------------------------------------------------- what an instance tells

MAY = (
    "Matching Defaults entries for seerd on ip-10-0-0-1:\n    env_reset\n\n"
    "User seerd may run the following commands on ip-10-0-0-1:\n    (root) NOPASSWD: "
    '/sbin/shutdown -h now, /usr/sbin/shutdown -h now, /sbin/poweroff "",\n        '
    '/usr/sbin/poweroff ""\n'
)
FINE = Facts(
    now=1050.0,
    timer_at=1020.0,
    timer_unit="[Timer]\nOnActiveSec=11min 58s 500ms\n",
    timer="active",
    watch="active",
    without_token=401,
    with_token=200,
    role=404,
    root=1,
    may=MAY,
)
TIMES = {"asked": 1000.0, "reported_at": 1050.0, "hard_end": 1740.0}


def outcome(check: str, **changes: Any) -> CheckOutcome:
    found = judged(
        Facts(**({name: getattr(FINE, name) for name in FINE.__struct_fields__} | changes)),
        **TIMES,
    )
    return next(one for one in found if one.check == check)


def test_an_instance_that_is_as_it_should_be() -> None:
    assert [one.check for one in judged(FINE, **TIMES)] == list(inside.REPORTED)
    assert {one.result for one in judged(FINE, **TIMES)} == {"passed"}
    assert outcome("user data").seconds == pytest.approx(20.0)
    assert list(inside.commands(MAY)) == list(POWER)


@pytest.mark.parametrize(
    ("check", "changes", "result"),
    [
        ("timer", {"timer": "inactive"}, "failed"),
        ("timer", {"timer_at": None}, "failed"),
        ("timer", {"timer_unit": "OnActiveSec=3h\n"}, "failed"),
        ("timer", {"timer_unit": "OnActiveSec=718\n"}, "passed"),
        ("timer", {"timer_unit": "OnActiveSec=a while\n"}, "unknown"),
        ("timer", {"timer_unit": ""}, "unknown"),
        ("orphan watch", {"watch": "inactive"}, "failed"),
        ("IMDSv1", {"without_token": 200}, "failed"),
        ("IMDSv1", {"with_token": 401}, "failed"),
        ("IMDSv1", {"without_token": 0}, "unknown"),
        ("no credentials", {"role": 200}, "failed"),
        ("no credentials", {"role": 401}, "unknown"),
        ("sudo", {"root": 0}, "failed"),
        ("sudo", {"may": MAY + "    (ALL : ALL) ALL\n"}, "failed"),
        ("sudo", {"may": MAY.replace("-h now", "*")}, "failed"),
        ("sudo", {"may": "Sorry, user seerd may not run sudo on x.\n"}, "failed"),
        ("user data", {"timer_at": None}, "failed"),
    ],
)
def test_what_is_not_as_it_should_be(check: str, changes: dict[str, Any], result: str) -> None:
    assert outcome(check, **changes).result == result


def test_a_launch_that_gets_spot_for_too_little_has_not_fallen_back() -> None:
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    assert parts.fell_back(WatchedLaunch(request=spot)).result == "failed"
    moments = WatchedLaunch(asked=1.0, answered=3.5, refused="SpotMaxPriceTooLow")
    assert (parts.fell_back(moments).result, parts.fell_back(moments).seconds) == ("passed", 2.5)


def test_a_login_goes_the_way_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host 10.0.*\n  ProxyJump me@bastion.example\n")
    jumped = RemoteMachine("i-1", "10.0.0.1", "seerd", key=tmp_path / "key")
    assert connecting.way_in(jumped) == "through the ProxyJump of ~/.ssh/config"
    assert connecting.way_in(replace(jumped, address="10.1.0.1")) == ""
    tunnel = replace(jumped, proxy=("aws", "ec2-instance-connect", "open-tunnel", "i-1"))
    by_aws = connecting.way_in(tunnel)
    assert by_aws == "through aws ec2-instance-connect open-tunnel"
    launch = WatchedLaunch(login=1.0, way=by_aws)
    outcome = parts.way_in(launch, spec_of().cluster)
    assert (outcome.result, outcome.said) == ("passed", by_aws)


def test_what_a_spec_does_not_use_is_not_tried() -> None:
    def untried(*, gpu: bool, **keys: Any) -> dict[str, str]:
        return {one.check: one.said for one in parts.not_tried(spec_of(**keys).cluster, gpu=gpu)}

    assert set(untried(gpu=True)) == set(USES)
    both = untried(gpu=False, scratch="/nvme", iops=4000)
    assert {both[check] for check in GPU_PARTS} == {"--gpu tries it"}
    used = {"market": ("spot", "on-demand"), "scratch": "/nvme", "throughput": 300}
    assert set(untried(gpu=True, **used)) == {CAPACITY}
    assert set(untried(gpu=True, **used, capacity="cr-1")) == {FALLBACK}


def test_how_far_a_launch_came() -> None:
    moments = WatchedLaunch(asked=10.0, answered=11.0, pending=11.0, running=20.0, address=20.5)
    found = timeline(moments, "host key mismatch")
    assert [one.result for one in found] == [*["passed"] * 4, "failed", *["unknown"] * 2]
    assert found[2].seconds == 10.0
    assert [one.result for one in timeline(WatchedLaunch(), "")] == ["unknown"] * 7


# ---------------------------------------------------------------- refusals, URLs, policies


def refusal(kind: ErrorKind, code: str = "X") -> AwsError:
    return AwsError("launching: no (X: no)", kind, code, "no", 400)


def test_a_refusal_is_what_seerd_takes_it_for() -> None:
    known = kind_of("SpotMaxPriceTooLow", 400)
    assert launching.judged("wrong price", refusal(known)).result == "passed"
    assert launching.judged("wrong price", refusal(ErrorKind.REFUSED)).result == "failed"
    new = launching.judged("wrong zone", refusal(ErrorKind.UNKNOWN, "NewCode"))
    assert (new.result, new.code, new.status) == ("failed", "NewCode", 400)
    assert launching.judged("wrong image", refusal(ErrorKind.DENIED)).result == "unknown"
    assert launching.judged("wrong image", refusal(ErrorKind.UNCLEAR)).result == "unknown"
    assert launching.judged("wrong price", refusal(ErrorKind.CREDENTIALS)).result == "unknown"


def test_what_a_policy_lacks_is_named_by_a_doctor_who_may_do_no_more(
    rig: Rig, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (rig.env | forked()).items():
        monkeypatch.setenv(name, value)
    document = policy(replace(NEEDS, region="us-east-1", subnets=(), groups=()))
    for one in document["Statement"]:
        one["Action"] = [
            a for a in one["Action"] if a not in {"ec2:DescribeImages", "s3:PutObject"}
        ]
    words = ["doctor", str(write()), "--home", str(tmp_path / "home"), "--json"]

    async def asked() -> CheckOutcome:
        async with Cloud("us-east-1") as cloud:
            me = "arn:aws:iam::123456789012:user/me"
            return await terminals.printed_policy(cloud, me, document, words)

    found = asyncio.run(asked())
    assert found.result == "failed"
    assert found.said == "the policy does not permit ec2:DescribeImages, s3:PutObject"


def test_a_url_whose_time_is_over() -> None:
    assert inside.late(inside.TransferTry(1.0)).result == "failed"
    assert inside.late(inside.TransferTry(1.0, "no route", 0)).result == "unknown"
    old = inside.TransferTry(1.0, "refused", 403, "AccessDenied", expired=True)
    assert inside.late(old).result == "passed"
    assert inside.late(replace_(old, expired=False)).result == "failed"


def replace_(tried: inside.TransferTry, **changes: Any) -> inside.TransferTry:
    return inside.TransferTry(
        **({name: getattr(tried, name) for name in tried.__struct_fields__} | changes)
    )


NEEDS = Needs(
    region="eu-west-1",
    account="123456789012",
    image="ami-0123456789abcdef0",
    subnets=("subnet-1",),
    groups=("sg-1",),
    key=None,
    spot=False,
    store=("bucket", "p/q"),
    data=tuple((f"data-{n}", "x/") for n in range(9)),
)


def test_the_printed_policy_fits_into_sessions() -> None:
    statements = policy(NEEDS)["Statement"]
    parts = terminals.split(statements)
    assert [one for part in parts for one in part] == statements
    assert all(len(terminals.written(part)) <= terminals.LONGEST_POLICY for part in parts)
    launching = [part for part in parts if any("Launch" in one["Sid"] for one in part)]
    assert len(launching) == 1, "a launch needs all of its statements at once"


@pytest.mark.parametrize("image", [NEEDS.image, "ssm:/aws/service/x/ami-id", "ssm:/mine"])
def test_the_policy_of_the_canary_has_no_mistake(image: str) -> None:
    assert lint(canary_policy(replace(NEEDS, image=image), terminals.SESSION)) == []


# ---------------------------------------------------------------- what plans use from now on


def spec_of(**changed: Any) -> Spec:
    """The example's spec, with these keys of `[cluster]`."""
    spec = load_spec(ROOT / "examples" / "aws" / "spec.toml", [])
    assert isinstance(spec.cluster, Ec2Keys)
    own = {"region": "us-east-1", "store": "s3://mine/seerd", "security_groups": ("sg-1",)}
    cluster = replace(spec.cluster, **(own | changed))
    return replace(spec, cluster=cluster)


def plan_of(home: Path, spec: Spec | None = None) -> CanaryPlan:
    """A canary with a GPU that may fly."""
    spec = spec or spec_of()
    assert isinstance(spec.cluster, Ec2Keys)
    return CanaryPlan(
        spec=spec,
        cluster=spec.cluster,
        asked=SpecOptions(ROOT / "examples" / "aws" / "spec.toml"),
        home=Home(home),
        run="canary-20261125-101502-3fa1",
        owner="jane",
        arn="arn:aws:sts::123456789012:assumed-role/Acme-Lab/jane@example.com",
        small=SMALL,
        gpu=WITH_GPU,
        most_usd=0.15,
    )


def flown_of(cold: Result, *, boot_s: float = 20.0, torch_s: float | None = 30.0) -> CanaryResult:
    moments = WatchedLaunch(asked=1.0, running=9.0, agent=9.0 + boot_s)
    launches = [(SMALL.type, moments), (WITH_GPU.type, moments)]
    outcomes = [CheckOutcome("torch, cold", cold, "it has the GPU")]
    return CanaryResult(outcomes, launches=launches, release=[0.5], torch_s=torch_s)


@pytest.mark.parametrize(
    ("cold", "torch_s"), [("failed", None), ("failed", 30.0), ("unknown", None)]
)
def test_a_boot_without_its_import_of_torch_is_not_kept(
    tmp_path: Path, cold: Result, torch_s: float | None
) -> None:
    kept = kept_times(plan_of(tmp_path), flown_of(cold, torch_s=torch_s), 0.0)
    assert [one.instance_type for one in kept] == ["t3.small"]
    whole = kept_times(plan_of(tmp_path), flown_of("passed"), 0.0)
    assert [(one.instance_type, one.boot_s) for one in whole] == [
        ("t3.small", (20.0,)),
        ("g4dn.xlarge", (50.0,)),
    ]


def test_a_home_that_cannot_be_written_is_found_before_anything_is_rented(tmp_path: Path) -> None:
    (tmp_path / "canaries").write_text("a file")
    asked = SpecOptions(ROOT / "examples" / "aws" / "spec.toml")
    with pytest.raises(UsageError, match=r"nothing was started: .*canaries"):
        asyncio.run(canary.planned(spec_of(), asked, Home(tmp_path), gpu=False))
    assert list((tmp_path / "clouds").iterdir()) == [], "the probe has left nothing"


@pytest.mark.parametrize("json_", [False, True])
@pytest.mark.parametrize("folder", ["clouds", "canaries"])
def test_what_was_found_out_is_told_though_it_cannot_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, *, json_: bool
) -> None:
    (tmp_path / folder).write_text("a file")
    said: list[str] = []
    plan, result = plan_of(tmp_path), flown_of("passed")
    assert canary.conclude(plan, result, 0.0, (), said.append, json=json_) == 1
    assert "torch, cold" in capsys.readouterr().out
    assert any(str(tmp_path / folder) in line for line in said)
    other = "canaries" if folder == "clouds" else "clouds"
    assert list((tmp_path / other).iterdir()), "the other was written all the same"


def test_the_times_of_a_machine_that_slept_are_not_kept(tmp_path: Path) -> None:
    said: list[str] = []
    assert (
        canary.conclude(plan_of(tmp_path), flown_of("passed"), 0.0, (), said.append, json=True) == 0
    )
    good = {path: path.read_text() for path in (tmp_path / "clouds").iterdir()}
    assert len(good) == 2
    slept = flown_of("passed", boot_s=5000.0)
    assert canary.conclude(plan_of(tmp_path), slept, 0.0, (), said.append, json=True) == 1
    assert any("are not kept, as they cannot be true" in line for line in said)
    assert {path: path.read_text() for path in (tmp_path / "clouds").iterdir()} == good


# ---------------------------------------------------------------- the table


def test_checks_that_were_not_come_to_are_unknown_and_the_first_outcome_counts() -> None:
    heard: list[CheckOutcome] = []
    log = OutcomeLog(heard.append)
    log.add(CheckOutcome("PUT", "passed", "it was put"), CheckOutcome("PUT", "failed", "too late"))
    found = log.complete(gpu=False, why="it was over")
    assert [one.check for one in found] == [one for one in CHECKS if one not in GPU_CHECKS]
    assert [one.check for one in found if one.result == "passed"] == ["PUT"]
    assert len(heard) == len(found)
    assert len(log.complete(gpu=True, why="")) == len(CHECKS)


def test_the_table_has_a_line_for_each_check() -> None:
    from rich.console import Console

    row = {"check": "wrong zone", "result": "failed", "said": "no\nwhy", "seconds": 1.25}
    told = {"passed": 0, "failed": 1, "unknown": 0, "untried": 4, "usd": 0.01, "most_usd": 0.02}
    told |= {"checks": [row | {"code": "X", "status": 400}]}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(canary_view(told))
    text = console.export_text()
    assert text.startswith("failed   wrong zone")
    assert "no (X, status 400)" in text
    assert "0 passed, 1 failed, 0 unknown, 4 not tried; about $0.010, of at most $0.020" in text
