"""An agent out of its zip, as instances get it, and places for it to live in."""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

import pytest

from bench.testbed.agents import Rig
from seerd.agent import host
from seerd.backends.bundle import build_agent
from tests.agent.agent_forks import ForkedAgent, begin
from tests.s3front import moto_port, s3

__all__ = ["moto_port", "s3"]

BARE_TORCH = str(Path(__file__).parents[1] / "bare_torch")
"""Before what trials import otherwise; a job with a PYTHONPATH of its own has torch as it is."""
UNCHECKED_HASH = 0b01
"""The flag of bytecode that is used whatever its source is (PEP 552)."""


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's zip, with the training side in it."""
    path = tmp_path_factory.mktemp("bundle") / "agent.pyz"
    build_agent(path)
    add_bytecode(path)
    return path


def add_bytecode(bundle: Path) -> None:
    """Compile once what each of hundreds of agents, and each of their trials, would compile."""
    with zipfile.ZipFile(bundle, "a") as files:
        there = set(files.namelist())
        for name in sorted(name for name in there if name.endswith(".py")):
            source = files.read(name)
            code = compile(source, f"{bundle}/{name}", "exec", dont_inherit=True)
            header = MAGIC_NUMBER + UNCHECKED_HASH.to_bytes(4, "little") + source_hash(source)
            for place in {f"{name}c", cache_from_source(name)} - there:
                files.writestr(place, header + marshal.dumps(code))


@pytest.fixture
def adopts() -> Iterator[None]:
    """Have this process adopt orphans, as an agent does, and reap those that have ended."""
    host.adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(host.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for pid in host.zombies():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


@pytest.fixture(scope="session")
def fork(bundle: Path) -> Iterator[Callable[..., ForkedAgent] | None]:
    """Starts agents that cost milliseconds. None where coverage is recorded by test, which it learns
    when a program begins.
    """
    if "COVERAGE_PROCESS_START" in os.environ:
        yield None
        return
    process, server = begin(bundle)
    yield partial(ForkedAgent, server)
    server.close()
    process.wait()


@pytest.fixture
def rig(bundle: Path, fork: Callable[..., ForkedAgent] | None) -> Iterator[Rig]:
    """A place for an agent, with a path that is short enough for a socket in it."""
    top = Path(tempfile.mkdtemp(prefix="agent-"))
    made = Rig(bundle, top / "i", top / "source", top / "store")
    made.fork = fork
    made.source.mkdir()
    made.env |= {"XDG_CACHE_HOME": str(top / "cache"), "PYTHONPATH": BARE_TORCH}
    yield made
    made.end()
    shutil.rmtree(top)


@pytest.fixture
def two_rigs(bundle: Path) -> Iterator[list[Rig]]:
    """Two places for agents that see only their own processes, as on two instances; one source and
    one store.
    """
    top = Path(tempfile.mkdtemp(prefix="agent-"))
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    inside = ("unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc")
    made = [
        Rig(bundle, top / name, top / "source", top / "store", inside=inside) for name in ("i", "j")
    ]
    made[0].source.mkdir()
    for each in made:
        each.env["PYTHONPATH"] = BARE_TORCH
    yield made
    for each in made:
        each.end()
    shutil.rmtree(top)
