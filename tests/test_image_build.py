"""`seerd image build` as a person runs it, against the rig: what is in the image, what is not, and
that nothing else is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import Keys, client, launch, until
from seerd import cli
from seerd.aws.cloud import Cloud
from seerd.aws.types import BLACKWELL, NVSWITCH
from seerd.backends.base import Left
from seerd.backends.ec2.sweeping import Ec2Sweeper
from seerd.errors import SeerdError
from tests.commands import Command

ROOT = Path(__file__).parent.parent
SECRET = "w4ndb-api-key-of-somebody"


@pytest.fixture
def project(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Writes a spec with these lines in [train]; the command that builds its image."""

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what is killed leaves its folder

    def make(*train: str, **cluster: str) -> list[str]:
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "train.py").write_text("pass\n")
        (folder / "train.py").chmod(0o755)
        keys = {
            "provider": "ec2",
            "region": "us-east-1",
            "instance_type": "g4dn.12xlarge",
            "image": rig.image,
            "security_groups": [rig.security_group],
        } | cluster
        lines = [
            'name = "digits"',
            'metric = { name = "accuracy", mode = "max" }',
            "[train]",
            'script = "train.py"',
            *train,
        ]
        lines += ["[space]", "lr = { low = 0.1, high = 0.9 }", "[cluster]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        (folder / "spec.toml").write_text("\n".join(lines) + "\n")
        return ["image", "build", str(folder / "spec.toml"), "--home", str(tmp_path / "home")]

    return make


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command has ended, and what it has printed."""

    returncode: int
    stdout: str
    stderr: str


def environment(rig: Rig) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return (
        own | rig.env | {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    )


def build(rig: Rig, command: list[str]) -> Ended:
    """Builds in this process, which has imported what the command needs; an error is printed as
    `cli.main` does.
    """
    none = {name: None for name in os.environ if name.startswith("AWS_")}
    done = CliRunner().invoke(cli.app, command, env=none | environment(rig))
    if isinstance(done.exception, SeerdError):
        code = done.exception.exit_code
        return Ended(code, done.stdout, f"{done.stderr}seerd: {done.exception}\n")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ended(done.exit_code, done.stdout, done.stderr)


def begin(rig: Rig, command: list[str], until_line: str) -> Command:
    """Builds in the background until it has said this."""
    process = Command(command, ROOT, environment(rig))
    said = []
    for line in process.stdout:
        said.append(line)
        if until_line in line:
            return process
    raise AssertionError(f"{until_line!r} was not said: {said} {process.communicate()[1]}")


def ours(rig: Rig) -> list[str]:
    """Images and snapshots that a build has made, and volumes that are there."""
    ec2, mine = client(rig, "ec2"), [{"Name": "tag-key", "Values": ["seerd:run"]}]
    images = [
        image["ImageId"] for image in ec2.describe_images(Owners=["self"], Filters=mine)["Images"]
    ]
    snapshots = [
        one["SnapshotId"]
        for one in ec2.describe_snapshots(OwnerIds=["self"], Filters=mine)["Snapshots"]
    ]
    return (
        images
        + snapshots
        + [one["VolumeId"] for one in ec2.describe_volumes(Filters=mine)["Volumes"]]
    )


def assert_nothing_left(rig: Rig) -> None:
    """A volume goes with its instance, a moment after that has ended."""
    assert rig.instances() == []
    until(lambda: not ours(rig))


async def booted(rig: Rig, image: str) -> Path:
    """The root of an instance of this image, once its own user data has run and it was logged in
    to.
    """
    keys = Keys()
    (instance,) = launch(rig, ImageId=image, UserData=keys.script, InstanceType="g4dn.12xlarge")
    there = await asyncio.to_thread(
        until, lambda: next((i for i in rig.instances() if i.id == instance and i.pid), None)
    )
    async with await keys.connect(there.address) as connection:
        assert (await connection.run("sudo -n true")).exit_status == 0
    return Path(f"/proc/{there.pid}/root")


def test_the_image_has_what_was_installed_and_boots_and_nothing_else_is_left(
    rig: Rig, project: Callable[..., list[str]], tmp_path: Path
) -> None:
    client(rig, "s3").put_object(Bucket=rig.bucket, Key="corpus/a/b.txt", Body=b"data")
    command = project(
        'python = "gpu-python"',
        'setup = ["mkdir -p /opt/tools && cp requirements.txt /opt/tools/", "test '
        f'$WANDB_API_KEY = {SECRET}"]',
        f'env = {{ WANDB_API_KEY = "{SECRET}" }}',
        f'data = [{{ from = "s3://{rig.bucket}/corpus", to = "data" }}]',
    )
    requirements = tmp_path / "project" / "requirements.txt"
    requirements.write_text("# what the rig's interpreter has anyway\nmsgspec\n")
    ended = build(rig, [*command, "--data", "--name", "digits image", "--json"])
    assert ended.returncode == 0, ended.stderr
    for progress in (
        "4 GPUs",
        "torch: ",
        "requirements.txt: 1 lines",
        "setup: mkdir",
        "data: 1 files",
        "disk: ",
        "pending",
    ):
        assert progress in ended.stderr
    assert "0 instances, 0 volumes left" in ended.stderr
    built = json.loads(ended.stdout)
    assert built["left"] == []
    assert built["boot_s"] > 0
    assert built["spared_gpu_s"] == pytest.approx(4 * built["install_s"], abs=0.5)
    assert rig.instances() == []
    (billed,) = [one.billed_s(time.time()) for one in rig.account().values()]
    assert abs(built["ran_s"] - billed) <= 1.0

    until(lambda: ours(rig) == [built["image"], *built["snapshots"]])
    (image,) = client(rig, "ec2").describe_images(ImageIds=[built["image"]])["Images"]
    assert image["Name"] == "digits image"
    assert image["State"] == "available"

    root = asyncio.run(booted(rig, built["image"]))
    assert (root / "opt/tools/requirements.txt").exists()
    assert (root / "opt/seerd/data/data/a/b.txt").read_bytes() == b"data"
    assert_clean(root)
    layer = Path(next(iter(rig.account().values())).folder).parent / built["image"]
    assert (layer / "opt/tools").is_dir()
    assert '::Enable "0"' in (root / "etc/apt/apt.conf.d/99seerd").read_text()
    assert (root / "etc/systemd/system/apt-daily-upgrade.timer").readlink() == Path("/dev/null")
    assert SECRET.encode() not in b"".join(
        path.read_bytes() for path in layer.rglob("*") if path.is_file()
    )


def assert_clean(root: Path) -> None:
    """Nothing of the build that a run's instance, or anybody who gets the image, should find."""
    assert "seerd:" not in (root / "etc/passwd").read_text()
    assert not (root / "home/seerd").exists()
    assert not (root / "etc/sudoers.d/seerd").exists()
    assert (root / "etc/machine-id").read_text() == ""
    assert list((root / "var/tmp").iterdir()) == []
    assert list(root.glob("home/*/.ssh/authorized_keys")) == [
        root / "home/ubuntu/.ssh/authorized_keys"
    ]
    logs = "".join(
        path.read_text(errors="replace") for path in (root / "var/log").rglob("*") if path.is_file()
    )
    assert "seerd" not in logs
    user_data = (root / "var/lib/cloud/instance/user-data.txt").read_text()
    assert "seerd" not in user_data
    assert (root / "etc/ssh/ssh_host_ed25519_key").read_text() in user_data.replace("KEY\n", "", 1)


def test_a_setup_command_that_fails_is_told_with_its_last_lines(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    ended = build(rig, project('launcher = "command"', 'setup = ["echo no such wheel; exit 3"]'))
    assert ended.returncode == 1
    assert "setup command 'echo no such wheel; exit 3' ended with exit status 3" in ended.stderr
    assert "  no such wheel\n" in ended.stderr
    assert "was terminated\n0 instances, 0 volumes left" in ended.stderr
    assert_nothing_left(rig)
    assert rig.calls.get("ec2:CreateImage") is None


def test_a_check_that_fails_makes_no_image(rig: Rig, project: Callable[..., list[str]]) -> None:
    broken = "printf 'GPUS=3\\nGPU_HEALTH=ok\\n' >/run/gpus"
    ended = build(rig, project('launcher = "command"', f"setup = [{json.dumps(broken)}]"))
    assert ended.returncode == 1
    assert "check: nvidia-smi lists 3 GPUs where 4 are expected" in ended.stderr
    assert "0 instances, 0 volumes left" in ended.stderr
    assert_nothing_left(rig)
    assert rig.calls.get("ec2:CreateImage") is None


def test_a_fabric_manager_of_another_version_makes_no_image(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    at = "/usr/local/bin/nv-fabricmanager"
    other = f"printf '#!/bin/sh\\necho 550.54.15\\n' >{at}; chmod 755 {at}"
    ended = build(rig, project('launcher = "command"', f"setup = [{json.dumps(other)}]"))
    assert ended.returncode == 1
    assert "check: the fabric manager is 550.54.15 and the driver is 550.127.05" in ended.stderr
    assert "0 instances, 0 volumes left" in ended.stderr
    assert_nothing_left(rig)


@pytest.mark.parametrize(
    ("kind", "switches", "blackwell"),
    [
        ("g4dn.12xlarge", False, False),
        ("p5.4xlarge", False, False),
        ("p5.48xlarge", True, False),
        ("p4de.24xlarge", True, False),
        ("g7e.48xlarge", False, True),
        ("p6-b200.48xlarge", True, True),
    ],
)
def test_what_a_type_needs_is_known_by_its_name(kind: str, switches: bool, blackwell: bool) -> None:
    assert (kind.startswith(NVSWITCH), kind.startswith(BLACKWELL)) == (switches, blackwell)


def test_ctrl_c_while_it_is_being_installed_leaves_nothing(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    process = begin(
        rig, project('launcher = "command"', 'setup = ["sleep 600"]'), "setup: sleep 600"
    )
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    told, wrong = process.communicate()
    assert process.returncode == 130
    assert "interrupted; giving the instance back" in told
    assert "no image was made: it was interrupted" in wrong
    assert "0 instances, 0 volumes left" in wrong
    assert_nothing_left(rig)


def test_ctrl_c_while_the_instance_boots_leaves_nothing(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    rig.set_boot(boot_s=60.0)
    process = begin(rig, project('launcher = "command"'), "asking for one g4dn.12xlarge")
    until(rig.instances)
    process.send_signal(signal.SIGINT)
    _, wrong = process.communicate()
    assert process.returncode == 130
    assert "0 instances, 0 volumes left" in wrong
    assert_nothing_left(rig)


def test_ctrl_c_while_the_image_is_pending_leaves_no_image(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    rig.set_imaging(600.0)
    process = begin(rig, project('launcher = "command"'), "is pending")
    process.send_signal(signal.SIGINT)
    _, wrong = process.communicate()
    assert process.returncode == 130
    assert "removed what there was of the image: ami-" in wrong
    assert_nothing_left(rig)


def test_killed_it_leaves_an_instance_that_ends_by_itself_and_that_sweep_finds(
    rig: Rig, project: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(
        rig, project('launcher = "command"', 'setup = ["sleep 600"]'), "setup: sleep 600"
    )
    process.kill()
    process.communicate()
    (left,) = rig.instances()
    timer = Path(f"/proc/{left.pid}/root") / "run/systemd/transient/seerd-hard-end.timer"
    assert 6600 < int(timer.read_text().removeprefix("OnActiveSec=")) <= 7200
    for name, value in environment(rig).items():
        monkeypatch.setenv(name, value)
    row = client(rig, "ec2").describe_instances(InstanceIds=[left.id])["Reservations"][0][
        "Instances"
    ][0]
    tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
    assert tags["seerd:run"].startswith("image-digits-")

    async def swept() -> list[Left]:
        async with Cloud("us-east-1") as cloud:
            found = (await Ec2Sweeper.find(cloud, tags["seerd:owner"])).left
            for one in found:
                await Ec2Sweeper.remove(cloud, one)
            return found

    assert [one.id for one in asyncio.run(swept())] == [left.id]
    until(lambda: ours(rig) == [])
    assert_nothing_left(rig)


def test_an_answer_that_is_lost_makes_no_second_image(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    rig.lose_reply("CreateImage")
    ended = build(rig, [*project('launcher = "command"'), "--json"])
    assert ended.returncode == 0, ended.stderr
    built = json.loads(ended.stdout)
    assert rig.calls["ec2:CreateImage"] == 1
    until(lambda: ours(rig) == [built["image"], *built["snapshots"]])


@pytest.mark.parametrize(("action", "status"), [("RunInstances", 5), ("CreateImage", 5)])
def test_what_the_cloud_refuses_has_its_own_exit_code(
    rig: Rig, project: Callable[..., list[str]], action: str, status: int
) -> None:
    rig.deny(action)
    ended = build(rig, project('launcher = "command"'))
    assert ended.returncode == status
    assert "your credentials do not permit it" in ended.stderr
    assert "0 instances, 0 volumes left" in ended.stderr
    assert_nothing_left(rig)


def test_what_cannot_be_is_refused_before_anything_starts(
    rig: Rig, project: Callable[..., list[str]]
) -> None:
    command = project('launcher = "command"')
    taken: Any = client(rig, "ec2").describe_images(ImageIds=[rig.image])["Images"][0]["Name"]
    refused = {
        "EC2 takes 3 to 128": ["--name", "x"],
        "of the name": ["--name", taken],
        "no train.data": ["--data"],
        "has no GPU": ["--instance-type", "m5.large"],
    }
    for why, more in refused.items():
        ended = build(rig, [*command, *more])
        assert (ended.returncode, why in ended.stderr) == (2, True), (more, ended.stderr)
    assert rig.calls.get("ec2:RunInstances") is None
