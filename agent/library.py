"""What runs in the processes of trials: unpacked from the agent's zip, since they import it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from seerd.agent.launch import TRAINING_SIDE

FOLDER = "lib"
"""Where it is, within the agent's own folder."""


def unpack(program: Path, library: Path) -> Path:
    """Unpack it from the zip `program` into the folder `library`; return that folder."""
    with zipfile.ZipFile(program) as bundle:
        bundle.extractall(
            library, [name for name in bundle.namelist() if name.startswith(TRAINING_SIDE)]
        )
    return library
