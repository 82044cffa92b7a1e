"""The EC2 provider where its boot script is really run and its machines are really logged in to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.testbed.rig import Rig, guest
from seerd.aws import prices, quotas, types
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.aws.instances import MOST_VALUES, find, find_among
from seerd.aws.userdata import FIRMWARE_S, LOOK_S
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.provider import Ec2Provider, Ec2Settings
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.errors import LaunchError

RUN = "2026-11-20-rig"
WITHIN_S = 3.0
"""EC2 is asked every half second, and a busy machine hears the answer late."""
"""How far the provider's account may be from the rig's, per instance."""
LONG_ENOUGH_S = 20.0
"""For a login and a first task on a busy machine."""


@pytest.fixture
def aws(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)
    return rig


def settings(rig: Rig, folder: Path) -> Ec2Settings:
    return Ec2Settings(
        run=RUN,
        name="digits",
        owner="arn:aws:iam::123456789012:user/me",
        region="us-east-1",
        instance_types=("p3.8xlarge",),
        gpus=4,
        image=f"ssm:{rig.image_parameter}",
        subnets=tuple(rig.subnets.values())[:2],
        security_groups=(rig.security_group,),
        hard_end=time.time() + 3600,
        boot_s=30.0,
        keys=folder / "keys",
    )


def remote(folder: Path, scratch: str = "") -> Remote:
    bundle, source = folder / "agent.pyz", folder / "source"
    if not bundle.exists():
        build_agent(bundle)
        source.mkdir()
        (source / "train.py").write_text("pass\n")
    options = AgentOptions(
        run=RUN,
        gpus=4,
        cuda=False,
        lease_s=60.0,
        grace_s=5.0,
        power_off=False,
        spot=False,
        python="python3",
        scratch=scratch,
    )
    return Remote(Bundle(bundle, source), options)


def play(rig: Rig, folder: Path, scenario: Callable[[Ec2Provider], Awaitable[None]]) -> None:
    async def run() -> None:
        provider = Ec2Provider(settings(rig, folder), remote(folder))
        try:
            await provider.open()
            await scenario(provider)
        finally:
            await provider.close()

    asyncio.run(run())


def test_instances_boot_are_logged_in_to_and_are_accounted_for_to_within_seconds(
    aws: Rig, tmp_path: Path
) -> None:
    async def scenario(provider: Ec2Provider) -> None:
        launched = await asyncio.gather(*(provider.launch(f"{n}.0") for n in range(4)))
        assert {i.id for i in aws.instances()} == {one.instance for one in launched}
        _, writer = await provider.connect(launched[0].instance)
        writer.close()
        spans = dict(
            zip(
                [one.instance for one in launched],
                await asyncio.gather(*(provider.terminate(one.instance) for one in launched)),
                strict=True,
            )
        )
        assert (await provider.leftovers()).costing == []
        account = aws.account()
        assert set(account) == set(spans)
        for instance, span in spans.items():
            there = account[instance]
            assert span.since is not None
            assert span.until is not None
            assert there.since is not None
            assert there.until is not None
            assert 0.0 <= there.since - span.since <= WITHIN_S
            assert 0.0 <= span.until - there.until <= WITHIN_S

    # Seen while it is pending, though EC2 is asked only every half second.
    aws.set_boot(pending_s=2.0, boot_s=1.0, hidden_s=0.5, nologin_s=0.5, address_s=1.5)
    play(aws, tmp_path, scenario)


def test_what_shuts_down_for_minutes_is_not_waited_for_and_is_nothing_left(
    aws: Rig, tmp_path: Path
) -> None:
    async def scenario(provider: Ec2Provider) -> None:
        launched = await asyncio.gather(provider.launch("1.0"), provider.launch("2.0"))
        spans = await asyncio.gather(*(provider.terminate(one.instance) for one in launched))
        began = time.monotonic()
        left = await provider.leftovers()
        assert time.monotonic() - began < 10.0
        assert left.costing == []
        assert sum(line.startswith("instance ") for line in left.ending) == 2
        assert sum(line.startswith("volume ") for line in left.ending) == 2
        for one, span in zip(launched, spans, strict=True):
            there = aws.account()[one.instance]
            assert there.state == "shutting-down"
            assert there.until is not None
            assert span.until is not None
            assert 0.0 <= span.until - there.until <= WITHIN_S, "charges end when it begins"
        ec2 = guest.client(aws, "ec2")
        pairs = [{"Key": "seerd:run", "Value": RUN}]
        made = await asyncio.to_thread(
            ec2.create_volume,
            AvailabilityZone="us-east-1a",
            Size=10,
            TagSpecifications=[{"ResourceType": "volume", "Tags": pairs}],
        )
        assert (await provider.leftovers()).costing == [
            f"volume {made['VolumeId']} (10 GB) is available"
        ]

    aws.set_shutting_down(180.0)
    play(aws, tmp_path, scenario)


def test_an_instance_that_is_taken_away_is_a_loss_with_its_reason(aws: Rig, tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider) -> None:
        launched = await provider.launch("1.0")
        aws.lose(launched.instance)
        loss = await asyncio.wait_for(provider.loss(), 20)
        assert loss.instance == launched.instance
        assert "AWS took the spot instance back" in loss.why
        there = aws.account()[launched.instance]
        assert there.until is not None
        assert loss.span.until is not None
        assert abs(loss.span.until - there.until) <= 6.0
        assert (await provider.leftovers()).costing == []

    play(aws, tmp_path, scenario)


def test_capacity_goes_by_zone_and_quota_by_family(aws: Rig, tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider) -> None:
        first, second = list(aws.subnets)[:2]
        aws.set_capacity("p3.8xlarge", first, 1)
        a, b = await provider.launch("1.0"), await provider.launch("2.0")
        zones = {i.id: i.zone for i in aws.instances()}
        assert (zones[a.instance], zones[b.instance]) == (first, second)
        aws.set_quota("P", 64)
        with pytest.raises(LaunchError, match="vCPU quota") as told:
            await provider.launch("3.0")
        assert told.value.retry
        await asyncio.gather(provider.terminate("1.0"), provider.terminate("2.0"))

    play(aws, tmp_path, scenario)


def test_a_second_life_reaches_the_instances_of_the_first(aws: Rig, tmp_path: Path) -> None:
    known: list[str] = []

    async def first(provider: Ec2Provider) -> None:
        known.extend(
            one.instance
            for one in await asyncio.gather(provider.launch("1.0"), provider.launch("2.0"))
        )

    async def second(provider: Ec2Provider) -> None:
        assert (await provider.adopt(known[:1], []))[0] == known[:1]
        assert {i.id for i in aws.instances()} == set(known[:1])
        _, writer = await provider.connect(known[0])
        writer.close()
        await provider.terminate(known[0])
        assert (await provider.leftovers()).costing == []

    play(aws, tmp_path, first)
    play(aws, tmp_path, second)


def test_an_agent_waits_for_the_instance_store_and_lives_there(aws: Rig, tmp_path: Path) -> None:
    """Its image mounts that after the boot, and its top is root's."""
    nvme = "/opt/dlami/nvme"
    own = replace(settings(aws, tmp_path), scratch=nvme, unreached_s=0.0)

    def judge() -> None:
        (machine,) = aws.instances()
        disk = Path(f"/proc/{machine.pid}/root{nvme}")
        assert (disk / "seerd").stat().st_uid != disk.stat().st_uid == 0
        pid = (disk / "seerd/.seerd" / RUN / "agent.pid").read_text()
        assert (tmp_path / "pid").read_text() == pid

    async def scenario() -> None:
        reached = remote(tmp_path, scratch=nvme)
        provider = Ec2Provider(own, reached)
        reached.machine = provider.machine
        try:
            await provider.open()
            launching = asyncio.create_task(provider.launch("1.0"))
            while (news := await provider.progress()).what != "unreached" or "nvme" not in news.why:
                pass
            assert news.why == f"no disk is mounted at {nvme} (cluster.scratch)"
            aws.mount_disk(news.instance, nvme)
            launched = await launching
            await reached.read(launched.instance, "agent.pid", tmp_path / "pid", 100)
            await asyncio.to_thread(judge)
            await provider.terminate(launched.instance)
        finally:
            await provider.close()

    asyncio.run(scenario())


def test_an_instance_store_that_is_never_mounted_is_the_cause(aws: Rig, tmp_path: Path) -> None:
    nvme = "/opt/dlami/nvme"
    own = replace(settings(aws, tmp_path), scratch=nvme, boot_s=LONG_ENOUGH_S)

    async def scenario() -> None:
        provider = Ec2Provider(own, remote(tmp_path, scratch=nvme))
        try:
            await provider.open()
            with pytest.raises(LaunchError, match=r"was not ready within .*no disk is mounted at"):
                await provider.launch("1.0")
            assert aws.instances() == []
        finally:
            await provider.close()

    asyncio.run(scenario())


def test_prices_types_and_quotas_are_read(aws: Rig) -> None:
    async def scenario() -> None:
        async with Cloud("us-east-1") as cloud:
            price = await prices.on_demand(cloud, "p3.8xlarge")
            assert price.usd_per_h == pytest.approx(12.24)
            assert price.source == "price list"
            (kind,) = await types.describe(cloud, ["p3.8xlarge"])
            assert (kind.gpus, kind.gpu, kind.vcpus) == (4, "V100", 32)
            aws.set_quota("P", 100)
            enough, short = (
                await quotas.check(cloud, kind, "on-demand", 3),
                await quotas.check(cloud, kind, "on-demand", 4),
            )
            assert (enough.enough, enough.instances) == (True, 3)
            assert short.enough is False
            assert "--desired-value 128" in short.text
            guest.launch(aws, InstanceType="p3.8xlarge")
            beside = await quotas.check(cloud, kind, "on-demand", 3)
            assert (beside.enough, beside.instances) == (False, 2)
            assert (
                "is 100, of which 32 are in use; 3 p3.8xlarge need 96, and it allows 2"
                in beside.text
            )
            aws.set_quota("P", 100, "spot")
            assert (await quotas.check(cloud, kind, "spot", 3)).instances == 3, (
                "on-demand instances count elsewhere"
            )
            aws.set_quota("G", 54)
            both = [kind, *await types.describe(cloud, ["g4dn.12xlarge", "g4dn.xlarge"])]
            joint, never = (
                await quotas.check_all(cloud, both, "on-demand", 4),
                await quotas.check_all(cloud, both, "on-demand", 5),
            )
            assert (joint.enough, joint.instances, never.enough) == (True, 2 + 1 + 1, False)
            aws.deny("servicequotas:GetServiceQuota")
            unknown = await quotas.check(cloud, kind, "on-demand", 1)
            assert unknown.enough is None
            assert "could not be read" in unknown.text

    asyncio.run(scenario())


def test_an_instance_whose_boot_hangs_ends_of_itself(aws: Rig, tmp_path: Path) -> None:
    """A unit hangs, so `multi-user.target` is never reached, nor a login; and the coordinator is
    gone.
    """
    aws.set_boot(boot_s=3600)

    async def scenario() -> None:
        provider = Ec2Provider(settings(aws, tmp_path), remote(tmp_path))
        await provider.open()
        launch = asyncio.create_task(provider.launch("1.0", orphan_timeout_s=LOOK_S + FIRMWARE_S))
        (there,) = await asyncio.to_thread(guest.until, aws.instances)
        root = Path(
            f"/proc/{await asyncio.to_thread(guest.until, lambda: pid(aws, there.id))}/root"
        )
        timer = root / "run/systemd/transient/seerd-hard-end.timer"
        await asyncio.to_thread(guest.until, timer.exists)
        assert 3500 < int(timer.read_text().removeprefix("OnActiveSec=")) <= 3600
        with pytest.raises(LaunchError, match="nothing listens on its port 22"):
            await launch
        assert aws.account()[there.id].reason == "Client.InstanceInitiatedShutdown"
        await provider.close()

    asyncio.run(scenario())


def test_any_number_of_instances_can_be_looked_for_by_their_ids(aws: Rig) -> None:
    """EC2 takes 200 values at once, and so does the rig."""

    async def scenario() -> None:
        async with Cloud("us-east-1") as cloud:
            ids = [f"i-{number:017x}" for number in range(2 * MOST_VALUES + 1)]
            assert await find_among(cloud, "instance-id", ids) == []
            with pytest.raises(AwsError, match="FilterLimitExceeded"):
                await find(cloud, [{"Name": "instance-id", "Values": ids}])

    asyncio.run(scenario())


def test_what_ended_and_lost_its_tags_while_nobody_watched_is_accounted_for(
    aws: Rig, tmp_path: Path
) -> None:
    """One by its id, one by the request that it came of."""

    async def scenario() -> None:
        first = Ec2Provider(settings(aws, tmp_path), remote(tmp_path))
        await first.open()
        known, lost = await asyncio.gather(first.launch("1.0"), first.launch("1.1"))
        await first.close()
        client = guest.client(aws, "ec2")
        ids = [known.instance, lost.instance]
        client.terminate_instances(InstanceIds=ids)
        client.delete_tags(Resources=ids)
        second = Ec2Provider(settings(aws, tmp_path), remote(tmp_path))
        await second.open()
        assert await second.adopt([known.instance], ["1.1"]) == ([], [])
        for name in (known.instance, "1.1"):
            span = await second.terminate(name)
            assert span.since is not None
            assert span.until is not None
        await second.close()

    asyncio.run(scenario())


def pid(aws: Rig, instance: str) -> int | None:
    return aws.account()[instance].pid
