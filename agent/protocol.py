"""The messages between daemon and agent: one JSON object per line, `{"kind": ..., fields...}`
(`wire`); a field with a default may be missing. Times are in seconds of the agent's clock
(`clock`). Facts are numbered from 1 and kept on the agent's disk. Pure.

The daemon connects and sends `Hello` with the number of the last fact that it has committed. The
agent answers `Welcome`, then sends every later fact in order, again on every new connection until
it is acknowledged (`Ack`). Orders carry the id of the daemon's command; the agent ignores an id
that it has seen. A newer connection replaces an older one. The presigned URLs of `Prepare`,
`Grant`, `Parts` and `Downloads` and the secrets of `Start` are never written to a disk; a daemon
repeats them on each connection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, Union, get_args

from seerd.agent.patterns import ObservedScript

VERSION = 11
MAX_LINE = 1 << 20
PARTS = (1, 2, 4, 8, 16)  # how many slots a GPU may have


class ProtocolError(Exception):
    """A line that is no message of this protocol."""


class _Message:
    kind: ClassVar[str]  # the class's name in lower case, which is `kind` on the wire

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()


# ---------------------------------------------------------------- daemon -> agent


@dataclass(frozen=True)
class Hello(_Message):
    """The first line of a connection."""

    version: int  # the daemon's version of the protocol
    run: str
    seen: int  # number of the last committed fact; 0: none
    # attempts on this instance ("trial/attempt"); all others are killed before the answer; None:
    # none is killed
    holds: Optional[list[str]] = None


@dataclass(frozen=True)
class Job:
    """What all trials of the run have in common on this instance."""

    # folder with the user's source, of which each attempt gets a copy; relative to the agent's
    # folder unless it is absolute
    source: str
    script: str  # `script`, `args`, `launcher`, `python`, `env` and `setup`: as in `[train]`
    args: list[str]
    launcher: str
    python: str  # a path, a name on PATH, or a command that enters an environment
    env: dict[str, str]  # relative entries of its PYTHONPATH are in `source`
    setup: list[str]
    store: str  # directory for checkpoints, one folder per trial; empty: `Grant`s say where
    metric: str  # name of the metric that trials report
    mode: str  # "max" or "min"
    allocations: list[int]  # numbers of slots that a trial of this run may get
    threads: int  # CPU threads of each rank; 0: this machine's cores shared among its GPUs
    checkpoint_every_s: float  # seconds from one checkpoint to the next
    max_reports: Optional[int] = None  # reports of a full training; None: unknown
    smooth: int = 1  # checkpoints are compared by the mean of so many last reports
    # modules that are imported before trials start; None: learned; empty: trials start cold
    preload: Optional[list[str]] = None
    # further conditions on the best model: "metric < number", with "<", "<=", ">" or ">="
    constraints: list[str] = field(default_factory=list)
    # hyperparameters whose values replace their names in braces in `args`, `env` and `fill`
    names: list[str] = field(default_factory=list)
    observed: Optional[ObservedScript] = None  # None: the script imports seerd
    id: str = ""  # which of the jobs of the run; empty: the run is one job
    # large files of the source that each attempt gets a copy of, as it probably writes to them
    own: list[str] = field(default_factory=list)
    # files of the source in which names in braces are filled for each attempt
    fill: list[str] = field(default_factory=list)
    # folder that a `python` outside `source` is relative to, and that a command is run in; empty:
    # `source`
    python_in: str = ""
    # environment variables of which each `Start` brings the values, which are in no file
    secrets: list[str] = field(default_factory=list)
    container: str = ""  # the image that trials and `setup` run in; empty: none
    mounts: list[str] = field(default_factory=list)  # folders of the machine that it sees too


@dataclass(frozen=True)
class Expected:
    """What a healthy instance has."""

    gpus: int  # that `nvidia-smi` lists
    free_bytes: int  # where the agent's folder is
    torch: bool  # whether torch can use the GPUs


@dataclass(frozen=True)
class StoreProof:
    """Presigned URLs of one object, with which an instance proves that it can use the store."""

    put_url: str
    get_url: str


@dataclass(frozen=True)
class Prepare(_Message):
    """Check the instance's health (if `expected` is given) and its way to the store (if `proof`
    is), fetch the granted data, and run the setup commands, once. Outcome: `Prepared` or `Refused`.

    With several jobs, `jobs` are prepared, and of `job` only `source` counts: the data goes there.
    """

    id: str
    job: Job
    expected: Optional[Expected] = None
    jobs: list[Job] = field(default_factory=list)
    parts: int = 1  # slots of each GPU, as in `Start`
    proof: Optional[StoreProof] = None

    def job_of(self, trial: str) -> Optional[Job]:
        """Return the job of a trial, whose id is the trial's prefix; None if there is none."""
        name = trial.rpartition(".")[0]
        return next((job for job in self.jobs or [self.job] if job.id == name), None)


@dataclass(frozen=True)
class Node:
    """One node's part in an attempt on several whole instances."""

    rank: int  # this node's number; rank 0 of the attempt is on node 0
    count: int  # number of nodes
    address: str  # this node's private address
    endpoint: str  # "address:port" of node 0: torchrun's rendezvous
    gpus: int  # slots of the attempt on all nodes together


@dataclass(frozen=True)
class Start(_Message):
    """Start an attempt of a trial. Outcome: `Started`, later `Exited`; or `Refused`.

    Each GPU (CUDA device or CPU slot) of the instance has `parts` slots, which are numbered
    throughout: slot 5 is part 1 of GPU 1 if a GPU has 4. An attempt has slots of one GPU, for one
    rank, or whole GPUs, with a rank for each.
    """

    id: str
    trial: str
    attempt: int
    gpus: list[int]  # slots
    config: dict[str, Any]  # hyperparameters
    seed: int
    checkpoints: list[str]  # names in the store that it may restore, newest first
    node: Optional[Node] = None  # this instance's part, if the attempt spans several
    parts: int = 1  # slots of each GPU: 1, 2, 4, 8 or 16
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # its job's, with values

    @property
    def devices(self) -> list[int]:
        """The GPUs on which the slots are."""
        return sorted({slot // self.parts for slot in self.gpus})

    @property
    def is_whole(self) -> bool:
        """Whether it has all slots of its GPUs."""
        return len(self.gpus) == self.parts * len(self.devices)


@dataclass(frozen=True)
class Stop(_Message):
    """End an attempt. Outcome: `Exited`."""

    id: str
    trial: str
    attempt: int
    checkpoint: bool  # whether the trial may save and exit first; if not, it is killed at once
    grace_s: float  # seconds from `at` until it is killed
    at: Optional[float] = None  # when the daemon decided, in the agent's time; None: on arrival

    def kill_at(self, now: float) -> float:
        """Return when the trial is killed; an order that arrives late gives no more time."""
        return -math.inf if not self.checkpoint else _since(self.at, now) + self.grace_s


@dataclass(frozen=True)
class Grow(_Message):
    """Let an attempt on a part of a GPU use more of it, once no other run has that."""

    id: str
    trial: str
    attempt: int
    gpus: list[int]  # all slots that it has from now on, numbered as in `Start`


@dataclass(frozen=True)
class Renew(_Message):
    """Renew the lease. When it ends, trials save and exit, the agent stores that, and ends."""

    for_s: float  # the lease ends so many seconds after `at`
    grace_s: float  # seconds that trials then have to save and exit
    last_s: float = 120.0  # further seconds that storing may take
    ends_in_s: Optional[float] = None  # seconds from `at` that training may go on; None: unknown
    at: Optional[float] = None  # when it was sent, in the agent's time; None: on arrival

    def since(self, now: float) -> float:
        """Return from when `for_s` and `ends_in_s` count, however late it arrives."""
        return _since(self.at, now)


@dataclass(frozen=True)
class Slot:
    """Presigned URLs of one checkpoint in the store, to PUT or to GET it."""

    name: str
    data_url: str
    manifest_url: str


@dataclass(frozen=True)
class Grant(_Message):
    """What an attempt may put and get. Replaces the attempt's earlier grant."""

    trial: str
    attempt: int
    puts: list[Slot]  # places of its next checkpoints, in this order
    gets: list[Slot]  # checkpoints that it may restore


@dataclass(frozen=True)
class Parts(_Message):
    """Answer to `Ask`: where the parts of a checkpoint go."""

    trial: str
    attempt: int
    name: str
    part_size: int  # bytes of each part but the last
    urls: list[str]  # where to PUT each part; empty: put it in one piece
    complete_url: str  # where to POST the list of parts
    abort_url: str  # where to DELETE the parts


@dataclass(frozen=True)
class Download:
    """One object of the job's data."""

    url: str  # presigned
    to: str  # path below the trials' working folder
    size: int


@dataclass(frozen=True)
class Downloads(_Message):
    """Data that the next `Prepare` fetches."""

    first: bool  # whether a new list begins
    items: list[Download]


@dataclass(frozen=True)
class Ack(_Message):
    """Every fact up to `seen` is committed."""

    seen: int


@dataclass(frozen=True)
class Shutdown(_Message):
    """Kill what still runs, and end the agent. The connection closes when that is done."""

    id: str


# ---------------------------------------------------------------- agent -> daemon


@dataclass(frozen=True)
class Welcome(_Message):
    """Answer to `Hello`."""

    version: int  # the agent's version of the protocol
    agent: str  # the agent's own version; "1": it does not know `Grow`
    gpus: int  # number of GPUs or CPU slots
    last: int  # number of the newest fact; 0: none
    now: float  # the agent's time
    attempts: list[str]  # running attempts, as "trial/attempt"
    boot: str  # changes when the machine boots (Linux: its boot id; elsewhere empty)
    wall: Optional[float] = None  # wall clock, seconds since 1970; None: `now` is
    answers: bool = False  # whether it answers each `Renew` with `Alive`
    acked: int = 0  # number of the last acknowledged fact; 0: none
    ended: list[str] = field(default_factory=list)  # killed since they are not in `Hello.holds`


@dataclass(frozen=True)
class Alive(_Message):
    """Answer to `Renew`."""


@dataclass(frozen=True)
class Ask(_Message):
    """Ask where to put a checkpoint in parts. No fact: it is asked again on a new connection. Of no
    bytes: ask for other URLs, since the store refuses those that were granted.
    """

    trial: str
    attempt: int
    name: str  # one of the granted places
    size: int


@dataclass(frozen=True)
class _Fact(_Message):
    seq: int  # from 1
    at: float  # in the agent's time


@dataclass(frozen=True)
class _FactOfAttempt(_Fact):
    trial: str
    attempt: int


@dataclass(frozen=True)
class Prepared(_Fact):
    """The instance is ready for trials."""

    id: str


@dataclass(frozen=True)
class Refused(_Fact):
    """The order `id` cannot be carried out. With `seq` 0 and no `id`: the answer to a foreign
    `Hello`; the connection then closes.
    """

    id: str
    why: str
    unhealthy: bool = False  # whether the machine is at fault
    # what is wrong with it: "driver", "torch", "store" (no answer), "store-refused" (its answer was
    # a refusal); empty: something else
    cause: str = ""


@dataclass(frozen=True)
class Started(_Fact):
    """The processes of an attempt exist. `pid` is the launcher's process id."""

    id: str
    trial: str
    attempt: int
    pid: int


@dataclass(frozen=True)
class Training(_FactOfAttempt):
    """The trial has called `running()` for the first time."""

    epoch: int  # how many reports its restored checkpoint has; 0: it begins from scratch


@dataclass(frozen=True)
class Reported(_FactOfAttempt):
    """The trial has called `report()`."""

    epoch: int  # number of reports so far
    metrics: dict[str, Optional[float]]  # None: not a finite number
    unit_s: float  # longest recent time between calls of `running()`: how late a stop is noticed
    line: str = ""  # the output that an attempt's first report was read from, if it was


@dataclass(frozen=True)
class Checkpointed(_FactOfAttempt):
    """A whole checkpoint is in the store."""

    name: str
    epoch: int  # number of reports when it was saved
    metrics: dict[str, Optional[float]]  # of the last report
    sha256: str
    size: int  # bytes
    save_s: float  # seconds to save and store it
    free: Optional[int] = None  # free bytes on the store's disk; None: unknown


@dataclass(frozen=True)
class Exited(_FactOfAttempt):
    """No process of the attempt is left, and its GPUs are free."""

    # "asked": by a `Stop`; "lease": the lease ended; "lost": an earlier agent died; "finished":
    # exit status 0; "crashed": anything else
    cause: str
    code: Optional[int]  # exit status of the launcher, negative for a signal; None: unknown
    rank: Optional[int] = None  # the guilty rank of a crash; None: unknown
    tail: list[str] = field(default_factory=list)  # last lines of that rank's log
    # since when that rank has written nothing; of several nodes, the earliest has the guilty rank
    silent: Optional[float] = None
    signal: Optional[int] = None  # that killed that rank
    waited_s: Optional[float] = None  # seconds that others waited for that rank, if it hung
    started: bool = True  # whether any of its processes existed
    # the most bytes of a GPU that were seen in use for it while no other attempt had that GPU, and
    # that GPU's bytes; empty: not seen
    memory: list[int] = field(default_factory=list)
    # what is broken about its GPUs, so that a crash is the machine's fault; empty: nothing is known
    fault: str = ""


@dataclass(frozen=True)
class Complained(_FactOfAttempt):
    """Something may be wrong with an attempt. Sent once per kind, except for "quiet",
    "waits" and a store that takes no checkpoint.
    """

    # "output": a line of `out.jsonl` cannot be read
    # "not-stored": a checkpoint cannot be stored
    # "store-silent", "store-refused", "store-failed": nor can any other, since the store does not
    # answer, does not permit it, or fails; sent again and again until one is stored
    # "left": it has ended, and the store lacks a checkpoint that is here
    # "promised": nothing is wrong: the attempt is to save checkpoints, or has begun to; the result
    # is to be a model
    # "untracked": its checkpoints hold no state
    # "warning": a warning of its training side
    # "number", "constraint": a pattern may not find what it should
    # "quiet": it has run for a while without a report
    # "still": it does nothing at all
    # "error": it goes on after an error, which `why` quotes
    # "shared": it has written into what all trials share
    # "often": only so many reports a second as `why` says are sent
    # "skipped": it writes faster than can be read, and parts were skipped
    # "waits": it still waits for GPUs
    what: str
    why: str


@dataclass(frozen=True)
class Stalled(_FactOfAttempt):
    """An attempt on several instances stands still on this one, or moves again."""

    hung: bool  # whether ranks here do nothing; if not, all wait for ranks elsewhere
    units: int  # calls of `running()` that the last ranks here have begun
    ticks: int  # their backward passes and steps since then
    over: bool = False  # whether they move again


@dataclass(frozen=True)
class Waited(_FactOfAttempt):
    """How much ranks have waited for others, if it is much or several instances take part."""

    over_s: float  # length of the measurement
    ranks: list[int]  # numbers among all ranks of the attempt
    shares: list[float]  # of that time that each rank has waited, 0 to 1


@dataclass(frozen=True)
class Noticed(_Fact):
    """News about this instance."""

    # "interruption": the cloud takes it away; "rebalance": it probably will; "maintenance": it will
    # reboot, stop or end it; "unhealthy": it cannot be used any more; "cold": trials start more
    # slowly than they could
    what: str
    # when the cloud does that; None: unknown, and of "maintenance": it does not any more
    by: Optional[float]
    why: str = ""


@dataclass(frozen=True)
class Computed(_Fact):
    """Recent utilisation of this instance's GPUs. Sent on change, at most twice a minute."""

    shares: list[Optional[float]]  # of each GPU, 0 to 1; None: unknown


@dataclass(frozen=True)
class Shared(_Fact):
    """How many slots of this instance the run may use from now on, as other runs use it too."""

    gpus: int  # at least 1: those with lower numbers
    why: str


def _since(at: Optional[float], now: float) -> float:
    return now if at is None else min(now, at)


Order = Union[Hello, Prepare, Start, Stop, Grow, Renew, Grant, Parts, Downloads, Ack, Shutdown]
FactOfAttempt = Union[Training, Reported, Checkpointed, Complained, Exited, Stalled, Waited]
Fact = Union[Prepared, Refused, Started, FactOfAttempt, Noticed, Computed, Shared]
Message = Union[Order, Welcome, Alive, Ask, Fact]

FACTS: tuple[type[Fact], ...] = get_args(Fact)
