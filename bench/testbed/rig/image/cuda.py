"""Stands in for torch on a machine with GPUs, for programs that only ask whether they work."""

import os as _os
import pathlib as _pathlib
import sys as _sys
import time as _time
import types as _types

_WARM = _pathlib.Path("/dev/shm/torch-was-read")


def _read_slowly(seconds):
    """As torch is read from a disk that EC2 fetches block by block: once, and something moves."""
    if not seconds or _WARM.exists():
        return
    end = _time.monotonic() + seconds
    with open("/dev/zero", "rb") as disk:
        while _time.monotonic() < end:
            disk.read(1 << 20)
            _time.sleep(0.2)
    _WARM.touch()


class _Tensor:
    """Whatever is computed comes out as itself, and as 2.0 when asked for."""

    def __init__(self, value=2.0):
        self._value = value

    def item(self):
        return self._value

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self

    def __add__(self, other):
        return self

    __radd__ = __mul__ = __rmul__ = __matmul__ = __sub__ = __truediv__ = __getitem__ = __add__

    def __float__(self):
        return float(self._value)

    def __int__(self):
        return int(self._value)

    def __bool__(self):
        return True

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


def _make():
    count = int(_os.environ["GPUS"])
    total = int(_os.environ["GPU_MIB"]) * 1024 * 1024
    cuda = _types.ModuleType("torch.cuda")
    cuda.is_available = lambda: count > 0
    cuda.device_count = lambda: count
    cuda.get_device_name = lambda device=0: _os.environ["GPU_NAME"]
    cuda.get_device_capability = lambda device=0: (7, 0)
    cuda.get_device_properties = lambda device=0: _types.SimpleNamespace(
        name=_os.environ["GPU_NAME"], total_memory=total, major=7, minor=0
    )
    cuda.mem_get_info = lambda device=0: (total, total)
    cuda.set_device = cuda.synchronize = cuda.init = cuda.empty_cache = lambda *args: None
    cuda.current_device = lambda: 0
    torch = _types.ModuleType("torch")
    torch.__version__ = "2.13.0+cu124"
    torch.version = _types.SimpleNamespace(cuda="12.4")
    torch.cuda = cuda
    torch.device = lambda *args: args
    for name in ("zeros", "ones", "empty", "full", "tensor", "rand", "randn", "arange", "eye"):
        setattr(torch, name, lambda *args, **kwargs: _Tensor())
    _sys.modules["torch"] = torch
    _sys.modules["torch.cuda"] = cuda


_read_slowly(float(_os.environ["COLD_S"]))
_make()
