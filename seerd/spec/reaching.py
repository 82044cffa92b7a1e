"""Whether every hyperparameter reaches the script.

The one rule: a spec is refused only where nothing can carry a hyperparameter; else there is a
doubt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from seerd.agent.arguments import places
from seerd.planner.space import Space

SEERD = re.compile(rb"\bimport\s+seerd\b|\bfrom\s+seerd\b|[\"']seerd[\"'.]|SEERD_")
"""What a file has that takes part in a run: it imports seerd, or names its variables."""
MOST_FILES, MOST_BYTES = 5_000, 1 << 20
"""How many files of the source are listed, and how long a file is that is read."""


def unplaced(
    space: Space, texts: Iterable[str], source: Path, script: str, *, is_python: bool
) -> tuple[list[str], bool | None]:
    """Return the hyperparameters that are in none of these texts, none if the script itself takes
    part; and whether another file of the source does: None if it has too many files.

    texts      arguments, environment variables and files in which names in braces are filled
    script     a program, relative to the source
    is_python  whether it is Python
    """
    placed = {name for text in texts for name in places(text, space.names)}
    for parameter in reversed(space.parameters):  # what selects others is seen by those
        if parameter.name in placed:
            placed |= {condition.parameter for condition in parameter.when}
    names = [name for name in space.names if name not in placed]
    if not names or _takes_part(source / script):
        return [], None
    return names, _any_takes_part(source, ".py" if is_python else "")


def _any_takes_part(source: Path, suffix: str) -> bool | None:
    listed = 0
    for top, folders, files in os.walk(source):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(top, name, "pyvenv.cfg").exists()
        ]
        listed += len(files)
        if listed > MOST_FILES:
            return None
        if any(_takes_part(Path(top, name)) for name in files if name.endswith(suffix)):
            return True
    return False


def _takes_part(file: Path) -> bool:
    try:
        return file.stat().st_size <= MOST_BYTES and SEERD.search(file.read_bytes()) is not None
    except OSError:
        return False
