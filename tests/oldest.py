"""The oldest Python that the agent and the training side claim to run on, where this machine has
it.
"""

from __future__ import annotations

import subprocess
from functools import cache

OLDEST = "3.9"
ASKED = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
KEEPERS = (("pyenv", "prefix", OLDEST), ("uv", "python", "find", OLDEST))
"""If it is not on the path, one of the programs that keep several may know where it is."""


@cache
def oldest_python() -> str:
    """Its path; empty if it is not found."""
    kept = [found for found in map(_answer, KEEPERS) if found]
    for candidate in (f"python{OLDEST}", *kept, *(f"{found}/bin/python" for found in kept)):
        version, _, path = _answer((candidate, "-c", ASKED)).partition("\n")
        if version == OLDEST:
            return path
    return ""


def _answer(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
