"""Checkpoints made of what a script saves: a file as it is, a folder as one file
(`seerd/agent/folders.py`).

The one rule: a checkpoint is a copy, and counts only if the original was the same before and after,
and its own checksums, if any, are right. The manifest also says where it was (`at`), and which
reports are behind its metric (`recent`).
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, cast

from seerd.agent import folders
from seerd.training import checkpoints
from seerd.training.attempt import Attempt
from seerd.training.observer.saved import Saved, Watch, identity, is_sound

BLOCK = 1 << 20


@dataclass(frozen=True)
class SoFar:
    """How far the trial has come, for a checkpoint's manifest."""

    epoch: int  # reports so far
    metrics: Dict[str, Optional[float]]  # metrics of the last report, as a checkpoint has them
    recent: List[Optional[float]]  # the values of the metric that counts, of the last reports


class Carrier:
    """Writes the checkpoints of an attempt. `units` is the number of the last one."""

    def __init__(self, attempt: Attempt, work: Path, watch: Watch, units: int) -> None:
        self._attempt = attempt
        self._work = work
        self._watch = watch
        self._units = units
        # what the last one has of links that lead out of it, in words; empty: there are none
        self.out = ""

    def carry(self, saved: Saved, standing: SoFar) -> Optional[str]:
        """Write a checkpoint; return its name, None if the save changed meanwhile. Raises
        `OSError`.
        """
        folder = self._attempt.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{standing.epoch:06d}-{self._units + 1:08d}"
        part = folder / f".{name}.pt"
        shows = self._watch.shows(saved)
        try:
            with open(part, "wb") as file:
                out = checkpoints.Flushed(file)
                with self._watch.held(saved):
                    is_same = self._copy(saved, out)
                out.flush()
            if not is_same or (shows and not is_sound(part)):
                return None
            self._units += 1
            self._name(part, name, saved, standing, out.sha256.hexdigest())
        except (FileNotFoundError, BlockingIOError):  # it is being replaced, or written
            return None
        finally:
            part.unlink() if part.exists() else None
        return name

    def _copy(self, saved: Saved, out: checkpoints.Flushed) -> bool:
        """Copy a save; return whether it is still as it was seen."""
        path = self._work / saved.path
        if path.is_dir():
            folders.pack(path, cast(BinaryIO, out))
            self.out = folders.links_out(path)
            return self._watch.is_as_it_was(saved)
        with open(path, "rb") as file:  # it stays the same file though another takes its name
            shutil.copyfileobj(file, out, BLOCK)
            return saved.signature[0][1:] == identity(os.fstat(file.fileno()))

    def _name(self, part: Path, name: str, saved: Saved, standing: SoFar, sha256: str) -> None:
        manifest = {
            "version": 1,
            "name": name,
            "epoch": standing.epoch,
            "metrics": standing.metrics,
            "sha256": sha256,
            "size": part.stat().st_size,
            "at": saved.path,
            "recent": standing.recent,
        }
        os.replace(part, part.with_name(f"{name}.pt"))
        checkpoints.publish(part.parent, manifest, self._attempt.worth)


def read_manifest(folder: Path, name: str) -> Dict[str, Any]:
    """Read the manifest of a checkpoint that `Carrier` has written."""
    manifest: Dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return manifest
