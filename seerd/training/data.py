"""Global batches, split over the ranks, and samplers.

The one rule: the same samples make the same step on any number of GPUs.
"""

import gc
import math
import random
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

from seerd.training.marks import Steps


@dataclass(frozen=True)
class Batch:
    """How a global batch is split over the ranks.

    total       samples of the global batch, on all ranks together
    micro       samples of one micro-batch on one rank
    accumulate  micro-batches that each rank takes for one step

    Example:
        >>> seerd.trial("spec.toml").batch(64, per_gpu=16)
        Batch(total=64, micro=16, accumulate=4)
    """

    total: int
    micro: int
    accumulate: int


def split(total: int, per_gpu: Optional[int], world: int, possible: Iterable[int]) -> Batch:
    """Split a batch over `world` ranks, in as few micro-batches of at most `per_gpu` as can be.
    Raises `ValueError` if there are no samples, or if `world` or another `possible` number of GPUs
    does not divide them.
    """
    if total < 1:
        raise ValueError(f"a batch has at least one sample, not {total}")
    worlds = sorted({world, *possible})
    if any(total % number for number in worlds):
        step = math.lcm(*worlds)
        below, above = total // step * step, -(-total // step) * step
        raise ValueError(
            f"a batch of {total} cannot be split evenly over {' or '.join(map(str, worlds))} GPUs; "
            f"{f'{below} or ' if below else ''}{above} can"
        )
    share = total // world
    most = per_gpu or share
    accumulate = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= most)
    return Batch(total, share // accumulate, accumulate)


@dataclass
class Share:
    """Which part of the data is this rank's."""

    seed: int  # the trial's own
    rank: int  # this process
    world: int  # how many processes there are
    batch: Optional[Batch] = None  # the global batch, which may be set after a sampler was made

    @property
    def total(self) -> int:
        """Samples of one step, over all ranks."""
        return self.batch.total if self.batch else self.world


class Sampler:
    """The indices that this rank reads, for `DataLoader(data, batch_size=batch.micro,
    sampler=sampler)`.

    Each pass is one permutation of all samples, made from the trial's seed and the number of the
    pass. It is cut into global batches of `Trial.batch`, each split over the ranks; an incomplete
    last one is left out.

    Its position is in every checkpoint, also in the middle of a pass. It counts what was trained on
    (by the steps of the first tracked optimizer), not what loader workers fetched in advance.
    """

    def __init__(
        self,
        share: Share,
        steps: Steps,
        samples: int,
        shuffle: bool,
        rewind: Callable[[], None] = lambda: None,
    ) -> None:
        self._share = share
        self._steps = steps
        self._samples = samples
        self._shuffle = shuffle
        self._rewind = rewind
        self._pass = self._start = self._drawn = self._steps_before = 0
        self._resumed = self._exhausted = False

    def __len__(self) -> int:
        return self._usable() // self._share.world

    def __iter__(self) -> Iterator[int]:
        if self._exhausted or (self._drawn and self._position() >= self._usable()):
            # Whoever knows its length need not ask for more than there is.
            self._pass, self._start = self._pass + 1, 0
        else:
            self._start = self._position()
        self._drawn, self._steps_before, self._exhausted = self._start, self._steps.done, False
        if self._resumed:
            # A DataLoader draws a seed whenever it is iterated anew; the undisturbed run did not
            # do so in the middle of a pass.
            self._resumed = False
            self._rewind()
        order = list(range(self._samples))
        if self._shuffle:
            random.Random(self._share.seed * 1_000_003 + self._pass).shuffle(order)
        total, rank = self._share.total, self._share.rank
        share = total // self._share.world
        for first in range(self._start, self._usable(), total):
            self._drawn = first + total
            yield from order[first + rank * share : first + (rank + 1) * share]
        self._exhausted = True

    def state_dict(self) -> Dict[str, int]:
        """Return the number of the pass, and how many of its samples have been trained on."""
        position = self._position()
        if self._drawn and position >= self._usable():
            return {"pass": self._pass + 1, "position": 0}
        return {"pass": self._pass, "position": position}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Go on from a position of `state_dict`."""
        self._pass = state["pass"]
        self._start = self._drawn = state["position"]
        self._resumed = self._drawn > 0

    def _position(self) -> int:
        if not self._steps.counting:
            return self._drawn
        return min(
            self._drawn, self._start + (self._steps.done - self._steps_before) * self._share.total
        )

    def _usable(self) -> int:
        return self._samples - self._samples % self._share.total


def first_batch(torch: Any) -> int:
    """Return the batch size of the first loader that does not read its data in order, as those for
    evaluation do; 0: there is none. Only the garbage collector knows a script's loaders.
    """
    data = torch.utils.data
    for thing in gc.get_objects():
        is_loader = issubclass(type(thing), data.DataLoader) and thing.batch_size
        if is_loader and not isinstance(thing.sampler, data.SequentialSampler):
            return int(thing.batch_size)
    return 0
