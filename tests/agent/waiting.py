"""Waits for what other processes and threads do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOK_S = 0.01


async def until(holds: Callable[[], object]) -> None:
    """Return once this holds."""
    while not holds():  # noqa: ASYNC110 (no event tells of it)
        await asyncio.sleep(LOOK_S)
