"""How busy the GPUs are, and how much of their memory is in use, by NVML, the library of NVIDIA's
driver (docs.nvidia.com/deploy/nvml-api). It is asked in a thread; where it is missing, silent or
fails, nothing is reported.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

LIBRARY = "libnvidia-ml.so.1"
LEAST = 0.05
"""A smaller change is not reported."""

Shares = list[Optional[float]]
"""Utilisation of each GPU (0 to 1); None: unknown."""


class GpuMemory(NamedTuple):
    """Memory of a GPU, in bytes."""

    used: int  # by all processes, and by the driver
    total: int


class _Rates(ctypes.Structure):
    """`nvmlUtilization_t`, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """The GPUs of these names, numbers or UUIDs. Raises `OSError` if NVML does not work."""

    def __init__(self, names: list[str]) -> None:
        self.library = ctypes.CDLL(LIBRARY)
        status = self.library.nvmlInit_v2()
        if status:
            raise OSError(f"nvmlInit_v2 ended with status {status}")
        self.handles = [self._handle(name) for name in names]

    def look(self) -> Shares:
        """Return how busy each GPU was in the last second or less."""
        rates, ask = _Rates(), self.library.nvmlDeviceGetUtilizationRates
        return [
            None
            if handle is None or ask(handle, ctypes.byref(rates))
            else min(1.0, rates.gpu / 100)
            for handle in self.handles
        ]

    def memory(self) -> list[Optional[GpuMemory]]:
        """Return the memory of each GPU now; None: unknown."""
        seen, ask = _Memory(), self.library.nvmlDeviceGetMemoryInfo
        return [
            None
            if handle is None or ask(handle, ctypes.byref(seen))
            else GpuMemory(seen.used, seen.total)
            for handle in self.handles
        ]

    def _handle(self, name: str) -> Optional[Any]:
        handle = ctypes.c_void_p()
        by_number, by_uuid = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID"
        ask = getattr(self.library, by_number if name.isdecimal() else by_uuid)
        status = ask(int(name) if name.isdecimal() else name.encode(), ctypes.byref(handle))
        return None if status else handle


def watch(
    names: list[str],
    report: Callable[[Shares], Any],
    see: Callable[[list[Optional[GpuMemory]]], Any],
    look_s: float = 2.0,
    means: int = 15,
) -> threading.Thread:
    """Call `report` in another thread on each change of use: with the first look (each takes
    `look_s`), then with means of so many. Call `see` with the memory at once, then at each look.
    End when one of them raises `RuntimeError`.
    """
    args = (names, report, see, look_s, means)
    thread = threading.Thread(target=_keep_looking, args=args, name="nvml", daemon=True)
    thread.start()
    return thread


def _keep_looking(
    names: list[str],
    report: Callable[[Shares], Any],
    see: Callable[[list[Optional[GpuMemory]]], Any],
    look_s: float,
    means: int,
) -> None:
    # OSError, AttributeError: no driver, or one without these functions; RuntimeError: the agent's
    # loop has ended
    with contextlib.suppress(OSError, AttributeError, RuntimeError):
        nvml = Nvml(names)
        see(nvml.memory())
        before: Shares = [None] * len(names)
        count = 1
        while True:
            looks = []
            for _ in range(count):
                time.sleep(look_s)
                looks.append(nvml.look())
                see(nvml.memory())
            use, count = [_mean(shares) for shares in zip(*looks)], means
            if any(map(_differ, use, before)):
                before = use
                report(use)


def _mean(shares: Any) -> Optional[float]:
    numbers = [share for share in shares if share is not None]
    return round(sum(numbers) / len(numbers), 3) if numbers else None


def _differ(before: Optional[float], after: Optional[float]) -> bool:
    return (before is None) != (after is None) or abs((before or 0.0) - (after or 0.0)) >= LEAST
