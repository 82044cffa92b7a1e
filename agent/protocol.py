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
from dataclasses import field
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

from seerd.agent.record import record

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


@record
class Hello:
    """First line of a connection.

    version  the protocol's, as the daemon speaks it
    run      the name of its run
    seen     number of the last committed fact; 0: none
    holds    attempts on this instance, as "trial/attempt"; all others are ended before the answer;
             None: none is ended
    """

    kind: ClassVar[str] = "hello"
    version: int
    run: str
    seen: int
    holds: Optional[List[str]] = None


@record
class ObservedScript:
    """How a script takes part that does not import seerd: it is observed from outside.

    report      for each metric a regular expression, whose first group is its value
    checkpoint  path of the file or folder that it saves to, relative to the folder in which it
                runs; `*`, `?` and `[...]` stand for parts of names; empty: it saves nothing
    resume      arguments that it gets when it is to go on from a checkpoint, whose path takes the
                place of `{checkpoint}`
    """

    report: Dict[str, str]
    checkpoint: str = ""
    resume: List[str] = field(default_factory=list)


@record
class Job:
    """What all trials of the run have in common on this instance.

    source              folder with the user's source on this instance, of which each attempt gets
                        a copy to run in; relative to the agent's own folder if it is not absolute
    script, args        as in the spec's `[train]`
    launcher            as in `[train]`
    python              as in `[train]`: a path, a name on PATH, or a command that chooses an
                        environment (`environments.py`). The agent puts the training side
                        (`import seerd`), out of its own zip, first on PYTHONPATH
    env, setup          as in `[train]`; what is relative on PYTHONPATH is in the source
    store               directory for checkpoints that this instance can write, with one folder per
                        trial; empty: they go where `Grant`s say
    metric, mode        what trials report, and whether more ("max") or less ("min") of it is better
    allocations         every number of GPUs that a trial of this run may get
    threads             CPU threads that each rank may use; 0: this machine's cores shared among its
                        GPUs
    checkpoint_every_s  seconds from one checkpoint to the next
    max_reports         reports of a whole training, as in `[policy]`; None: not known
    smooth              checkpoints are compared by the mean of so many last reports
    constraints         what else must hold of a model that is to be the best, as
                        "metric < number", with "<", "<=", ">" or ">="
    preload             modules that are imported before trials start; None: that is learned; none
                        of them: trials start in the usual way
    names               hyperparameters whose values take the place of their names in braces in
                        `args`, `env` and `fill`
    observed            for a script that does not import seerd: how it is observed
    python_in           folder that a `python` which is not in `source` is relative to, and that a
                        command is run in; empty: `source`
    id                  which of the jobs it is that share the run; empty: the run is one job
    own                 large files of the source that attempts probably write to, so that each gets
                        a copy of its own
    fill                files of the source in which names in braces are filled for each attempt
    """

    source: str
    script: str
    args: List[str]
    launcher: str
    python: str
    env: Dict[str, str]
    setup: List[str]
    store: str
    metric: str
    mode: str
    allocations: List[int]
    threads: int
    checkpoint_every_s: float
    max_reports: Optional[int] = None
    smooth: int = 1
    preload: Optional[List[str]] = None
    constraints: List[str] = field(default_factory=list)
    names: List[str] = field(default_factory=list)
    observed: Optional[ObservedScript] = None
    id: str = ""
    own: List[str] = field(default_factory=list)
    fill: List[str] = field(default_factory=list)
    python_in: str = ""


@record
class Expected:
    """What a healthy instance of its kind has.

    gpus        how many GPUs `nvidia-smi` lists
    free_bytes  free bytes where the agent's folder is
    torch       whether torch can use the GPUs
    """

    gpus: int
    free_bytes: int
    torch: bool


@record
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


@record
class Node:
    """One node's part in an attempt on several whole instances.

    rank      this node's number; node 0 has the rank that reports and saves
    count     how many nodes there are
    address   this node's private address
    endpoint  "address:port" of node 0, where the nodes meet (torchrun's rendezvous)
    gpus      how many GPUs the attempt has on all nodes together
    """

    rank: int
    count: int
    address: str
    endpoint: str
    gpus: int


@record
class Start:
    """Start an attempt of a trial. Outcome: `Started`, later `Exited`; or `Refused`.

    gpus         CUDA device indices, or CPU slots, that it gets
    config       the trial's hyperparameters
    seed         the trial's own
    checkpoints  names in the store that it may restore, newest first; empty: from scratch
    node         this instance's part, if the attempt spans several; each node is told its own
    """

    kind: ClassVar[str] = "start"
    id: str
    trial: str
    attempt: int
    gpus: List[int]
    config: Dict[str, Any]
    seed: int
    checkpoints: List[str]
    node: Optional[Node] = None


@record
class Stop:
    """End an attempt. Outcome: `Exited`.

    checkpoint  whether the trial is asked to save and exit first; if not, it is killed at once
    grace_s     seconds from `at` after which a trial that was asked is killed
    at          when that was decided, in the agent's time; None: when it arrives
    """

    kind: ClassVar[str] = "stop"
    id: str
    trial: str
    attempt: int
    checkpoint: bool
    grace_s: float
    at: Optional[float] = None

    def kill_at(self, now: float) -> float:
        """Return when the trial is killed: an order that is late, on a slow connection or from a
        daemon that was suspended, gives no more time than one that came at once.
        """
        return -math.inf if not self.checkpoint else _since(self.at, now) + self.grace_s


@record
class Renew:
    """Renew the lease.

    When it ends, the agent lets every trial save and exit, stores what they have saved, and then
    ends itself.

    for_s      the lease ends so many seconds after `at`
    grace_s    seconds that trials then have to save and exit
    last_s     further seconds that storing may take
    ends_in_s  for so many seconds from `at` on trials may expect to train on; None: not known
    at         when it was sent, in the agent's time; None: when it arrives
    """

    kind: ClassVar[str] = "renew"
    for_s: float
    grace_s: float
    last_s: float = 120.0
    ends_in_s: Optional[float] = None
    at: Optional[float] = None

    def since(self, now: float) -> float:
        """Return from when `for_s` and `ends_in_s` count, however late it arrives."""
        return _since(self.at, now)


@record
class Slot:
    """Presigned URLs of one checkpoint in the store, to PUT or to GET it.

    name          the checkpoint's name in the store
    data_url      for its bytes
    manifest_url  for its manifest
    """

    name: str
    data_url: str
    manifest_url: str


@record
class Grant:
    """What an attempt may put and get. The newest grant of an attempt replaces the one before.

    puts  where its next checkpoints go, in this order, each place once
    gets  where it gets the checkpoints that it may restore
    """

    kind: ClassVar[str] = "grant"
    trial: str
    attempt: int
    puts: List[Slot]
    gets: List[Slot]


@record
class Parts:
    """Answer to `Ask`: where the parts of a checkpoint's bytes go.

    name          the checkpoint's name in the store
    part_size     bytes of each part; the last one may have fewer
    urls          where to PUT each part; empty: there are no parts, put it in one piece
    complete_url  where to POST the list of parts once all are there
    abort_url     where to DELETE the parts if that is given up
    """

    kind: ClassVar[str] = "parts"
    trial: str
    attempt: int
    name: str
    part_size: int
    urls: List[str]
    complete_url: str
    abort_url: str


@record
class Download:
    """One object of the job's data.

    url   its presigned URL
    to    the path where it goes, below the trials' working folder
    size  number of its bytes
    """

    url: str
    to: str
    size: int


@record
class Downloads:
    """Data that the next `Prepare` fetches.

    first  whether a new list begins; if not, items are added to what was said before
    items  the objects
    """

    kind: ClassVar[str] = "downloads"
    first: bool
    items: List[Download]


@record
class Ack:
    """Every fact up to `seen` is committed."""

    kind: ClassVar[str] = "ack"
    seen: int


@record
class Shutdown:
    """Kill what still runs, and end the agent. The connection closes when that is done."""

    kind: ClassVar[str] = "shutdown"
    id: str


# ---------------------------------------------------------------- agent -> daemon


@record
class Welcome:
    """Answer to `Hello`.

    version   the protocol's, as the agent speaks it
    agent     the agent's own version
    gpus      how many GPUs, or CPU slots, it has
    last      number of the newest fact; 0: none
    now       the agent's time, by which it stamps facts: in seconds, of a clock that nobody sets
    attempts  what runs, as "trial/attempt"
    boot      changes when the machine boots (Linux: its boot id; empty if it has none)
    wall      the machine's wall clock, seconds since 1970; None: `now` is
    answers   whether it answers each `Renew` with `Alive`
    acked     number of the last fact that a daemon has acknowledged as committed; 0: none
    ended     attempts that ran and were not among `Hello.holds`
    """

    kind: ClassVar[str] = "welcome"
    version: int
    agent: str
    gpus: int
    last: int
    now: float
    attempts: List[str]
    boot: str
    wall: Optional[float] = None
    answers: bool = False
    acked: int = 0
    ended: List[str] = field(default_factory=list)


@record
class Alive:
    """Answer to `Renew`: the agent is at work, though it may have nothing to report."""

    kind: ClassVar[str] = "alive"


@record
class Ask:
    """Ask where to put a checkpoint in parts. It is no fact: it is asked again on a new connection.

    name  the place for it, one of those granted
    size  number of its bytes
    """

    kind: ClassVar[str] = "ask"
    trial: str
    attempt: int
    name: str
    size: int


@record
class Prepared:
    """The instance is ready for trials."""

    kind: ClassVar[str] = "prepared"
    seq: int
    at: float
    id: str


@record
class Refused:
    """The order `id` cannot be carried out.

    why        the reason, for people
    unhealthy  whether this machine is at fault, so that another one might do

    With `seq` 0 and no `id` it is no fact but the answer to a `Hello` that is not for this agent.
    The connection then closes.
    """

    kind: ClassVar[str] = "refused"
    seq: int
    at: float
    id: str
    why: str
    unhealthy: bool = False


@record
class Started:
    """The processes of an attempt exist. `pid` is the launcher's process id."""

    kind: ClassVar[str] = "started"
    seq: int
    at: float
    id: str
    trial: str
    attempt: int
    pid: int


@record
class Training:
    """The trial has called `running()` for the first time.

    epoch  how many reports its restored checkpoint has; 0: it begins from scratch
    """

    kind: ClassVar[str] = "training"
    seq: int
    at: float
    trial: str
    attempt: int
    epoch: int


@record
class Reported:
    """The trial has called `report()`.

    epoch    how many reports it has made so far
    metrics  what it reported; None: not a finite number
    unit_s   seconds of the longest recent unit of work between two calls of `running()`, which is
             how long a stop may take to be noticed
    line     the line of output that the first report of an attempt was read from; else empty
    """

    kind: ClassVar[str] = "reported"
    seq: int
    at: float
    trial: str
    attempt: int
    epoch: int
    metrics: Dict[str, Optional[float]]
    unit_s: float
    line: str = ""


@record
class Checkpointed:
    """A checkpoint is in the store, whole.

    name     its name there
    epoch    how many reports had been made
    metrics  those of the last of them
    sha256   checksum of its bytes, in hex
    size     number of its bytes
    save_s   seconds that it took to save and store it
    free     bytes that are free now on the disk of the store; None: that is not known
    """

    kind: ClassVar[str] = "checkpointed"
    seq: int
    at: float
    trial: str
    attempt: int
    name: str
    epoch: int
    metrics: Dict[str, Optional[float]]
    sha256: str
    size: int
    save_s: float
    free: Optional[int] = None


@record
class Exited:
    """No process of the attempt is left, and its GPUs are free.

    cause     "asked": by a `Stop`; "lease": the lease ended; "lost": the agent itself had died and
              cleaned up on its return; "finished": by itself with exit status 0; "crashed":
              anything else
    code      exit status of the launcher, negative for a signal; None if unknown
    rank      the guilty rank, when it crashed; None if unknown
    tail      last lines of that rank's log
    silent    since when that rank has written nothing, None if unknown; of several
              nodes, the first to fall silent has the guilty one
    signal    the signal that killed that rank; None if none did, or it is unknown
    waited_s  seconds that others had waited for that rank, if the attempt was ended because it
              hung; None if not
    started   whether any process of it ever existed; if not, it never used its GPUs
    """

    kind: ClassVar[str] = "exited"
    seq: int
    at: float
    trial: str
    attempt: int
    cause: str
    code: Optional[int]
    rank: Optional[int] = None
    tail: List[str] = field(default_factory=list)
    silent: Optional[float] = None
    signal: Optional[int] = None
    waited_s: Optional[float] = None
    started: bool = True


@record
class Complained:
    """Something may be wrong with an attempt. Each kind but "quiet" and "waits" is told once for an
    attempt.

    what  "output": a line of `out.jsonl` cannot be read; "not-stored": a checkpoint cannot be put
          into the store, now or ever; "untracked": its checkpoints hold no state; "warning": its
          training side warns of something; "number", "constraint": a pattern may not find what it
          should; "quiet": it has run for a while and not reported; "still": it does nothing at
          all; "error": it goes on after an error, of which `why` has the words;
          "shared": it has written into what all trials share;
          "often": only some of its reports are told, so many a second as `why` says; "skipped": it
          writes faster than can be read, and parts were skipped; "waits": until now it has waited
          for GPUs, and has not started
    why   the reason, for people
    """

    kind: ClassVar[str] = "complained"
    seq: int
    at: float
    trial: str
    attempt: int
    what: str
    why: str


@record
class Stalled:
    """An attempt on several instances stands still on this one, or has done so.

    hung          whether some ranks here do nothing; if not, all wait for ranks elsewhere
    units, ticks  how far the hindmost ranks here have come
    over          whether they move again
    """

    kind: ClassVar[str] = "stalled"
    seq: int
    at: float
    trial: str
    attempt: int
    hung: bool
    units: int
    ticks: int
    over: bool = False


@record
class Waited:
    """How much ranks of an attempt have waited for others. Told now and then, if it is much or the
    attempt spans several instances.

    over_s  seconds over which that was counted
    ranks   their numbers among all ranks of the attempt
    shares  the share of that time that each of them has waited, from 0 to 1
    """

    kind: ClassVar[str] = "waited"
    seq: int
    at: float
    trial: str
    attempt: int
    over_s: float
    ranks: List[int]
    shares: List[float]


@record
class Noticed:
    """This instance must be left; or there is something to know about it.

    what  "interruption": the cloud takes it away; "rebalance": it probably will; "unhealthy": it
          cannot be used any more; "cold": it stays, but it or its trials start more slowly than
          they could
    by    when the cloud takes it away, None if it does not say
    why   the reason, if it is unhealthy or cold
    """

    kind: ClassVar[str] = "noticed"
    seq: int
    at: float
    what: str
    by: Optional[float]
    why: str = ""


@record
class Computed:
    """How busy the GPUs of this instance were of late. Told when that has changed, at most twice in
    a minute, and only where NVIDIA's driver says it.

    shares  for each of its GPUs the share of the time, from 0 to 1, in which it computed; None:
            that is not known
    """

    kind: ClassVar[str] = "computed"
    seq: int
    at: float
    shares: List[Optional[float]]


@record
class Shared:
    """How many GPUs of this instance the run may use from now on, beside other runs.

    gpus  their number, at least 1: those with lower numbers than this
    why   the reason, for people
    """

    kind: ClassVar[str] = "shared"
    seq: int
    at: float
    gpus: int
    why: str


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
