"""Hosts, asked over SSH: whether they have what trials need, and which runs have their GPUs.
Nothing outlives the connection, and nothing is written but the agent's zip, in their cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from seerd.agent.container import ENGINES
from seerd.agent.gpu_devices import cuda_devices
from seerd.agent.needs import needs_torch
from seerd.backends.backend import FREE_BYTES, PYTHON, GpuUse
from seerd.backends.bundle import build_agent
from seerd.backends.examining import Case, Finding, Level, of_engines, store_findings
from seerd.backends.hosts.keys import HostsKeys
from seerd.backends.hosts.provider import SshHost, hosts_of
from seerd.backends.ssh.connecting import UnreachableError, open_connection
from seerd.backends.ssh.pushing import Bundle, PackedBundle, pack, run_remote_task
from seerd.backends.ssh.remote import AT_ONCE
from seerd.errors import SeerdError
from seerd.stores.by_address import by_address
from seerd.units import count

ASKING_S = 90.0
CLOCK_S = 60.0
OLDEST = (3, 9)

SCRIPT = """
import json, os, shutil, subprocess, sys, time
python, store, engines = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def said(*command):
    try:
        done = subprocess.run(command, stdout=-1, stderr=-1, stdin=subprocess.DEVNULL,
            universal_newlines=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    text = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    return done.returncode, text.strip()
at = time.time()
smi = said("nvidia-smi", "-L")
ask = "import torch; print(torch.__version__, torch.cuda.device_count())"
torch = said(python, "-c", ask) if python else None
works = [name for name in engines if said(name, *engines[name])[0] == 0]
print(json.dumps({"python": list(sys.version_info[:3]), "at": at, "smi": smi, "torch": torch,
    "engines": works if engines else None,
    "free": shutil.disk_usage(os.path.expanduser("~")).free,
    "store": os.access(store, os.W_OK) if store else None}))
"""


async def examined(case: Case, keys: HostsKeys) -> list[Finding]:
    """Check the plan, every host, and the checkpoint store if it is in S3."""
    train, kept = case.spec.train, keys.store or ""
    python = train.python or PYTHON
    is_known = len(shlex.split(python)) == 1 and ("/" not in python or python.startswith("/"))
    asks = is_known and needs_torch(train.launcher, train.source / train.script)
    asks = asks and not train.container
    # no interpreter: none must have torch, or it is unknown before the source arrives
    asked = (
        python if asks else "",
        by_address(kept).address if kept else "",
        json.dumps(ENGINES if train.container else {}),
    )
    few = asyncio.Semaphore(AT_ONCE)
    hosts = await asyncio.gather(*(_look(host, few, *asked) for host in hosts_of(keys)))
    return [case.peak(None)[1], *hosts, *await store_findings(kept, train.data, None)]


@contextlib.asynccontextmanager
async def _connected(
    host: SshHost, few: asyncio.Semaphore
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Connect for the length of the block, a few hosts at a time. Raises `UnreachableError`."""
    async with few:
        connection = await open_connection(host.machine)
        try:
            yield connection
        finally:
            connection.abort()


async def _look(
    host: SshHost, few: asyncio.Semaphore, python: str, store: str, engines: str
) -> Finding:
    """Ask a host for what trials need. `python`: the interpreter that must have torch, if any;
    `store`: the directory of the checkpoint store; empty: it is in S3. `engines`: commands that ask
    engines of containers, of which trials need one, as JSON.
    """
    check = f"host {host.name}"
    try:
        command = shlex.join(["python3", "-", python, store, engines])
        async with _connected(host, few) as connection, asyncio.timeout(ASKING_S):
            before = time.time()
            done = await connection.run(command, input=SCRIPT)
        if done.returncode:
            last = (str(done.stderr).strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            why = f"python3 does not run there: {last}"
            return Finding(check, "problem", why, "install Python 3.9 or newer on it")
        answer = json.loads(str(done.stdout).strip().splitlines()[-1])
        return _judged(host, python, store, answer, before)
    except UnreachableError as error:
        return Finding(check, "problem", str(error))
    except TimeoutError:
        why = f"it let us in, but did not answer within {ASKING_S:g}s"
        return Finding(check, "problem", why, "look at its load")
    except (OSError, asyncssh.Error, ValueError, IndexError) as error:
        return Finding(check, "problem", f"it let us in, but cannot be asked: {error}")


def _judged(
    host: SshHost, trials: str, store: str, answer: dict[str, Any], before: float
) -> Finding:
    """Judge a host by its answer: all that is wrong in one finding, with the worst level."""
    wrong = _of_torch(host, answer, trials)
    code, text = answer["smi"]
    gpus = len(cuda_devices(0, "", text))
    if host.cuda and code:
        wrong.append(f"nvidia-smi fails: {text.splitlines()[0] if text else 'no message'}")
    elif host.cuda and gpus < host.gpus:
        wrong.append(f"{count(gpus, 'GPU')}; the spec says {host.gpus}")
    python = ".".join(map(str, answer["python"]))
    if tuple(answer["python"][:2]) < OLDEST:
        wrong.append(f"its python3 is {python}; the agent needs 3.9")
    free_gib = answer["free"] / 2**30
    if answer["free"] < FREE_BYTES:
        wrong.append(f"{free_gib:.1f} GiB free in its home folder; 2 GiB are needed")
    if answer["engines"] == []:
        wrong.append(of_engines([])[1])
    if answer["store"] is False:
        wrong.append(f"the store {store} is not there, or cannot be written there")
    level: Level = "problem" if wrong else "warning"
    off_s = answer["at"] - before
    if abs(off_s) > CLOCK_S:
        side = "ahead" if off_s > 0 else "behind"
        wrong.append(f"its clock is {abs(off_s):.0f}s {side}: set up NTP")
    check = f"host {host.name}"
    if wrong:
        return Finding(check, level, "; ".join(wrong))
    slots = count(host.gpus, "GPU" if host.cuda else "CPU slot")
    torch = (
        f", torch {answer['torch'][1].split()[0]}" if answer["torch"] and answer["torch"][1] else ""
    )
    text = f"lets us in; {slots}, Python {python}{torch}, {free_gib:.0f} GiB free"
    return Finding(check, "ok", text)


def _of_torch(host: SshHost, answer: dict[str, Any], python: str) -> list[str]:
    if answer["torch"] is None:
        return []
    code, text = answer["torch"]
    if code:
        last = text.splitlines()[-1] if text else "no message"
        return [f"{python} cannot import torch: {last}"]
    seen = text.split()[-1]
    if host.cuda and seen.isdecimal() and int(seen) < host.gpus:
        return [f"torch of {python} sees {seen} GPUs; the spec says {host.gpus}"]
    return []


async def gpu_use_of(hosts: Sequence[SshHost]) -> list[GpuUse]:
    """Ask every host which runs have its GPUs. One that cannot be asked has the reason."""
    packed = await asyncio.to_thread(_packed)
    few = asyncio.Semaphore(AT_ONCE)

    async def ask(host: SshHost) -> GpuUse:
        try:
            async with _connected(host, few) as connection:
                use = await run_remote_task(connection, "gpus", "none", PYTHON, packed, {})
                return GpuUse(host.name, use)
        except (UnreachableError, SeerdError, KeyError, TypeError, ValueError) as error:
            return GpuUse(host.name, why=str(error))

    return await asyncio.gather(*map(ask, hosts))


def _packed() -> PackedBundle:
    """Pack the agent's zip and no source: what hosts need to answer."""
    with tempfile.TemporaryDirectory(prefix="seerd-") as folder:
        zip_, source = Path(folder, "agent.pyz"), Path(folder, "source")
        source.mkdir()
        build_agent(zip_)
        return pack(Bundle(zip_, source))
