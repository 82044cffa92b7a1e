"""A bridge per rig, and a network namespace per instance on it.

The one rule: nothing here outlives its owner. A namespace is held by a file descriptor alone and
has no name; a bridge says whose it is, and the next rig removes those of the dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import json
import os
import re
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from bench.testbed.rig.relay import Relay, open_relay

CLONE_NEWNET = 0x40000000
IP_FREEBIND = 15
METADATA = "169.254.169.254"
NOTHING = "02:72:00:00:00:00"
"""A hardware address that nothing has."""
SLOTS = 100
PUBLIC = int(ipaddress.IPv4Address("198.18.0.0"))
PUBLIC_STEP = 1024
"""Public addresses are of the network for tests that no router passes on (RFC 2544): so many for
each rig.
"""
PREFIX = "seerdrig"
ZONE_STEP = 16
"""Subnets are /20, as in the default VPC of an AWS account."""


class NoRigError(RuntimeError):
    """This machine cannot be made into instances: no root, no namespaces, or a program is
    missing.
    """


@dataclass(frozen=True, slots=True)
class Bridge:
    """The link that all instances of one rig share. Its addresses are `10.<net>.0.0/16`."""

    slot: int

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.slot}"

    @property
    def vpc_cidr(self) -> str:
        return f"10.{self.slot + 100}.0.0/16"

    @property
    def address(self) -> str:
        """The router's address in the first subnet: where the instances and this machine reach the
        rig's endpoint.
        """
        return f"10.{self.slot + 100}.0.1"

    @property
    def nowhere(self) -> str:
        """The router of what may not pass, which is not there."""
        return f"10.{self.slot + 100}.255.254"

    @property
    def internet(self) -> str:
        """This machine's public address, and its network."""
        return f"{self.public(0)}/22"

    def public(self, number: int) -> str:
        """A public address of an instance, from 1 on; in the end the first come again."""
        at = number and 1 + (number - 1) % (PUBLIC_STEP - 3)
        return str(ipaddress.IPv4Address(PUBLIC + self.slot * PUBLIC_STEP + 1 + at))

    def subnet_cidr(self, index: int) -> str:
        return f"10.{self.slot + 100}.{ZONE_STEP * index}.0/20"

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self.name], check=False, capture_output=True)


def claim_bridge(zones: int) -> Bridge:
    """The first free bridge, made and up; creating a link is atomic, so rigs that start together
    get different ones.

    Raises `NoRigError` where links cannot be made.
    """
    _remove_stale()
    last = ""
    for slot in range(SLOTS):
        made = subprocess.run(
            ["ip", "link", "add", f"{PREFIX}{slot}", "type", "bridge"],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode == 0:
            bridge = Bridge(slot)
            _set_up(bridge, zones)
            return bridge
        last = made.stderr.strip()
        if "exists" not in last:
            break
    raise NoRigError(
        f"no bridge could be made ({last}); the rig needs root and Linux network namespaces"
    )


def _set_up(bridge: Bridge, zones: int) -> None:
    net = bridge.slot + 100
    lines = [f"link set {bridge.name} alias {identity(os.getpid())}"]
    lines += [
        f"addr add 10.{net}.{ZONE_STEP * zone}.1/{16 if zone == 0 else 32} dev {bridge.name}"
        for zone in range(zones)
    ]
    lines += [f"addr add {bridge.internet} dev {bridge.name}", f"link set {bridge.name} up"]
    subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, capture_output=True
    )


def identity(pid: int) -> str:
    """A process id that is not mistaken for a later process with the same number. Raises OSError if
    there is none, or a zombie.
    """
    state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(pid)
    started = rest[18]  # field 22 of proc(5)
    return f"{pid}-{started}"


def alive(identity_then: str) -> bool:
    """Whether the process with this identity still runs."""
    try:
        return identity(int(identity_then.partition("-")[0])) == identity_then
    except (OSError, ValueError):
        return False


def _remove_stale() -> None:
    shown = subprocess.run(
        ["ip", "-j", "link", "show", "type", "bridge"], check=False, capture_output=True, text=True
    )
    for link in json.loads(shown.stdout or "[]"):
        owner = link.get("ifalias")
        if re.fullmatch(PREFIX + r"\d+", link.get("ifname", "")) and owner and not alive(owner):
            subprocess.run(["ip", "link", "del", link["ifname"]], check=False, capture_output=True)


@dataclass(slots=True)
class Link:
    """One instance's namespace, cable, and the socket of its metadata service."""

    fd: int
    veth: str
    bridge: str
    metadata: socket.socket
    relay: Relay | None = None
    rules: list[str] = field(default_factory=list)
    first: int = 1000

    async def route(self, rules: list[str]) -> None:
        """Have these rules of routing, in their order, in the place of those before."""
        if rules == self.rules:
            return
        first = 3000 - self.first
        lines = [f"rule add pref {first + at} {rule}" for at, rule in enumerate(rules)]
        lines += [f"rule del pref {self.first + at}" for at in range(len(self.rules))]
        self.rules, self.first = rules, first
        await _ip(*lines, inside=self.fd)

    async def slow(self, delay_s: float, loss: float) -> None:
        """Frames take so long each way, and this share of them is lost; 0 and 0: a cable again."""
        await self._plain()
        if delay_s == 0 and loss == 0:
            return
        tap = self.veth + "t"
        self.relay = open_relay(self.fd, self.veth, tap, delay_s, loss)
        await _ip(
            f"link set {self.veth} nomaster",
            f"link set {tap} master {self.bridge}",
            f"link set {tap} up",
        )
        self.relay.start()

    async def _plain(self) -> None:
        if self.relay is not None:
            self.relay.stop()
            self.relay = None
            await _ip(f"link set {self.veth} master {self.bridge}")

    async def up(self) -> None:
        await _ip(f"link set {self.veth} up")

    async def down(self) -> None:
        await _ip(f"link set {self.veth} down")

    async def remove(self) -> None:
        """The cable first: sockets in a namespace that is deleted with its cable in place answer
        for 90 s.
        """
        if self.relay is not None:
            self.relay.stop()
        await _ip(f"link del {self.veth}")
        self.metadata.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


async def connect(bridge: Bridge, veth: str, address: str, public: str | None) -> Link:
    """A namespace with these addresses on the bridge and 169.254.169.254 within."""
    fd, metadata = await asyncio.to_thread(_namespace)
    link = Link(fd, veth, bridge.name, metadata)
    try:
        await _plug(link, bridge, address, public)
    except OSError:
        await link.remove()
        raise
    return link


async def _plug(link: Link, bridge: Bridge, address: str, public: str | None) -> None:
    """The hardware address follows from the other one, so nobody remembers a wrong one when an
    address comes again.
    """
    hardware = "02:72:" + ":".join(f"{int(part):02x}" for part in address.split("."))
    await _ip(
        f"link add {link.veth} type veth peer name eth0 address {hardware} netns "
        f"/proc/{os.getpid()}/fd/{link.fd}",
        f"link set {link.veth} master {bridge.name}",
        f"link set {link.veth} up",
    )
    await _ip(
        f"addr add {address}/16 dev eth0",
        *([] if public is None else [f"addr add {public}/22 dev eth0"]),
        f"addr add {METADATA}/32 dev lo",
        "link set lo up",
        "link set eth0 up",
        f"route add default via {bridge.address}",
        f"neigh add {bridge.nowhere} lladdr {NOTHING} dev eth0 nud permanent",
        f"route add default via {bridge.nowhere} dev eth0 table 99",
        inside=link.fd,
    )


def _namespace() -> tuple[int, socket.socket]:
    """A new network namespace and a listener in it. In a thread of its own: a namespace belongs to
    a thread.
    """
    found: list[tuple[int, socket.socket]] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            found.append(_enter_new())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise NoRigError(f"no network namespace could be made: {failed[0]}") from failed[0]
    return found[0]


def _enter_new() -> tuple[int, socket.socket]:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((METADATA, 80))
    return fd, listener


async def _ip(*lines: str, inside: int | None = None) -> None:
    enter = [] if inside is None else ["nsenter", f"--net=/proc/self/fd/{inside}"]
    process = await asyncio.create_subprocess_exec(
        *enter,
        "ip",
        "-batch",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=() if inside is None else (inside,),
    )
    _, complaint = await process.communicate("\n".join(lines).encode())
    if process.returncode != 0 and "del" not in lines[0]:
        raise OSError(complaint.decode(errors="replace"))


def require_tools() -> None:
    """Raises `NoRigError`, in one sentence, where a rig cannot be."""
    if os.uname().sysname != "Linux":
        raise NoRigError("the rig makes instances out of Linux namespaces, and this is not Linux")
    if os.geteuid() != 0:
        raise NoRigError(
            "the rig makes network namespaces and mounts, which takes root; run the tests as root"
        )
    missing = [
        tool
        for tool in ("ip", "unshare", "nsenter", "setpriv", "sshd", "ssh-keygen", "sudo")
        if not _found(tool)
    ]
    if missing:
        raise NoRigError(
            f"the rig needs {', '.join(missing)}; .ci/packages installs them on Debian"
        )


def _found(tool: str) -> bool:
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]
    with contextlib.suppress(OSError):
        return any(os.access(Path(folder) / tool, os.X_OK) for folder in folders if folder)
    return False
