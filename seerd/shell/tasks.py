"""Tasks that run beside a block of code and end with it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class _OverError(Exception):
    """The block has ended by itself."""


class Tasks(asyncio.TaskGroup):
    """A task group that ends with the block and raises the first exception, never a group."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        over = _OverError()
        try:
            await super().__aexit__(kind or _OverError, error or over, trace)
        except BaseExceptionGroup as failed:
            first = failed.exceptions[0]
            if first is not over:
                raise first from None
