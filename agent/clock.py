"""The agent's clock, in seconds since 1970: the wall clock at the first agent of this boot, steady
from then on, suspends included. All durations go by it, as people and NTP set the wall clock.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from pathlib import Path
from typing import Any, Optional

FILE = "clock.json"  # holds the clock's zero and its boot, in the agent's folder
STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts since the boot, the same for all processes (clock_gettime(2))."""
log = logging.getLogger("agent")


class _Anchor:
    zero = time.time() - time.clock_gettime(STEADY)


def begin(folder: Path, boot: str) -> None:
    """Go on with the clock of this folder and boot, or begin one; set a damaged file aside."""
    zero = None
    try:
        zero = _read_zero(folder / FILE, boot)
    except (ValueError, TypeError, KeyError):
        log.warning("%s is damaged: it is set aside, and a new clock begun", folder / FILE)
        os.replace(folder / FILE, folder / f"{FILE}.damaged")
    except OSError:
        pass
    _Anchor.zero = time.time() - since_boot() if zero is None else zero
    part = folder / f".{FILE}"
    part.write_text(json.dumps(_checked({"boot": boot, "zero": _Anchor.zero})))
    os.replace(part, folder / FILE)


def zero_of(folder: Path, boot: str) -> Optional[float]:
    """Return the zero of this folder's clock (time minus `since_boot()`); None: of another boot."""
    try:
        return _read_zero(folder / FILE, boot)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _read_zero(path: Path, boot: str) -> Optional[float]:
    """Raises `OSError`; `ValueError`, `TypeError` or `KeyError` if the file is damaged."""
    kept: dict[str, Any] = json.loads(path.read_text())
    if "check" in kept and kept != _checked(kept):
        raise ValueError("it does not fit its checksum")
    kept_boot, zero = kept["boot"], float(kept["zero"])
    return zero if boot and kept_boot == boot else None


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
