"""`seerd report`: one page on a run, or on several beside each other.

The one rule: it only reads runs; what it writes is where the person says.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from seerd.commands.options import ReportOptions
from seerd.core.state import State
from seerd.errors import UsageError
from seerd.planner.model import Limits
from seerd.shell.home import RunFolder
from seerd.telling.explanation.timeline import RunHistory, read_history
from seerd.telling.harmless import harmless
from seerd.telling.page.drawing import write
from seerd.telling.page.run_page import ReadRun, RunReport, comparison
from seerd.telling.run_json import status_of
from seerd.telling.working import working
from seerd.units import count

AGAIN_S = 10.0


def report(folders: Sequence[RunFolder], options: ReportOptions) -> None:
    """Write the page, and the pictures. Raises `JournalError`, `UsageError`."""
    if len(folders) > 1:
        if options.png or options.pdf or options.follow:
            raise UsageError("--png, --pdf and --follow are for the report of one run")
        _compare(folders, _page_of(options.to, "comparison.html"))
        return
    folder = folders[0]
    to = _page_of(options.to, f"{folder.run}.html")
    while True:
        with working("reading the run, and drawing"):
            told = read(folder)
            made = RunReport(told)
            page = made.page()
        _write(to, page)
        if not options.follow or told.status != "running":
            break
        time.sleep(AGAIN_S)
    for place, ending in ((options.png, ".png"), (options.pdf, ".pdf")):
        if place is not None:
            with working(f"drawing the pictures as {ending}"):
                _pictures(made, place, ending)


def read(folder: RunFolder) -> ReadRun:
    """Read a run to the end of its journal. Raises `JournalError`."""
    return as_read(folder, read_history(folder))


def as_read(folder: RunFolder, run: RunHistory) -> ReadRun:
    """Put what was read of a run together with what else its report says."""
    state = run.state
    status = status_of(state, folder.owner() is not None)
    return ReadRun(run.timeline, state, status, _specs(folder, state), _command(state))


def _specs(folder: RunFolder, state: State) -> str:
    """Return the run's spec; where jobs share the run, the group and the spec of each job."""
    there = sorted(folder.specs.glob("*.toml")) if folder.specs.is_dir() else []
    of_jobs = [one for one in there if one.stem in state.jobs]
    parts = [folder.spec.read_text(errors="replace")] if folder.spec.is_file() else []
    parts += [f"\n# {one.name}\n{one.read_text(errors='replace')}" for one in of_jobs]
    return "".join(parts)


def _command(state: State) -> str:
    """Return what runs this spec again; all else that the command line gave stands in the spec."""
    facts = state.facts
    given = {"--minimize": facts.minimize} if facts.minimize else _limits(facts.problem.limits)
    params = facts.problem.params
    if not facts.jobs:
        given |= {"--policy": params.name, "--seed": str(params.seed)}
    words = [word for option in given.items() for word in option]
    spec = "group.toml" if facts.jobs else "spec.toml"
    return shlex.join(["seerd", "run", spec, *words, *["--ideal"] * facts.ideal])


def _limits(limits: Limits) -> dict[str, str]:
    """Return the options that say these limits. Where something is minimised, those that the person
    gave are in the spec, and the others follow from the plan.
    """
    given = {"--deadline": f"{limits.deadline_s:.10g}s"}
    if math.isfinite(limits.budget_gpu_s):
        given["--budget"] = f"{limits.budget_gpu_s / 60:.10g}gpu-min"
    if limits.cost_usd is not None:
        given["--cost"] = f"${limits.cost_usd:.10g}"
    return given


def _compare(folders: Sequence[RunFolder], to: Path) -> None:
    with working("reading the runs"):
        found = [read(folder) for folder in folders]
    shared = [one.state.facts.run for one in found if one.state.facts.jobs]
    if shared:
        raise UsageError(
            f"jobs share {' and '.join(shared)}: only runs of one job are compared with each other"
        )
    metrics = {told.state.facts.metric for told in found}
    if len(metrics) > 1:
        raise UsageError(f"these runs have different metrics: {', '.join(sorted(metrics))}")
    if len({told.state.facts.mode for told in found}) > 1:
        raise UsageError(f"in some of these runs more {metrics.pop()} is better, in others less")
    with working("drawing"):
        page = comparison(found)
    _write(to, page)


def _page_of(to: Path | None, otherwise: str) -> Path:
    """Return where the page goes. Raises `UsageError` for a folder."""
    if to is None:
        return Path(otherwise)
    if not to.name or to.is_dir():
        raise UsageError(f"--to {to} is a folder: write the page's file, as in --to page.html")
    return to


def _write(to: Path, page: str) -> None:
    """Put the page into its place at once, so that a browser never loads half of it."""
    part = to.with_name(f".{to.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(to)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{to} cannot be written: {error.strerror}") from error
    print(f"{harmless(str(to))} ({len(page.encode()) / 1e6:.1f} MB)", flush=True)


def _pictures(made: RunReport, place: Path, ending: str) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        pictures = made.pictures()
        for picture in pictures:
            write(picture.wide, place / f"{picture.name}{ending}")
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror}") from error
    print(f"{count(len(pictures), 'picture')} in {harmless(str(place))}")
