"""An instance's machine: namespaces, a disk, a first process, and the ways in which it can go
wrong.

The one rule: a machine knows no cloud. It is given a name, an address and user data; it says when
it has ended, and of itself it ends only by its own power-off.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import fcntl
import gzip
import hashlib
import os
import shlex
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.testbed.rig import network
from bench.testbed.rig.metadata import Metadata, serve

DISTRIBUTION = Path(__file__).parent / "image" / "distribution"
DISK_SLACK = 64 * 1024
MADE_S = 20.0
LEAST_FD = 10
"""Of what a boot script is given: it uses the lower ones itself."""
CGROUPS = ("", "unified/")
"""Where control groups of version 2 are, below /sys/fs/cgroup: alone, or beside version 1
(cgroups(7)).
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What `nvidia-smi` tells of an instance type."""

    gpus: int
    gpu_name: str
    gpu_mib: int


@dataclass(frozen=True, slots=True)
class Order:
    """What to boot. `boot_s`: from cloud-init's network stage to sshd; `nologin_s`: from sshd until
    pam_nologin lets users in; `cold_s`: of the first import of torch. `layers`: folders that lie on
    the rig's image, the upper ones first; with `distribution` they are all of the disk, and its own
    systemd boots and sees to the rest.
    """

    instance: str
    address: str
    public: str | None
    hardware: Hardware
    user_data: bytes
    boot_s: float = 0.0
    nologin_s: float = 0.0
    cold_s: float = 0.0
    disk_bytes: int = 8 << 30
    layers: tuple[Path, ...] = ()
    distribution: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """What machines of a rig have in common."""

    bridge: network.Bridge
    folder: Path
    image: Path
    shown: list[str]

    def name_of(self, address: str) -> str:
        """The name of a machine's cable and of its control group."""
        number = int(address.split(".")[2]) * 256 + int(address.split(".")[3])
        return f"rig{self.bridge.slot}v{number}"


@dataclass(slots=True)
class Machine:
    """An instance: its disk and its cable, and what runs there since `switch_on`."""

    order: Order
    folder: Path
    link: network.Link
    power: socket.socket
    process: asyncio.subprocess.Process
    stop_metadata: Callable[[], object]
    watcher: asyncio.Task[None] | None = None
    clearing: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int | None:
        """The first process as this machine sees it; None until its root is the instance's own disk
        and not this machine's, and once it has ended.
        """
        first = self._first()
        with contextlib.suppress(OSError):
            while first is not None and Path(f"/proc/{first}/root").samefile("/"):
                first = _child(first) if self.order.distribution else None
            return first
        return None

    def _first(self) -> int | None:
        return None if self.process.returncode is not None else _child(self.process.pid)

    @property
    def root(self) -> Path:
        """The instance's file system, from outside. Raises `OSError` where it has none: nothing may
        reach this machine's.
        """
        pid = self.pid
        if pid is None:
            raise FileNotFoundError(f"{self.order.instance} has no disk yet, or no more")
        return Path(f"/proc/{pid}/root")

    def switch_on(self) -> None:
        """Let it boot."""
        with contextlib.suppress(OSError):  # it was taken apart before
            self.power.send(b"\n")

    async def image(self, to: Path) -> None:
        """Copy what its disk has beyond the image that it booted. Raises OSError."""
        await asyncio.to_thread(
            subprocess.run,
            ["cp", "--archive", f"/proc/{self.pid}/fd/9/.", str(to)],
            check=True,
            stdin=subprocess.DEVNULL,
        )

    async def kill(self) -> None:
        """Power off as pulling the plug does: every process at once, then the sockets, then the
        cable.

        The first process ends when all others have, and its parent after it: so nothing is left
        when the parent is gone.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first() or self.process.pid, signal.SIGKILL)
        await self.process.wait()
        await self._clear()

    def reset(self) -> None:
        """What the button of that name does: every process at once, and it boots from the disk as
        it is. Raises `OSError` where nothing has booted.
        """
        pid = self.pid
        if pid is None or not self.order.distribution:
            raise FileNotFoundError(f"{self.order.instance} has no system of its own that boots")
        (self.folder / "reset").touch()
        os.kill(pid, signal.SIGKILL)

    def reboot(self) -> None:
        """End every process and boot from the disk as it is. Raises `OSError` where nothing has
        booted.
        """
        if self.order.distribution:
            self.reset()
            return
        door = os.open(self.root / "run/initctl", os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(door, "w") as first:
            (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
            first.write("reboot\n")

    async def drop(self) -> None:
        """Gone without a word to anyone: the cable first, so that no connection is seen to
        close.
        """
        if self.clearing is None:
            await self.link.down()
        await self.kill()

    async def _clear(self) -> None:
        """Once, and to its end, whoever gives up waiting: a cable that is left would keep the
        address of the next machine.
        """
        if self.clearing is None:
            self.stop_metadata()
            self.power.close()
            remove_groups(self.link.veth)
            self.clearing = asyncio.ensure_future(self.link.remove())
        await asyncio.shield(self.clearing)

    async def wait(self) -> None:
        """Until it has powered itself off or was killed."""
        await self.process.wait()
        await self._clear()

    async def partition(self) -> None:
        await self.link.down()

    async def heal(self) -> None:
        await self.link.up()

    async def slow(self, delay_s: float, loss: float) -> None:
        await self.link.slow(delay_s, loss)

    def fill_disk(self, free_bytes: int) -> None:
        """Leave so much room on the disk. Raises OSError if there is less already."""
        at = self.root / "var/lib/rig-filler"
        at.unlink(missing_ok=True)
        state = os.statvfs(self.root)
        size = state.f_bavail * state.f_frsize - free_bytes - DISK_SLACK
        fd = os.open(at, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(1, size))
        finally:
            os.close(fd)

    def mount_disk(self, folder: str, size_bytes: int) -> None:
        """Mount an empty disk there, whose top is root's alone. Raises `OSError`."""
        (self.root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        options = f"mode=755,size={size_bytes}"
        words = ["mount", "-t", "tmpfs", "-o", options, "disk", folder]
        subprocess.run(["nsenter", f"--target={self.pid}", "--mount", *words], check=True)

    def set_gpus(self, count: int, health: str) -> None:
        """What nvidia-smi shows from now on: fewer devices, or a driver that does not answer
        (`health` other than "ok").
        """
        (self.root / "run/gpus").write_text(f"GPUS={count}\nGPU_HEALTH={health}\n")

    def hold_memory(self, gpu: int, mib: int, pid: int | None) -> None:
        """So much memory of this GPU stays in use from now on, by this process, or, with none, by
        nobody who is listed.
        """
        named = "" if pid is None else str(pid)
        with (self.root / "run/gpus").open("a") as file:
            file.write(f"HELD_GPU={gpu}\nHELD_MIB={mib}\nHELD_PID={named}\n")


def _child(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return None


def remove_groups(name: str) -> None:
    """Remove the control groups of machines with such a name, as far as nothing runs in them."""
    for top in (path for base in CGROUPS for path in Path("/sys/fs/cgroup").glob(f"{base}{name}")):
        for group, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(group).rmdir()


def decode_user_data(given: str) -> bytes:
    """User data as RunInstances carries it: base64, and perhaps gzip inside, which cloud-init
    unpacks.

    Raises ValueError if it is not base64.
    """
    try:
        raw = base64.b64decode(given, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


async def make(ground: Ground, order: Order, metadata: Metadata) -> Machine:
    """A machine that is switched off. Raises OSError where the kernel refuses."""
    folder = ground.folder / order.instance
    _lay_out(folder, order)
    name = ground.name_of(order.address)
    link = await network.connect(ground.bridge, name, order.address, order.public)
    stop_metadata = await serve(link.metadata, metadata)
    try:
        machine = await _plugged_in(ground, order, link, stop_metadata)
    except OSError:
        stop_metadata()
        await link.remove()
        raise
    made = b""
    with contextlib.suppress(OSError):  # it took too long, or its boot script is gone
        async with asyncio.timeout(MADE_S):
            made = await asyncio.get_running_loop().sock_recv(machine.power, 1)
    if not made:
        await machine.kill()
        raise OSError((folder / "console").read_text(errors="replace").strip() or "it has no disk")
    return machine


async def _plugged_in(
    ground: Ground, order: Order, link: network.Link, stop_metadata: Callable[[], object]
) -> Machine:
    folder = ground.folder / order.instance
    power, theirs = socket.socketpair()
    power.setblocking(False)
    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, LEAST_FD)
    theirs.close()
    try:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL"),
            *("nsenter", f"--net=/proc/self/fd/{link.fd}"),
            *(
                "unshare",
                "--fork",
                "--kill-child",
                "--pid",
                "--mount",
                "--uts",
                "--propagation",
                "private",
            ),
            *("/bin/bash", *_script(ground, order, fd)),
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=(folder / "console").open("wb"),
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(link.fd, fd),
        )
    except OSError:
        power.close()
        raise
    finally:
        os.close(fd)
    return Machine(order, folder, link, power, process, stop_metadata)


def _script(ground: Ground, order: Order, power: int) -> tuple[str, ...]:
    """The words of the script that makes the disk and boots from it."""
    folder, size = str(ground.folder / order.instance), str(order.disk_bytes)
    layers = order.layers if order.distribution else (*order.layers, ground.image)
    disk = ":".join(map(str, layers))
    if order.distribution:
        return str(DISTRIBUTION), folder, disk, size, ground.name_of(order.address), str(power)
    boot = str(ground.image / "usr/local/lib/rig/boot")
    return boot, folder, disk, size, _hostname(order.address), str(power), *ground.shown


def _lay_out(folder: Path, order: Order) -> None:
    (folder / "disk").mkdir(parents=True)
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    (folder / "user-data").write_bytes(order.user_data)
    (folder / "hostname").write_text(_hostname(order.address))
    (folder / "uuid").write_text(f"ec2{str(uuid.uuid4())[3:]}\n")
    facts = {
        "HOSTNAME": _hostname(order.address),
        "ADDRESS": order.address,
        "GPUS": order.hardware.gpus,
        "GPU_NAME": order.hardware.gpu_name,
        "GPU_MIB": order.hardware.gpu_mib,
        "GPU_HEALTH": "ok",
        "GPU_SEED": str(uuid.UUID(hashlib.md5(order.instance.encode()).hexdigest()))[:32],
        "OS_BOOT_S": f"{order.boot_s:g}",
        "NOLOGIN_S": f"{order.nologin_s:g}",
        "COLD_S": f"{order.cold_s:g}",
    }
    (folder / "machine").write_text(
        "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in facts.items())
    )


def _hostname(address: str) -> str:
    return "ip-" + address.replace(".", "-")
