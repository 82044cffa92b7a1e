"""`seerd report`: one page on a run, or on several beside each other. It only reads runs."""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from seerd.commands.common import writing
from seerd.commands.options import ReportOptions
from seerd.core.state import State
from seerd.errors import UsageError
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
    reader = RunReader(folder)
    while True:
        with working("reading the run, and drawing"):
            run = reader.read()
            made = RunReport(run)
            page = made.page()
        _write(to, page)
        if not options.follow or run.status != "running":
            break
        time.sleep(AGAIN_S)
    for place, ending in ((options.png, ".png"), (options.pdf, ".pdf")):
        if place is not None:
            with writing(place), working(f"drawing the pictures as {ending}"):
                place.mkdir(parents=True, exist_ok=True)
                pictures = made.pictures()
                for picture in pictures:
                    write(picture.spec, place / f"{picture.name}{ending}")
            print(f"{count(len(pictures), 'picture')} in {harmless(str(place))}")


class RunReader:
    """Reads one run as far as it has gone, no event twice. Threads may share it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._history: RunHistory | None = None
        self._lock = threading.Lock()

    def history(self) -> RunHistory:
        """Read what was added to the journal, and return all. Raises `JournalError`."""
        with self._lock:
            if self._history is None:
                self._history = read_history(self.folder)
            else:
                self._history.read_on(self.folder)
            return self._history

    def read(self) -> ReadRun:
        """Return the history with what else reports show. Raises `JournalError`."""
        folder, run = self.folder, self.history()
        status = status_of(run.state, folder.owner() is not None)
        # The run's spec; where jobs share the run, the group and the spec of each job.
        parts = [folder.spec.read_text(errors="replace")] if folder.spec.is_file() else []
        parts += [
            f"\n# {spec.name}\n{spec.read_text(errors='replace')}"
            for spec in sorted(folder.specs.glob("*.toml"))
            if spec.stem in run.state.jobs
        ]
        return ReadRun(run.timeline, run.state, status, "".join(parts), _command(run.state))


def _command(state: State) -> str:
    """Return the command that runs this spec again; all other options are in the spec."""
    facts = state.facts
    limits, params = facts.problem.limits, facts.problem.params
    options: dict[str, str] = {}
    if facts.minimize:  # the user's limits are in the spec, and the others follow from the plan
        options["--minimize"] = facts.minimize
    else:
        options["--deadline"] = f"{limits.deadline_s:.10g}s"
        if math.isfinite(limits.budget_gpu_s):
            options["--budget"] = f"{limits.budget_gpu_s / 60:.10g}gpu-min"
        if limits.cost_usd is not None:
            options["--cost"] = f"${limits.cost_usd:.10g}"
    if not facts.jobs:
        options |= {"--policy": params.name, "--seed": str(params.seed)}
    words = [word for option in options.items() for word in option]
    spec = "group.toml" if facts.jobs else "spec.toml"
    return shlex.join(["seerd", "run", spec, *words, *["--ideal"] * facts.ideal])


def _compare(folders: Sequence[RunFolder], to: Path) -> None:
    with working("reading the runs"):
        runs = [RunReader(folder).read() for folder in folders]
    facts = [run.state.facts for run in runs]
    if shared := [run_facts.run for run_facts in facts if run_facts.jobs]:
        raise UsageError(
            f"jobs share {' and '.join(shared)}: only runs of one job are compared with each other"
        )
    metrics = {f"{run_facts.metric} ({run_facts.mode})" for run_facts in facts}
    if len(metrics) > 1:
        raise UsageError(f"these runs have different metrics: {', '.join(sorted(metrics))}")
    with working("drawing"):
        page = comparison(runs)
    _write(to, page)


def _page_of(to: Path | None, otherwise: str) -> Path:
    if to is None:
        return Path(otherwise)
    if not to.name or to.is_dir():
        raise UsageError(f"--to {to} is a folder: write the page's file, as in --to page.html")
    return to


def _write(to: Path, page: str) -> None:
    """Write the page in one step, so that a browser never loads half of it."""
    part = to.with_name(f".{to.name}.part")
    with writing(to):
        try:
            part.write_text(page, encoding="utf-8")
            part.replace(to)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    print(f"{harmless(str(to))} ({len(page.encode()) / 1e6:.1f} MB)", flush=True)
