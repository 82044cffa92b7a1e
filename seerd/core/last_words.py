"""What the last lines of a crashed script say: its error, and whether something outside was in its
way. Only the line of the error counts: all else may have been overcome.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from seerd.core.events import Obstacle

PREFIX = re.compile(r"^\[rank[0-9]+\]: ?")  # torch's prefix of a rank's traceback
FRAME = re.compile(r'^\s+(?:\| +)*File ".*", line ([0-9]+(?:, in .*)?)')
BY_MPS = "seerd: MPS ended it"  # by the agent: another trial on that GPU had failed
OURS = "seerd: "  # beginning of a line that seerd itself has added to a script's
CERTAIN = re.compile(
    r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b"
    r"|can't open file|error: unrecognized arguments|error: the following arguments are required"
)
"""Errors that an attempt of the same script meets again."""
OUT_OF_MEMORY = re.compile(
    r"\b(?:CUDA|HIP|MPS|XPU)\b.*\bout of memory\b|\bOutOfMemoryError\b|\bRESOURCE_EXHAUSTED\b"
    r"|\bResourceExhaustedError\b|\b(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED\b"
    r"|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
"""Errors of a GPU without enough memory."""
NEIGHBOUR = re.compile(r"\bProcess [0-9]+ has [0-9.]+ \w+ memory in use")
"""How torch names each other process with memory on that GPU."""
ALLOWED = re.compile(r"([0-9.]+ \w+) allowed; ")  # a process that is held to a share
ASKED = re.compile(r"Tried to allocate ([0-9.]+ \w+)")
FREE = re.compile(r"(?:of which|already allocated;) ([0-9.]+ \w+) (?:is )?free")
HAS = re.compile(r"([0-9.]+ \w+) (?:is allocated by PyTorch|already allocated)")
"""Where torch's message of a lack of memory has these sizes."""
SIZES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
AMONG_RANKS = re.compile(r"torch\.distributed|gloo|NCCL|TCPStore|c10d|ProcessGroup", re.IGNORECASE)
PIPES = re.compile(r'File ".*[/\\]multiprocessing[/\\]')
"""Connections between processes of one attempt: they break since one of these has ended."""
OBSTACLES: dict[Obstacle, str] = {
    "address": r"EADDRINUSE|address (?:is )?(?:already|currently) in use|errno:? 98\b"
    r"|\bport\b.* (?:already )?(?:in use|allocated)|failed to listen on any local network"
    r"|failed to bind to (?:address|port)|another process is utilizing it",
    "device": r"devices?(?:\(s\))? (?:is/are|are|is)(?: currently)? (?:busy|in use by)"
    r"|\bMPS (?:client|server|control daemon)\b|cudaErrorMps"
    r"|device or resource busy|\bEBUSY\b|devices?_?unavailable|(?:TPU|GPU)\b.* already in use",
    "lock": r"database (?:\w+ )?is locked|unable to lock file|conflicting lock is held"
    r"|(?:can|could) ?not (?:acquire|obtain|get|set) (?:\w+ ){0,2}lock\b|LockError\b|LockTimeout"
    r"|file lock\b.* could not be acquired|lock wait timeout|\block: .*temporarily unavailable"
    r"|Errno 11\b.*unavailable(?!.*(?:thread|fork))|no locks available|text file busy"
    r"|deadlock detected|\block['\"]?: file exists|file exists: .*\block\b",
    "network": r"connection (?:was )?(?:refused|reset|aborted|timed out)|ConnectionError\b"
    r"|name or service not known|name ?resolution|getaddrinfo|gaierror|could ?n[o']t connect to"
    r"|network is unreachable|no route to host|(?:connect|read) ?time(?:d )?out|urlopen error"
    r"|read operation timed out|max retries exceeded|remote end closed connection"
    r"|(?:\bHTTP(?: error| status|/[0-9.]+)?|status[ _]?code|error code)[:=]? ?(?:429|50[234])\b"
    r"|\b(?:429|50[234]) (?:client|server) error: |too many requests|service unavailable"
    r"|bad gateway|RateLimitError\b|rate limit exceeded|reduce your request rate|\bThrottling"
    r"|connection broken|IncompleteRead\b|\bSSL.*EOF occurred|check your (?:internet )?connection"
    r"|\bCommError: .*timed out|(?:TimeoutError|socket\.timeout): (?:timed out|\[Errno 110\])"
    r"|stale (?:NFS )?file handle|transport endpoint is not connected|remote I/O error",
}
"""What was in the way -> pattern of an error that says so, in whatever case."""


def error_line(tail: Sequence[str]) -> str:
    """Return the line of the error that ended a script: after its last traceback, or the last."""
    lines = [PREFIX.sub("", line).rstrip() for line in tail]
    frames = [number for number, line in enumerate(lines) if FRAME.match(line)]
    after = lines[frames[-1] + 1 :] if frames else []
    below = (line for line in after if line and not line[0].isspace())
    last = (line.strip() for line in reversed(lines) if line.strip() and not line.startswith(OURS))
    return next(below, "") or next(last, "")


def error_place(tail: Sequence[str]) -> str:
    """Return the error's kind and the line of code that raised it; empty without a traceback."""
    frames = [match for line in tail if (match := FRAME.match(PREFIX.sub("", line)))]
    return f"{error_line(tail).partition(':')[0]} in line {frames[-1][1]}" if frames else ""


def is_certain(tail: Sequence[str]) -> bool:
    """Return whether another attempt would end by the same error."""
    return CERTAIN.search(error_line(tail)) is not None


def memory_lacked(tail: Sequence[str]) -> Literal["alone", "beside", "share"] | None:
    """Return whether the GPU had too little memory: beside other processes on it, or, as far as is
    known, with nobody else there; "share": it had enough, and the trial's part of it is too small.
    """
    line = error_line(tail)
    if OUT_OF_MEMORY.search(line) is None:
        return None
    asked, free, has = (_bytes(pattern, line) for pattern in (ASKED, FREE, HAS))
    if ALLOWED.search(line) and (asked <= free or has + asked > _bytes(ALLOWED, line)):
        return "share"
    return "alone" if NEIGHBOUR.search(line) is None else "beside"


def _bytes(pattern: re.Pattern[str], line: str) -> float:
    """Return a size that torch has written; 0 if it is not there."""
    size = pattern.search(line)
    number, _, unit = ("" if size is None else size[1]).partition(" ")
    return float(number) * SIZES[unit] if unit in SIZES else 0.0


def obstacle_of(tail: Sequence[str]) -> Obstacle | None:
    """Return what was in the way of a crashed script; None: its configuration may be at fault."""
    if any(line.startswith(BY_MPS) for line in tail):
        return "device"
    line = error_line(tail)
    matches = ((why, re.search(pattern, line, re.IGNORECASE)) for why, pattern in OBSTACLES.items())
    why = next((why for why, match in matches if match), None)
    own = AMONG_RANKS.search(line) or any(map(PIPES.search, tail))
    return None if why == "network" and own else why
