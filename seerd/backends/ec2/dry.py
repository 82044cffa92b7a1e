"""What the runs of one coordinator tell each other: where EC2 had no instance to give lately.

The one rule: it is a hint, which changes the order in which a launch asks and nothing else. A place
is an empty file, whose time is that of the last refusal; who cannot read or write it goes without.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from seerd.backends.ec2.request import Candidate
from seerd.clock import wall


@dataclass(frozen=True, slots=True)
class DryPlaces:
    """The places of one market."""

    folder: Path | None  # of all runs of this user here; None: there are no others
    market: str  # "on-demand" or "spot", which have capacities of their own

    def refused(self, place: Candidate) -> None:
        """Note that it has none now."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / self._name(place)).touch()

    def gave(self, place: Candidate) -> None:
        """Note that it has some again."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            (self.folder / self._name(place)).unlink(missing_ok=True)

    def age_s(self, place: Candidate) -> float | None:
        """Seconds since it last refused anybody; None if it has not, or gave since then."""
        if self.folder is None:
            return None
        with contextlib.suppress(OSError):
            age_s = wall() - (self.folder / self._name(place)).stat().st_mtime
            return age_s if age_s >= 0.0 else None  # the clock was set since then
        return None

    def _name(self, place: Candidate) -> str:
        """A subnet's id is of one account and region."""
        return f"{self.market} {place.type} {place.subnet}"
