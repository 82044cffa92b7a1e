"""Whether this machine has what its kind promises: room on the disk, GPUs that `nvidia-smi` lists
without complaint, a torch that can use them, the interpreters of jobs, and GPUs that are free again
after an attempt. What another machine of its kind could not do better (no torch, a torch without
CUDA) is the job's fault.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional, Sequence

from seerd.agent import host
from seerd.agent.arguments import fixed_environment, interpreter_words
from seerd.agent.needs import needs_torch
from seerd.agent.protocol import Expected, Job
from seerd.agent.threads import in_thread_or_here, thread_needed

if TYPE_CHECKING:
    from seerd.agent.container import Container, Outside

CARDS = (
    "nvidia-smi",
    "--query-gpu=index,uuid,memory.used,name,memory.total,driver_version",
    "--format=csv,noheader,nounits",
)
APPS = (
    "nvidia-smi",
    "--query-compute-apps=pid,gpu_uuid,used_memory",
    "--format=csv,noheader,nounits",
)
SMI_S = 60.0
"""Seconds for `nvidia-smi`: without its persistence daemon the driver starts for each call."""
BROKEN = re.compile(
    r"ERR!|Unknown Error|GPU is lost|requires reset|Unable to determine", re.IGNORECASE
)
TORCH = """import torch
for gpu in range(torch.cuda.device_count()):
    torch.zeros(1, device=f"cuda:{gpu}")
print(torch.version.cuda or torch.version.hip or "without", torch.cuda.device_count())
"""
TORCH_S = 120.0
READS_ON_S = 20.0
MOST_S = 900.0
"""A program that still reads from the disk has `READS_ON_S` seconds from each look to the next, up
to `MOST_S`. The blocks of a new disk are fetched from S3 when they are first touched
(docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html), so a slow machine is healthy: ten
minutes were measured on g4dn.xlarge (github.com/ITISFoundation/osparc-simcore/issues/3893).
"""
LOOK_S = 1.0
FREE_S = 10.0
"""Seconds after which memory that is still held counts as lost; the driver needs one or two."""
POLL_S = 0.25
SLACK_MIB = 512
"""MiB that a GPU without processes may use beyond what it did before the first attempt."""
SHOWN = 300
NO_FABRIC = re.compile(r"[Ee]rror:? 802\b|system not yet initialized")
FABRIC = (
    "; that is CUDA error 802: the GPUs are behind NVSwitches, and no fabric manager of the "
    "driver's version has set these up: look at `systemctl status nvidia-fabricmanager`, or take "
    "an image that has it (`seerd image build`)"
)
"""What to do where CUDA misses the fabric manager
(docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide,
github.com/dstackai/dstack/issues/2348).
"""
NO_GPUS = re.compile(r"CDI device|nvidia\.com/gpu|could not select device driver", re.IGNORECASE)
TOOLKIT = (
    "; NVIDIA's container toolkit gives GPUs to containers: install it, and then for Podman `sudo "
    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, for Docker `sudo nvidia-ctk runtime "
    "configure --runtime=docker`"
)
PRINT_INTERPRETER = "import json, os, sys; print(json.dumps([sys.executable, dict(os.environ)]))"
NOT_KEPT = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE", "UV_RUN_RECURSION_DEPTH"}
"""Variables that say how the command was started, not what its environment is."""
ENTER_S, ENTER_MOST_S = 120.0, 1800.0
"""Seconds until a command has started its Python, and at most while it reads (`uv` installs)."""
GIB = 1 << 30


class UnhealthyError(Exception):
    """This machine lacks something that another of its kind might have; `cause`: as in
    `protocol.Refused`.
    """

    def __init__(self, why: str, cause: str = "") -> None:
        super().__init__(why)
        self.cause = cause


@dataclass(frozen=True)
class CheckedMachine:
    """The machine that is checked."""

    folder: Path  # the agent's own
    cuda: bool  # whether its GPUs are CUDA devices
    marker: str  # SEERD_ATTEMPT of the processes that look, so that none outlives the agent


async def check_machine(expected: Optional[Expected], machine: CheckedMachine) -> dict[str, int]:
    """Check disk and GPUs; return each GPU's MiB in use, by uuid. Raises `UnhealthyError`."""
    if expected is None:
        return {}
    free = shutil.disk_usage(machine.folder).free
    if free < expected.free_bytes:
        wanted = f"{expected.free_bytes / GIB:.1f} GiB are expected"
        raise UnhealthyError(
            f"{free / GIB:.1f} GiB are free where {machine.folder} is, and {wanted}"
        )
    if not machine.cuda or not expected.gpus:
        return {}
    try:
        status, listing, message = await ask_smi(CARDS, machine)
    except OSError as error:
        why = f"nvidia-smi cannot be run ({error.strerror}), so there is no driver for the GPUs"
        raise UnhealthyError(why, "driver") from None
    if status:
        raise UnhealthyError(f"nvidia-smi ended with exit status {status}: {message}", "driver")
    problem = gpu_problem(listing, expected.gpus)
    if problem:
        raise UnhealthyError(problem, "driver")
    cards = [card for card in _rows(listing) if len(card) >= 3]
    return {uuid: int(used) for _, uuid, used, *_ in cards if used.isdecimal()}


async def check_torch(
    expected: Optional[Expected],
    machine: CheckedMachine,
    job: Job,
    where: Outside,
    free: Optional[list[str]] = None,
) -> None:
    """Check that torch can use the GPUs, once the job's setup is done. `free`: CUDA's names of
    those that nobody else uses, if others use some. If no GPU is expected, torch must only be
    importable. `where`: in which container.

    Raises `UnhealthyError` if it cannot on this machine, `ValueError` or `OSError` if no machine
    with this setup could.
    """
    if expected is None or not expected.torch or not machine.cuda:
        return
    if not needs_torch(job.launcher, Path(job.source, job.script)):
        return
    fixed = fixed_environment(job.env, job.names)
    env = {**where.environment(), **fixed, host.MARKER: machine.marker}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    least = expected.gpus
    if not least:
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif free is not None:
        env["CUDA_VISIBLE_DEVICES"], least = ",".join(free), min(least, len(free))
    call = where.around([job.python, "-c", TORCH], env, job.source)
    name = f"{job.python} with torch"
    status, output, errors = await look(name, *call, job.source, TORCH_S)
    if "No module named 'torch'" in errors:
        why = f"{job.python} has no torch on this instance"
        raise ValueError(f"{why}: install it with [train] setup, or take another image")
    answer = last_line(output).split()
    gpus = int(answer[-1]) if status == 0 and answer and answer[-1].isdecimal() else None
    if gpus == 0 and answer[0] == "without":
        why = f"the torch of {job.python} was built without CUDA"
        raise ValueError(f"{why}: install one with it, or take another image")
    fabric = FABRIC if NO_FABRIC.search(errors) else ""
    if gpus is None:
        message = last_line(errors) or last_line(output)
        why = f"torch cannot use the GPUs (exit status {status})"
        raise UnhealthyError(f"{why}: {message}{fabric}", "torch")
    if gpus < least:
        message = f": {last_line(errors)}" if last_line(errors) else ""
        why = f"torch sees {gpus} GPUs where {least} are expected"
        raise UnhealthyError(f"{why}{message}{fabric}", "torch")


def gpu_problem(listing: str, expected: int) -> str:
    """Describe what is wrong with the GPUs that `nvidia-smi` lists; empty if nothing is."""
    lines = [line.strip() for line in listing.splitlines() if line.strip()]
    broken = [line for line in lines if BROKEN.search(line)]
    if broken:
        return f"nvidia-smi says of a GPU: {broken[0]:.{SHOWN}}"
    gpus = [line for line in lines if line.count(",") >= 2]
    if len(gpus) < expected:
        first = f": {gpus[0]:.{SHOWN}}" if gpus else ""
        return f"nvidia-smi lists {len(gpus)} GPUs where {expected} are expected{first}"
    return ""


async def ask_smi(
    argv: Sequence[str], machine: CheckedMachine, limit_s: float = SMI_S
) -> tuple[int, str, str]:
    """Run `nvidia-smi`; return exit status, output and last line. Raises as `look` does."""
    env = {**os.environ, host.MARKER: machine.marker}
    status, output, errors = await look("nvidia-smi", argv, env, str(machine.folder), limit_s)
    return status, output, last_line(output) or last_line(errors)


async def look(
    name: str,
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    limit_s: float,
    reads_on_s: float = READS_ON_S,
    most_s: float = MOST_S,
) -> tuple[int, str, str]:
    """Run a program that looks at something; return exit status, output and errors. It has
    `limit_s` seconds, and while it reads, `reads_on_s` from each look to the next, up to `most_s`.
    Raises `OSError`; `UnhealthyError` if it is too late.
    """
    with thread_needed():
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    marker, pid, began = env[host.MARKER], process.pid, time.monotonic()

    def moved_bytes() -> int:
        return host.moved_bytes(host.members(marker, pid))

    ends = asyncio.ensure_future(process.communicate())
    until, moved = began + limit_s, 0
    while not ends.done() and (now := time.monotonic()) < until:
        await asyncio.wait({ends}, timeout=min(LOOK_S, until - now))
        before, moved = moved, await in_thread_or_here(moved_bytes)
        if moved > before:
            until = max(until, min(time.monotonic() + reads_on_s, began + most_s))
    if not ends.done():
        took_s = time.monotonic() - began
        await in_thread_or_here(host.kill, lambda: host.each_member(marker, pid), {pid})
        await asyncio.gather(ends, return_exceptions=True)
        raise UnhealthyError(f"{name} did not answer within {took_s:.0f} s")
    output, errors = (text.decode(errors="replace") for text in ends.result())
    return process.returncode or 0, output, errors


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to `SHOWN` characters; empty if there is none."""
    lines: list[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else ""


class Interpreters:
    """The interpreters of jobs on this machine, as `[train] python` names them.

    Several words (`uv run python`, `conda run -n NAME python`) only choose an environment: they are
    run once for each preparation, after the setup, which may make the interpreter, to print the
    interpreter and variables with which trials are started. So no other process stands between
    these and their agent. `marker`: SEERD_ATTEMPT of the processes that look for them.
    """

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._cache: dict[str, tuple[str, dict[str, str]]] = {}

    async def complete(
        self, job: Job, anew: bool = False, container: Optional[Container] = None
    ) -> Job:
        """Return the job with its interpreter, in its `container` if it has one. Raises
        `ValueError`, `OSError`, `UnhealthyError`.
        """
        if not job.python or job.launcher == "command":
            return job
        of_job = [job.python, job.python_in, job.source, job.env, job.container]
        key = json.dumps(of_job, sort_keys=True)
        if anew or key not in self._cache:
            self._cache[key] = await self._of(job, container)
        path, changed = self._cache[key]
        return replace(job, python=path, env={**job.env, **changed})

    async def _of(self, job: Job, container: Optional[Container]) -> tuple[str, dict[str, str]]:
        folder = job.python_in or job.source
        words = interpreter_words(job.python, folder)
        if container is not None:
            return await self._inside(container, job, words)
        if len(words) == 1:
            inside = interpreter_words(job.python, job.source)[0]
            path = inside if os.path.exists(inside) else words[0]
            if "/" in path and not os.access(path, os.X_OK):
                raise ValueError(f"there is no program {path}, which train.python names")
            return path, {}
        fixed = fixed_environment(job.env, job.names)
        env = {**os.environ, **fixed, host.MARKER: self._marker}
        argv = [*words, "-c", PRINT_INTERPRETER]
        status, output, errors = await look(
            job.python, argv, env, folder, ENTER_S, most_s=ENTER_MOST_S
        )
        try:
            path, changed = interpreter_answer(output, env)
        except (ValueError, TypeError):
            message = last_line(errors) or last_line(output) or "no message"
            raise ValueError(
                f"train.python, {job.python}, starts no Python in {folder} (exit status {status}): "
                f"{message}"
            ) from None
        if not os.access(path, os.X_OK):
            raise ValueError(
                f"train.python, {job.python}, starts {path}, which is not on this machine: a "
                'command that enters a container is for launcher = "command"'
            )
        return path, changed

    async def _inside(
        self, container: Container, job: Job, words: list[str]
    ) -> tuple[str, dict[str, str]]:
        fixed = fixed_environment(job.env, job.names)
        env = {**container.environment(), **fixed, host.MARKER: self._marker}
        call = container.around([*words, "-c", PRINT_INTERPRETER], env, job.source)
        status, output, errors = await look(
            job.python, *call, job.source, ENTER_S, most_s=ENTER_MOST_S
        )
        try:
            path, changed = interpreter_answer(output, env)
        except (ValueError, TypeError):
            message = last_line(errors) or last_line(output) or "no message"
            why = f"starts no Python in the image {job.container} (exit status {status})"
            todo = TOOLKIT if NO_GPUS.search(errors) else ""
            raise ValueError(f"{job.python} {why}: {message}{todo}") from None
        return path, changed if len(words) > 1 else {}


def interpreter_answer(output: str, env: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the printed interpreter, and variables that differ from `env`. Raises `ValueError`."""
    path, seen = json.loads((output.strip().splitlines() or [""])[-1])
    changed = {name: value for name, value in seen.items() if env.get(name) != value}
    return str(path), {name: changed[name] for name in changed if name not in NOT_KEPT}


class GpusAfter(NamedTuple):
    """The GPUs of an attempt that has ended."""

    held: str = ""  # what still holds their memory, or why that is unknown; empty: nothing
    fault: str = ""  # what is broken, so that a crash was not the trial's; empty: nothing


async def gpus_after(
    names: Sequence[str],
    machine: CheckedMachine,
    before: dict[str, int],
    least: int,
    free_s: float = FREE_S,
) -> GpusAfter:
    """Wait until no process that has ended holds memory of the GPUs with these CUDA names, for at
    most `free_s` seconds, and `nvidia-smi` lists at least `least` without complaint. Nothing is
    known without `nvidia-smi`. `before`: the MiB in use before the first attempt, by uuid.
    """
    if not machine.cuda:
        return GpusAfter()
    give_up_at = time.monotonic() + free_s
    while True:
        try:
            cards, apps = await _lines(CARDS, machine), await _lines(APPS, machine)
            listed = sum(len(card) >= 3 for card in cards)
            if listed < least:
                raise UnhealthyError(f"nvidia-smi lists {listed} GPUs where {least} were")
            after = GpusAfter(held(cards, apps, names, before, host.is_there))
        except UnhealthyError as error:
            after = GpusAfter(str(error), str(error))
        except OSError:
            return GpusAfter()  # no nvidia-smi: GPUs of another maker
        if not after.held or time.monotonic() >= give_up_at:
            return after
        await asyncio.sleep(POLL_S)


async def card_bytes(machine: CheckedMachine) -> dict[str, int]:
    """Return the memory of each GPU by its number and by its UUID. Raises as `_lines` does."""
    cards = [
        card for card in await _lines(CARDS, machine) if len(card) >= 5 and card[4].isdecimal()
    ]
    return {name: int(card[4]) << 20 for card in cards for name in card[:2]}


async def _lines(argv: Sequence[str], machine: CheckedMachine) -> list[list[str]]:
    status, output, message = await ask_smi(argv, machine)
    if status or BROKEN.search(output):
        raise UnhealthyError(f"nvidia-smi ended with exit status {status}: {message}")
    return _rows(output)


def _rows(listing: str) -> list[list[str]]:
    return [[part.strip() for part in line.split(",")] for line in listing.splitlines()]


def held(
    cards: Sequence[Sequence[str]],
    apps: Sequence[Sequence[str]],
    names: Sequence[str],
    before: dict[str, int],
    lives: Callable[[int], bool],
) -> str:
    """Describe memory of the GPUs `names` that no living process holds; empty: none. In a container
    no process may be listed: then what is in use beyond `before` (MiB by uuid) counts.

    `cards`, `apps`: the fields of each line that `CARDS` and `APPS` print; others are left out.
    """
    processes = [app for app in apps if len(app) == 3 and app[0].isdecimal()]
    for index, uuid, in_use, *_ in (card for card in cards if len(card) >= 3):
        if index not in names and not any(n[:4] == "GPU-" and uuid.startswith(n) for n in names):
            continue
        here = [(pid, used) for pid, of, used in processes if of == uuid]
        for pid, used in here:
            if not lives(int(pid)):
                held = f"{used:.{SHOWN}} MiB of GPU {index}"
                return f"process {pid}, which has ended, still holds {held}"
        was = before.get(uuid)
        if not here and was is not None and in_use.isdecimal() and int(in_use) > was + SLACK_MIB:
            return f"{in_use} MiB of GPU {index} are in use by no process; {was} MiB were before"
    return ""
