"""The backends that a spec may name. Only this module imports a backend's folder by its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seerd.backends.backend import Backend
from seerd.registry import BACKENDS


def by_name(name: str) -> type[Backend[Any]]:
    """Return the backend of this name, one of `registry.BACKENDS`."""
    kind: type[Backend[Any]] = import_module(f"{BACKENDS[name]}.backend").BACKEND
    return kind
