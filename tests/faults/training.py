"""One attempt's processes on one instance, and what becomes of them.

The one rule: what it does, it does by its own clock and luck; the agent beside it only asks it to
stop, kills it, and tells what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from seerd.agent.protocol import Start
from seerd.planner.trial_ids import job_of
from seerd.training.pace import SAVE_SHARE
from tests.faults.objects import Model, Objects
from tests.faults.strains import FASTER, FLOOD, FLOODS
from tests.faults.timeline import Timeline
from tests.faults.weather import Chance

KILL_S = 0.2
NOTICED_S = 5.0
"""After a crash on one node the others fail so much later at most, if they do not wait for ever."""
EXIT_S = 0.3
POLL_S = 0.1
PORT_IN_USE = 98


@dataclass(frozen=True, slots=True)
class Script:
    """The user's training script: how long a unit of work takes on so many GPUs, what comes out,
    how long it starts, restores, saves. `saves_behind`: it trains on while a checkpoint is written.
    """

    unit_s: Callable[[str, int, int], float]
    metric: Callable[[dict[str, Any], int], float]
    start_s: float
    save_s: float
    upload_s: float
    checkpoint_every_s: float
    most_reports: int | None
    saves_behind: bool = False


@dataclass(slots=True)
class Group:
    """An attempt on all its nodes. `parts`: by rank, those that have been spawned; `broken`: one of
    them has ended.
    """

    count: int
    parts: dict[int, Run] = field(default_factory=dict)
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """GPUs of an instance that one part of an attempt had, since when and until when."""

    instance: str
    since: float
    until: float
    gpus: int


@dataclass(slots=True)
class Shared:
    """What all attempts have in common: time, luck, the store, the script, the nodes of each
    attempt, who trains on which GPU.

    signs     job -> 1 if more of its metric is better, else -1
    used      job -> what its attempts have had
    reported  trial and attempt -> what its script has reported, by the number of the report
    ended     instance, trial and attempt -> when the last of its processes was gone
    leases    until when an instance would run if each lease, new or renewed, had been the last
    lost      attempts that the coordinator's journal has lost, on instances that are still being
              launched as far as it says, or whose agent has not answered since: nobody knows of
              them before it does
    gone      checkpoints that the coordinator's journal names, and that were deleted once newer
              ones were confirmed, of which it has lost the record
    """

    timeline: Timeline
    chance: Chance
    objects: Objects
    script: Script
    groups: dict[tuple[str, int], Group] = field(default_factory=dict)
    training: dict[tuple[str, int], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    best_told: dict[str, int] = field(default_factory=dict)
    most_gpus: int | None = None
    signs: dict[str, float] = field(default_factory=dict)
    used: dict[str, list[Used]] = field(default_factory=dict)
    reported: dict[tuple[str, int], dict[int, float | None]] = field(default_factory=dict)
    ended: dict[tuple[str, str, int], float] = field(default_factory=dict)
    leases: list[float] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    gone: set[tuple[str, str]] = field(default_factory=set)

    def worth(self, model: Model) -> float:
        """The more the better, for its job."""
        sign = self.signs[job_of(model.trial)]
        return -math.inf if model.metric is None else sign * model.metric


@dataclass(frozen=True, slots=True)
class Told:
    """Who hears of an attempt: the agent's side. `exited`: cause as the script has it (finished,
    crashed, asked), exit code.
    """

    started: Callable[[], None]
    training: Callable[[int], None]
    reported: Callable[[int, float | None, float], None]
    saved: Callable[[Model], None]
    exited: Callable[[str, int], None]


class Run:
    """The processes of one part of an attempt."""

    def __init__(self, start: Start, instance: str, shared: Shared, told: Told) -> None:
        self.start = start
        self.instance = instance
        self.over = False
        self.asked = False
        self.unsaved: Model | None = None
        self._shared = shared
        self._told = told
        self._epoch = 0
        self._saved_epoch = 0
        self._saved_at = 0.0
        self._best = -math.inf
        self._written: Model | None = None  # what is being written
        self._copied: list[Model] = []  # what waits for that
        self._unit_s = 0.0
        self._flood = 0
        self._since: float | None = None
        node = start.node
        self.rank = node.rank if node is not None else 0
        self._count = node.count if node is not None else 1
        self._gpus = node.gpus if node is not None else len(start.gpus)

    @property
    def key(self) -> tuple[str, int]:
        """Trial and attempt."""
        return self.start.trial, self.start.attempt

    def spawn(self, restored: Model | None) -> None:
        """Its processes begin. The GPUs must be free, and the trial must run nowhere else."""
        self._epoch = self._saved_epoch = restored.reports if restored is not None else 0
        self._saved_at = self._shared.timeline.now
        self._take()
        self._told.started()
        group = self._shared.groups.setdefault(self.key, Group(self._count))
        group.parts[self.rank] = self
        if group.broken:
            self._later(
                self._luck("hears of the break", 0.0, NOTICED_S),
                lambda: self._fails("a peer is gone"),
            )
        elif len(group.parts) == group.count:
            group.parts[0]._begin_soon()

    def ask(self) -> None:
        """Save and exit at the end of the present unit of work."""
        self.asked = True

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if not self.over:
            self._end()
            self._told.exited("killed", -9)

    def vanish(self) -> None:
        """The machine is gone, and nobody tells."""
        if not self.over:
            self._end()

    # ------------------------------------------------------------ its own life

    def _begin_soon(self) -> None:
        self._later(
            self._luck("start", self._shared.script.start_s, 4 * self._shared.script.start_s),
            self._begin,
        )

    def _begin(self) -> None:
        if self._shared.chance.hits("port in use"):
            self._fails("its port is in use", PORT_IN_USE)
            return
        self._told.training(self._epoch)
        self._flood = FLOOD if self._shared.chance.hits(FLOODS) else 0
        self._next()

    def _next(self) -> None:
        chance = self._shared.chance
        self._unit_s = self._shared.script.unit_s(self.start.trial, self._epoch + 1, self._gpus)
        if self._flood > 0:
            self._flood -= 1
            self._unit_s /= FASTER
        if chance.hits("straggles"):
            self._unit_s *= 1 + 4 * chance.dice("straggling").random()
        if chance.hits("hangs"):
            return
        self._later(self._unit_s, self._unit_done)

    def _unit_done(self) -> None:
        chance = self._shared.chance
        if chance.hits("crashes"):
            self._fails("the script raised")
            return
        self._epoch += 1
        metric: float | None = self._shared.script.metric(self.start.config, self._epoch)
        if chance.hits("reports NaN"):
            metric = None
        if not chance.hits("never reports"):
            self._shared.reported.setdefault(self.key, {})[self._epoch] = metric
            self._told.reported(self._epoch, metric, self._unit_s)
        if self.over:
            return
        if self._shared.script.saves_behind:
            self._train_on(metric)
            return
        most = self._shared.script.most_reports
        if self.asked or self._epoch == most:
            self._later(
                self._save(metric), lambda: self._leave("asked" if self.asked else "finished")
            )
        elif self._due(metric):
            self._later(self._save(metric), self._next)
        else:
            self._next()

    def _train_on(self, metric: float | None) -> None:
        """Copy the state of a report that is better than every one before, and at intervals that of
        another one; leave when all is written.
        """
        script, model = self._shared.script, Model(self.start.trial, self._epoch, metric)
        leaves = self.asked or self._epoch == script.most_reports
        since_s = self._shared.timeline.now - self._saved_at
        is_better = self._shared.worth(model) > self._best
        is_due = self._written is None and since_s >= script.checkpoint_every_s
        if (leaves or is_better or is_due) and self._epoch != self._saved_epoch:
            self._saved_epoch = self._epoch
            self._best = max(self._best, self._shared.worth(model))
            self._copied = [model] if is_better else [*self._copied, model]
            if self._written is None:
                self._write_next()
        if leaves:
            self._leave_written()
        else:
            self._next()

    def _write_next(self) -> None:
        self._written = self._copied.pop(0) if self._copied else None
        if self._written is not None:
            most_s = 5 * self._shared.script.save_s
            self._later(self._luck("save", self._shared.script.save_s, most_s), self._publish)

    def _publish(self) -> None:
        assert self._written is not None
        self._saved_at = self._shared.timeline.now
        if not self._shared.chance.hits("disk full"):
            self._told.saved(self._written)
        self._write_next()

    def _leave_written(self) -> None:
        if self._written is not None:
            self._later(POLL_S, self._leave_written)
        else:
            self._leave("asked" if self.asked else "finished")

    def _due(self, metric: float | None) -> bool:
        """At intervals, and sooner for a model that is better than every one that was saved."""
        script = self._shared.script
        since_s = self._shared.timeline.now - self._saved_at
        better = self._shared.worth(Model(self.start.trial, self._epoch, metric)) > self._best
        return since_s >= script.checkpoint_every_s or (
            better and since_s >= SAVE_SHARE * script.save_s
        )

    def _save(self, metric: float | None) -> float:
        """Write a checkpoint to the instance's disk; how long that takes."""
        if self._epoch == self._saved_epoch:
            return 0.0
        if self._shared.chance.hits("disk full"):
            return 0.0
        save_s = self._luck("save", self._shared.script.save_s, 5 * self._shared.script.save_s)
        model = Model(self.start.trial, self._epoch, metric)
        self._saved_epoch, self._saved_at = self._epoch, self._shared.timeline.now
        self._best = max(self._best, self._shared.worth(model))
        self._later(save_s, lambda: self._told.saved(model))
        return save_s

    def _leave(self, cause: str) -> None:
        self._later(EXIT_S, lambda: self._exits(cause, 0))

    def _exits(self, cause: str, code: int) -> None:
        group = self._shared.groups[self.key]
        self._end(orderly=True)
        self._told.exited(cause, code)
        for part in list(group.parts.values()):
            part._later(
                self._luck("others leave", 0.0, 1.0), lambda part=part: part._exits(cause, code)
            )  # type: ignore[misc]

    def _fails(self, why: str, code: int = 1) -> None:
        self._end()
        self._told.exited("crashed", code)

    # ------------------------------------------------------------ beneath

    def _take(self) -> None:
        shared = self._shared
        for (instance, gpu), holder in shared.training.items():
            if instance == self.instance and gpu in self.start.gpus:
                shared.wrong.append(
                    f"GPU {gpu} of {instance} is given to {self.key} while {holder} trains there"
                )
            again = holder.rpartition("/")[0] == self.start.trial and holder != self._name
            if again and holder not in shared.lost:
                shared.wrong.append(
                    f"{self.key} begins on {self.instance} while {holder} runs on {instance}"
                )
        self._since = shared.timeline.now
        for gpu in self.start.gpus:
            shared.training[self.instance, gpu] = self._name
        if shared.most_gpus is not None and len(shared.training) > shared.most_gpus:
            shared.wrong.append(
                f"{self.key} begins, and {len(shared.training)} GPUs are in use then"
            )

    @property
    def _name(self) -> str:
        return f"{self.start.trial}/{self.start.attempt}"

    def _end(self, *, orderly: bool = False) -> None:
        self.over = True
        used = self._shared.used.setdefault(job_of(self.start.trial), [])
        now, gpus = self._shared.timeline.now, len(self.start.gpus)
        if self._since is not None:
            used.append(Used(self.instance, self._since, now, gpus))
            self._shared.ended[(self.instance, *self.key)] = now
        for gpu in self.start.gpus:
            self._shared.training.pop((self.instance, gpu), None)
        group = self._shared.groups.get(self.key)
        if group is None:
            return
        group.parts.pop(self.rank, None)
        group.broken = True
        if not orderly:
            for part in group.parts.values():
                if not self._shared.chance.hits("waits for its peer for ever"):
                    part._later(
                        self._luck("notices", 0.0, NOTICED_S),
                        lambda part=part: part._fails("a peer is gone"),
                    )  # type: ignore[misc]

    def _later(self, wait_s: float, action: Callable[[], None]) -> None:
        self._shared.timeline.after(wait_s, lambda: None if self.over else action())

    def _luck(self, what: str, least_s: float, most_s: float) -> float:
        return self._shared.chance.lasts(what, least_s, most_s)
