"""The fake device, as scripts of `bench/gpu.py` use it: in their folder this file is `device.py`.

A process is on the device while it lives and its file is in the folder BENCH_FAKE, where the fake
`nvidia-smi` sees it. Of each MiB of a state a KiB is kept, in host memory.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np  # as torch: something that takes a while to import

BACKEND = "gloo"
MIB = 1024  # memory of the device
LOAD = 0.5  # share of the time for which a process computes on the device while it is alone there
FOLDER = Path(os.environ["BENCH_FAKE"])
EPOCH_S = 0.1


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def use() -> None:
    """Be on the device."""
    hold(8)


def hold(mib: int) -> None:
    """Hold so much of its memory in all, as torch does. Raises `OutOfMemoryError`."""
    part, _, parts = os.environ.get("SEERD_GPU_SHARE", "1/1").partition("/")
    allowed = MIB * int(part) // int(parts)
    free = MIB - sum(int(path.read_text() or 0) for path in others())
    if mib > min(allowed, free):
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU 0 has a total capacity of "
            f"1.00 GiB of which {free}.00 MiB is free. {allowed}.00 MiB allowed; Of the allocated "
            "memory 0.00 MiB is allocated by PyTorch."
        )
    (FOLDER / str(os.getpid())).write_text(f"{mib}\n")


def others() -> list[Path]:
    """Return the files of the other processes on the device."""
    own = str(os.getpid())
    living = [path for path in FOLDER.iterdir() if Path("/proc", path.name).exists()]
    return [path for path in living if path.name != own]


def hang() -> None:
    """Wait for ever, whatever signal is sent but SIGKILL."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(3600)


class State:
    """A state of so many MiB on the device, with a number that can be read in its file."""

    def __init__(self, mib: int) -> None:
        use()
        self.mark = 0
        self._bytes = "." * (mib << 10)

    def state_dict(self) -> dict[str, object]:
        return {"mark": f"mark-{self.mark}.", "bytes": self._bytes}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.mark = int(str(state["mark"])[5:-1])


class Network:
    """A model that becomes better with each pass, best at a learning rate of 0.01."""

    def __init__(self, lr: float) -> None:
        self._lr, self._state = lr, State(64)

    def tracked(self) -> dict[str, object]:
        return {"state": self._state}

    def epoch(self) -> float:
        """Train for a pass; return the accuracy."""
        time.sleep(EPOCH_S * max(1.0, LOAD * (1 + len(others()))))
        self._state.mark += 1
        return (1 - 0.9**self._state.mark) * (1 - abs(float(np.log10(self._lr)) + 2) / 4)
