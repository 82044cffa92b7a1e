"""Work that goes on beside a block of code, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class _OverError(Exception):
    """The block has ended by itself."""


@contextlib.asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks that are cancelled when the block ends, and end it when one of them fails.

    Raises what the first of them has raised, or the block.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            raise _OverError
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        if not isinstance(first, _OverError):
            raise first from None
