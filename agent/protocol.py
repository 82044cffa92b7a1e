"""The messages between daemon and agent. Sans-I/O: no socket, no file, no clock.

The one rule: what travels is one JSON object per line, `{"kind": ..., fields...}` (`wire`), and
nothing that is not exactly one of the messages below; a field with a default may be missing.

Some messages are never written to any disk, since they carry presigned URLs: `Grant`, `Parts`,
`Downloads`; the daemon says them again on a new connection, before the orders that need them.

The conversation. The daemon connects and says `Hello` with the number of the last fact that it has
committed; the agent answers `Welcome`, and from then on sends every later fact in order, again on
every new connection until it is acknowledged (`Ack`). Facts are numbered from 1 by the agent and
kept on its disk; orders carry the id of the daemon's command, and an agent that has seen an id
before does nothing a second time. A newer connection replaces an older one.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

from seerd.agent.record import record

VERSION = 2
MAX_LINE = 1 << 20
LARGEST = 1 << 53
"""Larger integers are not themselves in every reader of JSON (RFC 8259, section 6), and those
beyond 64 bits fit into no journal.
"""
MOST_REPORTS = 10**6
"""Of one trial. Reports are epochs, not steps: each is a line in two journals and a value in memory
for as long as the run lasts.
"""
MOMENT = (-1e12, 1e12)
DURATION = (0.0, 1e9)
BOUNDS: Dict[str, Tuple[float, float]] = {
    **dict.fromkeys(("at", "now", "by", "silent"), MOMENT),
    **dict.fromkeys(("unit_s", "save_s", "over_s", "waited_s"), DURATION),
    **dict.fromkeys(("seq", "size", "units", "ticks"), (0, LARGEST)),
    "epoch": (0, MOST_REPORTS),
}
"""What fields of these names can be, in any message. All arithmetic with times that are so bounded
stays finite.
"""
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""What may become part of a path."""


class ProtocolError(Exception):
    """A line that is no message of this protocol; the text says why."""


# ---------------------------------------------------------------- daemon -> agent


@record
class Hello:
    """First line of a connection. `seen`: number of the last committed fact, 0 for none."""

    kind: ClassVar[str] = "hello"
    version: int
    run: str
    seen: int


@record
class Job:
    """What all trials of the run have in common on this instance.

    source       folder with the user's source on this instance, relative to the agent's own if it
                 is not absolute; trials run there
    script, args, launcher, python, env, setup as in the spec's `[train]`; `python` is a path or a
                 name on PATH (the training side, `import seerd`, is put first on PYTHONPATH by the
                 agent, out of its own zip)
    store        where checkpoints go: a directory that this instance can write, one folder per
                 trial inside; empty: where `Grant`s say
    allocations  every number of GPUs that a trial of this run may get
    threads      CPU threads that each rank may use; 0: this machine's cores shared among its GPUs
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


@record
class Expected:
    """What a healthy instance of its kind has: GPUs that `nvidia-smi` lists, free bytes where the
    agent's folder is, and, if `torch`, a torch that can use the GPUs.
    """

    gpus: int
    free_bytes: int
    torch: bool


@record
class Prepare:
    """Make this instance ready for the job: look whether it is healthy (if `expected` says what
    that is), fetch the data that was granted, run the setup commands, once. Outcome: `Prepared` or
    `Refused`.
    """

    kind: ClassVar[str] = "prepare"
    id: str
    job: Job
    expected: Optional[Expected] = None


@record
class Node:
    """One node's part in an attempt on several whole instances.

    rank, count  of this node; rank 0 is the one that reports and saves
    address      this node's private address; `endpoint`: "address:port" of node 0, where the nodes
                 meet (torchrun's c10d rendezvous)
    gpus         how many GPUs the attempt has on all nodes together
    """

    rank: int
    count: int
    address: str
    endpoint: str
    gpus: int


@record
class Start:
    """Start an attempt of a trial on these GPUs (CUDA device indices, or CPU slots).

    checkpoints  names in the store that it may restore, newest first; empty: from scratch
    node         this instance's part, if the attempt spans several; each node is told its own
    Outcome: `Started`, later `Exited`; or `Refused`.
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
    """End an attempt. With `checkpoint`: asked to save and exit, killed after `grace_s` seconds;
    without: killed at once. Outcome: `Exited`.
    """

    kind: ClassVar[str] = "stop"
    id: str
    trial: str
    attempt: int
    checkpoint: bool
    grace_s: float


@record
class Renew:
    """The lease now ends `for_s` seconds after this line arrives. When it ends, the agent lets
    every trial save and exit (at most `grace_s`), stores what they have saved (at most `last_s`
    more), and then ends itself.
    """

    kind: ClassVar[str] = "renew"
    for_s: float
    grace_s: float
    last_s: float = 120.0


@record
class Slot:
    """Presigned URLs of one checkpoint in the store, of its bytes and of its manifest: to PUT them,
    or to GET them.
    """

    name: str
    data_url: str
    manifest_url: str


@record
class Grant:
    """Where this attempt may put its next checkpoints (`puts`, in this order, each once), and where
    to get those that it may restore (`gets`). The newest grant of an attempt replaces the one
    before.
    """

    kind: ClassVar[str] = "grant"
    trial: str
    attempt: int
    puts: List[Slot]
    gets: List[Slot]


@record
class Parts:
    """Answer to `Ask`: where the parts of the bytes of the checkpoint `name` go, each `part_size`
    bytes but the last (PUT), and where that is completed (POST, with the list of parts) or given up
    (DELETE). Empty `urls`: it cannot be had; put it in one piece.
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
    """One object of the job's data: its presigned URL, its size, and the path below the trials'
    working folder where it goes.
    """

    url: str
    to: str
    size: int


@record
class Downloads:
    """Data that the next `Prepare` fetches, added to what was said before on this connection;
    `first` begins anew.
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
    """Kill what still runs, end the agent. The connection closes when that is done."""

    kind: ClassVar[str] = "shutdown"
    id: str


# ---------------------------------------------------------------- agent -> daemon


@record
class Welcome:
    """Answer to `Hello`. `last`: number of the newest fact; `now`: the agent's wall clock, seconds
    since 1970; `attempts`: what runs, as "trial/attempt"; `boot`: changes when the machine boots
    (Linux: its boot id; empty if it has none).
    """

    kind: ClassVar[str] = "welcome"
    version: int
    agent: str
    gpus: int
    last: int
    now: float
    attempts: List[str]
    boot: str


@record
class Ask:
    """A checkpoint of `size` bytes is to be put in parts under `name`, one of the granted. No fact:
    it is asked again on a new connection.
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
    """The order `id` cannot be carried out; `why` is for people. `unhealthy`: this machine's fault,
    another one might do.

    With `seq` 0 and no `id` it answers a `Hello` that is not for this agent, is no fact, and the
    connection closes.
    """

    kind: ClassVar[str] = "refused"
    seq: int
    at: float
    id: str
    why: str
    unhealthy: bool = False


@record
class Started:
    """The processes of an attempt exist. `pid`: the launcher's."""

    kind: ClassVar[str] = "started"
    seq: int
    at: float
    id: str
    trial: str
    attempt: int
    pid: int


@record
class Training:
    """The trial's first `running()`: restored at `epoch` reports (0: from scratch)."""

    kind: ClassVar[str] = "training"
    seq: int
    at: float
    trial: str
    attempt: int
    epoch: int


@record
class Reported:
    """One `report()`. A metric that was NaN or infinite is None. `unit_s`: seconds of the longest
    recent unit of work between two `running()` calls: how long a stop may take to be noticed.
    """

    kind: ClassVar[str] = "reported"
    seq: int
    at: float
    trial: str
    attempt: int
    epoch: int
    metrics: Dict[str, Optional[float]]
    unit_s: float


@record
class Checkpointed:
    """A checkpoint is in the store, whole. `epoch` reports had been made, the last of them with
    `metrics`; `save_s`: seconds it took.
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


@record
class Exited:
    """No process of the attempt is left, its GPUs are free.

    cause  "asked": by a `Stop`; "lease": the lease ended; "lost": the agent itself had died and
           cleaned up on its return; "finished": by itself with exit status 0; "crashed": anything
           else
    code   exit status of the launcher, negative for a signal; None if unknown
    tail   last lines of the guilty rank's log, when it crashed; `rank` is that rank, None if
           unknown
    silent since when that rank has written nothing (wall clock), None if unknown: of several nodes,
           the first to fall silent is the guilty one
    signal what killed that rank, None if no signal did or it is unknown
    waited_s  it was ended because that rank hung: for so many seconds the others had waited for it,
              and it had done nothing; None if it was not
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


@record
class Stalled:
    """Of an attempt on several instances: nothing moves here. `hung`: some ranks have come to
    `units` and `ticks` and do nothing; otherwise all wait there for ranks elsewhere. `over`: they
    move again.
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
    """Which share of the last `over_s` seconds each of these ranks of an attempt has waited for
    others. Told now and then, where it is large.
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
    """This instance must be left: `what` is "interruption" (the cloud takes it away at `by`, wall
    clock, None if it does not say), "rebalance" (it probably will), or "unhealthy" (it cannot be
    used any more, and `why`).
    """

    kind: ClassVar[str] = "noticed"
    seq: int
    at: float
    what: str
    by: Optional[float]
    why: str = ""


Order = Union[Hello, Prepare, Start, Stop, Renew, Grant, Parts, Downloads, Ack, Shutdown]
Fact = Union[
    Prepared, Refused, Started, Training, Reported, Checkpointed, Exited, Stalled, Waited, Noticed
]
Message = Union[Order, Welcome, Ask, Fact]

ORDERS = (Hello, Prepare, Start, Stop, Renew, Grant, Parts, Downloads, Ack, Shutdown)
FACTS = (
    Prepared,
    Refused,
    Started,
    Training,
    Reported,
    Checkpointed,
    Exited,
    Stalled,
    Waited,
    Noticed,
)
