"""Looks through an instance for texts that must not be there: its files, and what its processes
were started with.

The one rule: it looks from outside, as root of the machine that the instance is made of, so nothing
on the instance can hide anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.testbed.rig import RigInstance

FOLDERS = ("home", "root", "run", "tmp", "var", "etc", "dev/shm")
"""Everything that can be written there. What is mounted beneath is this machine's, read-only."""


def in_files(folders: Sequence[Path], texts: Sequence[str]) -> set[tuple[str, str]]:
    """Which files under these folders, and on the same disk, have which of these texts in them."""
    there = [folder for folder in folders if folder.exists()]
    assert there, f"none of {folders} is there"
    wanted = {text: text.encode() for text in texts}
    found = set()
    for path in (path for folder in there for path in _files(folder)):
        with contextlib.suppress(FileNotFoundError):  # it has just been removed
            content = path.read_bytes()
            found |= {(str(path), text) for text, form in wanted.items() if form in content}
    return found


def _files(folder: Path) -> Iterator[Path]:
    disk = folder.stat().st_dev
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if (Path(top) / name).lstat().st_dev == disk]
        yield from (
            path
            for path in (Path(top) / name for name in files)
            if path.is_file() and not path.is_symlink()
        )


def on_disk(instance: RigInstance, texts: Sequence[str]) -> set[tuple[str, str]]:
    """Which of the instance's files have which of these texts in them."""
    return in_files([Path(f"/proc/{instance.pid}/root/{folder}") for folder in FOLDERS], texts)


def in_processes(instance: RigInstance, texts: Sequence[str]) -> list[str]:
    """Its processes that were given one of these texts as an argument or in their environment."""
    return [started for started in processes(instance) if any(text in started for text in texts)]


def processes(instance: RigInstance) -> list[str]:
    """Name, arguments and environment of each process in its process namespace."""
    return list(_processes(Path(f"/proc/{instance.pid}/ns/pid").readlink()))


def _processes(namespace: Path) -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns" / "pid").readlink() == namespace:
                yield " ".join(
                    (folder / name).read_bytes().decode(errors="replace")
                    for name in ("comm", "cmdline", "environ")
                )
        except OSError:
            continue  # it has just ended
