"""This machine: its CUDA devices if it has any, else CPU slots."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from seerd.agent.arguments import fixed_environment, interpreter_words
from seerd.agent.needs import needs_torch
from seerd.backends.backend import GRACE_S, Backend, GpuUse, RunFiles, Site
from seerd.backends.base import Machine, Quote
from seerd.backends.examining import Case, Finding, Level, Notes, of_engines
from seerd.backends.local.keys import LocalKeys
from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts
from seerd.spec.program import why_no_python
from seerd.spec.spec import Spec
from seerd.stores.by_address import by_address

HERE = "this machine"
UNBOUNDED = 8  # GPUs where their number is not known: those of the papers' machines
TORCH_S = 120.0
TORCH = (
    "import torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(n, 'CUDA devices are seen by torch', torch.__version__)"
)
VERSION = "import platform; print('Python', platform.python_version())"


@dataclass(frozen=True, slots=True)
class MachineSlots:
    """What trials get of this machine."""

    gpus: int  # CUDA devices (`cuda`), or CPU slots
    cuda: bool  # whether they are CUDA devices
    threads: int  # CPU threads for each rank
    weight: float = 1.0  # the run's share beside other runs on this machine


class LocalBackend(Backend[LocalKeys]):
    """This machine: its CUDA devices if it has any, else CPU slots."""

    python = sys.executable
    elsewhere = False

    def check(self, spec: Spec) -> None:
        if self.keys.store and by_address(self.keys.store).by_urls:
            raise UsageError(
                f"on this machine checkpoints are kept in a directory, not in {self.keys.store}"
            )
        if (why := self.why_not(spec)) is not None:
            raise UsageError(f"nothing was started: {why}")

    @classmethod
    def why_not(cls, spec: Spec) -> str | None:
        if spec.train.data:
            return (
                "train.data is for rented instances; on this machine, name the folder in the "
                "script or in train.args"
            )
        if spec.train.launcher == "command" or spec.train.setup or spec.train.container:
            return None
        return (
            why_no_python(
                spec.train.python or cls.python,
                spec.folder,
                fixed_environment(spec.train.env, spec.space.names),
                torch=spec.train.launcher == "torchrun",
            )
            or None
        )

    @classmethod
    def python_in(cls, spec: Spec) -> str:
        """Return the spec's folder: the project's environment is used, not a copy."""
        return str(spec.folder.resolve())

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        if machine.cuda_devices:
            return (f"{machine.cuda_devices} x {machine.device or 'CUDA device'}",)
        return (f"{self._gpus(machine)} slots on {machine.cores} CPU cores",)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        if machine is None:
            return Quote(ClusterFacts(billing="held", gpus_per_instance=UNBOUNDED))
        gpus = self._gpus(machine)
        return Quote(
            ClusterFacts(billing="held", gpus_per_instance=gpus, max_instances=1),
            threads=max(1, machine.cores // gpus),
            cuda=machine.cuda_devices > 0,
        )

    async def examine(self, case: Case) -> list[Finding]:
        notes, train = Notes([case.peak(None)[1]], cloud=False), case.spec.train
        machine, wanted = case.machine, self.keys.gpus
        if devices := machine.cuda_devices:
            name = f" ({machine.device})" if machine.device else ""
            level: Level = "problem" if (wanted or 0) > devices else "ok"
            notes.note("GPUs", level, f"{devices} CUDA devices{name}")
        else:
            slots = f"{wanted or machine.cores} CPU slots of {machine.cores} cores"
            level = "ok" if train.launcher == "command" else "warning"
            notes.note("GPUs", level, f"no CUDA device: trials run on {slots}")
        if train.container:
            from seerd.agent.container import ENGINE_S, ENGINES

            works = [name for name, words in ENGINES.items() if _works([name, *words], ENGINE_S)]
            notes.note("container", *of_engines(works))
        elif train.launcher != "command":
            _python(notes, case.spec, train.python or sys.executable, devices)
        return notes.lines

    async def gpu_use(self) -> list[GpuUse]:
        from seerd.agent.gpu_leases import LeaseFolderError, report

        try:
            return [GpuUse(HERE, report())]
        except LeaseFolderError as error:
            return [GpuUse(HERE, why=str(error))]

    def source(self, files: RunFiles) -> str:
        return str(files.source.resolve())

    def kept(self, spec: Spec, files: RunFiles, quote: Quote, until: float) -> MachineSlots:
        gpus = quote.facts.gpus_per_instance
        return MachineSlots(gpus, quote.cuda, quote.threads, self.keys.weight)

    @staticmethod
    def kept_type() -> Any:
        return MachineSlots

    @staticmethod
    def site(kept: MachineSlots, files: RunFiles, _until: float, lease_s: float) -> Site:
        from seerd.backends.bundle import agent_for
        from seerd.backends.local.provider import LocalProvider

        return Site(
            LocalProvider(
                folder=files.instances,
                run=files.run,
                bundle=agent_for(files.agent),
                gpus=kept.gpus,
                cuda=kept.cuda,
                weight=kept.weight,
                lease_s=lease_s,
                grace_s=GRACE_S,
            )
        )

    def _gpus(self, machine: Machine) -> int:
        devices, wanted = machine.cuda_devices, self.keys.gpus
        if devices and (wanted or 0) > devices:
            raise UsageError(
                f"cluster.gpus = {wanted}, but this machine has {devices} CUDA devices"
            )
        return wanted or devices or machine.cores


def _works(command: list[str], within_s: float) -> bool:
    try:
        asked = subprocess.run(command, capture_output=True, check=False, timeout=within_s)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


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
    elif torch and answer[:1].isdecimal() and int(answer.split()[0]) < devices:
        todo = "a torch with CUDA that fits the driver is needed"
        notes.problem(check, f"{python}: {answer}", todo)
    else:
        notes.ok(check, f"{python}: {answer}")


BACKEND = LocalBackend
