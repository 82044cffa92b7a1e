"""One attempt at an SSH connection, and the cause if it fails. There is no trust on first use: the
host key is known from the launch, or from the user's known_hosts.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from seerd.errors import ProviderError

TCP_S = 3.0
"""Time for one TCP connection, seconds. A booting machine does not answer at all, and the kernel's
own repeats (after 1, 3, 7 s) would notice it late.
"""
KEEPALIVE_S, KEEPALIVES = 4.0, 3  # a machine that falls silent is noticed after (3 + 1) x 4 s
LEFT_S, DENIED_S = 1.0, 5.0
"""Pauses after leaving before the login, and after a denied login, seconds. Since OpenSSH 9.8, sshd
locks out a client that does either too often; the penalties are 1 s and 5 s each (sshd_config(5),
PerSourcePenalties), so at this pace they never add up.
"""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
SSH_PORT = 22
BOOTING = re.compile(
    r"booting up|nologin|not permitted to log in|system is going down", re.IGNORECASE
)
SHOWN = 400
CONFIG = Path("~/.ssh/config")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteMachine:
    """A machine that can be logged in to, and how to get there."""

    name: str  # what it is called in messages
    address: str  # host name or IP address
    user: str  # empty: as ~/.ssh/config says, else the user's own name
    port: int = SSH_PORT
    # OpenSSH public keys, one of which it must show; None: as the user's known_hosts says
    host_keys: tuple[str, ...] | None = None
    # private key file; None: ssh-agent and the user's default keys, with ~/.ssh/config honoured
    key: Path | None = None
    # a command whose input and output lead to its port; empty: straight, or as ~/.ssh/config says
    # for its address (ProxyJump, ProxyCommand)
    proxy: tuple[str, ...] = ()
    gpus: int | None = None  # its GPUs, if they differ from those of the run's other machines

    @property
    def place(self) -> str:
        """User, address and port, as a person would write them."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.address}" + (f":{self.port}" if self.port != SSH_PORT else "")

    def __str__(self) -> str:
        return self.name if self.name == self.place else f"{self.name} ({self.place})"


class UnreachableError(Exception):
    """There is no connection; the text is the cause. `final`: trying again would not help;
    `pause_s`: how long to leave the machine alone at least, seconds; `no_way`: the machine itself
    may never have been reached, as behind a firewall; `reached`: it was, and is not ready.
    """

    def __init__(
        self,
        cause: str,
        *,
        final: bool = False,
        pause_s: float = 0.0,
        no_way: bool = False,
        reached: bool = False,
    ) -> None:
        super().__init__(cause)
        self.final = final
        self.pause_s = pause_s
        self.no_way = no_way
        self.reached = reached


OnFailure = Callable[[UnreachableError], None]
"""Called after each attempt at a connection that has failed."""


def ignore(error: UnreachableError) -> None:
    """Do nothing after an attempt at a connection that has failed."""


class _Witness(asyncssh.SSHClient):
    """Records the shown host key, and what the machine printed before the login."""

    def __init__(self) -> None:
        self.shown: asyncssh.SSHKey | None = None
        self.banner = ""

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Refuse the key and record it: asyncssh asks only about unknown keys."""
        self.shown = key
        return False

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self.banner += msg  # pam_nologin gives its reason there


async def open_connection(
    machine: RemoteMachine, keepalive_s: float = KEEPALIVE_S, login_s: float = 15.0
) -> asyncssh.SSHClientConnection:
    """Connect and log in once, in at most `TCP_S + login_s` seconds. Raises `UnreachableError`."""
    witness = _Witness()
    connected: socket.socket | None = None
    try:
        way = _way_to(machine)
        if machine.key is not None and not way:
            connected = await open_socket(machine)
        async with asyncio.timeout(login_s):
            return await asyncssh.connect(
                machine.address,
                sock=connected,
                client_factory=lambda: witness,
                keepalive_interval=keepalive_s,
                keepalive_count_max=KEEPALIVES,
                x509_trusted_certs=None,
                **_identity(machine) | way,
            )
    except (OSError, TimeoutError, asyncssh.Error, ValueError) as error:
        if connected is not None:
            connected.close()
        raise await asyncio.to_thread(_explained, machine, error, witness) from error


async def open_socket(machine: RemoteMachine) -> socket.socket:
    """Open a TCP connection within `TCP_S` seconds, so that a booting machine is tried often."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(machine.address, machine.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = places[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(TCP_S):
            await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _way_to(machine: RemoteMachine) -> dict[str, Any]:
    """Return asyncssh's options for a machine with a key of its own that is not reached straight;
    empty for others. Raises `ValueError` if ~/.ssh/config cannot be read.
    """
    if machine.proxy:
        return {"proxy_command": [*machine.proxy]}
    file = CONFIG.expanduser()
    if machine.key is None or not file.is_file():
        return {}
    known = {"host": machine.address, "port": machine.port, "username": machine.user}
    options = asyncssh.SSHClientConnectionOptions(
        **known, client_keys=None, known_hosts=None, config=[str(file)]
    )
    if options.tunnel:  # how to log in to what is between stands in the same file
        return {"config": [str(file)]}
    return {"proxy_command": options.proxy_command} if options.proxy_command else {}


def way_in(machine: RemoteMachine) -> str:
    """Return what a login goes through, for people; empty: it goes straight. Raises `ValueError` if
    ~/.ssh/config cannot be read.
    """
    if machine.proxy:
        return f"through {' '.join(machine.proxy[:3])}"
    way = _way_to(machine)
    what = "ProxyJump" if "config" in way else "ProxyCommand"
    return f"through the {what} of {CONFIG}" if way else ""


def _identity(machine: RemoteMachine) -> dict[str, Any]:
    """Return asyncssh's options. ssh-agent is never forwarded, whatever ~/.ssh/config says."""
    options: dict[str, Any] = {"agent_forwarding": False}
    if machine.user:
        options["username"] = machine.user
    if machine.port != SSH_PORT or machine.key is not None:
        options["port"] = machine.port
    if machine.host_keys is not None:
        trusted: Any = ([asyncssh.import_public_key(text) for text in machine.host_keys], [], [])
        options["known_hosts"] = trusted
    options["preferred_auth"] = "publickey"
    if machine.key is not None:
        options |= {"client_keys": [str(machine.key)], "agent_path": None, "config": None}
    return options


def _explained(machine: RemoteMachine, error: BaseException, witness: _Witness) -> UnreachableError:
    """Return the error with its cause. A wrong host key or a denied login is final only on the
    user's own machine: on a new instance, cloud-init may still be replacing its keys.
    """
    settled = machine.host_keys is None
    banner = " ".join(witness.banner.split())[:SHOWN]
    if BOOTING.search(f"{banner} {error}"):
        return UnreachableError(f"it is still booting (pam_nologin): {banner or error}")
    if isinstance(error, asyncssh.HostKeyNotVerifiable | asyncssh.KeyExchangeFailed):
        why = _host_key(machine, error, witness.shown)
        return UnreachableError(why, final=settled, pause_s=LEFT_S)
    if isinstance(error, asyncssh.PermissionDenied):
        return UnreachableError(_refused_login(machine, banner), final=settled, pause_s=DENIED_S)
    if isinstance(error, asyncssh.Error):
        why = f"disconnected before the login was through: {banner or error}"
        return UnreachableError(why, no_way=not banner)
    if isinstance(error, asyncssh.KeyImportError | ValueError):
        return UnreachableError(f"a key cannot be read: {error}", final=True)
    return _network(machine, error)


def _network(machine: RemoteMachine, error: BaseException) -> UnreachableError:
    refused = f"Errno {errno.ECONNREFUSED}" in str(error)  # asyncio joins errors into one text
    if refused or isinstance(error, ConnectionRefusedError):
        return UnreachableError(f"connection refused: nothing listens on its port {machine.port}")
    if isinstance(error, TimeoutError):
        return UnreachableError(
            f"timed out: no answer on port {machine.port} (is it up, and do its security "
            "group or firewall let this machine in?)",
            no_way=True,
        )
    if isinstance(error, socket.gaierror):
        return UnreachableError(f"its name cannot be resolved: {error.strerror}", final=True)
    if isinstance(error, FileNotFoundError | PermissionError):
        return UnreachableError(f"{error.filename} cannot be read: {error.strerror}", final=True)
    text = str(error) or type(error).__name__
    no_route = re.search("unreachable|no route", text, re.IGNORECASE)
    return UnreachableError(
        f"{'no route to it' if no_route else 'disconnected'}: {text}", no_way=True
    )


def _host_key(machine: RemoteMachine, error: BaseException, shown: asyncssh.SSHKey | None) -> str:
    key = f"it shows {shown.get_algorithm()} {shown.get_fingerprint()}" if shown else str(error)
    if machine.host_keys is not None:
        return (
            f"host key mismatch: it does not show the host key that it was launched with ({key}); "
            "another machine may answer at this address, so nothing was sent to it"
        )
    port = f"-p {machine.port} " if machine.port != SSH_PORT else ""
    name = f"[{machine.address}]:{machine.port}" if machine.port != SSH_PORT else machine.address
    try:
        hosts = asyncssh.read_known_hosts(str(Path("~/.ssh/known_hosts").expanduser()))
        known = bool(hosts.match(machine.address, "", machine.port)[0])
    except (OSError, ValueError):
        known = False
    if known:
        return (
            "host key mismatch: it shows another host key than known_hosts has for "
            f"it ({key}). If it was reinstalled, forget the old one: "
            f"ssh-keygen -R '{name}' && ssh-keyscan {port}{machine.address} >> ~/.ssh/known_hosts"
        )
    return (
        f"its host key is not known ({key}). If this fingerprint is the machine's own, accept it: "
        f"ssh-keyscan {port}{machine.address} >> ~/.ssh/known_hosts"
    )


def _refused_login(machine: RemoteMachine, banner: str) -> str:
    user = f"the user {machine.user}" if machine.user else "this user"
    how = f"the key {machine.key}" if machine.key else "ssh-agent's keys and those in ~/.ssh"
    port = f"-p {machine.port} " if machine.port != SSH_PORT else ""
    who = f"{machine.user}@{machine.address}" if machine.user else machine.address
    hint = f"; try: ssh {port}{who} true" if machine.key is None else ""
    return f"authentication failed for {user} with {how}{f': {banner}' if banner else ''}{hint}"


async def reach(
    machine: RemoteMachine,
    for_s: float,
    attempt: Callable[[], Awaitable[T]],
    longest_wait_s: float = LONGEST_WAIT_S,
    on_failure: OnFailure = ignore,
) -> T:
    """Return what `attempt` returns, which is repeated for up to `for_s` seconds while it raises
    `UnreachableError`: the pauses are random, and each a little longer, up to
    `longest_wait_s`. Raises `ProviderError`.
    """
    end, wait_s = asyncio.get_running_loop().time() + for_s, FIRST_WAIT_S
    while True:
        try:
            return await attempt()
        except UnreachableError as error:
            on_failure(error)
            if error.final:
                raise ProviderError(f"{machine}: {error}") from error
            pause_s = max(error.pause_s, wait_s) * random.uniform(1.0, 1.5)  # noqa: S311
            if asyncio.get_running_loop().time() + pause_s > end:
                what = "was not ready" if error.reached else "could not be reached over SSH"
                raise ProviderError(f"{machine} {what} within {for_s:.0f}s: {error}") from error
        await asyncio.sleep(pause_s)
        wait_s = min(longest_wait_s, wait_s * 1.5)
