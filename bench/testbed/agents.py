"""An agent out of its zip, as instances get it, and a client that speaks its protocol.

The one rule: whoever uses them waits for facts and for the ends of processes, never for time to
pass.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import psutil

from seerd.agent.protocol import (
    FACTS,
    VERSION,
    Exited,
    Hello,
    Job,
    Message,
    Node,
    Prepare,
    Prepared,
    Start,
    Stop,
    Welcome,
)
from seerd.agent.wire import decode, encode

RUN = f"digits-{os.getpid()}"
"""An agent ends whatever on its machine carries the name of its run, so tests that run side by side
have names of their own.
"""
PATIENCE_S = 120.0


def _connected(path: Path) -> socket.socket:
    """Connect to a socket, whose file is there a moment before its agent listens."""
    end = time.monotonic() + PATIENCE_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return connection


class Client:
    """A daemon's side of one connection; `facts` are those that have come so far."""

    def __init__(self, folder: Path) -> None:
        self._socket = _connected(folder / "agent.sock")
        self._lines = self._socket.makefile("rb")
        self.facts: list[Any] = []

    def hello(self, seen: int = 0, run: str = RUN, version: int = VERSION) -> Any:
        """Say hello; the answer."""
        self.say(Hello(version, run, seen))
        return self.read()

    def say(self, *messages: Message) -> None:
        """Send these, as one piece."""
        self.send(b"".join(map(encode, messages)))

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self._socket.sendall(data)

    def read(self) -> Any:
        """The next message; None at the end of the connection."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        message = decode(line) if line else None
        if isinstance(message, FACTS):
            self.facts.append(message)
        return message

    def start(
        self,
        trial: str = "t1",
        attempt: int = 1,
        gpus: tuple[int, ...] = (0,),
        checkpoints: tuple[str, ...] = (),
        node: Node | None = None,
    ) -> None:
        """Order an attempt, or a node's part in it."""
        order = f"start-{trial}-{attempt}-{gpus}"
        self.say(Start(order, trial, attempt, list(gpus), {"lr": 0.1}, 17, list(checkpoints), node))

    def stop(self, trial: str = "t1", attempt: int = 1, grace_s: float = 0.0) -> None:
        """Order its end: with a grace period, to save first."""
        self.say(Stop(f"stop-{trial}-{attempt}-{grace_s}", trial, attempt, grace_s > 0, grace_s))

    def exit_of(self, trial: str = "t1", attempt: int = 1) -> Exited:
        """Wait for the end of an attempt."""
        return self.until(Exited, lambda fact: (fact.trial, fact.attempt) == (trial, attempt))

    def until(self, kind: Any, where: Callable[[Any], bool] = lambda _: True) -> Any:
        """The first fact of this kind that is so."""
        for fact in self.facts:
            if isinstance(fact, kind) and where(fact):
                return fact
        while (message := self.read()) is not None:
            if isinstance(message, kind) and where(message):
                return message
        raise AssertionError(f"no {kind.__name__} came, only {self.facts}")

    def rest(self) -> list[Any]:
        """All facts until the agent closes the connection."""
        while self.read() is not None:
            pass
        return self.facts

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._socket.close()


@dataclass
class Rig:
    """A folder for an agent, a source folder, a store, and the agents that were started here.

    options, env   of the agents, beyond what they must have; `inside`: the command that they are
                   started with; `python`: what runs them
    fork           starts an agent with these options and variables, whose errors go there; None: as
                   a program
    """

    bundle: Path
    folder: Path
    source: Path
    store: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    options: tuple[str, ...] = ("--slots",)
    env: dict[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    python: str = sys.executable
    fork: Callable[[list[str], dict[str, str], IO[bytes]], Any] | None = None

    def launch(
        self, gpus: int = 4, lease_s: float = 600, grace_s: float = 10
    ) -> subprocess.Popen[bytes]:
        """Start an agent; returns when it takes connections."""
        process = self.spawn(gpus, lease_s, grace_s)
        while not self._answers():
            assert process.poll() is None, self.errors.read_text()
            time.sleep(0.005)
        return process

    def spawn(
        self, gpus: int = 4, lease_s: float = 600, grace_s: float = 10
    ) -> subprocess.Popen[bytes]:
        """Start an agent."""
        options = [
            "--folder",
            str(self.folder),
            "--run",
            RUN,
            *self.options,
            "--gpus",
            str(gpus),
            "--lease-s",
            str(lease_s),
            "--grace-s",
            str(grace_s),
        ]
        with self.errors.open("ab") as err:
            self.processes.append(self._begun(options, {**os.environ, **self.env}, err))
        return self.processes[-1]

    def _begun(self, options: list[str], env: dict[str, str], errors: IO[bytes]) -> Any:
        if self.fork is not None and not self.inside and self.python == sys.executable:
            return self.fork(options, env, errors)
        command = [*self.inside, self.python, "-I", str(self.bundle), *options]
        return subprocess.Popen(command, stderr=errors, env=env)

    def lose_agent(self) -> None:
        """The agent dies without a word."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    @property
    def errors(self) -> Path:
        """What agents wrote to stderr."""
        return self.folder.parent / "agent.err"

    def connect(self, seen: int = 0) -> Client:
        """A connection that has been welcomed."""
        client = self.client()
        assert isinstance(client.hello(seen), Welcome)
        return client

    def client(self) -> Client:
        """A connection on which nothing has been said."""
        client = Client(self.folder)
        self.clients.append(client)
        return client

    def ready(self, job: Job, gpus: int = 4) -> Client:
        """A started agent that has been prepared for this job."""
        self.launch(gpus)
        client = self.connect()
        client.say(Prepare("p", job))
        client.until(Prepared)
        return client

    def job(self, script: str = "", **other: Any) -> Job:
        """A job whose training script has this text."""
        (self.source / "train.py").write_text(script)
        job = Job(
            source=str(self.source),
            script="train.py",
            args=[],
            launcher="python",
            python=sys.executable,
            env={},
            setup=[],
            store=str(self.store),
            metric="accuracy",
            mode="max",
            allocations=[1, 2],
            threads=1,
            checkpoint_every_s=10.0,
        )
        return replace(job, **other)

    def attempt(self, trial: str = "t1", attempt: int = 1) -> Path:
        """The folder of an attempt."""
        return self.folder / "trials" / trial / str(attempt)

    def processes_of(self, trial: str = "t1", attempt: int = 1) -> list[psutil.Process]:
        """Everything that runs with the mark of this attempt."""
        return [p for p in psutil.process_iter() if _marker(p) == f"{RUN}/{trial}/{attempt}"]

    def end(self) -> None:
        """End what was started."""
        for client in self.clients:
            client.close()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for left in psutil.process_iter():
            if _marker(left).startswith(f"{RUN}/") and str(self.folder) in _place(left):
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
                    left.wait(10.0)  # it may be writing into the folder

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "agent.sock")) == 0


def _marker(process: psutil.Process) -> str:
    try:
        return process.environ().get("SEERD_ATTEMPT", "")
    except (psutil.Error, OSError):
        return ""


def _place(process: psutil.Process) -> str:
    """Where it belongs; the warm process is of no attempt, and runs in the agent's folder."""
    try:
        return process.environ().get("SEERD_DIR") or process.cwd()
    except (psutil.Error, OSError):
        return ""
