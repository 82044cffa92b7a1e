"""The manifest: what `NAME.json` says of the checkpoint `NAME.pt`. Trials write it and are not
trusted: `Manifest.parse` returns one whose values are possible, or raises.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Optional

from seerd.agent import KEPT, plainfile

LARGEST = 1 << 53
"""Larger integers change in some readers of JSON (RFC 8259, section 6)."""
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""Names that may become part of a path."""
LARGEST_MANIFEST = 1 << 16
LARGEST_CHECKPOINT = 5 << 40
"""Bytes; S3's limit (docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)."""
MOST_METRICS = 64
MOST_VERSIONS = 16
HOLDS = {"<": lt, "<=": le, ">": gt, ">=": ge}
SHA256 = re.compile("[0-9a-f]{64}")


class CheckpointError(Exception):
    """A checkpoint cannot be stored, fetched or used."""


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint."""

    name: str  # given by the training side; these names order a trial's checkpoints
    epoch: int  # number of reports when it was saved
    # of the last report, but the run's metric, which may be a mean (`Job`); None: not finite
    metrics: dict[str, Optional[float]]
    sha256: str
    size: int  # bytes
    versions: dict[str, str] = field(default_factory=dict)  # of the writer; empty: unknown

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read the manifest in this file, whose name it must have. Raises `CheckpointError`."""
        return cls.parse(small_file(path), path.stem)

    @classmethod
    def parse(cls, raw: bytes, name: Optional[str] = None) -> "Manifest":
        """Parse a manifest, which must have this name, if given. Raises `CheckpointError`."""
        what = name or "a checkpoint"
        if len(raw) > LARGEST_MANIFEST:
            raise CheckpointError(f"the manifest of {what} is too large")
        try:
            body = json.loads(raw)
            reports, metrics = count_of(body["epoch"]), metrics_of(body["metrics"])
            versions = versions_of(body.get("versions", {}))
            made = cls(body["name"], reports, metrics, body["sha256"], body["size"], versions)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"this is no manifest of {what}: {error}") from None
        named = made.name == name if name is not None else is_safe(made.name)
        possible = type(made.size) is int and 0 <= made.size <= LARGEST_CHECKPOINT
        hashed = isinstance(made.sha256, str) and SHA256.fullmatch(made.sha256)
        if not named or not possible or not hashed:
            raise CheckpointError(f"this is no manifest of {what}")
        return made


@dataclass(frozen=True)
class Comparison:
    """How checkpoints are compared: as `metric`, `mode` and `constraints` of the `Job` say."""

    metric: str
    mode: str
    constraints: list[str] = field(default_factory=list)

    def worth(self, metrics: dict[str, Optional[float]]) -> Optional[float]:
        """Return a number that is the larger the better; None if the metric is not finite."""
        value = metrics.get(self.metric)
        return -value if value is not None and self.mode == "min" else value

    def worth_at(self, folder: Path, name: str) -> Optional[float]:
        """Return the worth of this checkpoint; None if it has no manifest."""
        try:
            return self.worth(Manifest.read(folder / f"{name}.json").metrics)
        except CheckpointError:
            return None


def allows(constraints: list[str], metrics: dict[str, Optional[float]]) -> bool:
    """Return whether all constraints hold; a missing metric violates none yet."""
    for name, sign, limit in map(str.split, constraints):
        value = metrics.get(name, math.nan)
        if value is None or (name in metrics and not HOLDS[sign](value, float(limit))):
            return False
    return True


def needed(worths: dict[str, Optional[float]]) -> set[str]:
    """Return which of these checkpoints (oldest first) stay: the newest `KEPT` and the best."""
    best = best_of(worths)
    return {*list(worths)[-KEPT:], *([] if best is None else [best])}


def best_of(worths: dict[str, Optional[float]]) -> Optional[str]:
    """Return the best checkpoint; of equal ones the newest. None: none has a worth."""
    finite = [(worth, place) for place, worth in enumerate(worths.values()) if worth is not None]
    return list(worths)[max(finite)[1]] if finite else None


def is_safe(name: Any) -> bool:
    """Return whether a name from outside may become part of a path."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def by_number(name: str) -> str:
    """Return a key that sorts checkpoints by the numbers in their names, which may grow."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(20), name)


def count_of(value: Any) -> int:
    """Return this value if it is a possible number of reports. Raises `ValueError` if not."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is no number of reports")
    return value


def metrics_of(value: Any) -> dict[str, Optional[float]]:
    """Return metrics by name, None: not finite. Raises `ValueError` if no table, or too large."""
    if not isinstance(value, dict) or len(value) > MOST_METRICS:
        raise ValueError("metrics are no table, or too many")
    return {_text(name): _finite(number) for name, number in value.items()}


def versions_of(value: Any) -> dict[str, str]:
    """Return versions by name. Raises `ValueError` for no table of texts, or a large one."""
    if not isinstance(value, dict) or len(value) > MOST_VERSIONS:
        raise ValueError("versions are no table, or too many")
    if not all(isinstance(version, str) for version in value.values()):
        raise ValueError("a version is no text")
    return {_text(name): _text(version) for name, version in value.items()}


def _text(name: str) -> str:
    return name[:64].encode("utf-8", "replace").decode()


def _finite(number: Any) -> Optional[float]:
    """Return a number as a float, None if not finite or too large. Raises `ValueError`."""
    if number is None:
        return None
    if type(number) not in (int, float):
        raise ValueError(f"{number!r:.40} is no number")
    try:
        value = float(number)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def small_file(path: Path) -> bytes:
    """Read a file, or as much of it as shows that it is no manifest. Raises `CheckpointError`."""
    try:
        return plainfile.read(path, 0, LARGEST_MANIFEST + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
