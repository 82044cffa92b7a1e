"""What a new agent does if the one before it has died: afterwards none of its processes runs, all
that its trials had written is reported, and its attempts are over. Checkpoints on their way to a
store by presigned URLs are lost with these.
"""

from __future__ import annotations

import os
from pathlib import Path

from seerd.agent import clock, host
from seerd.agent.journal import AgentJournal
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.orders import Here
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Exited

PULSE_S = 1.0
"""Seconds between signs of life: an agent sets the file time of its lock."""


def recover(here: Here, journal: AgentJournal) -> None:
    """Kill what the dead agent left running, report what its trials had written, and report its
    attempts as "lost". Raises `RuntimeError` if a process cannot be killed.
    """
    ran = {key: host.marked_with(f"{here.run}/{key[0]}/{key[1]}") for key in journal.open}
    ended = {key: clock.now() if ran[key] else _last_sign(here, *key) for key in ran}
    left = host.kill(lambda: host.each_of_run(here.run), set())
    if left:
        raise RuntimeError(f"processes {sorted(left)} of an agent before cannot be killed")
    limit = ReportLimit()
    for (trial, attempt), facts in list(journal.open.items()):
        job = None if journal.prepared is None else journal.prepared.job_of(trial)
        output = here.output(job, PresignedUrls(trial, attempt, lambda _: False), limit)
        output.note_reported(facts)
        for written in output.drain_all():
            journal.add(written)
        while output.can_store():
            journal.add(output.store())
        journal.add([Exited(0, ended[trial, attempt], trial, attempt, "lost", None)])
        del journal.open[trial, attempt]


def _last_sign(here: Here, trial: str, attempt: int) -> float:
    """Return when an attempt that is gone ended at the latest: `PULSE_S` after a sign of life."""
    folder = here.places(trial, attempt).attempt
    written = (_written_at(Path(top, name)) for top, _, names in os.walk(folder) for name in names)
    last = max(_written_at(here.folder / "agent.lock"), *map(clock.of_wall, written), 0.0)
    return min(clock.now(), PULSE_S + last)


def _written_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
