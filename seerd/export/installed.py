"""Whether the package of an export is installed, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from seerd.errors import UsageError
from seerd.extras import installing


def check_installed(kind: str, package: str = "") -> None:
    """Raise `UsageError` if a package is not installed: the one of the tracker's name, or this."""
    extra = "wandb" if kind == "wandb" else "export"
    if find_spec(package or kind) is None:
        raise UsageError(f"exporting to {kind} needs a package: {installing(extra)}")
