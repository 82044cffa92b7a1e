"""In which places of a cloud an instance of this home was ever ready: an empty file for each, in
`places` of the folder of all runs.
"""

from __future__ import annotations

from pathlib import Path


def note(home: Path, place: str) -> None:
    """Note that an instance is ready there. Raises `OSError`."""
    path = _file(home, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def is_noted(home: Path, place: str) -> bool:
    """Return whether an instance was ever ready there."""
    return _file(home, place).exists()


def _file(home: Path, place: str) -> Path:
    return home / "places" / place.replace("/", "-")
