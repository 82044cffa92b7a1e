"""Keeps out of a process what a library imports wherever it is installed, and does not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(name: str) -> Iterator[None]:
    """Let a module that nobody has imported yet seem missing, for the length of the block."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
