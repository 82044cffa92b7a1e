"""What is checked on this machine: versions, free disk space, and with the local provider what
trials train on.

The one rule: torch is asked in a process of its own, that of the spec's interpreter.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata

from seerd.agent.arguments import fixed_environment
from seerd.agent.environments import words_of
from seerd.agent.needs import needs_torch
from seerd.commands.doctor.case import Case, peak_of
from seerd.commands.doctor.finding import Finding, Level
from seerd.planning.facts import Machine
from seerd.shell.home import Home
from seerd.spec.clusters import LocalCluster
from seerd.spec.spec import Spec

LITTLE_BYTES, TOO_LITTLE_BYTES = 2 << 30, 200 << 20
"""Bytes for journals and best models: with less free there is a warning, or a problem."""
TORCH_S = 120.0
TORCH = (
    "import torch; "
    "print(torch.__version__, torch.cuda.device_count() if torch.cuda.is_available() else 0)"
)


VERSION = "import platform; print(platform.python_version())"


def versions() -> Finding:
    """Return the versions of seerd and Python."""
    try:
        version = metadata.version("seerd")
    except metadata.PackageNotFoundError:
        version = "from its sources"
    return Finding(
        "seerd", "ok", f"seerd {version}, Python {platform.python_version()}", cloud=False
    )


def disk(home: Home) -> Finding:
    """Check whether the folder of runs can be written and has enough free space."""
    there = next(path for path in (home.path, *home.path.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Finding(
            "home", "problem", f"{there} cannot be written", "name another with --home", cloud=False
        )
    free = shutil.disk_usage(there).free
    found = f"{home.path}: {free / 2**30:.1f} GiB free"
    if free < LITTLE_BYTES:
        level: Level = "problem" if free < TOO_LITTLE_BYTES else "warning"
        return Finding(
            "home",
            level,
            found,
            "journals and best models are kept there: make room, or --home",
            cloud=False,
        )
    return Finding("home", "ok", found, cloud=False)


async def of_cluster(case: Case, cluster: LocalCluster) -> list[Finding]:
    """Check what a plan wants of this machine, and what trials get."""
    return [peak_of(case)[1], *local(case.spec, cluster, case.machine)]


def local(spec: Spec, cluster: LocalCluster, machine: Machine) -> list[Finding]:
    """Check what trials get of this machine: GPUs or CPU slots, and torch if they need it."""
    train = spec.train
    wanted = cluster.gpus
    if machine.cuda_devices:
        level: Level = "problem" if wanted is not None and wanted > machine.cuda_devices else "ok"
        name = f" ({machine.device})" if machine.device else ""
        devices = Finding("GPUs", level, f"{machine.cuda_devices} CUDA devices{name}", cloud=False)
    else:
        found = (
            f"no CUDA device: trials run on {wanted or machine.cores} CPU slots of "
            f"{machine.cores} cores"
        )
        devices = Finding(
            "GPUs", "ok" if train.launcher == "command" else "warning", found, cloud=False
        )
    if train.launcher == "command":
        return [devices]
    return [devices, _python(spec, train.python or sys.executable, machine.cuda_devices)]


def _python(spec: Spec, python: str, devices: int) -> Finding:
    """Check the interpreter, and its torch if trials need it."""
    train = spec.train
    torch = needs_torch(train.launcher, train.source / train.script)
    check = "torch" if torch else "python"
    todo = f"install it for {python}, or name another interpreter in [train] python"
    try:
        asked = subprocess.run(
            [*words_of(python, str(spec.folder)), "-c", TORCH if torch else VERSION],
            cwd=spec.folder,
            env={**os.environ, **fixed_environment(train.env, spec.space.names)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TORCH_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(check, "problem", f"{python} cannot be started: {error}", todo, cloud=False)
    answer = (asked.stdout.strip().splitlines() or [""])[-1]
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        failed = f"{python} cannot {'import torch' if torch else 'be started'}: {last}"
        return Finding(check, "problem", failed, todo, cloud=False)
    if not torch:
        return Finding(check, "ok", f"{python} is Python {answer}", cloud=False)
    version, _, seen = answer.rpartition(" ")
    found = f"torch {version} of {python} sees {seen} CUDA devices"
    if seen.isdecimal() and int(seen) < devices:
        return Finding(
            "torch",
            "problem",
            found,
            "a torch with CUDA that fits the driver is needed",
            cloud=False,
        )
    return Finding("torch", "ok", found, cloud=False)
