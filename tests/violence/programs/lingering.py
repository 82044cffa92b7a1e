#!/usr/bin/env python3
"""A launcher whose trial outlives it: the trial runs in a session of its own, and inherits nothing
but its environment, as torchrun's ranks do.
"""

import subprocess
import sys
from pathlib import Path

TRIAL = [sys.executable, str(Path(__file__).with_name("traced.py"))]
sys.exit(subprocess.Popen(TRIAL, start_new_session=True).wait())
