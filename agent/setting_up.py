"""The setup commands of a job, which are run once on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Callable

from seerd.agent import clock, host, plainfile
from seerd.agent.arguments import fixed_environment
from seerd.agent.container import Outside
from seerd.agent.protocol import Job
from seerd.agent.threads import spawned

TAIL_LINES = 20
LONGEST_WHY = 4000


def mark_of(run: str) -> str:
    """Return the SEERD_ATTEMPT of a run's setup commands."""
    return f"{run}//setup"


async def set_up(
    job: Job,
    run: str,
    folder: Path,
    note_slow: Callable[[str, float], None],
    slow_s: float,
    where: Outside,
) -> None:
    """Run the setup commands, in the job's container if it has one, unless they have succeeded here
    before.

    `folder`: the agent's own. `note_slow`: called with a command that takes longer than `slow_s`,
    and when it began. Raises `OSError`, or `ValueError` with what went wrong.
    """
    commands = [job.id, *job.setup] if job.id else job.setup
    name = hashlib.sha256(json.dumps(commands).encode()).hexdigest()[:16]
    source = Path(job.source)
    # One of several jobs may come again with another source: the mark lies in its source.
    done = source / f".setup-{name}.done" if job.id else folder / f"setup-{name}.done"
    if not job.setup or done.exists():
        return
    of_job = f"{job.id}: " if job.id else ""
    output, source_inode = folder / "setup.log", source.stat().st_ino
    fixed = fixed_environment(job.env, job.names)
    env = {**where.environment(), **fixed, host.MARKER: mark_of(run)}
    for number, command in enumerate(job.setup, 1):
        why = f"train.setup runs {command!r} (command {number} of {len(job.setup)})"
        slow = asyncio.get_running_loop().call_later(slow_s, note_slow, why, clock.now())
        output.touch()
        begins = output.stat().st_size
        try:
            call = where.around(["/bin/sh", "-c", command], env, job.source)
            process = await spawned(*call, job.source, output)
            status = await process.wait()
        finally:
            slow.cancel()
        if status:
            problem = f"{of_job}setup command {command!r} ended with exit status {status}"
            begins = max(begins, output.stat().st_size - LONGEST_WHY)
            end = plainfile.read(output, begins, LONGEST_WHY).decode(errors="replace")
            lines = end.splitlines()[-TAIL_LINES:]
            raise ValueError("\n".join([f"{problem}:", *lines] if lines else [problem]))
    if source.stat().st_ino != source_inode:
        raise ValueError(f"{of_job}its source was replaced while its setup commands ran")
    done.touch()
