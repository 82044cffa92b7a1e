"""What this machine has for training, by its operating system and its driver."""

from __future__ import annotations

import os
import shutil
import subprocess

from seerd.backends.base import Machine


def this_machine() -> Machine:
    """Return what this machine has for training."""
    devices = _cuda_devices()
    return Machine(len(devices), os.cpu_count() or 1, devices[0] if devices else "")


def _cuda_devices() -> list[str]:
    """List the devices of the NVIDIA driver; importing torch for that would take a second."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    # A line is "GPU 0: NVIDIA H200 (UUID: GPU-...)".
    lines = (line for line in listed.stdout.splitlines() if line.startswith("GPU "))
    return [line.partition(": ")[2].partition(" (UUID")[0] for line in lines]
