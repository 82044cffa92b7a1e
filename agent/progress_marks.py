"""Progress marks of the ranks of an attempt: one small file each, in memory that they have mapped
(docs/training-side.md, `seerd/training/marks.py`). They are not trusted: a file without a valid
mark counts as none.
"""

from __future__ import annotations

import contextlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from seerd.agent import plainfile

MARK = struct.Struct("<10q3d")
"""Version, then the fields of `ProgressMark`."""
VERSION = 1
MOST_RANKS = 64
WORKING, WAITING, REDUCING, SAVING, ENDED = range(5)


@dataclass(frozen=True)
class ProgressMark:
    """One rank, as it showed itself."""

    pid: int
    rank: int  # among all ranks of the attempt
    peers: int  # number of ranks on this instance
    signal: int  # makes it write its Python stack to its log; 0: there is none
    on_gpu: int  # not 0: passes and steps are counted when they are begun
    # WORKING; WAITING in `running()` for the others; REDUCING: between its backward pass and its
    # step; SAVING; ENDED
    doing: int
    units: int  # calls of `running()` begun
    ticks: int  # backward passes and steps since the last of these calls
    spells: int  # number of spells of work between these moments
    longest_s: float  # the longest such spell but the first
    waited_s: float  # seconds WAITING
    reduced_s: float  # seconds REDUCING

    @property
    def position(self) -> tuple[int, int]:
        """How far it has come, comparable between ranks."""
        return self.units, self.ticks

    @property
    def stands_by(self) -> bool:
        """Whether it may be waiting for others, with nothing else to do."""
        return self.doing in (WAITING, REDUCING)


def read(folder: Path) -> dict[int, ProgressMark]:
    """Read the marks in this folder, by local rank, up to the first that is missing."""
    marks: dict[int, ProgressMark] = {}
    with contextlib.suppress(OSError, struct.error):  # also of one that is cut short
        for local in range(MOST_RANKS):
            path = folder / str(local)
            version, *fields = MARK.unpack(plainfile.read(path, 0, MARK.size))
            mark = ProgressMark(*fields)
            is_sane = (
                version == VERSION
                and 0 < mark.peers <= MOST_RANKS
                and WORKING <= mark.doing <= ENDED
                and mark.pid > 1
                and not path.is_symlink()
                and all(math.isfinite(value) and value >= 0 for value in fields)
            )
            if not is_sane:
                break
            marks[local] = mark
    return marks
