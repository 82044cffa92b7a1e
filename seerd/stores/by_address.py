"""Everything that differs by kind of store before one is open. A new kind is a folder with an `at`
that returns a `StorePlace`, and a line in `seerd/registry.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from seerd.errors import StoreError
from seerd.registry import STORES, WRITTEN, scheme_of

if TYPE_CHECKING:
    from seerd.stores.base import Store, Trouble


class StorePlace(Protocol):
    """Where checkpoints are kept, by its address."""

    @property
    def by_urls(self) -> bool:
        """Whether agents reach it by presigned URLs, so that it is also a `DataStore`."""

    def of_run(self, run: str) -> str:
        """Return the address of a run's own store."""

    @property
    def address(self) -> str:
        """Where agents find it: a directory; empty if presigned URLs are their only way there."""

    def store(self, run: str, expires: float, region: str | None) -> Store:
        """Return the store of a run; its URLs work until `expires` (wall clock, seconds since
        1970). `region`: that of AWS; None: the environment's.
        """

    async def troubles(self, region: str | None) -> list[Trouble]:
        """Try everything that a run will do there; return what fails."""

    async def data_troubles(self, region: str | None) -> list[Trouble]:
        """Return why trials' data cannot be read from there."""

    def what_stays(self) -> str:
        """Return what stays there when a run is removed, for people; empty: nothing."""


def by_address(address: str) -> StorePlace:
    """Return the place that this address names. Raises `StoreError` if it names none."""
    scheme = scheme_of(address)
    if scheme not in STORES:
        raise StoreError(f"{address} is no place for checkpoints: {WRITTEN} or a directory is one")
    return cast("StorePlace", import_module(STORES[scheme].module).at(address))
