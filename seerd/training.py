"""The training side: what a training script uses of seerd. One file; standard library, and torch if it is there; Python 3.9 or newer.

    trial = seerd.trial()                            # in every rank
    trial.track(model=model, optimizer=optimizer)    # restores the last checkpoint if there is one
    while trial.running():                           # the same answer on every rank
        ...                                          # an epoch, or any unit of work
        trial.report(accuracy=accuracy)              # rank 0's counts

The one rule: between two calls of `running()` nothing is touched. There, and only there, all ranks agree (by one small all_reduce) whether
to leave and whether to save. Environment variables, files and the checkpoint format are in docs/training-side.md.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import hashlib
import io
import json
import math
import mmap
import os
import random
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

try:
    import fcntl
except ImportError:  # not on Windows, where no agent runs either
    fcntl = None  # type: ignore[assignment]

KEPT = 2
PEERS_S = 120
"""How long ranks on several instances wait for each other before they give up: an instance that has vanished closes no connection."""
SAVE_SHARE = 20
"""A checkpoint is written again at the earliest after so many times what the last one took: at most 5% of the time goes into saving."""
MARK = struct.Struct("<10q3d")
"""What the agent is shown of one rank (`marks/LOCAL_RANK`, little-endian): version, pid, rank, ranks on this instance, the signal that has it
write its Python stack (0: none), whether it computes on a GPU, what it does, calls of `running()` begun, passes and steps since, spells of
work; seconds of the longest spell, of waiting in `running()`, of waiting between a backward pass and its step.
"""
WORKING, WAITING, REDUCING, SAVING, ENDED = range(5)
STACK_SIGNAL = 7
"""Counted from SIGRTMIN: the lowest are the C library's, and people use SIGUSR1 and SIGUSR2."""


@dataclass(frozen=True)
class Batch:
    """How a global batch of `total` samples is split: each rank takes `accumulate` micro-batches of `micro` samples for one step."""

    total: int
    micro: int
    accumulate: int


@dataclass(frozen=True)
class _Attempt:
    """What the agent says about this attempt (`trial.json`)."""

    folder: Path
    trial: str
    config: Dict[str, Any]
    metric: str
    seed: int
    gpus: int
    allocations: List[int]
    checkpoints: Path
    every_s: float

    @classmethod
    def read(cls, folder: Path) -> "_Attempt":
        told = json.loads((folder / "trial.json").read_text())
        return cls(
            folder,
            told["trial"],
            told["config"],
            told["metric"],
            told["seed"],
            told["gpus"],
            told["allocations"],
            Path(told["checkpoints"]),
            told["checkpoint_every_s"],
        )


def trial(spec: Optional[str] = None) -> "Trial":
    """The trial that this process belongs to.

    Started by hand, without seerd: a lone trial with the defaults of the search space in `spec` (or in `$SEERD_SPEC`, or in a spec.toml
    beside the script or in the working directory), which prints its reports and saves nothing.
    """
    folder = os.environ.get("SEERD_DIR")
    if folder:
        attempt = _Attempt.read(Path(folder))
        return Trial(attempt.config, attempt.seed, attempt)
    return Trial(_defaults(spec), 0, None)


class Trial:
    """One rank's view of a trial.

    config   the hyperparameters          epoch   reports so far, over all attempts
    device   where to put the model       rank, world   this process among those of the trial
    gpus     GPUs (or CPU slots) that this attempt holds
    seed     the trial's own seed, from which python, numpy and torch have been seeded
    """

    def __init__(self, config: Dict[str, Any], seed: int, attempt: Optional[_Attempt]) -> None:
        self.config = config
        self.seed = seed
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self._local = int(os.environ.get("LOCAL_RANK", "0"))
        self.gpus = attempt.gpus if attempt else self.world
        self.epoch = 0
        self._attempt = attempt
        self._torch = _import_torch()
        self._ranks = _Ranks(self._torch, self.world)
        self.device = self._ranks.device
        self._tracked: Dict[str, Any] = {}
        self._samplers: List[Sampler] = []
        self._batch: Optional[Batch] = None
        self._clock = _Clock()
        self._metrics: Dict[str, Optional[float]] = {}
        self._torch_state: Any = None
        self._exit_status = 0
        self._units = self._steps = 0
        self._saved_at: Optional[Tuple[int, int]] = None
        self._over = self._crashed = self._told_to_end = False
        self._backwards, self._sees_passes = 0, False
        self._mark = _Mark(self, attempt.folder if attempt else None)
        _seed_everything(self._torch, seed + self.rank)
        self._restored = self._restore()
        self._watch_for_the_end()

    # ------------------------------------------------------------ what scripts call

    def track(self, **objects: Any) -> None:
        """Save these with every checkpoint and restore them from the last one: anything with state_dict and load_state_dict.

        A DistributedDataParallel wrapper is looked through, so a checkpoint fits with and without it.
        """
        if self._torch is None:
            raise RuntimeError("trial.track() needs torch, which cannot be imported here")
        for name, given in objects.items():
            thing = _unwrapped(given)
            if not self._counts_steps() and hasattr(thing, "register_step_post_hook"):
                thing.register_step_post_hook(self._count_step)
            self._tracked[name] = thing
            self._watch_passes(thing)
            if self._restored is not None:
                thing.load_state_dict(self._state_of(name))

    def _state_of(self, name: str) -> Any:
        state = (self._restored or {})["state"]
        if name not in state:
            raise ValueError(
                f"trial.track({name}=...): the checkpoint to go on from has no {name!r}; it has {', '.join(state)}"
            )
        return state[name]

    def batch(self, total: int, per_gpu: Optional[int] = None) -> Batch:
        """Split a global batch of `total` samples over the ranks, at most `per_gpu` of them at a time on each.

        Raises `ValueError` if some number of GPUs that this trial may get does not divide it.
        """
        worlds = sorted({self.world, *(self._attempt.allocations if self._attempt else [])})
        if any(total % world for world in worlds):
            step = math.lcm(*worlds)
            below, above = total // step * step, -(-total // step) * step
            raise ValueError(
                f"a batch of {total} cannot be split evenly over {' or '.join(map(str, worlds))} GPUs; "
                f"{f'{below} or ' if below else ''}{above} can"
            )
        share = total // self.world
        accumulate = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= (per_gpu or share))
        self._batch = Batch(total, share // accumulate, accumulate)
        return self._batch

    def sampler(self, samples: int, shuffle: bool = True) -> "Sampler":
        """Indices for a DataLoader, in the same global order on any number of GPUs; see `Sampler`."""
        sampler = Sampler(self, samples, shuffle)
        states = (self._restored or {}).get("samplers", [])
        if len(states) > len(self._samplers):
            sampler.load_state_dict(states[len(self._samplers)])
        self._samplers.append(sampler)
        return sampler

    def running(self) -> bool:
        """Whether to go on: False when the stage, the deadline or the trial ends. Call it between units of work, on every rank."""
        if self._over:
            return False
        self._mark.arrive()
        if self._clock.started:
            self._units += 1
        else:
            self._begin()
        save = self.rank == 0 and self._should_save()
        told, due, self.epoch = self._ranks.largest(self._should_leave(), save, self.epoch)
        leave, save = bool(told), bool(due)
        if leave or save:
            self._mark.turn(SAVING)
            self._save()
        self._mark.turn(ENDED if leave else WORKING)
        self._clock.look()
        self._over = leave
        if leave:
            self._mark_as_left()
        return not leave

    def report(self, **metrics: Any) -> None:
        """Say how good the model is now. The numbers of rank 0 count; other ranks may leave it out."""
        self.epoch += 1
        if self.rank != 0:
            return
        numbers = {name: float(value) for name, value in metrics.items()}
        self._metrics = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        if self._attempt is None:
            shown = "  ".join(f"{name} {number:.6g}" for name, number in numbers.items())
            print(f"report {self.epoch}: {shown}", flush=True)
            return
        if self._attempt.metric not in metrics:
            given = ", ".join(metrics) or "nothing"
            raise ValueError(f"the spec's metric is {self._attempt.metric!r}, and trial.report() was given {given}")
        self._tell("report", epoch=self.epoch, metrics=self._metrics, unit_s=self._clock.longest_unit())

    # ------------------------------------------------------------ when to leave, when to save

    def _should_leave(self) -> bool:
        if self._told_to_end:
            return True
        if self._attempt is None or self._local != 0:
            return False
        return (self._attempt.folder / "stop").exists() or _is_free(os.environ.get("SEERD_AGENT_LOCK"))

    def _mark_as_left(self) -> None:
        """Only one of several instances may have been told; the agents of the others see by this that the trial has not come to its own end."""
        if self._attempt is not None and self._local == 0 and self._ranks.many_nodes:
            (self._attempt.folder / "stop").touch()

    def _should_save(self) -> bool:
        """After the first report of this attempt, then regularly, but never for long and never twice for the same state."""
        if self._attempt is None or self.epoch == 0 or self._state_id() == self._saved_at:
            return False
        return self._clock.save_due(self._attempt.every_s)

    def _state_id(self) -> Tuple[int, int]:
        return self._units, self.epoch

    def _watch_for_the_end(self) -> None:
        """SIGTERM asks to save and leave; a script that comes to its end has its last state saved."""

        def told(number: int, frame: Any) -> None:
            self._told_to_end = True

        def crashed(*args: Any) -> None:
            self._crashed = True
            sys.__excepthook__(*args)

        if self._attempt is None and not self._ranks.own:
            return
        leave = sys.exit

        def left(status: Any = None) -> None:
            self._exit_status = status if isinstance(status, int) else int(status is not None)
            leave(status)

        if self._attempt is not None:
            signal.signal(signal.SIGTERM, told)
        sys.excepthook, sys.exit = crashed, left  # type: ignore[assignment]
        atexit.register(self._at_end)

    def _at_end(self) -> None:
        self._mark.turn(ENDED)
        unsaved = self._attempt is not None and self.epoch > 0 and self._state_id() != self._saved_at
        if self.rank == 0 and unsaved and not self._crashed:
            self._write([_rng_state(self._torch)])
        if self._crashed and self._ranks.many_nodes:
            _leave_at_once(1)  # leaving the process group would wait for an instance that may have vanished
        if self._ranks.close(together=not self._crashed) and not self._crashed:
            _leave_at_once(self._exit_status)

    # ------------------------------------------------------------ checkpoints

    def _save(self) -> None:
        """Every rank gives its random state; rank 0 writes."""
        if self._attempt is None or self._state_id() == self._saved_at or self.epoch == 0:
            return
        rng = self._ranks.gather(_rng_state(self._torch))
        if self.rank == 0:
            self._write(rng)
        self._saved_at = self._state_id()

    def _write(self, rng: List[Any]) -> None:
        assert self._attempt is not None
        began = time.monotonic()
        name = f"{self.epoch:06d}-{self._units:08d}"
        payload = {
            "version": 1,
            "trial": self._attempt.trial,
            "config": self.config,
            "epoch": self.epoch,
            "units": self._units,
            "metrics": self._metrics,
            "state": {key: thing.state_dict() for key, thing in self._tracked.items()},
            "rng": rng,
            "samplers": [sampler.state_dict() for sampler in self._samplers],
        }
        _write_checkpoint(self._torch, self._attempt.checkpoints, name, payload)
        self._clock.saved(time.monotonic() - began)
        self._tell("checkpoint", name=name, save_s=time.monotonic() - began)

    def _restore(self) -> Optional[Dict[str, Any]]:
        """The newest good checkpoint; only rank 0 need have it."""
        if self._attempt is None:
            return None
        data = _newest_checkpoint(self._torch, self._attempt.checkpoints) if self.rank == 0 else None
        data = self._ranks.share(data)
        if data is None:
            return None
        payload = _load(self._torch, data)
        self.epoch, self._units = payload["epoch"], payload["units"]
        self._metrics = payload["metrics"]
        self._saved_at = self._state_id()
        return payload

    def _begin(self) -> None:
        """The first `running()`: random states as they were, and a word to the agent."""
        if self._restored is not None:
            rng = self._restored["rng"]
            if len(rng) == self.world:
                self._torch_state = rng[self.rank].get("torch")
                _set_rng_state(self._torch, rng[self.rank])
            else:
                _seed_everything(self._torch, hash((self.seed, self._units, self.rank)) % 2**31)
        self._restored = None
        if self.rank == 0 and self._attempt is not None:
            self._tell("training", epoch=self.epoch)

    def _rewind_torch(self) -> None:
        """Torch's random state as it was at the checkpoint; nothing has been trained since."""
        if self._torch_state is not None:
            self._torch.set_rng_state(self._torch_state)

    def _tell(self, kind: str, **fields: Any) -> None:
        """One line for the agent, in one write."""
        assert self._attempt is not None
        line = json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n"
        with open(self._attempt.folder / "out.jsonl", "ab", buffering=0) as out:
            out.write(line.encode())

    # ------------------------------------------------------------ steps, for samplers

    def _counts_steps(self) -> bool:
        return any(hasattr(thing, "register_step_post_hook") for thing in self._tracked.values())

    def _count_step(self, *_: Any) -> None:
        self._steps += 1
        self._backwards = 0
        self._mark.tick(WORKING)

    def _watch_passes(self, thing: Any) -> None:
        """Mark when a backward pass has come through: from there to the step a rank can only wait for the others' gradients."""
        if self._sees_passes or not self._mark.shown or not hasattr(thing, "parameters"):
            return
        first = next((parameter for parameter in thing.parameters() if parameter.requires_grad), None)
        if first is not None:
            self._sees_passes = True
            first.register_hook(self._count_backward)

    def _count_backward(self, _: Any) -> None:
        self._backwards += 1
        last = self._backwards % (self._batch.accumulate if self._batch else 1) == 0
        self._mark.tick(REDUCING if last else WORKING)


class Sampler:
    """The indices that this rank reads, for `DataLoader(data, batch_size=batch.micro, sampler=sampler)`.

    Each pass is one permutation of all samples, made from the trial's seed and the number of the pass. It is cut into global batches of
    `Trial.batch`; each is split over the ranks, so that the same samples make the same step on any number of GPUs. What does not fill a
    global batch is left out of this pass. Its position is part of every checkpoint, also in the middle of a pass: it counts what was
    trained on (by the steps of the first tracked optimizer), not what loader workers have fetched in advance.
    """

    def __init__(self, owner: Trial, samples: int, shuffle: bool) -> None:
        self._owner = owner
        self._samples = samples
        self._shuffle = shuffle
        self._pass = self._start = self._drawn = self._steps_before = 0
        self._resumed = self._exhausted = False

    def __len__(self) -> int:
        return self._usable() // self._owner.world

    def __iter__(self) -> Iterator[int]:
        if self._exhausted:
            self._pass, self._start = self._pass + 1, 0
        else:
            self._start = self._position()
        self._drawn, self._steps_before, self._exhausted = self._start, self._owner._steps, False
        if self._resumed:
            # A DataLoader draws a seed whenever it is iterated anew; the undisturbed run did not do so in the middle of a pass.
            self._resumed = False
            self._owner._rewind_torch()
        order = self._order()
        total, rank = self._total(), self._owner.rank
        share = total // self._owner.world
        for first in range(self._start, self._usable(), total):
            self._drawn = first + total
            yield from order[first + rank * share : first + (rank + 1) * share]
        self._exhausted = True

    def state_dict(self) -> Dict[str, int]:
        """Which pass, and how many samples of it have been trained on."""
        position = self._position()
        if self._drawn and position >= self._usable():
            return {"pass": self._pass + 1, "position": 0}
        return {"pass": self._pass, "position": position}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Go on from there."""
        self._pass = state["pass"]
        self._start = self._drawn = state["position"]
        self._resumed = self._drawn > 0

    def _position(self) -> int:
        if not self._owner._counts_steps():
            return self._drawn
        return min(self._drawn, self._start + (self._owner._steps - self._steps_before) * self._total())

    def _total(self) -> int:
        return self._owner._batch.total if self._owner._batch else self._owner.world

    def _usable(self) -> int:
        return self._samples - self._samples % self._total()

    def _order(self) -> List[int]:
        order = list(range(self._samples))
        if self._shuffle:
            random.Random(self._owner.seed * 1_000_003 + self._pass).shuffle(order)
        return order


@dataclass
class _Clock:
    """How long units of work and saves take."""

    started: bool = False
    last_look: float = 0.0
    longest: float = 0.0
    last_save: Optional[float] = None
    save_s: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """The end of a call of `running()`."""
        self.started = True
        self.last_look = time.monotonic()

    def longest_unit(self) -> float:
        """Seconds of the longest unit since the last report, the present one included."""
        longest = max(self.longest, time.monotonic() - self.last_look) if self.started else 0.0
        self.longest = 0.0
        return longest

    def save_due(self, every_s: float) -> bool:
        """Whether enough time has passed since the last save; there is always one after the first report."""
        if self.started:
            self.longest = max(self.longest, time.monotonic() - self.last_look)
        return self.last_save is None or time.monotonic() - self.last_save >= max(every_s, SAVE_SHARE * self.save_s)

    def saved(self, took_s: float) -> None:
        """A save that took so long has just ended."""
        self.save_s, self.last_save = took_s, time.monotonic()


class _Mark:
    """What the agent is shown of this rank, in memory that both have mapped: whether it works, or waits for the others, and how far it has come.

    `shown`: there are other ranks, and an agent. To bring it up to date takes a microsecond; nothing of it ever waits for a disk.
    """

    def __init__(self, owner: Trial, folder: Optional[Path]) -> None:
        self._doing, self._since = ENDED, time.monotonic()
        self._units = self._ticks = self._spells = 0
        self._longest = self._waited = self._reduced = 0.0
        self._map: Optional[mmap.mmap] = None
        if folder is not None and owner.world > 1:
            peers = int(os.environ.get("LOCAL_WORLD_SIZE", owner.world))
            on_gpu = getattr(owner.device, "type", "cpu") == "cuda"
            self._about = (1, os.getpid(), owner.rank, peers, _stack_signal(), int(on_gpu))
            with contextlib.suppress(OSError, ValueError):
                self._map = _mapped(folder / "marks" / str(owner._local))
        self.turn(WORKING)

    @property
    def shown(self) -> bool:
        return self._map is not None

    def arrive(self) -> None:
        """`running()` has been called."""
        self.turn(WAITING, units=1)

    def tick(self, doing: int) -> None:
        """A backward pass or a step is done."""
        self.turn(doing, ticks=1)

    def turn(self, doing: int, units: int = 0, ticks: int = 0) -> None:
        """What it does from now on. Before the first `running()` nothing is counted, and the first spell of work is not among the longest."""
        if self._map is None:
            return
        now = time.monotonic()
        spent, self._since = now - self._since, now
        if self._doing == WAITING:
            self._waited += spent
        elif self._doing == REDUCING:
            self._reduced += spent
        elif self._doing == WORKING and self._units:
            self._longest = max(self._longest, spent) if self._spells else 0.0
            self._spells += 1
        self._doing, self._units = doing, self._units + units
        self._ticks = 0 if units else self._ticks + ticks
        counts = (doing, self._units, self._ticks, self._spells)
        MARK.pack_into(self._map, 0, *self._about, *counts, self._longest, self._waited, self._reduced)


def _mapped(path: Path) -> mmap.mmap:
    """A small file in memory; its bytes are there before, since a full disk would otherwise end us when the first is written."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "w+b", buffering=0) as file:
        file.write(bytes(MARK.size))
        return mmap.mmap(file.fileno(), MARK.size)


def _stack_signal() -> int:
    """The signal that has this process write its Python stack to its log, whatever it is stuck in; 0 if there can be none."""
    first = getattr(signal, "SIGRTMIN", None)
    if first is None:
        return 0
    try:
        faulthandler.register(first + STACK_SIGNAL, all_threads=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        return 0
    return int(first + STACK_SIGNAL)


class _Ranks:
    """The processes of the trial: the process group for DDP, and a small one on the CPU for what all must agree on."""

    def __init__(self, torch: Any, world: int) -> None:
        self._torch = torch
        self._own = False
        self._group: Any = None
        self.device: Any = "cpu"
        self.many_nodes = int(os.environ.get("LOCAL_WORLD_SIZE", world)) < world
        if torch is None:
            return
        cuda = torch.cuda.is_available()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(local)
        if world == 1:
            return
        dist = torch.distributed
        patience = {"timeout": timedelta(seconds=PEERS_S)} if self.many_nodes else {}
        if not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo", **patience)
            self._own = True
        self._group = dist.new_group(backend="gloo", **patience) if cuda else dist.group.WORLD

    def largest(self, *numbers: int) -> List[int]:
        """Each number as it is on the rank where it is largest: a flag that is up on one rank, the epoch of rank 0."""
        if self._group is None:
            return list(numbers)
        votes = self._torch.tensor([int(number) for number in numbers])
        self._torch.distributed.all_reduce(votes, self._torch.distributed.ReduceOp.MAX, group=self._group)
        return [int(vote) for vote in votes.tolist()]

    def gather(self, mine: Any) -> List[Any]:
        """What every rank has, in their order."""
        if self._group is None:
            return [mine]
        every: List[Any] = [None] * self._torch.distributed.get_world_size()
        self._torch.distributed.all_gather_object(every, mine, group=self._group)
        return every

    def share(self, mine: Any) -> Any:
        """What rank 0 has."""
        if self._group is None:
            return mine
        box = [mine]
        self._torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    @property
    def own(self) -> bool:
        """Whether we made the process group, and it is still there."""
        return self._own and bool(self._torch.distributed.is_initialized())

    def close(self, *, together: bool) -> bool:
        """Leave the process group, if it is our own: after all have come here, since gloo aborts those whose peer is gone."""
        if not self.own:
            return False
        if together:
            self._torch.distributed.barrier(group=self._group)
        self._torch.distributed.destroy_process_group()
        return True


# ---------------------------------------------------------------- checkpoint files


def _write_checkpoint(torch: Any, folder: Path, name: str, payload: Dict[str, Any]) -> None:
    """The bytes, then the manifest, each under a temporary name until it is on the disk. The newest `KEPT` stay."""
    folder.mkdir(parents=True, exist_ok=True)
    first = not any(folder.glob("[0-9]*.json"))
    part = folder / f".{name}.pt"
    with open(part, "wb") as out:
        if torch is None:
            out.write(json.dumps(payload).encode())
        else:
            torch.save(payload, out)
        out.flush()
        os.fsync(out.fileno())
    if first and torch is not None:
        _check_loadable(torch, part, payload)
    manifest = {
        "version": 1,
        "name": name,
        "epoch": payload["epoch"],
        "metrics": payload["metrics"],
        "sha256": _sha256(part.read_bytes()),
        "size": part.stat().st_size,
    }
    os.replace(part, folder / f"{name}.pt")
    part = folder / f".{name}.json"
    with open(part, "w") as out:
        json.dump(manifest, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, folder / f"{name}.json")
    for old in sorted(folder.glob("[0-9]*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".pt").unlink(missing_ok=True)


def _check_loadable(torch: Any, part: Path, payload: Dict[str, Any]) -> None:
    """What cannot be loaded safely must be known at the first checkpoint, not when it is needed."""
    try:
        torch.load(part, weights_only=True)
    except Exception as error:
        for name, state in payload["state"].items():
            buffer = io.BytesIO()
            torch.save(state, buffer)
            try:
                torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
            except Exception:
                raise RuntimeError(
                    f"the state_dict of {name!r} holds more than tensors, numbers, texts, lists and dicts, "
                    f"so a checkpoint with it could not be loaded safely (weights_only=True): {error}"
                ) from error
        raise


def _newest_checkpoint(torch: Any, folder: Path) -> Optional[bytes]:
    """The bytes of the newest checkpoint that is whole and can be loaded; a damaged one is told and passed over."""
    for path in sorted(folder.glob("[0-9]*.json"), reverse=True):
        try:
            manifest = json.loads(path.read_text())
            data = path.with_suffix(".pt").read_bytes()
            if len(data) != manifest["size"] or _sha256(data) != manifest["sha256"]:
                raise ValueError("its size or checksum is not that of its manifest")
            _load(torch, data)
        except Exception as error:
            print(f"seerd: checkpoint {path.stem} is damaged, trying the one before: {error}", file=sys.stderr)
            path.unlink(missing_ok=True)  # or it would count among the newest, and a good one would be removed for it
            continue
        return data
    return None


def _load(torch: Any, data: bytes) -> Dict[str, Any]:
    loaded: Dict[str, Any] = (
        json.loads(data) if torch is None else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    )
    return loaded


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- random states


def _seed_everything(torch: Any, seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)


def _rng_state(torch: Any) -> Dict[str, Any]:
    """Of python, numpy, torch and this rank's CUDA device, in plain values and tensors."""
    version, words, gauss = random.getstate()
    state: Dict[str, Any] = {"python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng_state(torch: Any, state: Dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        kind, keys, *rest = state["numpy"]
        numpy = sys.modules["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), *rest))
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


# ---------------------------------------------------------------- the rest


def _leave_at_once(status: int) -> None:
    """End this process without taking torch's threads down one by one, after what an ordinary end would still do.

    At an ordinary end torch 2.13 with gloo aborts one rank in several runs ("terminate called without an active exception", bare scripts as
    well), and torchrun then calls the whole attempt failed.
    """
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._exit_function()
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter)) and not thing.closed:
            with contextlib.suppress(OSError, ValueError):
                thing.flush()
    os._exit(status)


def _import_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError:
        return None
    return torch


def _unwrapped(thing: Any) -> Any:
    return thing.module if type(thing).__name__ == "DistributedDataParallel" else thing


def _is_free(lock: Optional[str]) -> bool:
    """Whether nobody holds the agent's lock any more: the agent has died, and nobody would stop this trial."""
    if lock is None or fcntl is None:
        return False
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _defaults(spec: Optional[str]) -> Dict[str, Any]:
    """The first choice, or the middle, of every parameter of the spec that belongs to this script."""
    script = Path(sys.argv[0]).resolve().parent
    options = [spec, os.environ.get("SEERD_SPEC"), script / "spec.toml", "spec.toml"]
    path = next((Path(option) for option in options if option and Path(option).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            "started by hand, a script takes its configuration from a spec.toml beside it, and there is none"
        )
    try:
        import tomllib
    except ImportError:
        raise RuntimeError("reading spec.toml by hand needs Python 3.11 or newer") from None
    space = tomllib.loads(path.read_text())["space"]
    return {name: _default(value) for name, value in space.items()}


def _default(value: Any) -> Any:
    if isinstance(value, list):
        return value[0]
    low, high, step = value["low"], value["high"], value.get("step")
    middle = math.sqrt(low * high) if value.get("log") else (low + high) / 2
    whole = all(isinstance(end, int) for end in (low, high, step or 0))
    if step is None and not whole:
        return middle
    snapped = low + round((middle - low) / (step or 1)) * (step or 1)
    return round(snapped) if whole else snapped
