"""An agent on its instance: the protocol, the lease and the journal of the real one, around
simulated trials.

The one rule: its orders and facts are in the real agent's own journal file before anything follows
from them, so what survives its death is what would survive the real one's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from seerd.agent import clock
from seerd.agent.journal import AgentJournal
from seerd.agent.protocol import (
    VERSION,
    Ack,
    Alive,
    Checkpointed,
    Complained,
    Exited,
    Fact,
    Grant,
    Grow,
    Hello,
    Noticed,
    Prepare,
    Prepared,
    Refused,
    Renew,
    Reported,
    Shutdown,
    Slot,
    Start,
    Started,
    Stop,
    Training,
    Welcome,
)
from seerd.agent.serve import Lease
from seerd.agent.talk import AGENT
from seerd.agent.trial_output import CLOSED_S
from seerd.agent.wire import decode, encode
from tests.faults.objects import Model
from tests.faults.training import KILL_S, PORT_IN_USE, Run, Shared, Told
from tests.faults.wires import Wire

FIRST_LEASE_S = 60.0
LAST_PLACE_S = 30.0
DESERTED_S = 10.0
AGAIN_S = 2.0
ENDS_S = 0.5
"""Until an attempt that was killed is over."""
TORN_S = 0.5
"""Between the bytes of a checkpoint and its manifest."""


@dataclass(slots=True)
class Attempt:
    """What the agent knows of an attempt. `waiting`: the newest checkpoint that is not in the store
    yet; `better`: one before it that is better; `best`: the worth of the best one in the store;
    `told_at`: when it was last told that the store takes nothing.
    """

    start: Start
    run: Run
    cause: str | None = None
    kill_at: float | None = None
    gone_at: float | None = None
    waiting: Model | None = None
    better: Model | None = None
    best: float = -math.inf
    uploading: bool = False
    told_at: float = -math.inf
    over: bool = False

    def next_model(self) -> Model:
        """What is put next; it waits no more."""
        model = self.better or self.waiting
        assert model is not None
        if self.better is None:
            self.waiting = None
        self.better = None
        return model


@dataclass(slots=True)
class Places:
    """What has been granted to an attempt, and what of it is used."""

    grant: Grant | None = None
    sources: dict[str, Slot] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it runs.

    wall       its wall clock, which may be set at any time
    power_off  ends the instance
    sources    of the jobs whose source has come
    is_full    whether it has no room for another process
    """

    instance: str
    run: str
    gpus: int
    folder: Path
    boot: str
    wall: Callable[[], float]
    power_off: Callable[[str], None]
    sources: set[str]
    is_full: Callable[[], bool]


class Agent:
    """One process of an agent in its folder; the next one in the same folder cleans up after it."""

    def __init__(self, machine: Machine, shared: Shared, lease_s: float) -> None:
        self.alive = True
        self.attempts: dict[str, Attempt] = {}
        self._machine = machine
        self._shared = shared
        self._timeline = shared.timeline
        machine.folder.mkdir(parents=True, exist_ok=True)
        self._zero = zero(machine)
        self._journal = AgentJournal(machine.folder / "journal.jsonl")
        self._lease = Lease(self._wall() + min(FIRST_LEASE_S, lease_s), 10.0)
        shared.leases.append(self._lease.ends_at - self._zero)
        self._places: dict[tuple[str, int], Places] = {}
        self._wire: Wire | None = None
        self._sent = 0
        self._ending = ""
        self._doomed = False
        self._alone_since = self._timeline.now
        self._frozen_until = 0.0
        self._clean_up()
        self._timeline.after(1.0, self._look)

    # ------------------------------------------------------------ its own life

    def die(self) -> list[Attempt]:
        """The process is gone; its trials go on without it. Those that still run."""
        self.alive = False
        self._journal.close()
        if self._wire is not None:
            self._wire.end_by_agent()
        return [attempt for attempt in self.attempts.values() if attempt.gone_at is None]

    def freeze(self, for_s: float) -> None:
        """It does nothing for so long, as a machine that swaps."""
        self._frozen_until = max(self._frozen_until, self._timeline.now + for_s)

    def notice(self, what: str, by: float | None) -> None:
        """The cloud announces something."""
        self._doomed = self._doomed or what == "interruption"
        at = self._wall()
        there_by = None if by is None else by + self._zero
        self._tell([Noticed(0, at, what, there_by)])

    def _clean_up(self) -> None:
        """What an agent before it has left: every attempt of it is over."""
        at = self._wall()
        for trial, attempt in list(self._journal.open):
            self._journal.add([Exited(0, at, trial, attempt, "lost", None)])
            del self._journal.open[trial, attempt]

    def _look(self) -> None:
        if not self.alive:
            return
        now = self._timeline.now
        if now < self._frozen_until:
            self._timeline.at(self._frozen_until, self._look)
            return
        if not self._ending and self._lease.ended(self._wall()):
            self._let_go("the lease has ended")
        elif (
            not self._ending
            and self._doomed
            and self._wire is None
            and now - self._alone_since >= DESERTED_S
        ):
            self._let_go("deserted")
        self._timeline.after(0.5, self._look)

    def _let_go(self, why: str) -> None:
        self._ending, lease = why, self._lease
        attempts = [attempt for attempt in self.attempts.values() if not attempt.over]
        for attempt in attempts:
            self._stop(attempt, "lease", lease.left_s(self._wall(), lease.grace_s))
        left_s = lease.left_s(self._wall(), lease.grace_s + lease.last_s)
        self._timeline.after(left_s, lambda: self._switch_off(force=True))
        self._switch_off(force=False)

    def _switch_off(self, *, force: bool) -> None:
        if self.alive and self._ending and (force or all(a.over for a in self.attempts.values())):
            self._machine.power_off(self._ending)

    # ------------------------------------------------------------ conversation

    def take(self, wire: Wire) -> None:
        """A connection."""
        wire.heard = partial(self._hear, wire)
        wire.gone = partial(self._left, wire)

    def _left(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire, self._alone_since = None, self._timeline.now

    def _hear(self, wire: Wire, data: bytes) -> None:
        """Now, or when it wakes up."""
        if not self.alive:
            return
        if self._timeline.now < self._frozen_until:
            self._timeline.at(self._frozen_until, lambda: self._hear(wire, data))
            return
        message = decode(data)
        if isinstance(message, Hello):
            self._greet(wire, message)
        elif self._wire is wire:
            self._obey(message)

    def _greet(self, wire: Wire, hello: Hello) -> None:
        if self._wire is not None:
            self._wire.end_by_agent()
        self._wire, self._alone_since = None, self._timeline.now
        holds = self.attempts if hello.holds is None else hello.holds
        strays = {key: one for key, one in self.attempts.items() if key not in holds}
        ended = [key for key, one in strays.items() if not one.over]
        for key in ended:
            self._stop(strays[key], "asked", 0.0)
        welcome = partial(self._welcome, wire, hello.seen, self._journal.acknowledged, ended)
        if ended:
            self._timeline.after(KILL_S + ENDS_S, welcome)
        else:
            welcome()

    def _welcome(self, wire: Wire, seen: int, acked: int, ended: list[str]) -> None:
        """Answer the daemon, once what it does not know has ended."""
        if wire.cut_agent or not self.alive:
            return
        self._wire, self._sent = wire, seen
        last, attempts = self._journal.last, sorted(self.attempts)
        wire.send(
            encode(
                Welcome(
                    VERSION,
                    AGENT,
                    self._machine.gpus,
                    last,
                    self._wall(),
                    attempts,
                    self._machine.boot,
                    self._machine.wall(),
                    answers=True,
                    acked=acked,
                    ended=ended,
                )
            )
        )
        if self._shared.chance.hits("tells from before a restart"):
            self._sent = max(0, seen - 3)
        self._tell([])

    def _obey(self, message: Any) -> None:
        chance = self._shared.chance
        if chance.hits("breaks before an order"):
            self._break()
            return
        if isinstance(message, Ack):
            self._journal.acknowledge(message.seen)
        elif isinstance(message, Renew):
            self._lease.renew(self._wall(), message)
            alone_s = self._lease.grace_s + self._lease.last_s
            self._shared.leases.append(self._lease.ends_at - self._zero + alone_s)
            if self._wire is not None:
                self._wire.send(encode(Alive()))
        elif isinstance(message, Shutdown):
            self._machine.power_off("shut down")
        elif isinstance(message, Grant):
            self._granted(message)
        elif (
            isinstance(message, (Prepare, Start, Stop, Grow))
            and not self._ending
            and self._journal.take(message)
        ):
            self._carry_out(message)
        if chance.hits("breaks after an order"):
            self._break()

    def _break(self) -> None:
        if self._wire is not None:
            self._wire.lose(self._shared.chance.lasts("a break is noticed", 0.1, 16.0))

    def _tell(self, facts: list[Fact]) -> None:
        if not self.alive:
            return
        self._journal.add(facts)
        wire = self._wire
        if wire is None:
            return
        for line in self._journal.lines_after(self._sent):
            wire.send(line)
            self._sent += 1
            if self._shared.chance.hits("tells twice"):
                wire.send(line)
            if self._shared.chance.hits("breaks after a fact"):
                self._break()
                return

    # ------------------------------------------------------------ orders

    def _carry_out(self, order: Prepare | Start | Stop | Grow) -> None:
        if isinstance(order, Prepare):
            self._prepare(order)
        elif isinstance(order, Start):
            self._begin(order)
        else:
            attempt = self.attempts.get(f"{order.trial}/{order.attempt}")
            if attempt is not None and isinstance(order, Grow):
                attempt.start = replace(attempt.start, gpus=order.gpus)
            elif attempt is not None:
                now = self._wall()
                self._stop(attempt, "asked", max(0.0, order.kill_at(now) - now))

    def _prepare(self, order: Prepare) -> None:
        chance = self._shared.chance
        if chance.hits("never prepared"):
            return
        sick = chance.hits("unhealthy")

        def outcome() -> None:
            at, why = self._wall(), "nvidia-smi shows 0 of its GPUs"
            sick_one = Refused(0, at, order.id, why, unhealthy=True)
            self._tell([sick_one if sick else Prepared(0, at, order.id)])
            if not sick and chance.hits("maintenance due"):
                by = at + chance.lasts("maintenance", 0.0, 3600.0)
                self._tell([Noticed(0, at, "maintenance", by)])

        self._timeline.after(chance.lasts("set up", 1.0, 30.0), outcome)

    def _begin(self, order: Start) -> None:
        chance = self._shared.chance
        held = {gpu for a in self.attempts.values() if not a.over for gpu in a.start.gpus}
        prepared = self._journal.prepared
        job = None if prepared is None else prepared.job_of(order.trial)
        if held & set(order.gpus):
            self._shared.wrong.append(f"{order.trial} is to begin on GPUs that are still in use")
        full = self._machine.is_full()
        if job is None or held & set(order.gpus) or full or chance.hits("refuses an order"):
            at, why = self._wall(), "Resource temporarily unavailable" if full else "not now"
            self._tell([Refused(0, at, order.id, why)])
            return
        if job.id and job.id not in self._machine.sources:
            self._shared.wrong.append(f"{order.trial} begins where its job's source has not come")
        told = Told(
            partial(self._started, order),
            partial(self._training, order),
            partial(self._reported, order),
            partial(self._saved, order),
            partial(self._exited, order),
        )
        attempt = Attempt(order, Run(order, self._machine.instance, self._shared, told))
        self.attempts[f"{order.trial}/{order.attempt}"] = attempt
        self._restore(attempt)

    def _restore(self, attempt: Attempt) -> None:
        """Get the newest checkpoint that can be had, then spawn; waits for a store that is down."""
        order, chance = attempt.start, self._shared.chance
        if not self.alive or attempt.over:
            return
        if attempt.cause is not None:
            attempt.gone_at = self._timeline.now
            self._tell_exit(attempt, attempt.cause, None)
            return
        if attempt.run.rank > 0 or not order.checkpoints:
            attempt.run.spawn(None)
            return
        sources = self._places.setdefault((order.trial, order.attempt), Places()).sources
        if (
            chance.during("store down", self._timeline.now)
            or not set(order.checkpoints) & sources.keys()
        ):
            self._timeline.after(AGAIN_S, lambda: self._restore(attempt))
            return
        model = self._shared.objects.newest(order.trial, order.checkpoints)
        named = {(order.trial, name) for name in order.checkpoints}
        if model is None and not named & self._shared.gone:
            self._shared.wrong.append(
                f"{order.trial}/{order.attempt} was to go on from {order.checkpoints}, none "
                "of which is there"
            )
        self._timeline.after(chance.lasts("restore", 0.2, 4.0), lambda: self._spawn(attempt, model))

    def _spawn(self, attempt: Attempt, model: Model | None) -> None:
        if attempt.cause is not None:
            self._restore(attempt)
        elif self.alive:
            attempt.run.spawn(model)

    def _stop(self, attempt: Attempt, cause: str, grace_s: float) -> None:
        if attempt.over:
            return
        attempt.cause = attempt.cause or cause
        kill_at = self._timeline.now + grace_s
        attempt.kill_at = kill_at if attempt.kill_at is None else min(attempt.kill_at, kill_at)
        if attempt.gone_at is None and grace_s > 0:
            attempt.run.ask()
        self._timeline.at(attempt.kill_at, lambda: self._kill(attempt))

    def _kill(self, attempt: Attempt) -> None:
        if self.alive and attempt.gone_at is None and attempt.kill_at is not None:
            self._timeline.after(KILL_S, attempt.run.kill)

    def _granted(self, grant: Grant) -> None:
        places = self._places.setdefault((grant.trial, grant.attempt), Places())
        places.grant = grant
        places.sources |= {slot.name: slot for slot in grant.gets}
        attempt = self.attempts.get(f"{grant.trial}/{grant.attempt}")
        if attempt is not None:
            self._upload(attempt)

    # ------------------------------------------------------------ what trials do

    def _started(self, order: Start) -> None:
        at = self._wall()
        self._tell([Started(0, at, order.id, order.trial, order.attempt, 4711)])

    def _training(self, order: Start, epoch: int) -> None:
        at = self._wall()
        self._tell([Training(0, at, order.trial, order.attempt, epoch)])

    def _reported(self, order: Start, epoch: int, metric: float | None, unit_s: float) -> None:
        at = self._wall()
        self._tell(
            [Reported(0, at, order.trial, order.attempt, epoch, {"accuracy": metric}, unit_s)]
        )

    def _saved(self, order: Start, model: Model) -> None:
        attempt = self.attempts[f"{order.trial}/{order.attempt}"]
        self._wait_for_place(attempt, model)
        self._upload(attempt)

    def _wait_for_place(self, attempt: Attempt, model: Model) -> None:
        """The newest waits, and before it one that is better than it and than what is stored."""
        worth = self._shared.worth
        before = [one for one in (attempt.better, attempt.waiting) if one is not None]
        best = max(before, key=worth, default=None)
        there = best is not None and worth(best) > max(attempt.best, worth(model))
        attempt.better, attempt.waiting = best if there else None, model

    def _wait_again(self, attempt: Attempt, model: Model) -> None:
        """What could not be put waits once more, unless it was overtaken by as good a one."""
        newest = attempt.waiting
        if newest is None:
            attempt.waiting = model
            return
        worth = self._shared.worth
        if worth(model) > max(attempt.best, worth(attempt.better or newest)):
            attempt.better = model

    def _exited(self, order: Start, cause: str, code: int) -> None:
        attempt = self.attempts[f"{order.trial}/{order.attempt}"]
        attempt.gone_at = self._timeline.now
        self._upload(attempt)
        self._until_stored(attempt, cause, code, self._timeline.now + LAST_PLACE_S)

    def _until_stored(self, attempt: Attempt, cause: str, code: int, give_up_at: float) -> None:
        """The end of an attempt is told when its last checkpoint is in the store, or will not get
        there.
        """
        if not self.alive or attempt.over:
            return
        limit = give_up_at if attempt.kill_at is None else min(give_up_at, attempt.kill_at)
        cut = (
            attempt.kill_at is not None
            and attempt.cause != "lease"
            and self._timeline.now >= attempt.kill_at
        )
        if (attempt.uploading and not cut) or (
            attempt.waiting is not None and self._timeline.now < limit
        ):
            self._upload(attempt)
            self._timeline.after(0.2, lambda: self._until_stored(attempt, cause, code, give_up_at))
            return
        if attempt.waiting is not None:
            self._complain(attempt.start, "left", "")
        ours = attempt.cause is not None and cause != "crashed"
        self._tell_exit(attempt, attempt.cause if ours and attempt.cause else cause, code)

    def _tell_exit(self, attempt: Attempt, cause: str, code: int | None) -> None:
        attempt.over = True
        order, gone = attempt.start, attempt.gone_at
        assert gone is not None
        at = gone + self._zero
        known = cause if cause in {"asked", "lease", "finished"} else "crashed"
        last = "OSError: address already in use" if code == PORT_IN_USE else "last words"
        broken = known == "crashed" and self._shared.chance.hits("GPU breaks")
        fault = "GPU 0 has broken: it has fallen off the bus (XID 79)" if broken else ""
        noticed = [Noticed(0, at, "unhealthy", None, fault)] if broken else []
        end = Exited(0, at, order.trial, order.attempt, known, code, 0, [last], fault=fault)
        self._tell([*noticed, end])
        self._switch_off(force=False)

    def _upload(self, attempt: Attempt) -> None:
        """Put the newest checkpoint into the store, as soon as there is a place, one at a time."""
        order, chance = attempt.start, self._shared.chance
        slot = self._free_place(attempt)
        if (
            not self.alive
            or attempt.waiting is None
            or attempt.uploading
            or attempt.over
            or slot is None
        ):
            return
        model, attempt.uploading = attempt.next_model(), True
        key = order.trial, order.attempt
        wait_s = chance.lasts(
            "upload", self._shared.script.upload_s, 6 * self._shared.script.upload_s
        )

        def bytes_there() -> None:
            if not self.alive:
                return
            if chance.during("store down", self._timeline.now) or chance.hits("upload fails"):
                again()
                return
            self._shared.objects.put_bytes(order.trial, slot.name, model)
            self._timeline.after(TORN_S, manifest_there)

        def manifest_there() -> None:
            if not self.alive:
                return
            if chance.hits("torn upload"):
                again()
                return
            self._shared.objects.put_manifest(order.trial, slot.name)
            self._places[key].used.add(slot.name)
            attempt.uploading = False
            attempt.best = max(attempt.best, self._shared.worth(model))
            self._confirm(order, slot.name, model)
            self._upload(attempt)

        def again() -> None:
            attempt.uploading = False
            self._closed(attempt)
            self._wait_again(attempt, model)
            self._timeline.after(AGAIN_S, lambda: self._upload(attempt))

        self._timeline.after(wait_s, bytes_there)

    def _closed(self, attempt: Attempt) -> None:
        """Tell that the store took nothing, but not all the time."""
        if self._timeline.now >= attempt.told_at + CLOSED_S:
            attempt.told_at = self._timeline.now
            self._complain(attempt.start, "store-silent", "the store does not answer")

    def _complain(self, order: Start, what: str, why: str) -> None:
        self._tell([Complained(0, self._wall(), order.trial, order.attempt, what, why)])

    def _free_place(self, attempt: Attempt) -> Slot | None:
        places = self._places.get((attempt.start.trial, attempt.start.attempt))
        if places is None or places.grant is None:
            return None
        free = [slot for slot in places.grant.puts if slot.name not in places.used]
        kept_back = 0 if attempt.gone_at is not None else 1
        return free[0] if len(free) > kept_back else None

    def _confirm(self, order: Start, name: str, model: Model) -> None:
        at = self._wall()
        metrics = {"accuracy": model.metric}
        size = len(model.content())
        self._tell(
            [
                Checkpointed(
                    0,
                    at,
                    order.trial,
                    order.attempt,
                    name,
                    model.reports,
                    metrics,
                    model.sha256,
                    size,
                    1.0,
                )
            ]
        )

    def _wall(self) -> float:
        return self._timeline.now + self._zero


def zero(machine: Machine) -> float:
    """Return the zero of the agents' clock on this machine, as the real one keeps it."""
    wall, time.time = time.time, machine.wall
    ours = clock._Anchor.zero  # real agents may be forks of this process
    try:
        clock.begin(machine.folder, machine.boot)
    finally:
        time.time, clock._Anchor.zero = wall, ours
    kept = clock.zero_of(machine.folder, machine.boot)
    assert kept is not None
    return kept
