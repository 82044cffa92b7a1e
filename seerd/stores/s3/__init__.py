"""S3 as a place of checkpoints and of data. The store, which needs asyncio and is slow
to load, is imported when it is used: most commands only read its address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from seerd.stores.s3.address import Address

if TYPE_CHECKING:
    from seerd.stores.base import Trouble
    from seerd.stores.s3.store import S3Store


class S3Place(Address):
    """An address without a connection, and its store: see `by_address.StorePlace`."""

    __slots__ = ()

    by_urls: ClassVar[bool] = True
    address: ClassVar[str] = ""

    def of_run(self, run: str) -> str:
        """Return this address: runs have a prefix each."""
        return str(self)

    def store(self, run: str, expires: float, region: str | None) -> S3Store:
        from seerd.stores.s3.store import S3Store

        return S3Store(str(self), run, expires, region)

    async def troubles(self, region: str | None) -> list[Trouble]:
        from seerd.stores.s3.store import check_store

        return await check_store(str(self), region)

    async def data_troubles(self, region: str | None) -> list[Trouble]:
        from seerd.stores.s3.store import check_data

        return await check_data(str(self), region)

    def what_stays(self) -> str:
        return f"its checkpoints in {self} stay until the bucket's lifecycle rule removes them"


at = S3Place.parse
