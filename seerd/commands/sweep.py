"""`seerd sweep`: finds by tags what runs have left behind that costs, and ends what is dead. What
may still belong to a living run is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import typer

from seerd.backends.base import Left, Sweeper
from seerd.backends.by_name import by_name
from seerd.commands.common import seconds, tell
from seerd.core.lifecycle import RunPhase
from seerd.errors import BusyError, CloudError, SeerdError
from seerd.registry import BACKENDS
from seerd.runs import reading
from seerd.shell.home import Home, RunFolder
from seerd.telling.plan_json import Json
from seerd.telling.working import working
from seerd.units import format_duration

# A run that no process runs, and whose journal was silent for so many seconds, has no agents any
# more: leases end after 60 s, and saving and uploading take at most 150 s more.
QUIET_S = 300.0
AT_START_S = 10.0  # the most seconds that a new run spends on the remains of old ones
LEFT_KEYS = ("kind", "id", "run", "name", "what", "state")
_HARD_END = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of this home."""

    process: int | None  # the process id of the daemon that runs it now; None: none does
    over: bool  # whether it is over
    quiet_s: float  # seconds since its journal was written


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Something that costs, and what a sweep decides on it."""

    left: Left
    dead: bool  # whether it is dead, and is to be ended
    why: str  # why it is dead, or why it is kept
    ended: bool = False
    trouble: str = ""  # why it could not be ended; empty: there was no trouble

    def __str__(self) -> str:
        """Write it as one line."""
        cost = self.left.usd_per_h
        price = f", about ${cost:.3g}/h" if cost is not None else ""
        if self.trouble:
            return f"{self.left}{price}: could not be ended: {self.trouble}"
        what = "ended" if self.ended else "dead" if self.dead else "kept"
        return f"{self.left}{price}: {what}, {self.why}"


def decide(
    left: Left,
    known: KnownRun | None,
    now: float,
    older_than_s: float | None = None,
    *,
    waiting_too: bool = True,
) -> SweepResult:
    """Decide whether something that costs is dead. `known` is its run, None if this home has none
    of that name; `now` is seconds since 1970; older things than `older_than_s` are dead unless a
    process runs their run. `waiting_too`: what waits for another run is ended.
    """
    hard_end = _hard_end_of(left)
    if hard_end <= now:
        return SweepResult(left, True, f"its hard end, {left.hard_end}, has passed")
    if left.waits:
        return SweepResult(left, waiting_too, f"it waits for another run until {left.hard_end}")
    if known is not None:
        silent = format_duration(max(0, round(known.quiet_s)))
        if known.process is not None:
            stop = f"to end it: seerd stop {left.run}"
            return SweepResult(left, False, f"process {known.process} runs it; {stop}")
        if known.over:
            return SweepResult(left, True, "its run is over")
        if known.quiet_s >= QUIET_S:
            why = f"no process runs it, and its journal is silent for {silent}"
            return SweepResult(left, True, why)
    if older_than_s is not None and left.age_s > older_than_s:
        return SweepResult(left, True, f"it is older than {format_duration(older_than_s)}")
    if known is not None:
        why = f"its process ended no more than {silent} ago, and its agents may still save; "
        return SweepResult(left, False, f"{why}seerd resume {left.run} goes on")
    end = "it has no hard end" if hard_end == math.inf else f"ends at {left.hard_end} at the latest"
    return SweepResult(left, False, f"no run here has this name, and {end}; by age: --older-than")


def _hard_end_of(left: Left) -> float:
    """Return when its own timer ends it, seconds since 1970; infinite if its tag does not say."""
    try:
        return datetime.strptime(left.hard_end, _HARD_END).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf


def sweeper(region: str | None) -> AbstractAsyncContextManager[Sweeper]:
    """Return what finds and ends what runs have left in a region."""
    sweepers = (by_name(name).sweeper(region) for name in BACKENDS)
    return next(one for one in sweepers if one is not None)


def sweep(
    home: Home, region: str | None, older_than: str | None, *, dry_run: bool, json: bool
) -> None:
    """Sweep, and print the result. Raises `typer.Exit` with the exit code, `UsageError`, and
    `CloudError` as `swept` does.
    """
    older_than_s = seconds(older_than, "--older-than") if older_than else None
    with working("looking for what runs have left in the cloud"):
        report, results = asyncio.run(
            swept(home, region, dry_run=dry_run, older_than_s=older_than_s)
        )
    tell(report, lambda _: "\n".join(sweep_lines(report, results)), json=json)
    raise typer.Exit(CloudError.exit_code if any(one.trouble for one in results) else 0)


async def swept(
    home: Home, region: str | None, *, dry_run: bool, older_than_s: float | None = None
) -> tuple[Json, list[SweepResult]]:
    """Find everything that this owner's runs have left, and end what is dead unless this is a
    `dry_run`; return what `seerd sweep --json` prints, and the results. Raises `CloudError` if AWS
    does not answer.
    """
    async with sweeper(region) as cloud:
        owner = await cloud.owner()
        present = await cloud.find(owner)
        results = judged(home, present.left, older_than_s)
        if not dry_run:
            results = await _end(cloud, home, results)
    report: Json = {"region": cloud.region, "owner": owner, "dry_run": dry_run}
    report["found"] = [
        {
            **{key: getattr(one.left, key) for key in LEFT_KEYS},
            "age_s": round(one.left.age_s, 1),
            "hard_end": one.left.hard_end or None,
            "usd_per_h": one.left.usd_per_h,
            "waits": one.left.waits,
            "dead": one.dead,
            "why": one.why,
            "ended": one.ended,
            "trouble": one.trouble or None,
        }
        for one in results
    ]
    return report | {"ending": list(present.ending)}, results


async def at_start(home: Home, region: str | None, owner: str) -> list[str]:
    """End the instances that dead runs of this owner have left; return a line for each. This takes
    one question to AWS and at most `AT_START_S` seconds. A failure of AWS is a line, not raised.
    """
    try:
        async with asyncio.timeout(AT_START_S), sweeper(region) as cloud:
            present = await cloud.find_instances(owner, patience_s=3.0)
            results = judged(home, present, waiting_too=False)
            return [str(one) for one in await _end(cloud, home, results) if one.dead]
    except (CloudError, TimeoutError) as error:
        why = str(error) or f"AWS did not answer within {AT_START_S:g}s"
        return [f"whether dead runs have left instances was not found out: {why}"]


def judged(
    home: Home, left: Sequence[Left], older_than_s: float | None = None, *, waiting_too: bool = True
) -> list[SweepResult]:
    """Decide on each of these."""
    folders = {folder.run: folder for folder in home.runs()} if left else {}
    now = time.time()
    runs = {one.run for one in left} & folders.keys()
    known = {run: known_run(folders[run], now) for run in runs}
    return [
        decide(one, known.get(one.run), now, older_than_s, waiting_too=waiting_too) for one in left
    ]


def known_run(folder: RunFolder, now: float) -> KnownRun:
    """Return whether a run is alive, over or silent; `now` is seconds since 1970."""
    process = folder.owner()
    # SQLite writes beside the journal first (sqlite.org/wal.html).
    written = (folder.journal, folder.journal.with_name(f"{folder.journal.name}-wal"))
    quiet_s = now - max(path.stat().st_mtime for path in written if path.exists())
    if process is not None or quiet_s >= QUIET_S:
        return KnownRun(process, False, quiet_s)
    try:
        over = reading.read(folder).phase is RunPhase.OVER
    except SeerdError:
        over = False
    return KnownRun(process, over, quiet_s)


def sweep_lines(report: Json, results: Sequence[SweepResult]) -> list[str]:
    """Write what `seerd sweep` prints."""
    still = ""
    if ending := len(report["ending"]):
        still = f" ({ending} still shutting down, not billed any more)"
    if not results:
        nothing = f"nothing of {report['owner']} is left in {report['region']}"
        return [f"{nothing}: 0 instances, 0 volumes{still}"]
    dead = sum(one.dead for one in results)
    ended = sum(one.ended for one in results)
    failed = sum(bool(one.trouble) for one in results)
    done = f"{dead} would be ended" if report["dry_run"] else f"{ended} ended"
    refused = f", {failed} could not be ended" if failed else ""
    counts = f"{report['region']}: {done}{refused}, {len(results) - dead} kept{still}"
    return [*map(str, results), counts]


async def _end(cloud: Sweeper, home: Home, results: Sequence[SweepResult]) -> list[SweepResult]:
    """End what is dead, run by run; each run is locked meanwhile, so that no process resumes it."""
    folders = {folder.run: folder for folder in home.runs()} if results else {}
    after = {one.left.id: one for one in results}
    for run in dict.fromkeys(one.left.run for one in results if one.dead):
        dead = [one for one in results if one.left.run == run and one.dead]
        with contextlib.ExitStack() as stack:
            try:
                if run in folders:
                    stack.enter_context(folders[run].locked())
            except BusyError as error:
                after |= {one.left.id: SweepResult(one.left, False, str(error)) for one in dead}
                dead = [one for one in dead if _hard_end_of(one.left) <= time.time()]
            removed = await asyncio.gather(*(_remove(cloud, one) for one in dead))
            after |= {one.left.id: one for one in removed}
    return list(after.values())


async def _remove(cloud: Sweeper, dead: SweepResult) -> SweepResult:
    try:
        await cloud.remove(dead.left)
    except CloudError as error:
        return replace(dead, trouble=str(error))
    return replace(dead, ended=True)
