"""Where a part of `bench/gpu.py` is measured: a folder, a device, and the time that it may take."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seerd.core.commands import StartTrial
from seerd.core.events import Event
from seerd.shell.journal import Journal

HERE = Path(__file__).parent
SEERD = [sys.executable, "-c", "from seerd import cli; cli.main()"]
END_S = 10.0  # seconds that a command has to end after SIGINT
POLL_S = 0.05
SPEC = """
name = "gpu"
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
[space]
lr = { low = 1e-3, high = 1e-1, log = true }
[cluster]
provider = "local"
gpus = 1
"""
E = TypeVar("E", bound=Event)


class PartError(Exception):
    """A part cannot be measured."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    result: dict[str, Any]  # what `seerd run --json` printed
    events: list[Event]  # of its journal
    starts: list[StartTrial]  # attempts that were ordered
    took_s: float  # seconds of the command

    def each(self, kind: type[E]) -> list[E]:
        """Return the events of this kind, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]


class Ground:
    """A folder and a device.

    folder     empty at first
    pretended  whether the device is the fake one, and trials have CPU slots' speed
    most_s     seconds that the part may take from now on
    """

    def __init__(self, folder: Path, pretended: bool, most_s: float) -> None:
        self.folder, self.pretended = folder, pretended
        self._ends_at = time.monotonic() + most_s
        self.out = folder / "out"  # where scripts write
        self.env = {
            **os.environ,
            "SEERD_HOME": str(folder / "home"),
            "BENCH_OUT": str(self.out),
            "BENCH_FAKE": str(folder / "fake"),
        }
        if pretended:
            (folder / "fake").mkdir()
            (folder / "bin").mkdir()
            shutil.copy(HERE / "nvidia-smi", folder / "bin")
            self.env["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
            self.env["SEERD_GPU_LEASES"] = str(folder / "leases")
            self.env["OMP_NUM_THREADS"] = "1"
            self.env.pop("CUDA_VISIBLE_DEVICES", None)

    def sized(self, real: Any, pretended: Any) -> Any:
        """Return the size for this device."""
        return pretended if self.pretended else real

    @property
    def left_s(self) -> float:
        """Seconds that the part may still take."""
        return max(0.0, self._ends_at - time.monotonic())

    def project(self, script: str) -> Path:
        """Make a project of this script; return its spec."""
        folder = self.folder / script.partition(".")[0]
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "scripts" / script, folder / "train.py")
        device = "pretend.py" if self.pretended else "cuda.py"
        shutil.copy(HERE / "scripts" / device, folder / "device.py")
        (folder / "spec.toml").write_text(SPEC)
        return folder / "spec.toml"

    def launcher(self) -> str:
        """Return a setting of the launcher: torchrun, or python, which is light."""
        return f'train.launcher="{self.sized("torchrun", "python")}"'

    def run(self, spec: Path, seconds: float, *settings: str) -> Run:
        """Run a spec for so many seconds at most, with these settings. Raises `PartError`."""
        limits = [f'limits.deadline="{seconds:g}s"', f'limits.budget="{seconds:g}gpu-s"']
        if self.pretended:
            limits.append('policy.t_min="1s"')
        words = [word for setting in (*limits, *settings) for word in ("--set", setting)]
        began = time.monotonic()
        printed = self.seerd("run", str(spec), "--json", *words)
        took_s = time.monotonic() - began
        result = json.loads(printed)
        with Journal.open(self.home / result["run"] / "journal.db", read_only=True) as journal:
            entries = list(journal.entries())
        orders = [command for entry in entries for command in entry.commands]
        starts = [order for order in orders if isinstance(order, StartTrial)]
        return Run(result, [entry.event for entry in entries], starts, took_s)

    @property
    def home(self) -> Path:
        """The folder of runs."""
        return self.folder / "home"

    def seerd(self, *words: str) -> str:
        """Return what a command prints. Raises `PartError` if it fails, or the time is over."""
        process = subprocess.Popen(
            [*SEERD, *words],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = process.communicate(timeout=self.left_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_S)
            process.kill()
            raise PartError(f"seerd {words[0]} was not over in time") from None
        if process.returncode:
            why = f"seerd {words[0]} ended with exit status {process.returncode}"
            raise PartError(f"{why}: {errors[-800:]}{printed[-400:]}")
        return printed

    @contextlib.contextmanager
    def beside(self, spec: Path, seconds: float, *settings: str) -> Iterator[Future[Run]]:
        """Run a spec while the body of `with` does something else."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.run, spec, seconds, *settings)

    def devices(self) -> list[str]:
        """Return the UUIDs of the machine's GPUs."""
        return self._smi("--query-gpu=uuid")

    def used_mib(self) -> int:
        """Return the MiB of the GPUs that are in use."""
        return sum(map(int, self._smi("--query-gpu=memory.used")))

    def memory_mib(self) -> int:
        """Return the memory of the machine's first GPU in MiB."""
        return int(self._smi("--query-gpu=memory.total")[0])

    def waited_s(self, is_so: Callable[[], bool], most_s: float) -> float | None:
        """Wait until something is so; return how many seconds it took, None: more than `most_s`."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > min(most_s, self.left_s):
                return None
            time.sleep(POLL_S)
        return time.monotonic() - began

    def _smi(self, query: str) -> list[str]:
        listed = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
        )
        return listed.stdout.splitlines()


def mark_in(path: str) -> int | None:
    """Return the number in the state of a checkpoint's file; None: it has none."""
    number = re.search(rb"mark-(\d+)\.", Path(path).read_bytes())
    return int(number[1]) if number else None
