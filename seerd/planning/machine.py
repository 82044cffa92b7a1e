"""What this machine has for training, by its operating system and its driver."""

from __future__ import annotations

import os
import shutil
import subprocess

from seerd.agent.gpu_devices import cuda_devices
from seerd.backends.base import Machine


def this_machine() -> Machine:
    """Return what this machine has for training, without importing torch, which takes a second."""
    listing = ""
    if tool := shutil.which("nvidia-smi"):
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
        listing = listed.stdout
    # The first line is "GPU 0: NVIDIA H200 (UUID: GPU-...)".
    model = listing.partition("GPU 0: ")[2].partition(" (UUID")[0]
    return Machine(len(cuda_devices(0, "", listing)), os.cpu_count() or 1, model)
