"""The scripts of `seerd image build`, run as root on an instance of the rig: which packages are
asked for on which GPUs, what becomes of fabric manager and upgrades, and what the check says.

The archive is a stand-in, since no package of NVIDIA's installs without a GPU: it notes what it is
asked for, and what it "installs" is there afterwards.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import launch, until

AMI = Path(__file__).parent.parent / "ami"
DRIVER = "550.127.05"
"""Of the rig's `nvidia-smi`."""
T4, V100, NVSWITCH, BLACKWELL_SWITCH = (
    ("0x10de", "0x030200", "0x1eb8"),
    ("0x10de", "0x030200", "0x1db1"),
    ("0x10de", "0x068000", "0x1af1"),
    ("0x15b3", "0x020700", "0x1021"),
)
SCRIPT_S = 60.0

UBUNTU = """
rm /etc/os-release
printf 'ID=ubuntu\\nPRETTY_NAME="Ubuntu 24.04 LTS"\\n' >/etc/os-release
printf '#!/bin/sh\\nexit 0\\n' >/usr/local/sbin/modprobe
cat >/usr/local/sbin/apt-get <<'END'
#!/bin/sh
echo "$*" >>/var/log/asked
case "$*" in
*linux-modules-nvidia-*) [ ! -e /run/no-signed-modules ] || exit 100 ;;
esac
case "$*" in
*nvidia-headless-*) printf 'GPUS=4\\nGPU_HEALTH=ok\\n' >/run/gpus ;;
*nvidia-fabricmanager*=*) /root/fabric-manager "$(echo "$*" | sed 's/.*=\\([0-9.]*\\).*/\\1/')" ;;
esac
END
cat >/usr/local/sbin/apt-cache <<'END'
#!/bin/sh
[ "$2" = "nvidia-fabricmanager-550" ] || exit 0
cat /run/madison
END
cat >/root/fabric-manager <<'END'
#!/bin/sh
printf '#!/bin/sh\\necho "Fabric Manager version is : %s"\\n' "$1" >/usr/local/bin/nv-fabricmanager
chmod 755 /usr/local/bin/nv-fabricmanager
printf '[Service]\\nExecStart=/usr/local/bin/nv-fabricmanager\\n' \\
  >/usr/lib/systemd/system/nvidia-fabricmanager.service
END
printf '#!/bin/sh\\ncat /run/license\\n' >/usr/local/sbin/modinfo
chmod 755 /usr/local/sbin/* /root/fabric-manager
echo 'Dual MIT/GPL' >/run/license
printf ' nvidia-fabricmanager-550 | %s | http://archive noble/multiverse amd64 Packages\\n' \\
  550.163.01-0ubuntu1 550.127.05-0ubuntu0.24.04.1 >/run/madison
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance of the rig, and what is done on it as root.

    pid   of its first process
    root  its disk
    """

    pid: int
    root: Path

    def run(self, program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--all", "--wd=/", "bash", "-s"],
            input=f"cd /\n{program}",
            capture_output=True,
            text=True,
            timeout=SCRIPT_S,
            check=False,
        )

    def script(self, name: str, **values: object) -> subprocess.CompletedProcess[str]:
        """Run a script of the image's, for a spec of 4 GPUs without torch unless told otherwise."""
        given = {
            "PYTHON": "python3",
            "TORCH": 0,
            "SOURCE": "/",
            "GPUS": 4,
            "FREE_GB": 1,
            "NVSWITCH": 0,
            "BLACKWELL": 0,
        } | values
        head = "".join(f"export SEERD_{key}={value}\n" for key, value in given.items())
        return self.run(head + (AMI / name).read_text())

    def provision(self, **values: object) -> str:
        done = self.script("provision.sh", **values)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wrong(self, **values: object) -> str:
        """What the check finds wrong; empty: nothing."""
        done = self.script("check.sh", **values)
        assert (done.returncode == 0) == ("check: " not in done.stdout), done.stdout + done.stderr
        return done.stdout.partition("check: ")[2]

    def devices(self, *found: tuple[str, str, str]) -> None:
        """These are on its PCI bus: vendor, class and device of each."""
        lines = ["mkdir -p /run/pci", "mount --bind /run/pci /sys/bus/pci/devices"]
        for number, one in enumerate(found):
            lines.append(f"mkdir /run/pci/{number}")
            for name, value in zip(("vendor", "class", "device"), one, strict=True):
                lines.append(f"echo {value} >/run/pci/{number}/{name}")
        assert self.run("\n".join(lines)).returncode == 0

    def asked(self) -> list[str]:
        """The packages that the archive was asked for, one line for each question."""
        lines = (self.root / "var/log/asked").read_text().splitlines()
        return [
            " ".join(word for word in line.split("install", 1)[1].split() if word[0] != "-")
            for line in lines
            if " install " in line
        ]


@pytest.fixture
def machine(rig: Rig) -> Machine:
    """Ubuntu on a machine with 4 GPUs that has a driver, once it has booted."""
    (name,) = launch(rig, InstanceType="g4dn.12xlarge")
    pid = until(lambda: rig.account()[name].pid)
    root = Path(f"/proc/{pid}/root")
    until((root / "var/lib/cloud/instance/boot-finished").exists)
    made = Machine(pid, root)
    done = made.run(UBUNTU)
    assert done.returncode == 0, done.stderr
    return made


def no_driver(machine: Machine) -> None:
    (machine.root / "run/gpus").write_text("GPUS=0\nGPU_HEALTH=none\n")


def test_the_driver_has_open_modules_and_a_fabric_manager_of_its_very_version(
    machine: Machine,
) -> None:
    no_driver(machine)
    machine.devices(T4)
    said = machine.provision()
    kernel = machine.run("uname -r").stdout.strip()
    driver, fabric_manager = machine.asked()
    assert driver == (
        f"linux-modules-nvidia-580-server-open-{kernel} nvidia-headless-no-dkms-580-server-open "
        "nvidia-utils-580-server"
    )
    assert fabric_manager == "nvidia-fabricmanager-550=550.127.05-0ubuntu0.24.04.1"
    assert "with its open kernel modules" in said
    assert machine.wrong() == ""
    assert machine.wrong(NVSWITCH=1, BLACKWELL=1) == ""


def test_modules_that_ubuntu_has_not_signed_for_this_kernel_are_built(machine: Machine) -> None:
    no_driver(machine)
    (machine.root / "run/no-signed-modules").touch()
    machine.provision()
    kernel = machine.run("uname -r").stdout.strip()
    assert machine.asked()[1] == (
        f"linux-headers-{kernel} nvidia-headless-580-server-open nvidia-utils-580-server"
    )


def test_gpus_older_than_turing_get_the_closed_modules(machine: Machine) -> None:
    no_driver(machine)
    machine.devices(V100)
    machine.provision()
    assert "nvidia-headless-no-dkms-580-server " in machine.asked()[0]
    (machine.root / "run/license").write_text("NVIDIA\n")
    assert machine.wrong() == ""
    assert "run only with the open ones: take a base image" in machine.wrong(BLACKWELL=1)


def test_a_driver_that_is_there_is_left_alone(machine: Machine) -> None:
    machine.provision()
    assert not (machine.root / "var/log/asked").exists()
    assert machine.wrong() == ""


@pytest.mark.parametrize("switch", [NVSWITCH, BLACKWELL_SWITCH])
def test_with_nvswitches_the_fabric_manager_is_installed_and_runs(
    machine: Machine, switch: tuple[str, str, str]
) -> None:
    machine.devices(switch)
    machine.provision()
    assert machine.asked() == ["nvidia-fabricmanager-550=550.127.05-0ubuntu0.24.04.1"]
    assert (machine.root / "run/started-nvidia-fabricmanager.service").exists()
    assert machine.wrong() == ""
    machine.run("systemctl stop nvidia-fabricmanager.service")
    assert "its fabric manager does not run" in machine.wrong()


def test_without_nvswitches_it_is_not_started(machine: Machine) -> None:
    machine.devices(T4)
    machine.provision(NVSWITCH=1)
    assert machine.run("systemctl restart nvidia-fabricmanager.service").returncode == 0
    assert not (machine.root / "run/started-nvidia-fabricmanager.service").exists()
    machine.run("rm /etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service")
    assert "will not start at boot" in machine.wrong()


def test_a_fabric_manager_of_another_version_is_replaced(machine: Machine) -> None:
    machine.run("/root/fabric-manager 550.54.15")
    assert machine.wrong().startswith(
        f"the fabric manager is 550.54.15 and the driver is {DRIVER}; they must be the same"
    )
    machine.provision()
    assert machine.asked() == ["nvidia-fabricmanager-550=550.127.05-0ubuntu0.24.04.1"]
    assert machine.wrong() == ""


def test_where_no_package_has_the_drivers_version_it_is_told_before_an_image_is_made(
    machine: Machine,
) -> None:
    (machine.root / "run/madison").write_text(" nvidia-fabricmanager-550 | 550.163.01-1 | x\n")
    machine.provision()
    assert machine.wrong() == ""
    assert "there is no fabric manager" in machine.wrong(NVSWITCH=1)
    done = machine.script("provision.sh", NVSWITCH=1)
    assert done.returncode == 1
    assert f"provision: no package has a fabric manager of the driver's version {DRIVER}" in (
        done.stdout
    )
    assert "take a base image that has both" in done.stdout


UPGRADES = (
    ("rm /etc/apt/apt.conf.d/99seerd", "APT::Periodic::Enable is not 0"),
    ("systemctl unmask apt-daily-upgrade.timer", "apt-daily-upgrade.timer is disabled"),
    ("systemctl unmask unattended-upgrades.service", "unattended-upgrades.service is disabled"),
    (
        "echo 'APT::Periodic::Enable \"1\";' >/etc/apt/apt.conf.d/99z",
        "APT::Periodic::Enable is not 0",
    ),
)
"""Commands that turn upgrades on, and what the check says then."""


def test_upgrades_are_off_and_the_check_says_which_are_not(machine: Machine) -> None:
    assert "upgrades are on" in machine.wrong()
    for undo, told in UPGRADES:
        machine.provision()
        assert machine.wrong() == ""
        machine.run(undo)
        assert told in machine.wrong(), undo


PACKAGES = {
    "nvidia-utils-550-server": DRIVER,
    "libnvidia-compute-550-server": DRIVER,
    "nvidia-container-toolkit": "1.17.0",
    "linux-image-6.8.0-1009-aws": "6.8.0",
    "linux-aws": "6.8.0",
    "bash-like": "5.2",
}


def test_driver_and_kernel_are_held_and_the_check_names_what_is_not(machine: Machine) -> None:
    with (machine.root / "var/lib/dpkg/status").open("a") as status:
        for name, version in PACKAGES.items():
            status.write(
                f"\nPackage: {name}\nStatus: install ok installed\nArchitecture: all\n"
                f"Version: {version}-0ubuntu1\nMaintainer: nobody\nDescription: none\n"
            )
    machine.provision()
    held = set(machine.run("apt-mark showhold").stdout.split())
    assert held & PACKAGES.keys() == PACKAGES.keys() - {"bash-like"}
    machine.run("apt-mark unhold libnvidia-compute-550-server nvidia-container-toolkit")
    assert "parts of the driver (libnvidia-compute-550-server)" in machine.wrong()
