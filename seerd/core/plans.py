"""How one plan differs from the one before it: this difference is recorded and sent. Applied to an
order, it gives exactly the new plan's allocations, in their order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import filterfalse

from msgspec import Struct

from seerd.planner.model import Allocation, Compared, Plan
from seerd.planner.space import Value

STAYS = -1  # the place of a trial that keeps its place
FEW = 8  # up to so many trials are taken out one by one, more of them all at once


class Put(Struct, frozen=True, array_like=True, gc=False):
    """An allocation that is new or has changed, or whose place has changed."""

    trial: str
    gpus: int  # how many GPUs it should have
    bracket: int  # the bracket that it is in, from 0
    until: int | None  # ask again when it has made so many reports; None: do not
    place: int  # its place in the new order, from 0; `STAYS`: its place among those that stay


class New(Struct, frozen=True, array_like=True):
    """A trial that is asked for, see `seerd.planner.model.NewTrial`."""

    trial: str
    config: dict[str, Value]  # value of each hyperparameter


class Standing(Struct, frozen=True, array_like=True, gc=False):
    """How a trial stood when it was compared: `seerd.planner.model.Compared` as a JSON array."""

    trial: str
    metric: float | None
    reports: int
    place: int
    of: int
    best: int
    bracket: int
    final: bool

    @classmethod
    def of_compared(cls, compared: Compared) -> Standing:
        """Make it from the policy's value."""
        return cls(*(getattr(compared, name) for name in cls.__struct_fields__))

    def compared(self) -> Compared:
        """Return the policy's value."""
        return Compared(*(getattr(self, name) for name in self.__struct_fields__))


class PlanChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plan as its difference to the one before; see also `seerd.planner.model.Plan`."""

    gone: tuple[str, ...] = ()  # trials that have no allocation any more
    put: tuple[Put, ...] = ()  # those that keep their places, then others by ascending place
    new: tuple[New, ...] = ()
    eliminated: tuple[str, ...] = ()
    stage: int = 0
    ask_at_s: float | None = None
    hold_gpus: int = 0
    ask_on_end: bool = True
    done: bool = False
    compared: tuple[Standing, ...] = ()
    note: str = ""


class Order:
    """The allocations of the present plan, most valuable first. Only `apply` changes it."""

    __slots__ = ("_names", "_of", "gpus")

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self._of = {allocation.trial: allocation for allocation in allocations}
        self._names = list(self._of)
        self.gpus = sum(allocation.gpus for allocation in self._of.values())

    def __iter__(self) -> Iterator[Allocation]:
        return map(self._of.__getitem__, self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, trial: str) -> bool:
        return trial in self._of

    @property
    def names(self) -> Sequence[str]:
        """Its trials, in order. Callers must not change the list."""
        return self._names

    def get(self, trial: str) -> Allocation | None:
        """Return the trial's allocation, None if it has none."""
        return self._of.get(trial)

    def puts(self) -> tuple[Put, ...]:
        """Return the changes that turn an empty order into this one."""
        return tuple(_put(allocation, place) for place, allocation in enumerate(self))

    def gpus_after(self, change: PlanChange) -> int:
        """Return how many GPUs the allocations have together once the change is applied."""
        left = [*change.gone, *(put.trial for put in change.put if put.trial in self._of)]
        put_gpus = sum(put.gpus for put in change.put)
        return self.gpus - sum(self._of[name].gpus for name in left) + put_gpus

    def apply(self, change: PlanChange) -> None:
        """Change this order into the next plan's. Raises `ValueError` if that does not fit."""
        placed = [put for put in change.put if put.place != STAYS]
        if any(put.place == STAYS and put.trial not in self._of for put in change.put):
            raise ValueError("a trial without an allocation cannot keep its place")
        out = [*change.gone, *(put.trial for put in placed if put.trial in self._of)]
        self._names = _inserted(_without(self._names, out), placed)
        self.gpus = self.gpus_after(change)
        for trial in change.gone:
            del self._of[trial]
        for put in change.put:
            self._of[put.trial] = Allocation(put.trial, put.gpus, put.bracket, put.until)


def difference(before: Order, plan: Plan) -> PlanChange:
    """Return how the plan differs from the one before. Raises `ValueError` for a repeated trial."""
    names = [allocation.trial for allocation in plan.allocations]
    changed = _changed(before, plan, names)
    come = [allocation.trial for allocation in changed if allocation.trial not in before]
    gone, places = _moves(before, names, come)
    stay = [_put(allocation, STAYS) for allocation in changed if allocation.trial not in places]
    return PlanChange(
        gone=gone,
        put=(*stay, *(_put(plan.allocations[place], place) for place in places.values())),
        new=tuple(New(new.id, dict(new.config)) for new in plan.new),
        eliminated=plan.eliminated,
        stage=plan.stage,
        ask_at_s=plan.ask_at_s,
        hold_gpus=plan.hold_gpus,
        ask_on_end=plan.ask_on_end,
        done=plan.done,
        compared=tuple(map(Standing.of_compared, plan.compared)),
        note=plan.note,
    )


def _put(allocation: Allocation, place: int) -> Put:
    return Put(allocation.trial, allocation.gpus, allocation.bracket, allocation.until, place)


def _changed(before: Order, plan: Plan, names: Sequence[str]) -> list[Allocation]:
    """Return the allocations of trials that had another or none: most time of comparing is here."""
    return [
        a
        for a, b in zip(plan.allocations, map(before.get, names), strict=True)
        if b is None or a.gpus != b.gpus or a.until != b.until or a.bracket != b.bracket
    ]


Moves = tuple[tuple[str, ...], dict[str, int]]
"""The trials that are gone, and the new places of those that have come or moved, ascending."""


def _moves(before: Order, names: list[str], come: Sequence[str]) -> Moves:
    """Find as few moves as possible. Raises `ValueError` if the plan has a trial twice."""
    old = before.names
    if old == names:
        return (), {}
    present = set(names)
    if len(present) < len(names):
        raise ValueError("the plan has a trial twice")
    gone = tuple(filterfalse(present.__contains__, old))
    put = {*come, *_moved(_without(old, gone), _without(names, come))}
    if len(put) > FEW:
        return gone, {name: place for place, name in enumerate(names) if name in put}
    return gone, {names[place]: place for place in sorted(map(names.index, put))}


def _moved(old: list[str], new: list[str]) -> list[str]:
    """Return the trials that must move to turn `old` into `new`, which has the same ones."""
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if old[1:] == new[:-1]:
        return new[-1:]
    if old[:-1] == new[1:]:
        return new[:1]
    where = {name: place for place, name in enumerate(old)}
    stay = _longest_rising([where[name] for name in new])
    return [name for place, name in enumerate(new) if place not in stay]


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many elements are the same at the beginning, by bisection of fast comparisons."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return the places of a longest rising subsequence (Fredman, On computing the length of
    longest increasing subsequences, 1975): it keeps the smallest end that each length can have.
    """
    ends: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, number in enumerate(numbers):
        if not ends or number > ends[-1]:  # most are
            before.append(places[-1] if places else -1)
            ends.append(number)
            places.append(place)
        else:
            length = bisect_left(ends, number)
            before.append(places[length - 1] if length else -1)
            ends[length], places[length] = number, place
    place, rising = places[-1] if places else -1, set()
    while place >= 0:
        rising.add(place)
        place = before[place]
    return rising


def _without(names: Sequence[str], out: Collection[str]) -> list[str]:
    """Return the names without those in `out`. Raises `ValueError` if one of these is missing."""
    if len(out) <= FEW:
        left = list(names)
        for name in out:
            left.remove(name)
        return left
    gone = set(out)
    left = [name for name in names if name not in gone]
    if len(left) != len(names) - len(out):
        raise ValueError("a trial without an allocation cannot lose it")
    return left


def _inserted(names: list[str], placed: Sequence[Put]) -> list[str]:
    """Return the names with these trials in their places. Raises `ValueError` for a wrong place."""
    if not placed:
        return names
    all_names: list[str] = []
    taken = 0
    for put in placed:
        until = taken + put.place - len(all_names)
        all_names += names[taken:until]
        if len(all_names) != put.place:
            raise ValueError(f"there is no place {put.place}")
        all_names.append(put.trial)
        taken = until
    return all_names + names[taken:]
