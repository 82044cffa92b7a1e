"""What a run's launches have learned about the places where instances may be: which of them have
refused, when, and why. It has no clock and no network of its own: all moments are seconds of one
clock that nobody sets.

The one rule: what one launch was told, no other asks again. A refusal answers every launch that had
begun by then. To a later launch, and to those of other runs here, it only says which places to ask
last: they may have some again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seerd.aws.errors import AwsError, ErrorKind
from seerd.backends.ec2.request import Candidate

REMEMBERED_S = {ErrorKind.CAPACITY: 120.0, ErrorKind.ELSEWHERE: math.inf}
"""For how long a place that has refused is asked after all others, seconds. Capacity comes back by
the minute; where a type is never offered it never will be. A quota has room again as soon as an
instance is given back.
"""


@dataclass(frozen=True, slots=True)
class PlaceRefusal:
    """That a place had no instance to give."""

    error: AwsError  # what EC2 said
    at: float  # when

    def counts(self, now: float) -> bool:
        """Whether the place is asked last because of it."""
        return now - self.at < REMEMBERED_S.get(self.error.kind, 0.0)


class LaunchPlaces:
    """The places of a run, in order of preference. `heard_s`: how long ago a place has refused
    anybody, as other runs tell; None: nobody knows.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        heard_s: Callable[[Candidate], float | None] = lambda place: None,
    ) -> None:
        self._candidates = tuple(candidates)
        self._heard_s = heard_s
        self._refusals: dict[Candidate, PlaceRefusal] = {}

    def next(self, begun: float, now: float) -> Candidate | None:
        """Return where a launch that began at `begun` should ask now: at the first place that has
        not refused lately, else where the last refusal is the oldest. None if all have refused
        since it began.
        """
        left = [one for one in self._candidates if not self._has_answered(one, begun)]
        return min(left, key=lambda one: self._refused_at(one, now), default=None)

    def refused(self, place: Candidate, error: AwsError, now: float) -> None:
        """Note that EC2 had nothing to give there. A quota is for a family of types in the whole
        region, so it is that of the type's other places too.
        """
        alike = self._candidates if error.kind is ErrorKind.QUOTA else (place,)
        for one in alike:
            if one.type == place.type:
                self._refusals[one] = PlaceRefusal(error, now)

    def gave(self, place: Candidate) -> None:
        """Note that an instance was to be had there."""
        self._refusals.pop(place, None)

    def refusals(self) -> list[tuple[Candidate, AwsError]]:
        """Return what EC2 said last, place by place; what it said of many only once."""
        said: dict[int, tuple[Candidate, AwsError]] = {}
        for one in self._candidates:
            if one in self._refusals:
                error = self._refusals[one].error
                said.setdefault(id(error), (one, error))
        return list(said.values())

    def _has_answered(self, place: Candidate, begun: float) -> bool:
        """Return whether the place has refused since a launch began."""
        return place in self._refusals and self._refusals[place].at >= begun

    def _refused_at(self, place: Candidate, now: float) -> float:
        """Return when the place has refused, if that counts; else the beginning of time."""
        refusal = self._refusals.get(place)
        if refusal is not None and refusal.counts(now):
            return refusal.at
        heard_s = self._heard_s(place)
        if heard_s is None or heard_s >= REMEMBERED_S[ErrorKind.CAPACITY]:
            return -math.inf
        return now - heard_s
