"""Finds out why an attempt crashed, as far as its logs show: which rank failed first, and the last
lines that it wrote. Findings are shown to people, never acted upon.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from seerd.agent import plainfile

TAIL_LINES = 30
TAIL_BYTES = 16_384
SUMMARY_BYTES = 1 << 20
FAILED_RANK = re.compile(
    r"^\s*rank\s*:\s*([0-9]{1,9}) \(local_rank: "
    r"([0-9]{1,9})\)\s*^\s*exitcode\s*:\s*(-?[0-9]{1,9}) \(pid: ([0-9]{1,9})\)",
    re.MULTILINE,
)
CLOSED = re.compile(rb"Sending process ([0-9]{1,9}) closing signal")
TOLD_TO_END = b"death signal"
MISSING = re.compile(r"No module named '(\w+)")
NO_MEMORY = re.compile(r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED|_ALLOC_FAILED", re.IGNORECASE)
FRAME, ERROR_CHARS = '  File "', 1000
STACK = "Stack (most recent call first):"
LATER = {signal.SIGTERM, signal.SIGABRT}
"""Signals of ranks that die because another has: ended by torchrun, or a lost connection."""


@dataclass(frozen=True)
class Findings:
    """What the logs of one node show of the guilty rank."""

    rank: Optional[int] = None  # among all ranks of the attempt; None: unknown
    tail: list[str] = field(default_factory=list)  # last lines of its log, or of the launcher's
    silent: Optional[float] = None  # since when it has written nothing, in seconds since 1970
    signal: Optional[int] = None  # that killed it
    waited_s: Optional[float] = None  # seconds that others had waited for it, if it hung


@dataclass(frozen=True)
class FailedRank:
    """A rank that torchrun lists as failed."""

    rank: int  # among all
    local: int  # on this node
    code: int  # exit status, negative for a signal
    pid: int


def examine(logs: Path) -> Findings:
    """Find the guilty rank in the logs of this node.

    torchrun lists failed ranks by whole seconds, with those that it ended itself. When one rank
    dies, the others follow within milliseconds with a lost connection. So a rank that was killed is
    guilty; if none was, the one that fell silent first.
    """
    launcher = logs / "launcher.log"
    text = _end(launcher, SUMMARY_BYTES)
    closed = set(map(int, CLOSED.findall(text.encode())))
    failed = [FailedRank(*map(int, match)) for match in FAILED_RANK.findall(text)]
    first = [rank for rank in failed if rank.pid not in closed] or failed
    silent_since = {
        rank: max(map(_changed, paths)) for rank in first if (paths := _logs(logs, rank.local))
    }
    if not silent_since:
        return Findings(tail=_tail(launcher))
    killed = {rank for rank in first if rank.code < 0 and -rank.code not in LATER}
    guilty = min(silent_since, key=lambda rank: (rank not in killed, silent_since[rank], rank.rank))
    killed_by, tail = -guilty.code if guilty.code < 0 else None, _last_words(logs, guilty.local)
    return Findings(guilty.rank, tail, silent_since[guilty] / 1e9, killed_by)


def error_in(logs: Path, local: int = 0) -> str:
    """Return the last lines of a local rank, if they hold an error; else nothing."""
    lines = _last_words(logs, local)
    while lines and lines[-1].startswith((" ", "Traceback (")):
        lines.pop()
    text = "\n".join(lines)[-ERROR_CHARS:]
    return text if FRAME in text else ""


def name_own_module(tail: list[str], source: Path) -> None:
    """Add a line to the last lines of a script that did not find a module of its own source."""
    missing = MISSING.search("\n".join(tail))
    if missing is not None and any((source / (missing[1] + end)).exists() for end in ("", ".py")):
        tail.append(f"(seerd: {missing[1]} is in train.source, which is not on the module path)")


def name_share(tail: list[str], share: str) -> None:
    """Add a line to the last words of a script that had too little memory on its part of a GPU."""
    if share and NO_MEMORY.search("\n".join(tail)):
        tail.append(f"seerd: it had {share} of the GPU, and of its memory")


def of_hung(logs: Path, rank: int, local: int, since: float, waited_s: float) -> Findings:
    """Return what logs show of a rank that hung at `since`; others waited `waited_s` for it."""
    tail = _last_words(logs, local)
    if STACK in tail:  # of faulthandler; tracebacks have the innermost call last
        begin = len(tail) - tail[::-1].index(STACK)
        tail = [*tail[: begin - 1], "Stack (most recent call last):", *reversed(tail[begin:])]
    return Findings(rank, tail, since, None, waited_s)


def is_closing(launcher_log: bytes) -> bool:
    """Return whether torchrun is ending its ranks because one has failed, not by a signal."""
    return CLOSED.search(launcher_log) is not None and TOLD_TO_END not in launcher_log


def error_bytes(logs: Path, local: int) -> int:
    """Return how many bytes this local rank has written to its standard error."""
    return sum(path.stat().st_size for path in _logs(logs, local) if path.name == "stderr.log")


def ranks(logs: Path) -> set[int]:
    """Return the local ranks that have been started on this node."""
    return {int(path.name) for path in logs.glob("*/attempt_*/*") if path.name.isdecimal()}


def _last_words(logs: Path, local: int) -> list[str]:
    return next(filter(None, map(_tail, _logs(logs, local))), _tail(logs / "launcher.log"))


def _logs(logs: Path, local: int) -> list[Path]:
    names = ("stderr.log", "stdout.log")
    return [path for name in names for path in logs.glob(f"*/attempt_*/{local}/{name}")]


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _tail(path: Path) -> list[str]:
    return _end(path, TAIL_BYTES).splitlines()[-TAIL_LINES:]


def _end(path: Path, most: int) -> str:
    try:
        return plainfile.read(path, -most, most).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"({path.name} cannot be read: {error.strerror})"
