"""A line for each hint, in their order, as libraries write it."""

from __future__ import annotations

SAMPLES = (
    "OSError: [Errno 28] No space left on device",
    "ModuleNotFoundError: No module named 'torch'",
    "AttributeError: module 'seerd' has no attribute 'trial'",
    "AttributeError: 'Trial' object has no attribute 'lr'",
    "TypeError: Trial.report() takes 1 positional argument but 2 were given",
    "ImportError: attempted relative import with no known parent package",
    "(seerd: pkg is in train.source, which is not on the module path)",
    "ModuleNotFoundError: No module named 'timm'",
    "RuntimeError: context has already been set",
    "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
    "seerd: it had 1/4 of the GPU, and of its memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "RuntimeError: CUDA error: invalid device ordinal",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>",
    "_pickle.UnpicklingError: Weights only load failed.",
    "RuntimeError: Error(s) in loading state_dict for Net:",
    "train.py: error: unrecognized arguments: true",
    "train.py: error: unrecognized arguments: --epoch-count=3",
    "train.py: error: argument --layers: invalid int value: '64 128'",
    "train.py: error: argument --lr: invalid float value: 'x'",
    "PermissionError: [Errno 13] Permission denied: 'base.db'",
    "EOFError: EOF when reading a line",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
    "OSError: [Errno 98] Address already in use",
    "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=...)",
)
