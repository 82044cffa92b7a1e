"""Finds and reads the output of trials in a run's folder, as plain text.

A trial that the user names never becomes part of a path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from seerd.errors import UsageError
from seerd.planner.trial_ids import same_trial
from seerd.shell.home import RunFolder
from seerd.telling.harmless import printable

PIECE = 1 << 16
LONGEST_TAIL = 1 << 20


def log_files(folder: RunFolder, trial: str | None) -> list[Path]:
    """List log files of one trial or of all, by trial, attempt and rank. Raises `UsageError`."""
    trials = [
        path
        for path in folder.instances.glob("*/trials/*")
        if trial is None or same_trial(path.name, trial)
    ]
    if trial is not None and not trials:
        names = sorted({path.name for path in folder.instances.glob("*/trials/*")}) or ["none"]
        raise UsageError(
            f"{folder.run} has no logs of {trial!r} here; trials with logs: {', '.join(names)}"
        )
    # `os.walk` passes over folders that an agent removes meanwhile, at which `rglob` raises.
    logs = (
        Path(path, name)
        for root in trials
        for path, _, names in os.walk(root)
        for name in names
        if name.endswith(".log")
    )
    ours = (path for path in logs if _is_ours(path, folder))
    return sorted(ours, key=lambda path: path.relative_to(folder.instances).parts[1:])


def newest_attempts(paths: Sequence[Path], folder: RunFolder) -> list[Path]:
    """Return the logs of each trial's newest attempt."""
    origins, newest = {path: _origin(path, folder) for path in paths}, dict[str, int]()
    for trial, attempt in origins.values():
        newest[trial] = max(newest.get(trial, 0), attempt)
    return [path for path, (trial, attempt) in origins.items() if newest[trial] == attempt]


def newest_last(paths: Sequence[Path], folder: RunFolder) -> list[Path]:
    """Sort logs by trial, the one last that was written to last."""
    trials, written = {path: _origin(path, folder)[0] for path in paths}, dict[str, float]()
    for path, trial in trials.items():
        written[trial] = max(written.get(trial, 0.0), path.stat().st_mtime)
    return sorted(paths, key=lambda path: (written[trials[path]], trials[path]))


def _origin(path: Path, folder: RunFolder) -> tuple[str, int]:
    _, _, trial, attempt, *_ = path.relative_to(folder.instances).parts
    return trial, int(attempt) if attempt.isdecimal() else 0


def lines(path: Path) -> Iterator[str]:
    """Read a log as plain text, in pieces of bounded size; steps of a progress bar become lines."""
    with path.open(encoding="utf-8", errors="replace") as log:
        while piece := log.read(PIECE):
            yield plain(piece)


def tail(path: Path, most: int) -> Iterator[str]:
    """Yield the last `most` lines of a log, at most `LONGEST_TAIL` bytes, as `lines` does."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - LONGEST_TAIL))
        text = log.read(LONGEST_TAIL).decode(errors="replace").replace("\r\n", "\n")
    last = text.replace("\r", "\n").splitlines(keepends=True)[-most:] if most else []
    for line in last:
        yield plain(line)
    if last and not last[-1].endswith("\n"):
        yield "\n"


def plain(text: str) -> str:
    """Replace control characters but line ends and tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


class Growing:
    """A log that is still written to, from the byte `offset` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def added(self, *, whole: bool) -> str:
        """Return what was added since the last call, at most `LONGEST_TAIL` bytes, as `lines` does.

        whole  only whole lines; an unfinished one waits until it is finished
        """
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read(LONGEST_TAIL)
        except OSError:
            return ""
        end = len(data)
        if whole and end < LONGEST_TAIL:
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._offset += end
        text = data[:end].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        return plain(text if text.endswith("\n") or not text else f"{text}\n")


def _is_ours(path: Path, folder: RunFolder) -> bool:
    """Return whether a path is a log with content, and not a link, pipe or device of a trial."""
    with contextlib.suppress(OSError):
        inside = path.resolve().is_relative_to(folder.instances.resolve())
        return inside and not path.is_symlink() and path.is_file() and path.stat().st_size > 0
    return False
