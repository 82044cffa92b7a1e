"""The kinds of backends and of stores that a spec may name, each with its folder.

The one rule: a new kind is a folder and its line here. Folders are named, not imported: the spec's
reader uses their keys and stands below them.
"""

from __future__ import annotations

from typing import NamedTuple


class StoreKind(NamedTuple):
    """A kind of address."""

    written: str  # an example; empty: a path, which needs none
    module: str  # where its `at` is


# what `cluster.provider` may be. A folder has `keys.KEYS`, its keys in a spec, and
# `backend.BACKEND`, all that depends on it (`seerd/backends/base.py`)
BACKENDS = {
    "local": "seerd.backends.local",
    "hosts": "seerd.backends.hosts",
    "ec2": "seerd.backends.ec2",
}
RENTED = "ec2"  # the backend of rented instances where no spec names one, as in a simulation
# what `cluster.store` may begin with, before `://`
STORES = {
    "": StoreKind("", "seerd.stores.directory"),
    "s3": StoreKind("s3://bucket/prefix", "seerd.stores.s3"),
}
# how addresses are written, for messages
WRITTEN = " or ".join(f'"{kind.written}"' for kind in STORES.values() if kind.written)


def scheme_of(store: str) -> str:
    """Return the scheme of an address; empty for a directory. Only this function reads schemes."""
    scheme, separator, _ = store.partition("://")
    return scheme if separator else ""
