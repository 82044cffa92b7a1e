"""What `seerd image build` does about fabric manager and upgrades, to a real systemd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.testbed.rig.guest import until
from seerd.backends.ec2.provider import Ec2Provider
from tests.guest.kit import BOOT_S, TOKEN, Guests

AMI = Path(__file__).parent.parent.parent / "ami"
UNIT = "nvidia-fabricmanager.service"
VERSION = "580.95.05"

PROGRAMS = {
    "nvidia-smi": f"""[ "$1" = -L ] && echo "GPU 0: Tesla T4 (UUID: GPU-1)" || echo {VERSION}""",
    "nv-fabricmanager": f"""[ "$1" = --version ] && echo {VERSION} && exit 0
echo "request to query NVSwitch device information failed: Nothing to do"
exit 1""",
}
"""A driver, and a fabric manager that finds no NVSwitch
(github.com/NVIDIA/gpu-operator/issues/610).
"""
SERVICE = """\
[Service]
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
[Install]
WantedBy=multi-user.target
"""


def with_driver(layer: Path) -> Path:
    """Lay out a disk with a driver, a fabric manager, and the script that makes it an image."""
    programs, units = layer / "usr/bin", layer / "usr/lib/systemd/system"
    programs.mkdir(parents=True)
    units.mkdir(parents=True)
    for name, program in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{program}\n")
        (programs / name).chmod(0o755)
    (units / UNIT).write_text(SERVICE)
    (layer / "usr/local").mkdir()
    head = "export SEERD_PYTHON=python3 SEERD_TORCH=0 SEERD_SOURCE=/ SEERD_NVSWITCH=0\n"
    (layer / "usr/local/provision").write_text(head + (AMI / "provision.sh").read_text())
    return layer


def test_without_nvswitches_it_is_skipped_and_the_system_is_not_degraded(
    guests: Callable[..., Guests], tmp_path: Path
) -> None:
    guest = guests(with_driver(tmp_path / "layer"))

    async def scenario(provider: Ec2Provider) -> None:
        await provider.launch(TOKEN)
        told = guest.inside("bash", "/usr/local/provision")
        assert f"fabric manager: {VERSION} is there" in told
        assert guest.inside("systemctl", "is-enabled", UNIT) == "enabled"
        assert guest.inside("systemctl", "is-enabled", "apt-daily-upgrade.timer") == "masked"
        guest.inside("systemctl", "start", UNIT)
        shown = guest.inside("systemctl", "show", UNIT, "--property=Result,ExecMainStartTimestamp")
        assert shown.splitlines() == ["Result=exec-condition", "ExecMainStartTimestamp="]
        assert guest.inside("systemctl", "is-failed", UNIT) == "inactive"

    guest.play(scenario)


def test_with_an_nvswitch_it_is_started(guests: Callable[..., Guests], tmp_path: Path) -> None:
    """Its failure, as it finds none after all, shows that it was."""
    guest = guests(with_driver(tmp_path / "layer"))

    async def scenario(provider: Ec2Provider) -> None:
        await provider.launch(TOKEN)
        guest.inside("bash", "/usr/local/provision")
        found = (
            "mkdir -p /run/pci/0 && cd /run/pci/0 && echo 0x10de >vendor && echo 0x068000 >class"
        )
        guest.inside("sh", "-c", f"{found} && mount --bind /run/pci /sys/bus/pci/devices")
        guest.inside("systemctl", "start", UNIT)
        until(lambda: guest.inside("systemctl", "is-failed", UNIT) == "failed", BOOT_S)

    guest.play(scenario)
