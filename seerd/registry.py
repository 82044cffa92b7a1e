"""The kinds of backends and of stores that a spec may name, each with its folder.

The one rule: a new kind is a folder and its line here, and nothing else. Folders are named and not
imported: what reads a spec has the keys of all of them, and stands below them.
"""

from __future__ import annotations

from typing import NamedTuple


class StoreKind(NamedTuple):
    """A kind of address."""

    written: str  # an example; empty: a path, which needs none
    module: str  # where its `at` is


BACKENDS = {
    "local": "seerd.backends.local",
    "hosts": "seerd.backends.hosts",
    "ec2": "seerd.backends.ec2",
}
"""What `cluster.provider` may be. A folder has `keys.KEYS`, its keys in a spec, and
`backend.BACKEND`, all that depends on it (`seerd/backends/base.py`).
"""
RENTED = "ec2"
"""The backend of rented instances where no spec names one, as in a simulation."""
STORES = {
    "": StoreKind("", "seerd.stores.directory"),
    "s3": StoreKind("s3://bucket/prefix", "seerd.stores.s3"),
}
"""What `cluster.store` may begin with, before `://`."""
WRITTEN = " or ".join(f'"{kind.written}"' for kind in STORES.values() if kind.written)
"""How addresses are written, for messages."""


def scheme_of(store: str) -> str:
    """Return the scheme of an address; empty for a directory. Nobody else reads a scheme."""
    scheme, separator, _ = store.partition("://")
    return scheme if separator else ""
