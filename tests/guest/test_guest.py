"""What seerd has an instance do, done by the systemd, the sshd and the cloud-init of a real
distribution.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.testbed.rig.guest import until
from seerd.backends.ec2.provider import Ec2Provider
from tests.guest.kit import (
    BOOT_S,
    BY_ITSELF,
    TOKEN,
    Guests,
    came,
    sshd_by_service,
    sshd_by_socket,
    unit_that_hangs,
)

Make = Callable[..., Guests]
APART_S = 5.0
"""How far the timer may be from the hard end: the script computes in whole seconds."""


@pytest.mark.parametrize("sshd", [sshd_by_service, sshd_by_socket])
def test_it_boots_until_its_agent_answers_and_is_given_back(
    guests: Make, tmp_path: Path, sshd: Callable[[Path], Path]
) -> None:
    guest = guests(sshd(tmp_path / "layer"))
    places: list[Path] = []

    async def scenario(provider: Ec2Provider) -> None:
        launched = await provider.launch(TOKEN)
        _, writer = await provider.connect(launched.instance)
        writer.close()
        shown = guest.inside("cat", "/etc/ssh/ssh_host_ed25519_key.pub")
        assert shown.split()[:2] == guest.host_key().split()[:2]
        assert guest.power_off_at() == pytest.approx(guest.hard_end, abs=APART_S)
        assert guest.watched()
        places.extend([guest.control_group(), Path(guest.the_one().folder)])
        await provider.terminate(launched.instance)
        assert (await provider.leftovers()).costing == []

    guest.play(scenario)
    assert not [place for place in places if place.exists()]


def test_a_unit_that_hangs_keeps_neither_the_timer_nor_the_agent_away(
    guests: Make, tmp_path: Path
) -> None:
    guest = guests(unit_that_hangs(tmp_path / "layer"))

    async def scenario(provider: Ec2Provider) -> None:
        launch = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.to_thread(until, guest.power_off_at, BOOT_S)
        assert guest.power_off_at() == pytest.approx(guest.hard_end, abs=APART_S)
        assert await came(launch)
        assert guest.watched()
        assert guest.inside("systemctl", "is-active", "hangs.service") == "activating"
        assert guest.inside("systemctl", "is-active", "multi-user.target") == "inactive"

    guest.play(scenario)


def test_a_reboot_brings_timer_and_watchdog_back(guests: Make) -> None:
    guest = guests()
    guest.leave_alone()
    for _ in range(2):
        until(guest.watched, BOOT_S)
        assert guest.power_off_at() == pytest.approx(guest.hard_end, abs=APART_S)
        guest.reboot()
    assert guest.ended() is None


def test_a_reboot_ends_an_instance_that_has_worked(guests: Make) -> None:
    guest = guests()

    async def scenario(provider: Ec2Provider) -> None:
        launched = await provider.launch(TOKEN)
        worked = ("find", "/var/lib/cloud/scripts", "-name", "seerd-worked")
        await asyncio.to_thread(until, lambda: guest.inside(*worked), BOOT_S)
        guest.inside("systemctl", "reboot")
        loss = await asyncio.wait_for(provider.loss(), BOOT_S)
        assert loss.instance == launched.instance

    guest.play(scenario)
    assert guest.the_one().reason == BY_ITSELF


def test_it_powers_itself_off_when_its_lease_ends(guests: Make) -> None:
    guest = guests(lease_s=5.0)

    async def scenario(provider: Ec2Provider) -> None:
        launched = await provider.launch(TOKEN)
        loss = await asyncio.wait_for(provider.loss(), BOOT_S)
        assert loss.instance == launched.instance

    guest.play(scenario)
    assert guest.the_one().reason == BY_ITSELF


def test_it_powers_itself_off_at_its_hard_end(guests: Make) -> None:
    guest = guests(hard_end=time.time())
    guest.leave_alone()
    assert until(guest.power_off_at, BOOT_S) > guest.hard_end
    assert until(guest.ended, BOOT_S).reason == BY_ITSELF


def test_it_powers_itself_off_when_nobody_comes(guests: Make) -> None:
    """By its own clock, which begins with its boot."""
    guest = guests()
    guest.leave_alone(orphan_timeout_s=45.0)
    ended = until(guest.ended, BOOT_S)
    assert ended.reason == BY_ITSELF
    assert ended.billed_s(time.time()) > 15.0, "not by the clock of the machine beneath it"


@pytest.mark.parametrize(
    "moment",
    [
        "/var/log/cloud-init.log",
        "/var/lib/cloud/instances/{id}/user-data.txt",
        "/var/lib/cloud/instances/{id}/sem/config_users_groups",
        "/var/lib/cloud/instances/{id}/sem/config_scripts_user",
    ],
    ids=["first stage", "user data is there", "users are made", "last stage"],
)
def test_a_first_boot_that_is_interrupted_comes_up_or_ends(guests: Make, moment: str) -> None:
    guest = guests()

    def interrupt() -> None:
        until(lambda: guest.has(moment.format(id=guest.the_one().id)), BOOT_S)
        guest.press_reset()

    def safe() -> bool:
        return guest.ended() is not None or (guest.watched() and guest.power_off_at() is not None)

    async def scenario(provider: Ec2Provider) -> None:
        launch = asyncio.create_task(provider.launch(TOKEN, orphan_timeout_s=90.0))
        await asyncio.to_thread(until, guest.rig.account)
        await asyncio.to_thread(interrupt)
        await asyncio.to_thread(until, safe, BOOT_S)
        if not await came(launch):
            assert guest.the_one().reason == BY_ITSELF

    guest.play(scenario)
