"""What this machine has for training, by its operating system and its driver."""

from __future__ import annotations

import os
import shutil
import subprocess

from seerd.backends.base import Machine


def this_machine() -> Machine:
    """Return what this machine has for training, without importing torch, which takes a second."""
    lines: list[str] = []
    if tool := shutil.which("nvidia-smi"):
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
        # A line is "GPU 0: NVIDIA H200 (UUID: GPU-...)".
        lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    model = lines[0].partition(": ")[2].partition(" (UUID")[0] if lines else ""
    return Machine(len(lines), os.cpu_count() or 1, model)
