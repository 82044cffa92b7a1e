"""Holds the processes of an attempt that has a part of a GPU to its share of the GPU's memory.

The one rule: torch sets the bound when the process first uses the GPU itself, so nothing here
imports torch or makes a CUDA context.
"""

import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any, Optional

SHARE = "SEERD_GPU_SHARE"  # the attempt's part of its GPU, as "1/4"; not set: whole GPUs
MPS = "SEERD_MPS"  # a variable of the job or of the agent; "1": MPS holds processes, too
GROWN = "share"  # file of the attempt with its part, once that has grown since its start
CONTEXT_BYTES = 850 << 20
"""Memory of a process that torch does not allocate, its CUDA context above all: what torch's own
tests leave for it where several share a GPU (torch/testing/_internal/common_utils.py).
"""


def hold() -> None:
    """Hold this process to its share, if it has one; called before the script's first line."""
    if not os.environ.get(SHARE):
        return
    cuda = sys.modules.get("torch.cuda")
    if cuda is None:
        sys.meta_path.insert(0, _WithBound())
    else:
        _bound_later(cuda)


def allowed_bytes(share: str, total: int) -> int:
    """Return what torch may allocate of a GPU with so many bytes."""
    part, _, parts = share.partition("/")
    if part == parts:
        return total  # it has grown to its whole GPU
    return max(0, total * int(part) // int(parts) - CONTEXT_BYTES)


def widen() -> None:
    """Apply the attempt's part by now, if this process is held to a smaller one."""
    before = os.environ.get(SHARE)
    if before and _share() != before:
        os.environ[SHARE] = _share()
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            _bound()


class _WithBound:
    """Finds `torch.cuda` as Python does, and sets the bound once it is imported."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Optional[Any]:
        """Find no other module, as one of `sys.meta_path`."""
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_bound(module: Any) -> None:
                execute(module)
                _bound_later(module)

            spec.loader.exec_module = execute_and_bound  # type: ignore[method-assign]
        return spec


def _bound_later(cuda: Any) -> None:
    # torch makes such calls, as those that seed it, when the process first uses a GPU. Its public
    # `set_per_process_memory_fraction` would begin that use.
    cuda._lazy_call(_bound)  # noqa: SLF001


def _bound() -> None:
    cuda = sys.modules["torch.cuda"]
    total = cuda.get_device_properties(0).total_memory
    cuda.set_per_process_memory_fraction(allowed_bytes(_share(), total) / total, 0)


def _share() -> str:
    """Return the attempt's part by now."""
    try:
        return Path(os.environ["SEERD_DIR"], GROWN).read_text()
    except (OSError, KeyError):
        return os.environ[SHARE]
