"""Which kind of store an address means. All that differs by kind before a store is open is here.

The one rule: a new kind is a module or folder beside this file, with a class that is a
`StorePlace`, and a line in `seerd/spec/stores.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from seerd.errors import StoreError
from seerd.spec.stores import SCHEMES, WRITTEN, scheme_of

if TYPE_CHECKING:
    from seerd.stores.base import Store, Trouble

DIRECTORY = "seerd.stores.directory"


class StorePlace(Protocol):
    """Where checkpoints are kept, as its address tells."""

    @property
    def by_urls(self) -> bool:
        """Whether agents reach it by presigned URLs, from any machine; else by its path."""

    def store(self, run: str, expires: float, region: str | None) -> Store:
        """Return the store of a run.

        expires  until when its URLs work, wall clock, seconds since 1970
        region   the region of AWS; None: the environment's
        """

    async def troubles(self, region: str | None) -> list[Trouble]:
        """Try everything that a run will do there; return what cannot be done."""

    def what_stays(self) -> str:
        """Say what is left there when a run is removed; empty: nothing."""


def by_address(address: str) -> StorePlace:
    """Return the place that this address names. Raises `StoreError` if it names none."""
    scheme = scheme_of(address)
    if scheme and scheme not in SCHEMES:
        raise StoreError(f"{address} is no place for checkpoints: {WRITTEN} or a directory is one")
    module = SCHEMES[scheme].module if scheme else DIRECTORY
    return cast("StorePlace", import_module(module).at(address))
