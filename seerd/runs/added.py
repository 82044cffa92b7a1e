"""Files in a run's folder for jobs that came while it went on. Each is written before the run is
asked to take the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from seerd.agent.protocol import Job
from seerd.errors import JournalError
from seerd.shell.home import RunFolder
from seerd.spec.values import Data


class _Data(msgspec.Struct, frozen=True):
    """What stands in the file beside what `Job` has."""

    data: tuple[Data, ...] = ()


K = TypeVar("K", Job, _Data)


def keep(folder: RunFolder, job: Job, data: Sequence[Data]) -> None:
    """Keep how agents start a job's trials, and what instances fetch for it. Raises `OSError`."""
    body = msgspec.to_builtins(job) | msgspec.to_builtins(_Data(below(job.id, data)))
    folder.added_job(job.id).write_bytes(msgspec.json.encode(body))


def starts(folder: RunFolder, jobs: Iterable[str]) -> list[Job]:
    """Return how agents start the trials of these jobs. Raises `JournalError`."""
    return [_read(folder, job, Job) for job in jobs]


def data(folder: RunFolder, jobs: Iterable[str]) -> list[Data]:
    """Return what instances fetch for these jobs. Raises `JournalError`."""
    return [each for job in jobs for each in _read(folder, job, _Data).data]


def below(job: str, data: Sequence[Data]) -> tuple[Data, ...]:
    """Return a job's data, placed below its id; the only job of a run has an empty id."""
    return tuple(replace(each, to=f"{job}/{each.to}" if job else each.to) for each in data)


def _read(folder: RunFolder, job: str, kind: type[K]) -> K:
    try:
        return msgspec.json.decode(folder.added_job(job).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise JournalError(f"{folder.run} cannot go on: {job} cannot be read: {error}") from error
