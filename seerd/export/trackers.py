"""The trackers that a run can be exported to, by name."""

from __future__ import annotations

from collections.abc import Callable

from seerd.errors import ExportError, SeerdError
from seerd.export.to_mlflow import ToMlflow
from seerd.export.to_optuna import ToOptuna
from seerd.export.to_tensorboard import ToTensorBoard
from seerd.export.to_wandb import ToWandb
from seerd.export.tracked import Tracker
from seerd.spec.targets import check_installed, without_password
from seerd.telling.explanation.timeline import RunHistory

KINDS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": ToTensorBoard,
    "mlflow": ToMlflow,
    "optuna": ToOptuna,
    "wandb": ToWandb,
}
"""Name of a tracker, which is also that of its package -> how it is reached."""
LONGEST = 300  # characters of an error that are printed


def opened(kind: str, where: str) -> Tracker:
    """Reach a tracker. Raises `ExportError`, `UsageError`."""
    check_installed(kind)
    try:
        return KINDS[kind](where)
    except Exception as error:
        raise _in_one_line(kind, error) from error


def bring(tracker: Tracker, kind: str, run: RunHistory, *, last: bool = True) -> None:
    """Add to a tracker what it has not yet, the last time or not. Raises `ExportError`."""
    try:
        tracker.bring(run)
        if last:
            tracker.close()
    except Exception as error:
        raise _in_one_line(kind, error) from error


def _in_one_line(kind: str, error: Exception) -> SeerdError:
    if isinstance(error, SeerdError):
        return error
    text = without_password(" ".join(str(error).split())) or type(error).__name__
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return ExportError(f"{kind} could not be written: {short}")
