"""Decisions that only change the state. A verdict holds everything that `enact` needs, so recorded
runs are read without any rule.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from seerd.core.commands import Status
from seerd.core.events import Obstacle, SetbackCause

FailCause = Literal[
    "crashes",  # its attempts have ended by their own fault too often
    "losses",  # its attempts have ended by a machine's fault too often
    "silent",  # its script has ended without a report
]
"""Why a trial has failed for good."""

CloseCause = Literal[
    "plan",  # the policy wants nothing more
    "last-stage",  # the deadline came near in the last stage, or the budget after the whole plan
    "target",  # a confirmed checkpoint is as good as the target
    "deadline",  # that limit came near before
    "budget",  # that limit came near before
    "late",  # nothing runs, and it is too late to start anything
    "person",  # the user asked for it
    "no-instance",  # no instance could be had
    "no-trial",  # the policy wants nothing more, and no trial has reported
    "alike",  # every trial fails in the same way
    "policy",  # the policy gave no usable plan, several times in a row
    "store",  # no checkpoint could be stored for too long
]
"""Why a run ends."""

DenyCause = Literal[
    "ending",  # the run is closing, or over
    "lower",  # a limit would be lower than it is
    "same",  # no limit would be higher than it is
    "space",  # the configuration is not in the search space
    "no-more",  # the policy begins no more trials
    "no-job",  # there is no such job, or it is over, or its name is taken
    "unready",  # the machines could not be made ready for the job
]
"""Why a user's request is denied."""

OverCause = Literal[
    "target",  # one of its confirmed checkpoints is as good as its target
    "person",  # the user asked for it
    "deadline",  # that limit of its own came near
    "budget",  # that limit of its own came near
    "alike",  # every trial of it fails in the same way
]
"""Why one of the jobs that share a run is over."""

WarnCause = Literal[
    "no-report",  # trials have run for a while, and none has reported
    "late",  # a trial has run for a while and not reported, unlike others
    "disk",  # the checkpoints to come may not fit on the disk
    "identical",  # trials of different configurations report the same
    "store",  # checkpoints cannot be stored
]
"""What the user is warned of."""

HoldCause = Literal[
    "budget",  # the budget could not pay for it
    "late",  # it would not be ready early enough before the end
    "most",  # no more are allowed at one moment
    "scout",  # whether instances are of use here is found out with one of them
]
"""Why something that is wanted is not asked for."""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all verdicts."""


class Adopted(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="adopted"):
    """The answer of the policy is the plan from now on."""

    question: str  # id of the `AskPolicy`
    dropped: tuple[str, ...] = ()  # trials that have ended since the question; they are left out


class Declined(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="declined"):
    """The answer of the policy cannot be used, so the last plan stands."""

    question: str  # id of the `AskPolicy`
    why: str  # text for display
    failures: int  # how many answers in a row could not be used, with this one
    again_s: float  # when it is asked again, in seconds since the run began


class Failed(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """A trial has failed for good."""

    trial: str
    why: FailCause
    detail: str = ""  # text for display; empty: what its last end said


class Enlarged(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="enlarged"):
    """The GPU memory of a trial's part was too little: it goes on with a larger part, once, and the
    failure says nothing of its configuration.
    """

    trial: str
    gpus: int  # slots that it gets at least from now on


class Blocked(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="blocked"):
    """An obstacle ended an attempt: until it is gone, fewer trials of its job train at once."""

    trial: str
    why: Obstacle  # what was in the way
    most: int  # how many attempts of the job may go on side by side, until one more is tried
    times: int  # how many times in a row one more was tried in vain, from 1
    again_s: float  # when one more is tried, in seconds since the run began
    on: tuple[tuple[str, int], ...] = ()  # unusable (instance, GPU) until then; empty: any may be
    own: bool = False  # True: only in this trial's way; it counts as a crash, others do not wait


class Kept(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="kept"):
    """Of a trial's checkpoints only the newest and the best are needed from now on."""

    trial: str  # trial of the checkpoints
    newest: int  # how many of the newest are needed
    best: str | None = None  # name of an older one that is better than those; None: there is none


class Slow(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="slow"):
    """A rank of a trial's present attempt keeps the others waiting."""

    trial: str
    rank: int  # the rank that the others wait for
    detail: str  # text for display


class Grown(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="grown"):
    """A trial on a part of a GPU has more of that GPU from now on, and trains on without a restart:
    its neighbours have left. It stays one process.
    """

    trial: str
    gpus: tuple[int, ...]  # its slots on its instance, those that it had among them
    had: int = 0  # how many slots it had before; 0: an earlier version has not recorded it


class Warned(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="warned"):
    """A warning to the user; nothing else follows from it."""

    what: WarnCause  # kind of the warning
    detail: str  # text for display


class Gone(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="gone"):
    """A resumed run did not find an instance."""

    instance: str
    at_s: float  # when it stopped costing, in seconds since the run began


class Since(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="since"):
    """The open charge for `what` counts from another time on."""

    what: str  # what is charged
    at_s: float  # since when, in seconds since the run began


class Again(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="again"):
    """When to launch again, after a refusal or after an instance has come."""

    refusals: int  # how many batches of launches in a row were refused, 0 if an instance has come
    batch: int  # number of the newest batch that was refused
    at_s: float | None = None  # when to launch again, in seconds into the run; None: useless
    changed: bool = False  # True: not before an instance has come or gone
    # what makes every instance useless, as it seems: until one is ready, one is asked for at a time
    cause: SetbackCause | None = None


class HeldBack(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="held-back"):
    """Instances, or GPUs for a waiting trial, are wanted and not launched. Recorded when that
    begins, changes its kind, or ends (`why` is None).
    """

    why: HoldCause | None = None  # None: nothing is held back any more
    trial: str | None = None  # trial that waits for GPUs, None if instances are meant
    needed: int = 0  # how many instances the wanted trials need
    had: int = 0  # how many are asked for or ready


class Promised(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="promised"):
    """How long agents may go on without the daemon from now on."""

    lease_s: float  # seconds since its last message, if no limit comes before
    grace_s: float  # seconds from `limit_s` until trials have saved
    end_s: float  # seconds from the end of `grace_s` until nothing costs any more
    limit_s: float | None = None  # when everything must stop, in seconds into the run; None: never


class Retired(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="retired"):
    """An instance is replaced that was rented for earlier limits, or whose maintenance comes before
    the run's end.
    """

    instance: str
    by_s: float  # when it ends, in seconds since the run began


class Granted(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="granted"):
    """The user's request is granted."""

    request: str


class Denied(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="denied"):
    """The user's request is denied, and nothing has changed."""

    request: str
    why: DenyCause  # why it cannot be


class JobOver(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="job-over"):
    """One of the jobs that share the run gets nothing any more; the others go on."""

    job: str
    why: OverCause  # what made it end
    detail: str = ""  # text for display


class Closing(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="closing"):
    """The run ends: every trial saves and exits, and nothing new is started."""

    status: Status  # how the run ends
    why: CloseCause  # what made it end
    by_s: float  # when no attempt may be left, in seconds since the run began
    close_at_s: float = 0.0  # when everything must be asked to stop for the deadline
    exhausted_at_s: float | None = None  # the same for the budget; None if nothing costs
    release_s: float = 0.0  # seconds that giving everything back takes at most
    detail: str = ""  # text for display


class Releasing(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="releasing"):
    """All attempts have ended, or have had their time: everything is given back."""


AnyVerdict = (
    Adopted | Declined | Failed | Enlarged | Blocked | Kept | Slow | Grown | Warned | Gone | Since
    | Again | HeldBack | Promised | Retired | Granted | Denied | JobOver | Closing | Releasing
)  # fmt: skip
