"""Work that goes on beside a block of code, and ends with it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class _OverError(Exception):
    """The block has ended by itself."""


class Tasks(asyncio.TaskGroup):
    """Tasks that are cancelled when the block ends, and end it when one of them fails.

    The block then raises what the first of them has raised; a group of exceptions is never raised.
    """

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
