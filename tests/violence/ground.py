"""Where a local run lives: a home and a store on small disks of their own, a project, and a driver
that lists GPUs.

The one rule: everything lies in one folder, and nothing of it is left mounted at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seerd.agent.gpu_leases import ELSEWHERE

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
HOME_MIB, STORE_MIB = 48, 16
DRIVER = """#!/bin/sh
[ "$1" = -L ] || exit 0
for gpu in $(seq 0 {last}); do echo "GPU $gpu: Violent (UUID: GPU-$gpu)"; done
"""
"""With GPUs, which an attempt is told in CUDA_VISIBLE_DEVICES, it shows from outside who was given
which.
"""


class NoGroundError(Exception):
    """Disks of a run's own cannot be had here."""


@dataclass(frozen=True, slots=True)
class Ground:
    """One folder for one run."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def trace(self) -> Path:
        return self.folder / "trace.jsonl"

    @property
    def spec(self) -> Path:
        return self.folder / "project" / "spec.toml"

    @property
    def env(self) -> dict[str, str]:
        """Of `seerd`."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith("SEERD_")
        }
        return {
            **outside,
            "SEERD_HOME": str(self.home),
            ELSEWHERE: str(self.folder / "gpus"),
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "160",
        }

    def fill(self, disk: Path, free_bytes: int = 0) -> None:
        """Leave no more than that on `home` or `store`."""
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                state = os.statvfs(disk)
                filler.write(b"\0" * max(4096, state.f_bavail * state.f_frsize - free_bytes))
                if free_bytes:
                    return

    def empty(self, disk: Path) -> None:
        """Give the room back."""
        (disk / "filler").unlink(missing_ok=True)

    def lock_store(self) -> bool:
        """Nobody can write there, root neither; whether that could be done: not in a moment in
        which a file is being written.
        """
        for _ in range(50):
            if _mount("-o", "remount,ro", str(self.store)).returncode == 0:
                return True
            time.sleep(0.01)
        return False

    def unlock_store(self) -> None:
        """As it was."""
        _mount("-o", "remount,rw", str(self.store)).check_returncode()


@contextlib.contextmanager
def ground(folder: Path, script: str, gpus: int) -> Iterator[Ground]:
    """A folder with everything but the spec. Raises `NoGroundError` where nothing can be
    mounted.
    """
    made = Ground(folder)
    made.spec.parent.mkdir(parents=True)
    shutil.copy(PROGRAMS / script, made.spec.parent)
    driver = folder / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER.format(last=gpus - 1))
    driver.chmod(0o755)
    with contextlib.ExitStack() as mounted:
        for disk, size in ((made.home, HOME_MIB), (made.store, STORE_MIB)):
            disk.mkdir()
            done = _mount("-t", "tmpfs", "-o", f"size={size}m", "seerd-violence", str(disk))
            if done.returncode:
                raise NoGroundError(
                    f"a small disk cannot be mounted (root can): {done.stderr.strip()}"
                )
            mounted.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
        yield made


def _mount(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
