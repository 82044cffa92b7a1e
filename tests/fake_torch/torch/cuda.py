"""`torch.cuda` of the fake GPU: as the real one, it does nothing before the first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.testbed.gpu import CONTEXT_MIB, MIB, OutOfMemoryError, shared

__all__ = ["OutOfMemoryError"]

_queued: list[Callable[[], None]] = []
_initialized = False


def is_initialized() -> bool:
    return _initialized


def _lazy_call(call: Callable[[], None]) -> None:
    _queued.append(call)


def init() -> None:
    """Make a context, and then what was to be done at first use."""
    global _initialized  # noqa: PLW0603
    if not _initialized:
        with _gpu() as gpu:
            gpu.begin(str(os.getpid()), CONTEXT_MIB[1] * MIB)
        _initialized = True
        for call in _queued:
            call()


class get_device_properties:  # noqa: N801
    def __init__(self, device: int) -> None:
        assert device == 0, "a trial on a part sees its own GPU alone"
        init()
        with _gpu() as gpu:
            self.total_memory = gpu.total


def set_per_process_memory_fraction(fraction: float, device: int) -> None:
    assert device == 0
    init()
    with _gpu() as gpu:
        gpu.processes[str(os.getpid())].allowed = round(fraction * gpu.total)


def allocate(size: int) -> None:
    """Allocate so many bytes on the GPU, as a tensor would."""
    init()
    with _gpu() as gpu:
        gpu.allocate(str(os.getpid()), size)


def _gpu():
    return shared(Path(os.environ["FAKE_GPU"]))
