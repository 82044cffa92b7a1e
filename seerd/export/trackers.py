"""The trackers that a run can be exported to, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from seerd.errors import ExportError, SeerdError
from seerd.export.installed import check_installed
from seerd.spec.targets import without_password
from seerd.telling.explanation.timeline import RunHistory


class Tracker(Protocol):
    """What is told of runs elsewhere."""

    def bring(self, run: RunHistory) -> None:
        """Add what is not there yet. Raises what its library raises."""

    def close(self) -> None:
        """Write what is held back until more comes."""


def _tensorboard(where: str) -> Tracker:
    from seerd.export.to_tensorboard import ToTensorBoard

    return ToTensorBoard(where)


def _mlflow(where: str) -> Tracker:
    from seerd.export.to_mlflow import ToMlflow

    return ToMlflow(where)


def _optuna(where: str) -> Tracker:
    from seerd.export.to_optuna import ToOptuna

    return ToOptuna(where)


def _wandb(where: str) -> Tracker:
    from seerd.export.to_wandb import ToWandb

    return ToWandb(where)


KINDS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "optuna": _optuna,
    "wandb": _wandb,
}
"""Name of a tracker, which is also that of its package -> how it is reached."""


def opened(kind: str, where: str) -> Tracker:
    """Reach a tracker. Raises `ExportError`, `UsageError`."""
    check_installed(kind)
    try:
        return KINDS[kind](where)
    except Exception as error:
        raise _told(kind, error) from error


def bring(tracker: Tracker, kind: str, run: RunHistory, *, last: bool = True) -> None:
    """Add to a tracker what it has not yet, the last time or not. Raises `ExportError`."""
    try:
        tracker.bring(run)
        if last:
            tracker.close()
    except Exception as error:
        raise _told(kind, error) from error


def _told(kind: str, error: Exception) -> SeerdError:
    if isinstance(error, SeerdError):
        return error
    said = without_password(" ".join(str(error).split())) or type(error).__name__
    short = said if len(said) <= 300 else f"{said[:300]}..."
    return ExportError(f"{kind} could not be written: {short}")
