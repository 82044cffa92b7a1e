"""`seerd export`: a run as files for other programs, or in a tracker of experiments. It only reads
runs; exporting again adds what is missing and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from seerd.commands.options import ExportOptions
from seerd.errors import UsageError
from seerd.export import rows
from seerd.export.following import alone
from seerd.export.installed import check_installed
from seerd.export.rows import Rows
from seerd.export.trackers import bring, opened
from seerd.shell.home import RunFolder
from seerd.spec.targets import without_password
from seerd.telling.explanation.timeline import RunHistory, read_history
from seerd.telling.harmless import harmless
from seerd.telling.working import working

# name of a file without its ending -> what is in it
TABLES: dict[str, Callable[[RunHistory], Rows]] = {
    "trials": rows.trials,
    "reports": rows.reports,
    "ledger": rows.charges,
}
WRITERS = {"csv": "csv", "parquet": "pyarrow"}  # formats of tables, and the package that each needs


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run is exported to."""

    kind: str  # csv, parquet, or the name of a tracker
    where: str  # a folder or an address, as the person wrote it


def destinations(targets: ExportOptions) -> list[Destination]:
    """List what is to be written."""
    kinds = ((field.name, getattr(targets, field.name)) for field in fields(targets))
    return [Destination(kind, str(where)) for kind, where in kinds if where is not None]


def export(folder: RunFolder, targets: list[Destination]) -> None:
    """Write the run to all targets. Raises `ExportError`, `JournalError`, `UsageError`."""
    if not targets:
        raise UsageError(
            "say where to: --csv DIR, --parquet DIR, --tensorboard DIR, --mlflow URI, --optuna URL "
            "or --wandb DIR"
        )
    for target in targets:
        check_installed(target.kind, WRITERS.get(target.kind, ""))
    with working(f"reading {folder.run}"):
        run = read_history(folder)
    for target in targets:
        if target.kind in WRITERS:
            with working(f"writing {target.kind}"):
                _tables(run, target.kind, Path(target.where))
        else:
            with alone(folder, target.kind, target.where) as is_alone:
                if not is_alone:
                    other = f"another process exports {folder.run} to this {target.kind} already"
                    raise UsageError(other)
                with working(f"adding {folder.run} to {target.kind}"):
                    bring(opened(target.kind, target.where), target.kind, run)
        print(harmless(f"{folder.run}: {target.kind} in {without_password(target.where)}"))


def _tables(run: RunHistory, kind: str, where: Path) -> None:
    from seerd.export import files

    write, run_of = (
        (files.csv, files.run_of_csv) if kind == "csv" else (files.parquet, files.run_of_parquet)
    )
    paths = {where / f"{name}.{kind}": table for name, table in TABLES.items()}
    name = run.state.facts.run
    try:
        where.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if path.is_file() and (other := run_of(path)) not in (name, ""):
                raise UsageError(
                    f"{path} is of run {other}, and stays: name another folder for {name}, as in "
                    f"--{kind} {where / name}"
                )
        for path, table in paths.items():
            write(table(run).of_run(name), path)
    except OSError as error:
        raise UsageError(f"{where} cannot be written: {error.strerror}") from error
