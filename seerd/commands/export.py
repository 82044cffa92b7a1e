"""`seerd export`: a run as files for other programs, or in a tracker of experiments. It only reads
runs; exporting again adds what is missing and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from seerd.commands.common import writing
from seerd.commands.options import ExportOptions
from seerd.errors import UsageError
from seerd.export import rows
from seerd.export.following import alone
from seerd.export.rows import Rows
from seerd.export.trackers import bring, opened
from seerd.shell.home import RunFolder
from seerd.spec.targets import check_installed, without_password
from seerd.telling.explanation.timeline import RunHistory, read_history
from seerd.telling.harmless import harmless
from seerd.telling.working import working

# name of a file without its ending -> what is in it
TABLES: dict[str, Callable[[RunHistory], Rows]] = {
    "trials": rows.trials,
    "reports": rows.reports,
    "ledger": rows.charges,
}


def export(folder: RunFolder, targets: ExportOptions) -> None:
    """Write the run to all targets. Raises `ExportError`, `JournalError`, `UsageError`."""
    wanted = {kind: str(where) for kind, where in asdict(targets).items() if where is not None}
    if not wanted:
        options = ", ".join(f"--{each.name}" for each in fields(ExportOptions))
        raise UsageError(f"say where to: one of {options}")
    for kind in wanted:
        if kind != "csv":
            check_installed(kind)
    with working(f"reading {folder.run}"):
        run = read_history(folder)
    for kind, where in wanted.items():
        if kind == "csv":
            with working("writing tables"):
                _tables(run, Path(where))
        else:
            with alone(folder, kind, where) as is_alone:
                if not is_alone:
                    raise UsageError(f"another process exports {folder.run} to this {kind} already")
                with working(f"adding {folder.run} to {kind}"):
                    bring(opened(kind, where), kind, run)
        print(harmless(f"{folder.run}: {kind} in {without_password(where)}"))


def _tables(run: RunHistory, where: Path) -> None:
    paths = {where / f"{name}.csv": table for name, table in TABLES.items()}
    name = run.state.facts.run
    with writing(where):
        where.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if path.is_file() and (other := rows.run_of(path)) not in (name, ""):
                raise UsageError(
                    f"{path} is of run {other}, and stays: name another folder for {name}, as in "
                    f"--csv {where / name}"
                )
        for path, table in paths.items():
            rows.csv(table(run).of_run(name), path)
