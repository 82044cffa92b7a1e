"""Where a run's launches ask for instances, and which of these places have refused. A refusal
answers every launch that had begun by then; later launches, and other runs here, ask there last.
Moments are seconds of one clock that nobody sets.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seerd.aws.errors import AwsError, ErrorKind
from seerd.backends.ec2.request import Candidate
from seerd.clock import wall

REMEMBERED_S = {ErrorKind.CAPACITY: 120.0, ErrorKind.ELSEWHERE: math.inf}
"""For how long a place that has refused is asked last, seconds. Capacity comes back by the minute,
a type that is not offered never; a quota may have room again at once.
"""
MISSING = frozenset({"InsufficientInstanceCapacity", "InsufficientHostCapacity"})
"""Refusals that any run would get, whatever it would pay."""


@dataclass(frozen=True, slots=True)
class DryPlaces:
    """The places of one market that refused a run of this user lately, as empty files with the time
    of the last refusal. It is a hint, and there is none if files cannot be read or written.
    """

    folder: Path  # shared by all runs of this user here
    market: str  # "on-demand" or "spot", which have capacities of their own

    def refused(self, place: Candidate) -> None:
        """Note that it has no instance now."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file(place).touch()

    def gave(self, place: Candidate) -> None:
        """Note that it has instances again."""
        with contextlib.suppress(OSError):
            self._file(place).unlink(missing_ok=True)

    def age_s(self, place: Candidate) -> float | None:
        """Return the seconds since its last refusal; None if there is none, or it gave since."""
        with contextlib.suppress(OSError):
            age_s = wall() - self._file(place).stat().st_mtime
            return age_s if age_s >= 0.0 else None  # the clock was set since then
        return None

    def _file(self, place: Candidate) -> Path:
        # A subnet's id is of one account and region.
        return self.folder / f"{self.market} {place.type} {place.subnet}"


@dataclass(frozen=True, slots=True)
class PlaceRefusal:
    """That a place had no instance to give."""

    error: AwsError  # EC2's answer
    at: float  # when

    def counts(self, now: float) -> bool:
        """Return whether the place is asked last because of it."""
        return now - self.at < REMEMBERED_S.get(self.error.kind, 0.0)


class LaunchPlaces:
    """The places of a run, in order of preference. `shared`: what all runs here know of them."""

    def __init__(self, candidates: Sequence[Candidate], shared: DryPlaces | None = None) -> None:
        self._candidates = tuple(candidates)
        self._shared = shared
        self._refusals: dict[Candidate, PlaceRefusal] = {}

    def next(self, begun: float, now: float) -> Candidate | None:
        """Return the place that a launch which began at `begun` should ask now: the first that has
        not refused lately, else that of the oldest refusal. None if all have refused since.
        """
        refusals = self._refusals
        left = [
            place
            for place in self._candidates
            if place not in refusals or refusals[place].at < begun
        ]
        return min(left, key=lambda place: self._refused_at(place, now), default=None)

    def refused(self, place: Candidate, error: AwsError, now: float) -> None:
        """Note that EC2 had nothing there; a quota counts for the type's other places too."""
        alike = self._candidates if error.kind is ErrorKind.QUOTA else (place,)
        for other in alike:
            if other.type == place.type:
                self._refusals[other] = PlaceRefusal(error, now)
        if self._shared and error.code in MISSING:
            self._shared.refused(place)

    def gave(self, place: Candidate) -> None:
        """Note that it gave an instance."""
        self._refusals.pop(place, None)
        if self._shared:
            self._shared.gave(place)

    def refusals(self) -> list[tuple[Candidate, AwsError]]:
        """Return EC2's last answers, place by place; an answer about many only once."""
        answers: dict[int, tuple[Candidate, AwsError]] = {}
        for place in self._candidates:
            if place in self._refusals:
                error = self._refusals[place].error
                answers.setdefault(id(error), (place, error))
        return list(answers.values())

    def _refused_at(self, place: Candidate, now: float) -> float:
        """Return when the place has refused, if that counts; else the beginning of time."""
        refusal = self._refusals.get(place)
        if refusal is not None and refusal.counts(now):
            return refusal.at
        age_s = self._shared.age_s(place) if self._shared else None
        if age_s is None or age_s >= REMEMBERED_S[ErrorKind.CAPACITY]:
            return -math.inf
        return now - age_s
