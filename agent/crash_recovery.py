"""Crash recovery: what a new agent does before it takes orders, if the agent before it in its
folder has died.

The one rule: afterwards nothing that the dead agent left behind runs on, everything that its trials
had written is reported, and each of its attempts is over. The presigned URLs that it had been
granted died with it, so a checkpoint that was on its way to a store without a directory is lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from seerd.agent import clock, host
from seerd.agent.journal import AgentJournal, Maker
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.manifest import Comparison
from seerd.agent.orders import Here
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Exited

PULSE_S = 1.0
"""An agent shows at least every so many seconds that it lives, by the file time of its lock."""


def recover(here: Here, journal: AgentJournal) -> None:
    """Kill what the dead agent left running, report what its trials had written, and report each
    of its attempts as "lost".

    Raises `RuntimeError` if a process cannot be killed.
    """
    ran = {key: host.marked_with(f"{here.run}/{key[0]}/{key[1]}") for key in journal.open}
    ended = {key: clock.now() if ran[key] else _last_sign(here, *key) for key in ran}
    left = host.kill(lambda: host.each_of_run(here.run), set())
    if left:
        raise RuntimeError(f"processes {sorted(left)} of an agent before cannot be killed")
    limit = ReportLimit()
    for (trial, attempt), facts in list(journal.open.items()):
        job = None if journal.prepared is None else journal.prepared.job_of(trial)
        store = job.store if job is not None else str(here.folder / "store")
        goal = (
            Comparison("", "max")
            if job is None
            else Comparison(job.metric, job.mode, job.constraints)
        )
        urls = PresignedUrls(trial, attempt, lambda _: False)
        output = here.output(store, goal, urls, limit)
        output.note_reported(facts)
        for makers in output.drain_all():
            journal.add(makers)
        while output.can_store():
            journal.add(output.store())
        journal.add([_lost(trial, attempt, ended[trial, attempt])])
        del journal.open[trial, attempt]


def _last_sign(here: Here, trial: str, attempt: int) -> float:
    """Return when an attempt of which nothing runs any more had ended at the latest (the agent's
    time): `PULSE_S` after its agent's last sign of life, or after the attempt last wrote to a file.
    """
    written = map(_written_at, _files(here.places(trial, attempt).attempt))
    last = max(_written_at(here.folder / "agent.lock"), *map(clock.of_wall, written), 0.0)
    return min(clock.now(), PULSE_S + last)


def _files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        for name in names:
            yield Path(top, name)


def _written_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _lost(trial: str, attempt: int, at: float) -> Maker:
    return lambda seq: Exited(seq, at, trial, attempt, "lost", None)
