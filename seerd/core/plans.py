"""How one plan differs from the one before it: this difference is recorded and sent. Applied to an
order, it gives exactly the new plan's allocations, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import Struct

from seerd.planner.model import Allocation, Compared, Plan
from seerd.planner.space import Value

STAYS = -1  # the place of a trial that keeps its place


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
    compared: tuple[Compared, ...] = ()
    note: str = ""


class Order:
    """The allocations of the present plan, most valuable first. Only `apply` changes it."""

    __slots__ = ("_of",)

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self._of = {allocation.trial: allocation for allocation in allocations}

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._of.values())

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, trial: str) -> bool:
        return trial in self._of

    @property
    def names(self) -> Sequence[str]:
        """Its trials, in order."""
        return list(self._of)

    @property
    def gpus(self) -> int:
        """How many GPUs the allocations have together."""
        return sum(allocation.gpus for allocation in self._of.values())

    def get(self, trial: str) -> Allocation | None:
        """Return the trial's allocation, None if it has none."""
        return self._of.get(trial)

    def puts(self) -> tuple[Put, ...]:
        """Return the changes that turn an empty order into this one."""
        return tuple(_put(allocation, place) for place, allocation in enumerate(self))

    def apply(self, change: PlanChange) -> None:
        """Change this order into the next plan's. Raises `ValueError` if that does not fit."""
        placed = [put for put in change.put if put.place != STAYS]
        places = [put.place for put in placed]
        kept = {put.trial for put in change.put if put.place == STAYS}
        named = [*change.gone, *(put.trial for put in change.put)]
        out = {*change.gone, *(put.trial for put in placed)}
        names = [name for name in self._of if name not in out]
        if (
            len(set(named)) < len(named)
            or not self._of.keys() >= {*change.gone, *kept}
            or places != sorted(set(places))
            or not all(0 <= place - before <= len(names) for before, place in enumerate(places))
        ):
            raise ValueError("it changes another plan than the present one")
        for put in placed:
            names.insert(put.place, put.trial)
        puts = (Allocation(put.trial, put.gpus, put.bracket, put.until) for put in change.put)
        new = self._of | {allocation.trial: allocation for allocation in puts}
        self._of = {name: new[name] for name in names}


def difference(before: Order, plan: Plan) -> PlanChange:
    """Return how the plan differs from the one before. Raises `ValueError` for a repeated trial."""
    names = [allocation.trial for allocation in plan.allocations]
    present = set(names)
    if len(present) < len(names):
        raise ValueError("the plan has a trial twice")
    same = SequenceMatcher(None, before.names, names, autojunk=False).get_matching_blocks()
    stay = {name for block in same for name in names[block.b : block.b + block.size]}
    changed = [a for a in plan.allocations if a.trial in stay and a != before.get(a.trial)]
    moved = (pair for pair in enumerate(plan.allocations) if pair[1].trial not in stay)
    return PlanChange(
        gone=tuple(name for name in before.names if name not in present),
        put=(
            *(_put(allocation, STAYS) for allocation in changed),
            *(_put(allocation, place) for place, allocation in moved),
        ),
        new=tuple(New(new.id, dict(new.config)) for new in plan.new),
        eliminated=plan.eliminated,
        stage=plan.stage,
        ask_at_s=plan.ask_at_s,
        hold_gpus=plan.hold_gpus,
        ask_on_end=plan.ask_on_end,
        done=plan.done,
        compared=plan.compared,
        note=plan.note,
    )


def _put(allocation: Allocation, place: int) -> Put:
    return Put(allocation.trial, allocation.gpus, allocation.bracket, allocation.until, place)
