"""How a place of checkpoints is written.

The one rule: nobody else reads a scheme.
"""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    """A kind of address. `written`: an example; `module`: where its `at` is."""

    written: str
    module: str


SCHEMES = {"s3": Scheme("s3://bucket/prefix", "seerd.stores.s3")}

WRITTEN = " or ".join(f'"{scheme.written}"' for scheme in SCHEMES.values())


def scheme_of(store: str) -> str:
    """Return the scheme of an address; empty for a directory."""
    scheme, separator, _ = store.partition("://")
    return scheme if separator else ""
