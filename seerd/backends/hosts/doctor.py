"""Hosts, asked over SSH: whether they let seerd in, and have what trials need.

The one rule: hosts are only asked. Nothing is written there, and nothing that was started there
outlives the connection.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from dataclasses import dataclass
from typing import Any

import asyncssh

from seerd.agent.needs import needs_torch
from seerd.backends import stored
from seerd.backends.backend import FREE_BYTES, PYTHON
from seerd.backends.examining import Case, Finding, Level
from seerd.backends.hosts.keys import HostsKeys
from seerd.backends.hosts.provider import SshHost, hosts_of
from seerd.backends.ssh.connecting import UnreachableError, open_connection
from seerd.stores.by_address import by_address
from seerd.units import count

AT_ONCE = 16
ASKING_S = 90.0
CLOCK_S = 60.0
OLDEST = (3, 9)

SCRIPT = """
import json, os, shutil, subprocess, sys, time
python, store = sys.argv[1], sys.argv[2]
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
print(json.dumps({"python": list(sys.version_info[:3]), "at": at, "smi": smi, "torch": torch,
    "free": shutil.disk_usage(os.path.expanduser("~")).free,
    "store": os.access(store, os.W_OK) if store else None}))
"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What each host must have."""

    # the interpreter that must have torch; empty: none, or not known before the source arrives
    python: str
    store: str  # the directory of the checkpoint store; empty: it is in S3


async def examined(case: Case, keys: HostsKeys) -> list[Finding]:
    """Check what a plan wants, every host, and the checkpoint store if it is in S3."""
    train, kept = case.spec.train, keys.store or ""
    python = train.python or PYTHON
    is_there = len(shlex.split(python)) == 1 and ("/" not in python or python.startswith("/"))
    asks = is_there and needs_torch(train.launcher, train.source / train.script)
    wanted = _Wanted(python if asks else "", by_address(kept).address if kept else "")
    few = asyncio.Semaphore(AT_ONCE)

    async def look(host: SshHost) -> Finding:
        async with few:
            return await _look(host, wanted)

    hosts = await asyncio.gather(*map(look, hosts_of(keys)))
    return [case.peak(None)[1], *hosts, *await stored.findings(kept, train.data, None)]


async def _look(host: SshHost, wanted: _Wanted) -> Finding:
    check = f"host {host.name}"
    try:
        connection = await open_connection(host.machine)
    except UnreachableError as error:
        return Finding(check, "problem", str(error))
    try:
        before = time.time()
        command = shlex.join(["python3", "-", wanted.python, wanted.store])
        async with asyncio.timeout(ASKING_S):
            done = await connection.run(command, input=SCRIPT)
        if done.returncode:
            last = (str(done.stderr).strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            why = f"python3 does not run there: {last}"
            return Finding(check, "problem", why, "install Python 3.9 or newer on it")
        answer = json.loads(str(done.stdout).strip().splitlines()[-1])
        return _judged(check, host, wanted, answer, before)
    except TimeoutError:
        why = f"it let us in, but did not answer within {ASKING_S:g}s"
        return Finding(check, "problem", why, "look at its load")
    except (OSError, asyncssh.Error, ValueError, IndexError) as error:
        return Finding(check, "problem", f"it let us in, but cannot be asked: {error}")
    finally:
        connection.abort()


def _judged(
    check: str, host: SshHost, wanted: _Wanted, said: dict[str, Any], before: float
) -> Finding:
    """Judge a host by its answer: all that is wrong in one finding, with the worst level."""
    wrong = [*_of_gpus(host, said), *_of_torch(host, said, wanted)]
    python = ".".join(map(str, said["python"]))
    if tuple(said["python"][:2]) < OLDEST:
        wrong.append(f"its python3 is {python}; the agent needs 3.9")
    if said["free"] < FREE_BYTES:
        free_gib = said["free"] / 2**30
        wrong.append(f"{free_gib:.1f} GiB free in its home folder; 2 GiB are needed")
    if said["store"] is False:
        wrong.append(f"the store {wanted.store} is not there, or cannot be written there")
    level: Level = "problem" if wrong else "warning"
    off_s = said["at"] - before
    if abs(off_s) > CLOCK_S:
        side = "ahead" if off_s > 0 else "behind"
        wrong.append(f"its clock is {abs(off_s):.0f}s {side}: set up NTP")
    if wrong:
        return Finding(check, level, "; ".join(wrong))
    gpus = count(host.gpus, "GPU" if host.cuda else "CPU slot")
    torch = f", torch {said['torch'][1].split()[0]}" if said["torch"] and said["torch"][1] else ""
    free_gib = said["free"] / 2**30
    found = f"lets us in; {gpus}, Python {python}{torch}, {free_gib:.0f} GiB free"
    return Finding(check, "ok", found)


def _of_gpus(host: SshHost, said: dict[str, Any]) -> list[str]:
    if not host.cuda:
        return []
    code, text = said["smi"]
    if code:
        return [f"nvidia-smi fails: {text.splitlines()[0] if text else 'no message'}"]
    gpus = sum(line.startswith("GPU ") for line in text.splitlines())
    return [f"{count(gpus, 'GPU')}; the spec says {host.gpus}"] if gpus < host.gpus else []


def _of_torch(host: SshHost, said: dict[str, Any], wanted: _Wanted) -> list[str]:
    if said["torch"] is None:
        return []
    code, text = said["torch"]
    if code:
        last = text.splitlines()[-1] if text else "no message"
        return [f"{wanted.python} cannot import torch: {last}"]
    seen = text.split()[-1]
    if host.cuda and seen.isdecimal() and int(seen) < host.gpus:
        return [f"torch of {wanted.python} sees {seen} GPUs; the spec says {host.gpus}"]
    return []
