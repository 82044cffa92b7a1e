"""Instances of the rig: they boot, answer, power off and fail as those of EC2 do."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import asyncssh
import pytest

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import Keys, client, launch, until

TOKEN = (
    "$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
    "http://169.254.169.254/latest/api/token)"
)


DOCUMENT = "dynamic/instance-identity/document"


def ask(path: str) -> str:
    """A shell command for a page of the metadata service and its status."""
    return (
        f"curl -s -w ' %{{http_code}}' -H \"X-aws-ec2-metadata-token: {TOKEN}\" "
        f"http://169.254.169.254/latest/{path}"
    )


async def say(ssh: asyncssh.SSHClientConnection, command: str) -> str:
    return str((await ssh.run(command, check=True)).stdout).strip()


def test_an_instance_boots_runs_its_script_and_ends_by_its_own_power_off(rig: Rig) -> None:
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)
    address = rig.account()[name].address

    async def visit() -> dict[str, str]:
        async with await keys.connect(address) as ssh:
            found = {
                "smi": await say(
                    ssh,
                    "nvidia-smi --query-gpu=name,memory.total,driver_version,uuid "
                    "--format=csv,noheader,nounits",
                ),
                "gpus": await say(
                    ssh,
                    "gpu-python -c 'import torch; print(torch.cuda.device_count(), "
                    "torch.cuda.is_available())'",
                ),
                "python": await say(
                    ssh, "python3 -c 'import torch; print(torch.ones(2).sum().item())'"
                ),
                "id": await say(ssh, ask("meta-data/instance-id")),
                "type": await say(ssh, ask("meta-data/instance-type")),
                "spot": await say(ssh, ask("meta-data/spot/instance-action") + " -o /dev/null"),
                "without": await say(
                    ssh,
                    "curl -s -o /dev/null -w '%{http_code}' "
                    "http://169.254.169.254/latest/meta-data/instance-id",
                ),
                "root": await say(ssh, "sudo id -u"),
                "boot": await say(ssh, "cat /proc/sys/kernel/random/boot_id"),
                "scheduled": await say(ssh, "cat /run/systemd/shutdown/scheduled"),
            }
            await ssh.run("sudo shutdown -P now")
            return found

    found = asyncio.run(visit())
    lines = found["smi"].splitlines()
    assert len(lines) == len(set(lines)) == 4
    assert lines[0].startswith("Tesla V100-SXM2-16GB, 16384, 550.127.05, GPU-")
    assert (found["gpus"], found["python"], found["root"]) == ("4 True", "2.0", "0")
    assert (found["id"], found["type"]) == (f"{name} 200", "p3.8xlarge 200")
    assert found["spot"].endswith("404")
    assert found["without"] == "401"
    assert found["boot"] != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert "MODE=poweroff" in found["scheduled"]

    until(lambda: rig.account()[name].state == "terminated")
    ended = rig.account()[name]
    assert ended.reason == "Client.InstanceInitiatedShutdown"
    assert ended.since is not None
    assert ended.until is not None
    assert 0 < ended.billed_s(time.time()) < 30
    assert not Path(ended.folder).exists()


def test_the_metadata_has_versions_and_an_identity_document(rig: Rig) -> None:
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)
    page = ask("meta-data/instance-id")

    async def visit() -> list[str]:
        async with await keys.connect(rig.account()[name].address) as ssh:
            pages = [page.replace("/latest/meta", f"/{of}/meta") for of in ("2021-03-23", "1999")]
            return [await say(ssh, one) for one in (*pages, ask(DOCUMENT))]

    dated, unknown, identity = asyncio.run(visit())
    assert (dated, unknown) == (f"{name} 200", "404")
    document = json.loads(identity.removesuffix(" 200"))
    assert (document["instanceId"], document["region"]) == (name, "us-east-1")


def test_eight_instances_are_reached_at_once_and_reach_each_other(rig: Rig) -> None:
    keys = Keys()
    names = launch(rig, UserData=keys.script, MaxCount=8)
    addresses = [rig.account()[name].address for name in names]

    async def visit() -> list[str]:
        visitors = await asyncio.gather(*(keys.connect(address) for address in addresses))
        try:
            others = addresses[1:] + addresses[:1]
            return await asyncio.gather(
                *(
                    say(ssh, f"timeout 5 bash -c '</dev/tcp/{other}/22' && hostname")
                    for ssh, other in zip(visitors, others, strict=True)
                )
            )
        finally:
            for ssh in visitors:
                ssh.close()
                await ssh.wait_closed()

    assert asyncio.run(visit()) == ["ip-" + address.replace(".", "-") for address in addresses]
    assert len({rig.account()[name].pid for name in names}) == 8


def test_an_instance_sees_nothing_of_this_machine_s_files_and_leaves_nothing(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("mine")
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)

    async def visit() -> str:
        async with await keys.connect(rig.account()[name].address) as ssh:
            await say(
                ssh,
                "sudo sh -c 'echo was here >/etc/rig-was-here; echo was here "
                ">/var/tmp/rig-was-here'",
            )
            return await say(
                ssh,
                f"sudo ls {tmp_path} {Path.cwd() / 'pyproject.toml'} /root/.aws 2>&1 | grep "
                "-vc 'No such file' || true; "
                "sudo cat /proc/1/environ | tr '\\0' '\\n'",
            )

    seen = asyncio.run(visit())
    assert seen.splitlines()[0] == "0"
    assert "AWS_" not in seen
    assert not Path("/etc/rig-was-here").exists()


def test_terminating_ends_every_process_at_once(rig: Rig) -> None:
    (name,) = launch(rig, UserData=Keys().script)
    pid = until(lambda: rig.account()[name].pid)
    children = until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    client(rig, "ec2").terminate_instances(InstanceIds=[name])
    assert not any(Path(f"/proc/{one}").exists() for one in [pid, *children])
    assert rig.instances() == []
    assert rig.account()[name].reason == "Client.UserInitiatedShutdown"


def test_a_spot_notice_is_told_before_the_instance_goes(rig: Rig) -> None:
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script, InstanceMarketOptions={"MarketType": "spot"})

    async def visit() -> tuple[str, str]:
        async with await keys.connect(rig.account()[name].address) as ssh:
            rig.rebalance(name)
            hint = await say(ssh, ask("meta-data/events/recommendations/rebalance"))
            rig.spot_notice(name, 120)
            return hint, await say(ssh, ask("meta-data/spot/instance-action"))

    hint, notice = asyncio.run(visit())
    assert "noticeTime" in hint
    assert json.loads(notice.removesuffix("200"))["action"] == "terminate"
    assert rig.account()[name].state == "running"
    rig.spot_notice(name, 0.1)
    until(lambda: rig.account()[name].state == "terminated")
    assert rig.account()[name].reason == "Server.SpotInstanceTermination"
    (reason,) = [
        one["StateReason"]["Code"]
        for each in client(rig, "ec2").describe_instances(InstanceIds=[name])["Reservations"]
        for one in each["Instances"]
    ]
    assert reason == "Server.SpotInstanceTermination"


def reachable(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=0.3):
            return True
    except OSError:
        return False


def test_a_partition_silences_the_link_and_spares_the_processes(rig: Rig) -> None:
    (name,) = launch(rig)
    address = rig.account()[name].address
    until(lambda: reachable(address))
    pid = rig.account()[name].pid
    rig.partition(name)
    assert not reachable(address)
    assert rig.account()[name].state == "running"
    rig.heal(name)
    until(lambda: reachable(address))
    assert rig.account()[name].pid == pid


def test_a_slow_link_is_slow_and_a_lossy_one_lets_whole_files_through(rig: Rig) -> None:
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)

    async def visit() -> list[float]:
        async with await keys.connect(rig.account()[name].address) as ssh:
            took = []
            for delay_s in (0.0, 0.5, 0.0):
                rig.slow(name, delay_s)
                began = time.monotonic()
                await say(ssh, "true")
                took.append(time.monotonic() - began)
            rig.slow(name, 0.001, loss=0.02)
            assert await say(ssh, "head -c 500000 /dev/zero") == "\0" * 500000
            return took

    plain, slow, again = asyncio.run(visit())
    assert slow >= 1.0
    assert max(plain, again) < slow


def test_a_lost_instance_is_terminated_and_a_vanished_one_is_billed_on(rig: Rig) -> None:
    lost, vanished = launch(rig, MaxCount=2)
    pids = [until(lambda one=name: rig.account()[one].pid) for name in (lost, vanished)]
    rig.lose(lost)
    rig.vanish(vanished)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    until(lambda: rig.account()[lost].state == "terminated")
    assert [one.id for one in rig.instances()] == [vanished]
    assert rig.account()[vanished].until is None
    client(rig, "ec2").terminate_instances(InstanceIds=[vanished])
    assert rig.account()[vanished].until is not None


def test_a_full_disk_and_fewer_gpus(rig: Rig) -> None:
    rig.set_disk(64 << 20)
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)

    async def visit() -> tuple[int | None, str, int | None]:
        async with await keys.connect(rig.account()[name].address) as ssh:
            rig.fill_disk(name, 1 << 20)
            rig.set_gpus(name, 3)
            written = await ssh.run("head -c 8000000 /dev/zero >/home/ubuntu/data")
            count = await say(ssh, "nvidia-smi -L | wc -l")
            rig.set_gpus(name, 4, "gone")
            return written.exit_status, count, (await ssh.run("nvidia-smi")).exit_status

    assert asyncio.run(visit()) == (1, "3", 9)


def test_user_data_may_be_compressed_and_logins_wait_for_the_boot(rig: Rig) -> None:
    rig.set_boot(boot_s=0.3, nologin_s=0.3)
    keys = Keys()
    (name,) = launch(rig, UserData=gzip.compress(keys.script.encode()))
    running = until(lambda: rig.account()[name].since)

    async def visit() -> float:
        async with await keys.connect(rig.account()[name].address):
            return time.time()

    assert asyncio.run(visit()) - running >= 0.6


PARTS = {
    "x-shellscript": "#!/bin/sh\necho script >>/var/tmp/order\n",
    "cloud-config": """\
#cloud-config
users: [default, {name: me, shell: /bin/sh, ssh_authorized_keys: [a-key]}]
write_files: [{path: /etc/sudoers.d/me, permissions: '0440', content: "me ALL=(ALL) ALL\\n"}]
ssh_keys: {ed25519_private: "private\\n", ed25519_public: public}
""",
    "cloud-boothook": (
        "#cloud-boothook\n#!/bin/sh\n! id me || exit 1\necho boothook >>/var/tmp/order\n"
        "systemd-run --no-block --unit=waits touch /var/tmp/waited\n"
        "systemd-run --no-block --unit=early --property=DefaultDependencies=no touch /run/early\n"
    ),
}


def multipart() -> str:
    message = MIMEMultipart()
    for kind, text in PARTS.items():
        message.attach(MIMEText(text, kind, "us-ascii"))
    return message.as_string()


def test_the_parts_of_user_data_run_in_cloud_init_s_order(rig: Rig) -> None:
    """A boothook before there is a user or sshd, a script last, wherever they are in the
    message.
    """
    (name,) = launch(rig, UserData=multipart())
    root = Path(f"/proc/{until(lambda: rig.account()[name].pid)}/root")
    until((root / "var/lib/cloud/instance/boot-finished").exists)
    assert (root / "var/tmp/order").read_text().split() == ["boothook", "script"]
    (me,) = [line for line in (root / "etc/passwd").read_text().splitlines() if "me:" in line[:3]]
    assert me.endswith(":/home/me:/bin/sh")
    assert (root / "home/me/.ssh/authorized_keys").read_text() == "a-key\n"
    assert (root / "etc/sudoers.d/me").stat().st_mode & 0o777 == 0o440
    assert (root / "etc/ssh/ssh_host_ed25519_key").read_text() == "private\n"
    until((root / "var/tmp/waited").exists)


def test_in_a_boot_that_hangs_boothooks_have_run_and_nothing_else_has(rig: Rig) -> None:
    rig.set_boot(boot_s=3600)
    (name,) = launch(rig, UserData=multipart())
    root = Path(f"/proc/{until(lambda: rig.account()[name].pid)}/root")
    until((root / "run/early").exists)
    until((root / "etc/sudoers.d/me").exists)
    assert (root / "var/tmp/order").read_text().split() == ["boothook"]
    assert not (root / "var/tmp/waited").exists(), "a unit waits for sysinit.target"
    assert not reachable(rig.account()[name].address)


@pytest.mark.parametrize(
    "words", ["poweroff", "systemctl poweroff", "shutdown -h now", "/usr/sbin/shutdown -P +0"]
)
def test_every_way_to_switch_off(rig: Rig, words: str) -> None:
    (name,) = launch(rig, UserData=f"#!/bin/sh\n{words}\n")
    until(lambda: rig.account()[name].state == "terminated")
    assert rig.account()[name].reason == "Client.InstanceInitiatedShutdown"


def test_a_scheduled_shutdown_can_be_cancelled(rig: Rig) -> None:
    (name,) = launch(
        rig,
        UserData="#!/bin/sh\nshutdown -P +3\ntest -e /run/systemd/shutdown/scheduled && "
        "shutdown -c\n",
    )
    root = Path(f"/proc/{until(lambda: rig.account()[name].pid)}/root")
    until((root / "var/lib/cloud/instance/boot-finished").exists)
    assert not (root / "run/systemd/shutdown/scheduled").exists()
    assert not (root / "run/nologin").exists()
    assert rig.account()[name].state == "running"


def test_what_is_done_to_an_instance_s_disk_never_reaches_this_machine_s(rig: Rig) -> None:
    def done() -> bool:
        try:
            rig.fill_disk(name)
            rig.set_gpus(name, 1)
        except ValueError:
            return False
        return True

    filler = Path("/var/lib/rig-filler")
    rig.set_disk(64 << 20)  # it is memory
    for _ in range(5):
        (name,) = launch(rig)
        until(done)  # from the first moment on
        assert not filler.exists()
        assert not Path("/run/gpus").exists()


def test_a_reboot_ends_every_process_and_only_boothooks_run_again(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/brought").write_text("by a layer\n")
    message = MIMEMultipart()
    hook = "#cloud-boothook\n#!/bin/sh\necho $(cat /opt/brought) >>/var/lib/hooks\n"
    message.attach(MIMEText(hook, "cloud-boothook"))
    message.attach(MIMEText("#!/bin/sh\necho once >>/var/lib/scripts\n", "x-shellscript"))
    (name,) = launch(rig, UserData=message.as_string(), ImageId=rig.add_layer(tmp_path))

    def there(what: str) -> str:
        root = Path(f"/proc/{rig.account()[name].pid}/root")
        return (root / what).read_text() if (root / what).exists() else ""

    until(lambda: there("var/lib/scripts"))
    boot = there("proc/sys/kernel/random/boot_id")
    with pytest.raises(client(rig, "ec2").exceptions.ClientError, match="DryRunOperation"):
        client(rig, "ec2").reboot_instances(InstanceIds=[name], DryRun=True)
    client(rig, "ec2").reboot_instances(InstanceIds=[name])
    until(lambda: there("var/lib/hooks").count("by a layer") == 2)
    until(lambda: there("run/sshd.pid"))
    assert there("var/lib/scripts") == "once\n"
    assert there("proc/sys/kernel/random/boot_id") not in {"", boot}
    assert rig.account()[name].state == "running"
