"""The agent's clock, in seconds since 1970: the wall clock at the first agent of this boot, steady
from then on, suspends included. All durations go by it, as people and NTP set the wall clock.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Optional

FILE = "clock.json"  # holds the clock's zero and its boot, in the agent's folder
STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts since the boot, the same for all processes (clock_gettime(2))."""


class _Anchor:
    zero = time.time() - time.clock_gettime(STEADY)


def begin(folder: Path, boot: str) -> None:
    """Go on with the clock of this folder and boot, or begin one, also if its file is damaged."""
    zero = zero_of(folder, boot)
    _Anchor.zero = time.time() - since_boot() if zero is None else zero
    part = folder / f".{FILE}"
    part.write_text(json.dumps(_checked({"boot": boot, "zero": _Anchor.zero})))
    os.replace(part, folder / FILE)


def zero_of(folder: Path, boot: str) -> Optional[float]:
    """Return the zero of this folder's clock (time minus `since_boot()`); None: of another boot, or
    damaged.
    """
    try:
        kept: dict[str, Any] = json.loads((folder / FILE).read_text())
        is_whole = "check" not in kept or kept == _checked(kept)
        return float(kept["zero"]) if is_whole and boot and kept["boot"] == boot else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _checked(kept: dict[str, Any]) -> dict[str, Any]:
    check = zlib.crc32(f"{kept['boot']} {kept['zero']!r}".encode())
    return {**kept, "check": f"{check:08x}"}


def since_boot() -> float:
    """Return the seconds since this machine's boot, suspends included."""
    return time.clock_gettime(STEADY)


def now() -> float:
    """Return the agent's time."""
    return since_boot() + _Anchor.zero


def of_boot(moment: float) -> float:
    """Convert seconds since the boot to the agent's time."""
    return moment + _Anchor.zero


def to_boot(moment: float) -> float:
    """Convert a moment of the agent's time to seconds since the boot."""
    return moment - _Anchor.zero


def of_wall(moment: float) -> float:
    """Convert a moment of the wall clock, as it is set now, to the agent's time."""
    return moment - time.time() + now()


def to_wall(moment: float) -> float:
    """Convert a moment of the agent's time to the wall clock, as it is set now."""
    return moment - now() + time.time()
