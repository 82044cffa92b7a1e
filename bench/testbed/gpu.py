"""A GPU that several processes share, without one: its memory runs out for all of them, a process
is held to what torch lets it allocate, and those that compute at the same time slow each other
down.

With a file, processes have one GPU in common: each reads it, changes it and writes it, one at a
time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

MIB = 1 << 20
SEGMENT = 2 * MIB  # torch takes memory of the device in multiples of this
CONTEXT_MIB = (250, 850)  # what a process takes for its CUDA context, from small to large GPUs


class OutOfMemoryError(RuntimeError):
    """What torch raises, in its words."""


@dataclass
class Process:
    """A process that has used the GPU."""

    context: int  # bytes, which torch does not count
    allowed: int | None = None  # bytes that torch may allocate; None: no bound
    allocated: int = 0  # bytes, by torch
    load: float = 1.0  # share of the time for which it computes while it is alone

    @property
    def used(self) -> int:
        """Bytes of the device."""
        return self.context + self.allocated


@dataclass
class FakeGpu:
    """A GPU with so many bytes, and its processes by their ids."""

    total: int
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Bytes that nobody has."""
        return self.total - sum(process.used for process in self.processes.values())

    def begin(self, pid: str, context: int) -> Process:
        """Make a context for a process. Raises `OutOfMemoryError`."""
        if context > self.free:
            raise OutOfMemoryError("CUDA error: out of memory")
        return self.processes.setdefault(pid, Process(context))

    def allocate(self, pid: str, size: int) -> None:
        """Allocate for a process, as torch does. Raises `OutOfMemoryError`."""
        process, taken = self.processes[pid], -(-size // SEGMENT) * SEGMENT
        bound = self.total if process.allowed is None else process.allowed
        if process.allocated + taken > bound or taken > self.free:
            raise OutOfMemoryError(self._message(pid, size))
        process.allocated += taken

    def end(self, pid: str) -> None:
        """Free all that a process has."""
        self.processes.pop(pid, None)

    def speed(self, pid: str) -> float:
        """Return how fast a process is, of its speed alone: they take turns while all want to."""
        loads = sum(process.load for process in self.processes.values())
        return 1 / max(1.0, loads) if pid in self.processes else 0.0

    def busy(self) -> float:
        """Return the share of the time for which the GPU computes."""
        return min(1.0, sum(process.load for process in self.processes.values()))

    def _message(self, pid: str, size: int) -> str:
        own = self.processes[pid]
        others = (
            f"Process {other} has {_text(process.used)} memory in use. "
            for other, process in self.processes.items()
            if other != pid
        )
        allowed = "" if own.allowed is None else f"{_text(own.allowed)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {_text(size)}. GPU 0 has a total capacity of "
            f"{_text(self.total)} of which {_text(self.free)} is free. {''.join(others)}Including "
            f"non-PyTorch memory, this process has {_text(own.used)} memory in use. {allowed}Of "
            f"the allocated memory {_text(own.allocated)} is allocated by PyTorch."
        )


@contextlib.contextmanager
def shared(path: Path) -> Iterator[FakeGpu]:
    """The GPU in this file, which is locked meanwhile; processes that have ended have nothing."""
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        body = json.load(file)
        gpu = FakeGpu(body["total"], {p: Process(**own) for p, own in body["processes"].items()})
        for pid in [pid for pid in gpu.processes if not Path("/proc", pid).exists()]:
            gpu.end(pid)
        try:
            yield gpu
        finally:
            file.seek(0)
            file.write(json.dumps(asdict(gpu)))
            file.truncate()


def _text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
