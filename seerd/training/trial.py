"""What scripts call: `seerd.trial()`, and the trial that it returns."""

import math
import os
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from seerd.agent.progress_marks import ENDED, SAVING, WAITING, WORKING
from seerd.agent.warm import gpu_share
from seerd.training import randomness, restored, sharded
from seerd.training.attempt import Attempt, aggregate, write_imports
from seerd.training.by_hand import defaults, max_reports
from seerd.training.data import Batch, Sampler, Share, first_batch, split
from seerd.training.marks import Mark, Steps
from seerd.training.pace import BEST_EVERY_S, Horizon, Pace
from seerd.training.ranks import End, Ranks, import_torch, leave_at_once
from seerd.training.saver import Save, Saver
from seerd.training.shards import PartWriter

FINE = 10**9  # ranks agree in whole numbers: so many make one


def trial(spec: Optional[str] = None) -> "Trial":
    """Return the trial that this process belongs to.

    A script that was started by hand, without seerd, has a lone trial that prints its reports and
    saves nothing. Its configuration is the defaults of the search space.

    Args:
        spec: the spec with the search space of a lone trial; None: `$SEERD_SPEC`, else a spec.toml
            beside the script or in the working directory.

    Returns:
        This process's view of the trial.

    Raises:
        FileNotFoundError: there is no such spec.

    Example:
        >>> trial = seerd.trial("spec.toml")
        >>> trial.report(accuracy=0.5)
        report 1: accuracy 0.5
    """
    folder = os.environ.get("SEERD_DIR")
    if folder:
        attempt = Attempt.read(Path(folder))
        return Trial(attempt.config, attempt.seed, attempt, attempt.max_reports)
    return Trial(defaults(spec), 0, None, max_reports(spec))


class Trial:
    """One rank's view of a trial.

    config  the hyperparameters
    epoch   reports so far, over all attempts
    device  where to put the model
    rank    the number of this process among those of the trial
    world   how many processes there are
    gpus    GPUs (or CPU slots) that this attempt holds
    seed    the trial's own seed, from which python, numpy and torch have been seeded
    checkpoint  the folder to go on from, where a framework saves folders (`seerd.transformers`,
            `seerd.lightning`); None: there is none

    Example:
        >>> trial = seerd.trial("spec.toml")
        >>> while trial.running() and trial.epoch < 2:
        ...     trial.report(accuracy=trial.epoch / 10)
        report 1: accuracy 0
        report 2: accuracy 0.1
    """

    def __init__(
        self,
        config: Dict[str, Any],
        seed: int,
        attempt: Optional[Attempt],
        max_reports: Optional[int] = None,
    ) -> None:
        self._torch = import_torch()
        self._ranks = ranks = Ranks(self._torch)
        self.config, self.seed, self.epoch = config, seed, 0
        self.rank, self.world, self.device = ranks.rank, ranks.world, ranks.device
        self.gpus = attempt.gpus if attempt else ranks.world
        self._attempt = attempt
        # on one rank of each instance: reads what the agent asks for
        self._agent = attempt if ranks.local == 0 else None
        self._mark = Mark(ranks, attempt.folder if attempt else None)
        self._steps = Steps(self._mark)
        self._share = Share(seed, ranks.rank, ranks.world)
        self._pace = Pace()
        self._horizon = Horizon(attempt, max_reports)
        self._end = End()
        self._tracked: Dict[str, Any] = {}
        self.checkpoint: Optional[Path] = None
        self.global_batch: Optional[int] = None
        self._batch_said = False
        self._framework = False
        self._samplers: List[Sampler] = []
        self._metrics: Dict[str, Optional[float]] = {}
        self._recent: List[Optional[float]] = []
        self._torch_state: Any = None
        self._units = 0
        self._saved_state: Optional[Tuple[int, int]] = None
        self._over = False
        self._process = os.getpid()
        randomness.seed_all(self._torch, seed + ranks.rank)
        self._restored = self._restore()
        self._parts: Optional[PartWriter] = None
        self._saver: Optional[Saver] = None
        if attempt is not None and ranks.rank == 0:
            self._saver = Saver(self._torch, attempt, self._pace)
        if attempt is not None:
            self._end.heed_sigterm()
        if attempt is not None or ranks.own:
            self._end.call(self._at_end)

    # ------------------------------------------------------------ what scripts call

    @property
    def progress(self) -> float:
        """The share of the expected training that is over, 0 to 1, as of the last call of
        `running()`.

        It is the same on every rank, and goes back only where the training itself does. 0.0 if no
        end is known.
        """
        return self._horizon.progress

    @property
    def remaining_s(self) -> float:
        """Most seconds that this trial may still train, as of the last call of `running()`;
        infinite if no end is known. It may be stopped before.
        """
        return self._horizon.remaining_s

    def track(self, **objects: Any) -> None:
        """Save these objects with every checkpoint, and restore them from the last one.

        Each has `state_dict` and `load_state_dict`. A DistributedDataParallel wrapper is left out,
        so a checkpoint fits with and without it.

        Args:
            objects: by the name that they have in the checkpoint.

        Raises:
            RuntimeError: torch is missing.
            ValueError: the last checkpoint lacks one of them.
        """
        if self._torch is None:
            raise RuntimeError(
                "trial.track() needs torch, which cannot be imported here: pip install torch"
            )
        for name, original in objects.items():
            is_wrapped = type(original).__name__ == "DistributedDataParallel"
            thing = original.module if is_wrapped else original
            self._steps.watch(thing)
            keeper = sharded.collective(self._torch, name, thing, self._tracked.values())
            self._tracked[name] = keeper
            if isinstance(keeper, sharded.Sharded) and not keeper.is_gathered:
                self._save_in_parts()
            if self._restored is not None:
                states = self._restored.get("state", {})
                if name not in states:
                    raise ValueError(
                        f"trial.track({name}=...): the checkpoint to go on from has no {name!r}; "
                        f"it has {', '.join(states) or 'no tracked states'}"
                    )
                sharded.check_plain(name, keeper, states[name])
                keeper.load_state_dict(states[name])

    def batch(self, total: int, per_gpu: Optional[int] = None) -> Batch:
        """Split a global batch over the ranks.

        Args:
            total: samples of one step, on all GPUs together.
            per_gpu: most samples that a GPU takes at a time; None: its whole share.

        Returns:
            What each rank takes, in as few micro-batches as possible.

        Raises:
            ValueError: some number of GPUs that this trial may get does not divide `total`.
        """
        batch = split(
            total, per_gpu, self.world, self._attempt.allocations if self._attempt else ()
        )
        self._share.batch, self._steps.accumulate = batch, batch.accumulate
        self.see_batch(total)
        return batch

    def see_batch(self, total: int) -> None:
        """Note the samples of one step on all GPUs together; warn if that was another number
        before, since the same hyperparameters mean something else then.
        """
        before, self.global_batch, self._batch_said = self.global_batch, total, True
        if self.rank == 0 and before not in (None, total):
            why = (
                f"one step takes {total} samples on {self.world} GPUs, and took {before} before: "
                f"the same learning rate means something else now; trial.batch({before}) keeps it "
                "the same on any number of GPUs"
            )
            warnings.warn(why, stacklevel=2)
            if self._attempt is not None:
                self._attempt.tell("warning", why=why)

    def sampler(self, samples: int, shuffle: bool = True) -> Sampler:
        """Return indices for a DataLoader, in the same order on any number of GPUs.

        Args:
            samples: how many the data set has.
            shuffle: draw another order for each epoch.

        Returns:
            A sampler whose position is in the checkpoint.
        """
        sampler = Sampler(self._share, self._steps, samples, shuffle, self._rewind_torch)
        states = (self._restored or {}).get("samplers", [])
        if len(states) > len(self._samplers):
            sampler.load_state_dict(states[len(self._samplers)])
        self._samplers.append(sampler)
        return sampler

    def running(self) -> bool:
        """Return whether to go on: False when the stage, the deadline or the trial ends.

        Call it between units of work, on every rank: it copies the state when a checkpoint is due,
        which is written while training goes on.
        """
        if self._over:
            return False
        leave, due = self._agree()
        if leave or due:
            self._mark.turn(SAVING)
            if self._is_unsaved():
                self._save(self._ranks.gather(randomness.states(self._torch)), is_last=leave)
        return self._go_on(leave)

    def _agree(self) -> Tuple[bool, bool]:
        """Agree with all ranks whether to leave, and whether to save."""
        self._mark.turn(WAITING, units=1)
        if self._pace.looked_at is None:
            self._begin()
        else:
            self._units += 1
        agent = self._agent
        gpu_share.widen()
        save = (agent and agent.is_to_save()) or self._should_save()
        leave = self._end.asked or (agent and agent.is_to_stop())
        # Only rank 0 knows progress and remaining seconds; 0 seconds: unlimited, else 1 more.
        progress = seconds = 0
        if self.rank == 0:
            share, remaining_s = self._horizon.look(self._pace.unit_s(), self.epoch)
            progress = int(share * FINE)
            seconds = 1 + int(remaining_s * FINE) if math.isfinite(remaining_s) else 0
        stops, due, self.epoch, *horizon = self._ranks.largest(
            bool(leave), bool(save), self.epoch, progress, seconds
        )
        self._horizon.progress = horizon[0] / FINE
        self._horizon.remaining_s = ((horizon[1] or math.inf) - 1) / FINE
        return bool(stops), bool(due)

    def _go_on(self, leave: bool) -> bool:
        """Begin the next unit of work, unless the trial leaves; return whether it goes on."""
        if leave:
            self._settle()
        self._mark.turn(ENDED if leave else WORKING)
        self._pace.looked_at = time.monotonic()
        self._over = leave
        if leave and self._agent is not None and self._ranks.many_nodes:
            self._agent.mark_as_left()
        return not leave

    def report(self, **metrics: Any) -> None:
        """Report how good the model is now; only the numbers of rank 0 count, and other ranks may
        pass none.

        Args:
            metrics: by name; the spec's metric is among them.

        Raises:
            ValueError: the spec's metric is missing, or one that it has a constraint on.
        """
        self.epoch += 1
        if self.rank != 0:
            return
        numbers = {name: float(value) for name, value in metrics.items()}
        attempt = self._attempt
        if attempt is None:
            shown = "  ".join(f"{name} {number:.6g}" for name, number in numbers.items())
            print(f"report {self.epoch}: {shown}", flush=True)
            return
        for name in (attempt.metric, *attempt.constrained()):
            if name not in metrics:
                what = "'s metric is" if name == attempt.metric else " has a constraint on"
                raise ValueError(
                    f"the spec{what} {name!r}, and trial.report() was given "
                    f"{', '.join(metrics) or 'nothing'}"
                )
        finite = {
            name: number if math.isfinite(number) else None for name, number in numbers.items()
        }
        self._recent = attempt.recent(self._recent, finite)
        self._metrics = {**finite, attempt.metric: aggregate(self._recent)}
        unit_s = self._pace.longest_unit()
        promises = {"promises": True} if self._tracked or self._framework else {}
        attempt.tell("report", epoch=self.epoch, metrics=finite, unit_s=unit_s, **promises)

    # ------------------------------------------------------------ when to leave, when to save

    def _should_save(self) -> bool:
        """Return whether rank 0 wants a save. Raises what has stopped one."""
        saver, attempt = self._saver, self._attempt
        if saver is None or attempt is None:
            return False
        saver.check()
        if not self._is_unsaved():
            return False
        due = self._pace.save_due(attempt.every_s)
        better = self._pace.is_better(attempt.goal.worth(self._metrics))
        if better and not (saver.is_short or self._framework):
            return True  # the next unit of work would change it
        return saver.is_idle and (due or (better and self._pace.save_due(BEST_EVERY_S)))

    def _is_unsaved(self) -> bool:
        return (
            self._attempt is not None and self.epoch > 0 and self._state_id() != self._saved_state
        )

    def _state_id(self) -> Tuple[int, int]:
        return self._units, self.epoch

    def _at_end(self) -> None:
        """Save the last state of a script that has ended, and leave the other ranks in order."""
        if os.getpid() != self._process:
            return  # a fork of the script
        self._mark.turn(ENDED)
        crashed = self._end.crashed
        if crashed and self._parts is not None and self._ranks.many_nodes:
            leave_at_once(1)  # a write would wait for an instance that may have vanished
        try:
            if self._is_unsaved() and not crashed and not self._framework:
                self._save([randomness.states(self._torch)], is_last=True)
            else:
                self._settle()
        except Exception:  # the interpreter would end with status 0 all the same
            traceback.print_exc()
            leave_at_once(1)
        if crashed and self._ranks.many_nodes:
            # Leaving the process group would wait for an instance that may have vanished.
            leave_at_once(1)
        if self._ranks.own:
            self._ranks.close(together=not crashed)
            if not crashed and not self._end.failed:
                leave_at_once(0)

    # ------------------------------------------------------------ checkpoints

    def _save(self, rng: List[Any], *, is_last: bool) -> None:
        """Save what is tracked, and the random states of all ranks; on every rank at once."""
        state = {
            key: thing.state_dict()
            for key, thing in self._tracked.items()
            if self.rank == 0 or isinstance(thing, sharded.Sharded)
        }
        if self._parts is not None and self._saver is None:
            self._parts.follow(state, is_last=is_last)
        if self._saver is not None:
            about, save = self._described()
            payload = {**about, "state": state, "rng": rng}
            self._saver.put(save, payload, is_last=is_last)
        self._saved_state = self._state_id()

    def _settle(self) -> None:
        """Wait until all that was copied is written."""
        for writer in (self._saver, self._parts):
            if writer is not None:
                writer.settle()

    def _save_in_parts(self) -> None:
        """Have each rank write its parts of sharded states from now on; on every rank at once."""
        if self._attempt is not None and self._parts is None:
            self._parts = PartWriter(self._torch, self._ranks, self._attempt.checkpoints)
            if self._saver is not None:
                self._saver.parts = self._parts

    def _described(self) -> Tuple[Dict[str, Any], Save]:
        """Return what is known of the trial, to be in a checkpoint of its present state."""
        assert self._attempt is not None
        metrics, worth = dict(self._metrics), self._attempt.goal.worth(self._metrics)
        if self._saved_state is not None and self._saved_state[1] == self.epoch:
            metrics[self._attempt.metric] = None  # that was reported of a state that is saved
        is_best = self._pace.is_better(worth)
        self._pace.copied(worth)
        about = {
            "version": 1,
            "trial": self._attempt.trial,
            "config": self.config,
            "epoch": self.epoch,
            "units": self._units,
            "metrics": self._metrics,
            "recent": self._recent,
            "best": self._pace.best,
            "progress": self._horizon.progress,
            "trained_s": self._horizon.trained_s,
            "global_batch": self.global_batch,
            "samplers": [sampler.state_dict() for sampler in self._samplers],
        }
        name = f"{self.epoch:06d}-{self._units:08d}"
        # What a framework saves is its own.
        tracked = None if self._framework else list(self._tracked)
        return about, Save(name, self.epoch, metrics, tracked, is_best)

    def _restore(self) -> Optional[Dict[str, Any]]:
        """Go on from the newest good checkpoint, if there is one; return what it holds."""
        if self._attempt is None:
            return None
        read = restored.read(self._torch, self._ranks, self._attempt)
        if read is None:
            return None
        payload, self.checkpoint = read
        self.epoch, self._units = payload["epoch"], payload["units"]
        self._metrics, self._pace.best = payload["metrics"], payload.get("best")
        self._recent = payload.get("recent", [])
        self.global_batch = payload.get("global_batch")
        self._horizon.progress = payload.get("progress", 0.0)
        self._horizon.trained_s = payload.get("trained_s", 0.0)
        self._saved_state = self._state_id()
        return payload

    def _begin(self) -> None:
        """Begin the first unit of work: restore the random states, and tell the agent. For another
        number of ranks the states do not fit, so new ones are made from the seed.
        """
        if self._restored is not None and "rng" in self._restored:
            rng = self._restored["rng"]
            if len(rng) == self.world:
                self._torch_state = rng[self.rank].get("torch")
                randomness.restore(self._torch, rng[self.rank])
            else:
                randomness.seed_all(self._torch, hash((self.seed, self._units, self.rank)) % 2**31)
        self._restored = None
        if self.rank == 0 and self._attempt is not None:
            if not self._batch_said and self._torch is not None:
                per_rank = first_batch(self._torch)
                if per_rank:
                    self.see_batch(per_rank * self.world)
            if self._attempt.learns:
                write_imports(self._attempt.folder)
            self._attempt.tell("training", epoch=self.epoch)

    def _rewind_torch(self) -> None:
        """Set torch's random state as at the checkpoint; nothing has been trained since."""
        if self._torch_state is not None:
            self._torch.set_rng_state(self._torch_state)
