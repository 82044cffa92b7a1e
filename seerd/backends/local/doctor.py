"""What `seerd doctor` checks on this machine; torch runs in a process of the spec's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

from seerd.agent.arguments import fixed_environment, interpreter_words
from seerd.agent.needs import needs_torch
from seerd.backends.examining import Case, Finding, Level, Notes
from seerd.backends.local.keys import LocalKeys
from seerd.spec.spec import Spec

TORCH_S = 120.0
TORCH = (
    "import torch; "
    "print(torch.__version__, torch.cuda.device_count() if torch.cuda.is_available() else 0)"
)
VERSION = "import platform; print(platform.python_version())"


def examined(case: Case, keys: LocalKeys) -> list[Finding]:
    """Check the plan's needs, and what trials get: GPUs or CPU slots, and torch if they need it."""
    notes, machine, train = Notes([case.peak(None)[1]], cloud=False), case.machine, case.spec.train
    devices = machine.cuda_devices
    if devices:
        name = f" ({machine.device})" if machine.device else ""
        level: Level = "problem" if (keys.gpus or 0) > devices else "ok"
        notes.note("GPUs", level, f"{devices} CUDA devices{name}")
    else:
        slots = f"{keys.gpus or machine.cores} CPU slots of {machine.cores} cores"
        level = "ok" if train.launcher == "command" else "warning"
        notes.note("GPUs", level, f"no CUDA device: trials run on {slots}")
    if train.launcher != "command":
        _python(notes, case.spec, train.python or sys.executable, devices)
    return notes.lines


def _python(notes: Notes, spec: Spec, python: str, devices: int) -> None:
    """Check the interpreter, and its torch if trials need it."""
    train = spec.train
    torch = needs_torch(train.launcher, train.source / train.script)
    check = "torch" if torch else "python"
    todo = f"install it for {python}, or name another interpreter in [train] python"
    try:
        asked = subprocess.run(
            [*interpreter_words(python, str(spec.folder)), "-c", TORCH if torch else VERSION],
            cwd=spec.folder,
            env={**os.environ, **fixed_environment(train.env, spec.space.names)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TORCH_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        notes.problem(check, f"{python} cannot be started: {error}", todo)
        return
    answer = (asked.stdout.strip().splitlines() or [""])[-1]
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        what = "import torch" if torch else "be started"
        notes.problem(check, f"{python} cannot {what}: {last}", todo)
    elif not torch:
        notes.ok(check, f"{python} is Python {answer}")
    else:
        version, _, seen = answer.rpartition(" ")
        found = f"torch {version} of {python} sees {seen} CUDA devices"
        if seen.isdecimal() and int(seen) < devices:
            notes.problem(check, found, "a torch with CUDA that fits the driver is needed")
        else:
            notes.ok(check, found)
