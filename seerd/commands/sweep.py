"""`seerd sweep`: finds by tags what runs have left behind that costs, and ends what is dead. What
may still belong to a living run is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer

from seerd.backends.base import Left, Sweeper
from seerd.backends.by_name import by_name
from seerd.commands.common import tell
from seerd.core.lifecycle import RunPhase
from seerd.errors import BusyError, CloudError, SeerdError, UsageError
from seerd.registry import BACKENDS
from seerd.runs import reading
from seerd.shell.home import Home, RunFolder
from seerd.telling.working import working
from seerd.units import format_duration, parse_duration

# A run that no process runs, and whose journal was silent for so many seconds, has no agents any
# more: leases end after 60 s, and saving and uploading take at most 150 s more.
QUIET_S = 300.0
AT_START_S = 10.0  # the most seconds that a new run spends on the remains of old ones
_HARD_END = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of this home."""

    process: int | None  # the process id of the daemon that runs it now; None: none does
    over: bool  # whether it is over
    quiet_s: float  # seconds since its journal was written


class SweepVerdict(NamedTuple):
    """What a sweep decides on something that costs."""

    dead: bool  # whether it is dead, and is to be ended
    why: str  # why it is dead, or why it is kept


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Something that costs, and the verdict on it."""

    left: Left
    verdict: SweepVerdict
    ended: bool = False
    trouble: str = ""  # why it could not be ended; empty: there was no trouble


@dataclass(frozen=True, slots=True)
class Swept:
    """The results of a sweep."""

    region: str
    owner: str  # whose things were looked for
    dry_run: bool  # whether nothing was to be ended
    found: tuple[SweepResult, ...]  # what still costs, and what became of it
    ending: tuple[str, ...] = ()  # ids of what was ending already, and is not billed any more


def decide(
    left: Left, known: KnownRun | None, now: float, older_than_s: float | None = None
) -> SweepVerdict:
    """Decide whether something that costs is dead. `known` is its run, None if this home has none
    of that name; `now` is seconds since 1970; older things than `older_than_s` are dead unless a
    process runs their run.
    """
    hard_end = hard_end_of(left)
    if hard_end is not None and hard_end <= now:
        return SweepVerdict(True, f"its hard end, {left.hard_end}, has passed")
    if known is not None:
        silent = format_duration(max(0, round(known.quiet_s)))
        if known.process is not None:
            stop = f"to end it: seerd stop {left.run}"
            return SweepVerdict(False, f"process {known.process} runs it; {stop}")
        if known.over:
            return SweepVerdict(True, "its run is over")
        if known.quiet_s >= QUIET_S:
            return SweepVerdict(True, f"no process runs it, and its journal is silent for {silent}")
    if older_than_s is not None and left.age_s > older_than_s:
        return SweepVerdict(True, f"it is older than {format_duration(older_than_s)}")
    if known is not None:
        return SweepVerdict(
            False,
            f"its process ended no more than {silent} ago, and its agents may still save; "
            f"seerd resume {left.run} goes on",
        )
    until = "and it has no hard end"
    if hard_end is not None:
        until = f"and ends at {left.hard_end} at the latest"
    return SweepVerdict(False, f"no run here has this name, {until}; by age: --older-than")


def hard_end_of(left: Left) -> float | None:
    """Return when its own timer ends it, seconds since 1970; None if its tag does not say."""
    try:
        return datetime.strptime(left.hard_end, _HARD_END).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


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
    try:
        older_than_s = parse_duration(older_than) if older_than else None
    except ValueError as error:
        raise UsageError(f"--older-than {older_than}: {error}") from error
    with working("looking for what runs have left in the cloud"):
        result = asyncio.run(swept(home, region, dry_run=dry_run, older_than_s=older_than_s))
    tell(sweep_json(result), lambda _: "\n".join(sweep_lines(result)), json=json)
    raise typer.Exit(CloudError.exit_code if any(one.trouble for one in result.found) else 0)


async def swept(
    home: Home, region: str | None, *, dry_run: bool, older_than_s: float | None = None
) -> Swept:
    """Find everything that this owner's runs have left, and end what is dead unless this is a
    `dry_run`. Raises `CloudError` if AWS does not answer.
    """
    async with sweeper(region) as cloud:
        owner = await cloud.owner()
        present = await cloud.find(owner)
        results = judged(home, present.left, older_than_s)
        if not dry_run:
            results = await _end(cloud, home, results)
        return Swept(cloud.region, owner, dry_run, tuple(results), tuple(present.ending))


def before_a_run(home: Home, region: str | None, owner: str) -> list[str]:
    """Do what `at_start` does, and wait for it."""
    return asyncio.run(at_start(home, region, owner))


async def at_start(home: Home, region: str | None, owner: str | None = None) -> list[str]:
    """End the instances that dead runs of this owner have left; return a line for each. This takes
    one question to AWS (two without `owner`) and at most `AT_START_S` seconds. A failure of AWS is
    a line, and not raised.
    """
    try:
        async with asyncio.timeout(AT_START_S), sweeper(region) as cloud:
            owner = owner or await cloud.owner(patience_s=3.0)
            results = judged(home, await cloud.find_instances(owner, patience_s=3.0))
            return [line_of(one) for one in await _end(cloud, home, results) if one.verdict.dead]
    except (CloudError, TimeoutError) as error:
        why = str(error) or f"AWS did not answer within {AT_START_S:g}s"
        return [f"whether dead runs have left instances was not found out: {why}"]


def judged(
    home: Home, left: Sequence[Left], older_than_s: float | None = None
) -> list[SweepResult]:
    """Decide on each of these."""
    folders = {folder.run: folder for folder in home.runs()} if left else {}
    now = time.time()
    runs = {one.run for one in left} & folders.keys()
    known = {run: known_run(folders[run], now) for run in runs}
    return [SweepResult(one, decide(one, known.get(one.run), now, older_than_s)) for one in left]


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


def line_of(one: SweepResult) -> str:
    """Return the line for one thing that was found."""
    cost = one.left.usd_per_h
    price = f", about ${cost:.3g}/h" if cost is not None else ""
    if one.trouble:
        return f"{one.left}{price}: could not be ended: {one.trouble}"
    what = "ended" if one.ended else "dead" if one.verdict.dead else "kept"
    return f"{one.left}{price}: {what}, {one.verdict.why}"


def sweep_json(swept: Swept) -> dict[str, Any]:
    """Make what `seerd sweep --json` prints."""
    return {
        "region": swept.region,
        "owner": swept.owner,
        "dry_run": swept.dry_run,
        "found": [
            {
                "kind": one.left.kind,
                "id": one.left.id,
                "run": one.left.run,
                "name": one.left.name,
                "what": one.left.what,
                "state": one.left.state,
                "age_s": round(one.left.age_s, 1),
                "hard_end": one.left.hard_end or None,
                "usd_per_h": one.left.usd_per_h,
                "dead": one.verdict.dead,
                "why": one.verdict.why,
                "ended": one.ended,
                "trouble": one.trouble or None,
            }
            for one in swept.found
        ],
        "ending": list(swept.ending),
    }


def sweep_lines(swept: Swept) -> list[str]:
    """Write what `seerd sweep` prints."""
    lines = [line_of(one) for one in swept.found]
    still = f" ({len(swept.ending)} still shutting down, not billed any more)" * bool(swept.ending)
    if not lines:
        nothing = f"nothing of {swept.owner} is left in {swept.region}"
        return [f"{nothing}: 0 instances, 0 volumes{still}"]
    dead = sum(one.verdict.dead for one in swept.found)
    ended = sum(one.ended for one in swept.found)
    failed = sum(bool(one.trouble) for one in swept.found)
    done = f"{dead} would be ended" if swept.dry_run else f"{ended} ended"
    refused = f", {failed} could not be ended" if failed else ""
    return [*lines, f"{swept.region}: {done}{refused}, {len(lines) - dead} kept{still}"]


async def _end(cloud: Sweeper, home: Home, results: Sequence[SweepResult]) -> list[SweepResult]:
    """End what is dead, run by run; each run is locked meanwhile, so that no process resumes it."""
    folders = {folder.run: folder for folder in home.runs()} if results else {}
    after = {one.left.id: one for one in results}
    for run in dict.fromkeys(one.left.run for one in results if one.verdict.dead):
        dead = [one for one in results if one.left.run == run and one.verdict.dead]
        with contextlib.ExitStack() as stack:
            try:
                if run in folders:
                    stack.enter_context(folders[run].locked())
            except BusyError as error:
                alive = SweepVerdict(False, str(error))
                after |= {one.left.id: SweepResult(one.left, alive) for one in dead}
                ends = [(one, hard_end_of(one.left)) for one in dead]
                dead = [one for one, end in ends if end is not None and end <= time.time()]
            removed = await asyncio.gather(*(_remove(cloud, one) for one in dead))
            after |= {one.left.id: one for one in removed}
    return list(after.values())


async def _remove(cloud: Sweeper, one: SweepResult) -> SweepResult:
    try:
        await cloud.remove(one.left)
    except CloudError as error:
        return replace(one, trouble=str(error))
    return replace(one, ended=True)
