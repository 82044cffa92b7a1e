"""Small JSON files below the folder of all runs: each is whole or absent."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from seerd.errors import UsageError


def keep(path: Path, kept: msgspec.Struct, what: str) -> Path:
    """Write what was measured, and return its file. Raises `UsageError`; `what` it cannot keep."""
    try:
        write(path, kept)
    except OSError as error:
        raise UsageError(f"{what} cannot be kept in {path.parent}: {error.strerror}") from error
    return path


def write(path: Path, kept: msgspec.Struct | dict[str, Any]) -> None:
    """Write this as JSON, replacing an older file. Raises `OSError`, and leaves nothing then."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with part.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
