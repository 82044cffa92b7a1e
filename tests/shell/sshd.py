"""A real SSH server on loopback, with a home folder of its own for whoever logs in, so that several
of them are several machines. It is OpenSSH's, or asyncssh's where there is none.

The one rule: it is known by its process id, and ended by it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import psutil

from seerd.agent.gpu_leases import ELSEWHERE
from seerd.backends.ssh.connecting import RemoteMachine
from tests.tiers import lacking

SSHD = (
    shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    or "/usr/sbin/sshd"
)
START_S = 20.0


@dataclass
class Sshd:
    """One server in `folder`: a host key, an authorized key (`user_key`), a home folder. `extra`:
    lines of sshd_config that come first.
    """

    folder: Path
    port: int
    user_key: Path
    process: subprocess.Popen[bytes] | None = None
    extra: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def host_key(self) -> str:
        """Its public host key, as OpenSSH writes it."""
        return (self.folder / "host.pub").read_text()

    def machine(self, name: str = "", key: Path | None = None) -> RemoteMachine:
        """How seerd is told about it."""
        name = name or f"machine-{self.port}"
        return RemoteMachine(
            name, "127.0.0.1", getpass.getuser(), self.port, (self.host_key,), key or self.user_key
        )

    def start(self) -> None:
        """Run it; returns when it accepts connections."""
        command = self._command()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(self._listens)

    def _command(self) -> list[str]:
        lines = [
            *self.extra,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host'}",
            f"AuthorizedKeysFile {self.user_key}.pub",
            f"PidFile {self.folder / 'pid'}",
            f"SetEnv HOME={self.home} {ELSEWHERE}={self.folder / 'gpus'}",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 100",
            "PrintMotd no",
        ]
        (self.folder / "config").write_text("\n".join(lines) + "\n")
        return [SSHD, "-D", "-e", "-f", str(self.folder / "config")]

    def drop_connections(self) -> None:
        """End everybody's connection at once, as a fault in the network would.

        For an ordinary user a connection is held by two processes, one the parent of the other;
        as long as one lives, it closes channels in good order.
        """
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    child.send_signal(signal.SIGKILL)

    def connections(self) -> int:
        """How many connections it serves."""
        assert self.process is not None
        return len(psutil.Process(self.process.pid).children())

    def stop(self) -> None:
        """End it and every connection."""
        if self.process is not None:
            self.drop_connections()
            self.process.kill()
            self.process.wait()
            self.process = None

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class AsyncsshServer(Sshd):
    """The same without OpenSSH. It has neither its settings nor a process for each connection."""

    def _command(self) -> list[str]:
        place = [str(self.folder), str(self.port), f"{self.user_key}.pub"]
        return [sys.executable, str(Path(__file__).with_name("asyncssh_server.py")), *place]

    def connections(self) -> int:
        assert self.process is not None
        ways = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(way.status == psutil.CONN_ESTABLISHED for way in ways)


@contextlib.contextmanager
def sshds(count: int, *extra: str) -> Iterator[list[Sshd]]:
    """So many servers; agents that were left in their homes are ended too."""
    kind = AsyncsshServer if lacking("sshd") else Sshd
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    top = Path(tempfile.mkdtemp(prefix="ssh-"))
    new_key(top / "user")
    made = []
    try:
        for number in range(count):
            folder = top / str(number)
            (folder / "home").mkdir(parents=True)
            new_key(folder / "host")
            made.append(kind(folder, free_port(), top / "user", extra=list(extra)))
            made[-1].start()
        yield made
    finally:
        for server in made:
            server.stop()
            end_agents(server.home)
        shutil.rmtree(top)


def new_key(path: Path) -> None:
    """A pair of keys, the private one at `path`."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment="test")
    key.write_private_key(path)
    path.chmod(0o600)
    key.write_public_key(f"{path}.pub")


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def agents(home: Path) -> list[psutil.Process]:
    """Processes that work in this home folder, zombies excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                Path(process.cwd()).is_relative_to(home)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def end_agents(home: Path) -> None:
    """Nothing is left that works in this home folder."""
    for process in agents(home):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: not agents(home))


def until(condition: object, for_s: float = START_S) -> None:
    """Wait for it to come true."""
    assert callable(condition)
    end = time.monotonic() + for_s
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)
