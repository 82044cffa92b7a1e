"""The `[cluster]` keys that all backends have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from seerd.spec import values as v

READ = "read"


def setting(read: v.Read, **default: Any) -> Any:
    """Make a field that is a key of the spec, read by `read`."""
    return field(metadata={READ: read}, **default)


@dataclass(frozen=True)
class BackendKeys:
    """The keys of `[cluster]`. A field made by `setting` is for this backend only."""

    provider: ClassVar[str]  # its name in a spec
    rented: ClassVar[bool] = False  # whether its instances cost money by the hour
    here: ClassVar[bool] = False  # whether trials see the files of this machine
    # where checkpoints are kept: a directory, or an address of `registry.STORES`; None: not named
    store: str | None = None
    parts: int | None = 1  # how many trials may share a GPU; None: as many as `profile` found best

    @property
    def region(self) -> str | None:
        """The region that instances are rented in; None: none, or that of the credentials."""
        return None

    @property
    def types(self) -> tuple[str, ...]:
        """The instance types that may be rented, in order of preference; none: none is named."""
        return ()

    @property
    def ingress_price(self) -> float:
        """USD for each GB that an instance fetches."""
        return 0.0
