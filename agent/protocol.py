"""The messages between daemon and agent. Sans-I/O: no socket, no file, no clock.

The one rule: one JSON object per line travels, `{"kind": ..., fields...}` (`wire`), and it is
exactly one of the messages below. A field with a default may be missing. Moments are in seconds of
the agent's time (`clock`).

`Grant`, `Parts` and `Downloads` carry presigned URLs, so they are never written to any disk. The
daemon says them again on a new connection, before the orders that need them.

The conversation. The daemon connects and says `Hello` with the number of the last fact that it has
committed. The agent answers `Welcome`, and from then on sends every later fact in order, again on
every new connection until it is acknowledged (`Ack`). Facts are numbered from 1 by the agent and
kept on its disk. Orders carry the id of the daemon's command, and an agent that has seen an id
before does nothing a second time. A newer connection replaces an older one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

VERSION = 11
MAX_LINE = 1 << 20
LARGEST = 1 << 53
"""Larger integers change in some readers of JSON (RFC 8259, section 6), and those beyond 64 bits
fit into no journal.
"""
MOMENT = (-1e12, 1e12)
DURATION = (0.0, 1e9)
BOUNDS: Dict[str, Tuple[float, float]] = {
    **dict.fromkeys(("at", "now", "by", "silent", "wall"), MOMENT),
    **dict.fromkeys(("unit_s", "save_s", "over_s", "waited_s"), DURATION),
    **dict.fromkeys(("seq", "size", "free", "units", "ticks", "epoch"), (0, LARGEST)),
}
"""The smallest and the largest value of fields with these names, in any message. Arithmetic with
times within these bounds stays finite.
"""
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""Names that may become part of a path."""


class ProtocolError(Exception):
    """A line that is no message of this protocol; the text says why."""


# ---------------------------------------------------------------- daemon -> agent


@dataclass(frozen=True)
class Hello:
    """First line of a connection."""

    kind: ClassVar[str] = "hello"
    version: int  # the protocol's, as the daemon speaks it
    run: str  # the name of its run
    seen: int  # number of the last committed fact; 0: none
    # attempts on this instance, as "trial/attempt"; all others are ended before the answer; None:
    # none is ended
    holds: Optional[List[str]] = None


@dataclass(frozen=True)
class ObservedScript:
    """How a script takes part that does not import seerd: it is observed from outside."""

    report: Dict[str, str]  # for each metric a regular expression, whose first group is its value
    # path of the file or folder that it saves to, relative to the folder in which it runs; `*`, `?`
    # and `[...]` stand for parts of names; empty: it saves nothing
    checkpoint: str = ""
    # arguments to go on from a checkpoint, whose path takes the place of `{checkpoint}`
    resume: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """What all trials of the run have in common on this instance."""

    # folder with the user's source on this instance, of which each attempt gets a copy to run in;
    # relative to the agent's own folder if it is not absolute
    source: str
    script: str  # as in the spec's `[train]`
    args: List[str]  # as in `[train]`
    launcher: str  # as in `[train]`
    # as in `[train]`: a path, a name on PATH, or a command that chooses an environment
    # (`arguments.py`). The agent puts the training side (`import seerd`), out of its own zip,
    # first on PYTHONPATH
    python: str
    env: Dict[str, str]  # as in `[train]`; what is relative on PYTHONPATH is in the source
    setup: List[str]  # as in `[train]`
    # directory for checkpoints that this instance can write, with one folder per trial; empty: they
    # go where `Grant`s say
    store: str
    metric: str  # name of the metric that trials report
    mode: str  # whether more ("max") or less ("min") of it is better
    allocations: List[int]  # every number of GPUs that a trial of this run may get
    threads: int  # CPU threads of each rank; 0: this machine's cores shared among its GPUs
    checkpoint_every_s: float  # seconds from one checkpoint to the next
    max_reports: Optional[int] = None  # reports of a full training, as in `[policy]`; None: unknown
    smooth: int = 1  # checkpoints are compared by the mean of so many last reports
    # modules that are imported before trials start; None: that is learned; none of them: trials
    # start in the usual way
    preload: Optional[List[str]] = None
    # what else must hold of the best model: "metric < number", with "<", "<=", ">" or ">="
    constraints: List[str] = field(default_factory=list)
    # hyperparameters, whose values replace their names in braces in `args`, `env` and `fill`
    names: List[str] = field(default_factory=list)
    # for a script that does not import seerd: how it is observed
    observed: Optional[ObservedScript] = None
    id: str = ""  # which of the jobs it is that share the run; empty: the run is one job
    # large files of the source that attempts probably write to, so that each gets a copy of its own
    own: List[str] = field(default_factory=list)
    # files of the source in which names in braces are filled for each attempt
    fill: List[str] = field(default_factory=list)
    # folder that a `python` which is not in `source` is relative to, and that a command is run in;
    # empty: `source`
    python_in: str = ""


@dataclass(frozen=True)
class Expected:
    """What a healthy instance of its kind has."""

    gpus: int  # how many GPUs `nvidia-smi` lists
    free_bytes: int  # free bytes where the agent's folder is
    torch: bool  # whether torch can use the GPUs


@dataclass(frozen=True)
class Prepare:
    """Make this instance ready for the job: check its health (if `expected` says what to expect),
    fetch the data that was granted, and run the setup commands, once.

    Where several jobs share the run it is made ready for `jobs`, and of `job` only `source` counts:
    the data is fetched to there, and each of `jobs` has its own source below.

    Outcome: `Prepared` or `Refused`.
    """

    kind: ClassVar[str] = "prepare"
    id: str
    job: Job
    expected: Optional[Expected] = None
    jobs: List[Job] = field(default_factory=list)

    def job_of(self, trial: str) -> Optional[Job]:
        """Return the job of a trial, whose id begins with the job's and a point where several share
        the run; None: there is none.
        """
        name = trial.rpartition(".")[0]
        return next((job for job in self.jobs or [self.job] if job.id == name), None)


@dataclass(frozen=True)
class Node:
    """One node's part in an attempt on several whole instances."""

    rank: int  # this node's number; node 0 has the rank that reports and saves
    count: int  # how many nodes there are
    address: str  # this node's private address
    endpoint: str  # "address:port" of node 0, where the nodes meet (torchrun's rendezvous)
    gpus: int  # how many GPUs the attempt has on all nodes together


@dataclass(frozen=True)
class Start:
    """Start an attempt of a trial. Outcome: `Started`, later `Exited`; or `Refused`."""

    kind: ClassVar[str] = "start"
    id: str
    trial: str
    attempt: int
    gpus: List[int]  # CUDA device indices, or CPU slots, that it gets
    config: Dict[str, Any]  # the trial's hyperparameters
    seed: int  # the trial's own
    checkpoints: List[str]  # names in the store that it may restore, newest first; empty: none
    # this instance's part, if the attempt spans several; each node gets its own
    node: Optional[Node] = None


@dataclass(frozen=True)
class Stop:
    """End an attempt. Outcome: `Exited`."""

    kind: ClassVar[str] = "stop"
    id: str
    trial: str
    attempt: int
    checkpoint: bool  # whether the trial may save and exit first; if not, it is killed at once
    grace_s: float  # seconds from `at` after which a trial that was asked is killed
    at: Optional[float] = None  # when that was decided, in the agent's time; None: when it arrives

    def kill_at(self, now: float) -> float:
        """Return when the trial is killed: an order that is late, on a slow connection or from a
        daemon that was suspended, gives no more time than one that came at once.
        """
        return -math.inf if not self.checkpoint else _since(self.at, now) + self.grace_s


@dataclass(frozen=True)
class Renew:
    """Renew the lease.

    When it ends, the agent lets every trial save and exit, stores what they have saved, and then
    ends itself.
    """

    kind: ClassVar[str] = "renew"
    for_s: float  # the lease ends so many seconds after `at`
    grace_s: float  # seconds that trials then have to save and exit
    last_s: float = 120.0  # further seconds that storing may take
    # for so many seconds from `at` on trials may expect to train on; None: not known
    ends_in_s: Optional[float] = None
    at: Optional[float] = None  # when it was sent, in the agent's time; None: when it arrives

    def since(self, now: float) -> float:
        """Return from when `for_s` and `ends_in_s` count, however late it arrives."""
        return _since(self.at, now)


@dataclass(frozen=True)
class Slot:
    """Presigned URLs of one checkpoint in the store, to PUT or to GET it."""

    name: str  # the checkpoint's name in the store
    data_url: str  # for its bytes
    manifest_url: str  # for its manifest


@dataclass(frozen=True)
class Grant:
    """What an attempt may put and get. The newest grant of an attempt replaces the one before."""

    kind: ClassVar[str] = "grant"
    trial: str
    attempt: int
    puts: List[Slot]  # where its next checkpoints go, in this order, each place once
    gets: List[Slot]  # where it gets the checkpoints that it may restore


@dataclass(frozen=True)
class Parts:
    """Answer to `Ask`: where the parts of a checkpoint's bytes go."""

    kind: ClassVar[str] = "parts"
    trial: str
    attempt: int
    name: str  # the checkpoint's name in the store
    part_size: int  # bytes of each part; the last one may have fewer
    urls: List[str]  # where to PUT each part; empty: there are no parts, put it in one piece
    complete_url: str  # where to POST the list of parts once all are there
    abort_url: str  # where to DELETE the parts if that is given up


@dataclass(frozen=True)
class Download:
    """One object of the job's data."""

    url: str  # its presigned URL
    to: str  # the path where it goes, below the trials' working folder
    size: int  # number of its bytes


@dataclass(frozen=True)
class Downloads:
    """Data that the next `Prepare` fetches."""

    kind: ClassVar[str] = "downloads"
    first: bool  # whether a new list begins; if not, items are added to what was said before
    items: List[Download]  # the objects


@dataclass(frozen=True)
class Ack:
    """Every fact up to `seen` is committed."""

    kind: ClassVar[str] = "ack"
    seen: int


@dataclass(frozen=True)
class Shutdown:
    """Kill what still runs, and end the agent. The connection closes when that is done."""

    kind: ClassVar[str] = "shutdown"
    id: str


# ---------------------------------------------------------------- agent -> daemon


@dataclass(frozen=True)
class Welcome:
    """Answer to `Hello`."""

    kind: ClassVar[str] = "welcome"
    version: int  # the protocol's, as the agent speaks it
    agent: str  # the agent's own version
    gpus: int  # how many GPUs, or CPU slots, it has
    last: int  # number of the newest fact; 0: none
    now: float  # the agent's time, which stamps facts: in seconds, of a clock that nobody sets
    attempts: List[str]  # what runs, as "trial/attempt"
    boot: str  # changes when the machine boots (Linux: its boot id; empty if it has none)
    wall: Optional[float] = None  # the machine's wall clock, seconds since 1970; None: `now` is
    answers: bool = False  # whether it answers each `Renew` with `Alive`
    acked: int = 0  # number of the last fact that a daemon has acknowledged as committed; 0: none
    ended: List[str] = field(default_factory=list)  # attempts that ran and are not in `Hello.holds`


@dataclass(frozen=True)
class Alive:
    """Answer to `Renew`: the agent is at work, though it may have nothing to report."""

    kind: ClassVar[str] = "alive"


@dataclass(frozen=True)
class Ask:
    """Ask where to put a checkpoint in parts. No fact: it is asked again on a new connection."""

    kind: ClassVar[str] = "ask"
    trial: str
    attempt: int
    name: str  # the place for it, one of those granted
    size: int  # number of its bytes


@dataclass(frozen=True)
class _Fact:
    seq: int  # its number, from 1
    at: float  # when it happened, in the agent's time


@dataclass(frozen=True)
class _FactOfAttempt(_Fact):
    trial: str
    attempt: int


@dataclass(frozen=True)
class Prepared(_Fact):
    """The instance is ready for trials."""

    kind: ClassVar[str] = "prepared"
    id: str


@dataclass(frozen=True)
class Refused(_Fact):
    """The order `id` cannot be carried out.

    With `seq` 0 and no `id` it is no fact but the answer to a `Hello` that is not for this agent.
    The connection then closes.
    """

    kind: ClassVar[str] = "refused"
    id: str
    why: str  # the reason, for people
    unhealthy: bool = False  # whether this machine is at fault, so that another one might do


@dataclass(frozen=True)
class Started(_Fact):
    """The processes of an attempt exist. `pid` is the launcher's process id."""

    kind: ClassVar[str] = "started"
    id: str
    trial: str
    attempt: int
    pid: int


@dataclass(frozen=True)
class Training(_FactOfAttempt):
    """The trial has called `running()` for the first time."""

    kind: ClassVar[str] = "training"
    epoch: int  # how many reports its restored checkpoint has; 0: it begins from scratch


@dataclass(frozen=True)
class Reported(_FactOfAttempt):
    """The trial has called `report()`."""

    kind: ClassVar[str] = "reported"
    epoch: int  # how many reports it has made so far
    metrics: Dict[str, Optional[float]]  # what it reported; None: not a finite number
    # seconds of the longest recent unit of work between two calls of `running()`, which is how long
    # a stop may take to be noticed
    unit_s: float
    line: str = ""  # line of output that the first report of an attempt was read from; else empty


@dataclass(frozen=True)
class Checkpointed(_FactOfAttempt):
    """A checkpoint is in the store, whole."""

    kind: ClassVar[str] = "checkpointed"
    name: str  # its name there
    epoch: int  # how many reports had been made
    metrics: Dict[str, Optional[float]]  # metrics of the last report
    sha256: str  # checksum of its bytes, in hex
    size: int  # number of its bytes
    save_s: float  # seconds that it took to save and store it
    # bytes that are free now on the disk of the store; None: that is not known
    free: Optional[int] = None


@dataclass(frozen=True)
class Exited(_FactOfAttempt):
    """No process of the attempt is left, and its GPUs are free."""

    kind: ClassVar[str] = "exited"
    # "asked": by a `Stop`; "lease": the lease ended; "lost": the agent itself had died and cleaned
    # up on its return; "finished": by itself with exit status 0; "crashed": anything else
    cause: str
    code: Optional[int]  # exit status of the launcher, negative for a signal; None if unknown
    rank: Optional[int] = None  # the guilty rank, when it crashed; None if unknown
    tail: List[str] = field(default_factory=list)  # last lines of that rank's log
    # since when that rank has written nothing, None if unknown; of several nodes, the first to fall
    # silent has the guilty one
    silent: Optional[float] = None
    signal: Optional[int] = None  # the signal that killed that rank; None: none did, or unknown
    # seconds that others had waited for that rank, if it hung and the attempt was ended; else None
    waited_s: Optional[float] = None
    started: bool = True  # whether any process of it ever existed; if not, it never used its GPUs


@dataclass(frozen=True)
class Complained(_FactOfAttempt):
    """Something may be wrong with an attempt. Each kind but "quiet" and "waits" is sent once for an
    attempt.
    """

    kind: ClassVar[str] = "complained"
    # "output": a line of `out.jsonl` cannot be read
    # "not-stored": a checkpoint cannot be put into the store, now or ever
    # "untracked": its checkpoints hold no state
    # "warning": its training side warns of something
    # "number", "constraint": a pattern may not find what it should
    # "quiet": it has run for a while and not reported
    # "still": it does nothing at all
    # "error": it goes on after an error, of which `why` has the words
    # "shared": it has written into what all trials share
    # "often": only some of its reports are sent, so many a second as `why` says
    # "skipped": it writes faster than can be read, and parts were skipped
    # "waits": it has waited for GPUs until now, and has not started
    what: str
    why: str  # the reason, for people


@dataclass(frozen=True)
class Stalled(_FactOfAttempt):
    """An attempt on several instances stands still on this one, or has done so."""

    kind: ClassVar[str] = "stalled"
    hung: bool  # whether some ranks here do nothing; if not, all wait for ranks elsewhere
    units: int  # calls of `running()` that the hindmost ranks here have begun
    ticks: int  # their backward passes and steps since the last of these calls
    over: bool = False  # whether they move again


@dataclass(frozen=True)
class Waited(_FactOfAttempt):
    """How much ranks of an attempt have waited for others. Sent now and then, if it is much or the
    attempt spans several instances.
    """

    kind: ClassVar[str] = "waited"
    over_s: float  # seconds over which that was counted
    ranks: List[int]  # their numbers among all ranks of the attempt
    shares: List[float]  # the share of that time that each of them has waited, from 0 to 1


@dataclass(frozen=True)
class Noticed(_Fact):
    """This instance must be left; or there is something to know about it."""

    kind: ClassVar[str] = "noticed"
    # "interruption": the cloud takes it away; "rebalance": it probably will; "unhealthy": it cannot
    # be used any more; "cold": it stays, but it or its trials start more slowly than they could
    what: str
    by: Optional[float]  # when the cloud takes it away, None if it does not say
    why: str = ""  # the reason, if it is unhealthy or cold


@dataclass(frozen=True)
class Computed(_Fact):
    """Recent utilisation of the GPUs of this instance. Sent when that has changed, at most twice in
    a minute, and only where NVIDIA's driver says it.
    """

    kind: ClassVar[str] = "computed"
    # of each GPU, from 0 to 1; None: not known
    shares: List[Optional[float]]


@dataclass(frozen=True)
class Shared(_Fact):
    """How many GPUs of this instance the run may use from now on, beside other runs."""

    kind: ClassVar[str] = "shared"
    gpus: int  # their number, at least 1: those with lower numbers than this
    why: str  # the reason, for people


def _since(at: Optional[float], now: float) -> float:
    return now if at is None else min(now, at)


Order = Union[Hello, Prepare, Start, Stop, Renew, Grant, Parts, Downloads, Ack, Shutdown]
Fact = Union[
    Prepared,
    Refused,
    Started,
    Training,
    Reported,
    Checkpointed,
    Complained,
    Exited,
    Stalled,
    Waited,
    Noticed,
    Computed,
    Shared,
]
Message = Union[Order, Welcome, Alive, Ask, Fact]

ORDERS = (Hello, Prepare, Start, Stop, Renew, Grant, Parts, Downloads, Ack, Shutdown)
FACTS = (
    Prepared,
    Refused,
    Started,
    Training,
    Reported,
    Checkpointed,
    Complained,
    Exited,
    Stalled,
    Waited,
    Noticed,
    Computed,
    Shared,
)
