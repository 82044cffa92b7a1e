"""Why an attempt crashed, as far as its logs tell: which rank failed first, and the last lines that it wrote.

The one rule: it only reads, and whatever it finds there is shown, never acted upon.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, Optional, Tuple

TAIL_LINES = 30
TAIL_BYTES = 16_384
SUMMARY_BYTES = 1 << 20
FAILED_RANK = re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank: \d+\)\s*$", re.MULTILINE)


def examine(logs: Path) -> Tuple[Optional[int], List[str]]:
    """The guilty rank, None if unknown, and the last lines of its log.

    torchrun lists the ranks that failed between two of its looks, but orders them by whole seconds. When one rank dies, the others follow
    within milliseconds with a lost connection: of those listed, the one that fell silent first is the guilty one.
    """
    launcher = logs / "launcher.log"
    failed = {int(rank) for rank in FAILED_RANK.findall(_end(launcher, SUMMARY_BYTES))}
    silent_since = {rank: max(_changed(path) for path in _logs(logs, rank)) for rank in failed if _logs(logs, rank)}
    if not silent_since:
        return None, _tail(launcher)
    guilty = min(silent_since, key=lambda rank: (silent_since[rank], rank))
    tails = [_tail(path) for path in _logs(logs, guilty)]
    return guilty, next(filter(None, tails), _tail(launcher))


def _logs(logs: Path, rank: int) -> List[Path]:
    """What this rank wrote, errors first (torchrun's `--log-dir`: run, attempt, rank)."""
    return [path for name in ("stderr.log", "stdout.log") for path in logs.glob(f"*/attempt_*/{rank}/{name}")]


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _tail(path: Path) -> List[str]:
    return _end(path, TAIL_BYTES).splitlines()[-TAIL_LINES:]


def _end(path: Path, most: int) -> str:
    """The last bytes of a file, as text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"({path.name} cannot be read: {error.strerror})"
