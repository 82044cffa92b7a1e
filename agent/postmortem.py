"""Why an attempt crashed, as far as its logs tell: which rank failed first, and the last lines that it wrote.

The one rule: it only reads, and whatever it finds there is shown, never acted upon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Set

from agent import plainfile

TAIL_LINES = 30
TAIL_BYTES = 16_384
SUMMARY_BYTES = 1 << 20
FAILED_RANK = re.compile(r"^\s*rank\s*:\s*([0-9]{1,9}) \(local_rank: ([0-9]{1,9})\)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Findings:
    """`rank` (among all ranks of the attempt, on whatever node) is the guilty one, None if unknown; `tail`: the last lines of its log, or else
    of the launcher's; `silent`: since when it has written nothing, wall clock, None if unknown.
    """

    rank: Optional[int] = None
    tail: List[str] = field(default_factory=list)
    silent: Optional[float] = None


def examine(logs: Path) -> Findings:
    """What the logs of this node tell.

    torchrun lists the ranks that failed between two of its looks, but orders them by whole seconds. When one rank dies, the others follow
    within milliseconds with a lost connection: of those listed, the one that fell silent first is the guilty one.
    """
    launcher = logs / "launcher.log"
    failed = {int(rank): int(local) for rank, local in FAILED_RANK.findall(_end(launcher, SUMMARY_BYTES))}
    written: Dict[int, List[Path]] = {rank: _logs(logs, local) for rank, local in failed.items()}
    silent_since = {rank: max(map(_changed, paths)) for rank, paths in written.items() if paths}
    if not silent_since:
        return Findings(tail=_tail(launcher))
    guilty = min(silent_since, key=lambda rank: (silent_since[rank], rank))
    tails = map(_tail, written[guilty])
    return Findings(guilty, next(filter(None, tails), _tail(launcher)), silent_since[guilty] / 1e9)


def ranks(logs: Path) -> Set[int]:
    """Local ranks that have been started on this node."""
    return {int(path.name) for path in logs.glob("*/attempt_*/*") if path.name.isdecimal()}


def _logs(logs: Path, local: int) -> List[Path]:
    """What the rank with this number on its node wrote, errors first (torchrun's `--log-dir`: run, attempt, local rank)."""
    return [path for name in ("stderr.log", "stdout.log") for path in logs.glob(f"*/attempt_*/{local}/{name}")]


def _changed(path: Path) -> int:
    """When it was last written; what the trial has removed meanwhile, or linked to nothing, never was."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _tail(path: Path) -> List[str]:
    return _end(path, TAIL_BYTES).splitlines()[-TAIL_LINES:]


def _end(path: Path, most: int) -> str:
    """The last bytes of a file, as text."""
    try:
        return plainfile.read(path, -most, most).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"({path.name} cannot be read: {error.strerror})"
