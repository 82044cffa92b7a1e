"""Looks through an instance for texts that must not be there: its files, and what its processes were started with.

The one rule: it looks from outside, as root of the machine that the instance is made of, so nothing on the instance can hide anything.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.rig import RigInstance

FOLDERS = ("home", "root", "run", "tmp", "var", "etc", "dev/shm")
"""Everything that can be written there; the rest is this machine's, read-only."""


def in_files(folders: Sequence[Path], texts: Sequence[str]) -> list[str]:
    """Files under these folders that have one of these texts in them."""
    there = [str(folder) for folder in folders if folder.exists()]
    assert there, f"none of {folders} is there"
    grep = ["grep", "--recursive", "--files-with-matches", "--text", "--fixed-strings", "--devices=skip", "--file=-"]
    found = subprocess.run([*grep, "--", *there], input="\n".join(texts), capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def on_disk(instance: RigInstance, texts: Sequence[str]) -> list[str]:
    """The instance's files that have one of these texts in them."""
    return in_files([Path(f"/proc/{instance.pid}/root/{folder}") for folder in FOLDERS], texts)


def in_processes(instance: RigInstance, texts: Sequence[str]) -> list[str]:
    """Its processes that were given one of these texts as an argument or in their environment."""
    return [started for started in processes(instance) if any(text in started for text in texts)]


def processes(instance: RigInstance) -> list[str]:
    """Arguments and environment of each process in its process namespace."""
    return list(_processes(os.readlink(f"/proc/{instance.pid}/ns/pid")))


def _processes(namespace: str) -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns" / "pid") == namespace:
                yield " ".join((folder / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ"))
        except OSError:
            continue  # it has just ended
