"""Decisions that are no commands: each changes the state, and nobody has to be told. They are
recorded with the event that they follow from.

The one rule: a verdict holds everything that `enact` needs to apply it. Whoever reads a run applies
its verdicts without knowing any rule.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from seerd.core.commands import Status
from seerd.core.events import Obstacle

FailCause = Literal["crashes", "losses", "silent"]
"""Why a trial has failed for good.

crashes  its attempts have ended by their own fault too often
losses   its attempts have ended by a machine's fault too often
silent   its script has ended without a report
"""

CloseCause = Literal[
    "plan",
    "last-stage",
    "target",
    "deadline",
    "budget",
    "late",
    "person",
    "no-instance",
    "no-trial",
    "alike",
    "policy",
]
"""Why a run ends.

plan              the policy wants nothing more
last-stage        the deadline came near in the last stage of the plan, or the budget after the plan
                  had been carried out
target            a confirmed checkpoint is as good as the target
deadline, budget  that limit came near before
late              nothing runs, and it is too late to start anything
person            the person asked for it
no-instance       no instance could be had
no-trial          the policy wants nothing more, and no trial has reported
alike             every trial fails in the same way
policy            the policy gave no usable plan, several times in a row
"""

DenyCause = Literal["ending", "lower", "same", "space", "no-more", "no-job", "unready"]
"""Why something that the person has asked for cannot be.

ending  the run is closing, or over
lower   a limit would be lower than it is
same    no limit would be higher than it is
space   the configuration is not in the search space
no-more the policy begins no more trials
no-job  there is no such job, or it is over, or there is one already
unready the machines could not be made ready for the job
"""

OverCause = Literal["target", "person", "deadline", "budget", "alike"]
"""Why one of the jobs that share a run is over.

target            a confirmed checkpoint of its is as good as its target
person            the person asked for it
deadline, budget  that limit of its own came near
alike             every trial of it fails in the same way
"""

WarnCause = Literal["no-report", "late", "disk", "identical"]
"""What people are warned of.

no-report  trials have run for a while, and none has reported
late       a trial has run for a while and not reported, as others have
disk       the checkpoints to come may not fit on the disk
identical  trials of different configurations report the same
"""

HoldCause = Literal["budget", "late", "most"]
"""Why something that is wanted is not asked for.

budget  the budget could not pay for it
late    it would not be ready early enough before the end
most    no more may be there at one moment
"""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all verdicts."""


# ------------------------------------------------------------ the plan


class Adopted(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="adopted"):
    """The answer of the policy is the plan from now on.

    question  id of the `AskPolicy`
    dropped   trials that the answer wants but that have ended since; they are left out
    """

    question: str
    dropped: tuple[str, ...] = ()


class Declined(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="declined"):
    """The answer of the policy cannot be used, so the last plan stands.

    question  id of the `AskPolicy`
    why       text for people
    failures  how many answers in a row could not be used, with this one
    again_s   when it is asked again, in seconds since the run began
    """

    question: str
    why: str
    failures: int
    again_s: float


# ------------------------------------------------------------ trials


class Failed(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """A trial has failed for good.

    trial   trial that has failed
    why     why it has
    detail  text for people; empty: what its last end said
    """

    trial: str
    why: FailCause
    detail: str = ""


class Blocked(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="blocked"):
    """Something was in the way of an attempt that has crashed: the trials of its job wait, so that
    fewer of them train side by side.

    trial    trial of the attempt
    why      what was in the way
    most     how many attempts of the job may go on side by side, until one more is tried
    times    how many times in a row one more was tried in vain, from 1
    again_s  when one more is tried, in seconds since the run began
    on       the GPUs, as (instance, GPU), that are not used until then, while others are; empty:
             it may be in the way of an attempt anywhere
    own      True: it is in the way of this trial alone, so the attempt counts as a crash and the
             other trials do not wait
    """

    trial: str
    why: Obstacle
    most: int
    times: int
    again_s: float
    on: tuple[tuple[str, int], ...] = ()
    own: bool = False


class Kept(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="kept"):
    """Of a trial's checkpoints only the newest and the best are needed from now on.

    trial   trial of the checkpoints
    newest  how many of the newest are needed
    best    name of an older one that is better than those; None: there is none
    """

    trial: str
    newest: int
    best: str | None = None


class Slow(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="slow"):
    """A rank of a trial's present attempt keeps the others waiting.

    trial   trial of the attempt
    rank    the rank that the others wait for
    detail  text for people
    """

    trial: str
    rank: int
    detail: str


class Warned(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="warned"):
    """People are told of something that may be wrong. Nothing else follows from it.

    what    kind of the warning
    detail  text for people
    """

    what: WarnCause
    detail: str


# ------------------------------------------------------------ instances and money


class Gone(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="gone"):
    """A resumed run did not find an instance.

    instance  id of the instance
    at_s      when it stopped costing, in seconds since the run began
    """

    instance: str
    at_s: float


class Since(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="since"):
    """The open charge for `what` counts from another time on.

    what  what is charged
    at_s  since when, in seconds since the run began
    """

    what: str
    at_s: float


class Again(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="again"):
    """Launches have been refused, or an instance has come: when to ask for instances again.

    refusals  how many batches of launches in a row were refused, 0 if an instance has come
    batch     number of the newest batch that was refused
    at_s      when to ask again, in seconds since the run began; None: asking again cannot help
    changed   True: not before an instance has come or gone
    """

    refusals: int
    batch: int
    at_s: float | None = None
    changed: bool = False


class HeldBack(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="held-back"):
    """Instances, or GPUs for a waiting trial, are wanted and not asked for now.

    It is recorded when that begins, when its kind changes, and when it ends (`why` is None).

    why     what keeps them from being asked for; None: nothing is held back any more
    trial   trial that waits for GPUs, None if instances are meant
    needed  how many instances the wanted trials need
    had     how many are asked for or ready
    """

    why: HoldCause | None = None
    trial: str | None = None
    needed: int = 0
    had: int = 0


class Promised(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="promised"):
    """How long agents may go on without the daemon from now on.

    lease_s  seconds since they last heard from it, if no limit comes before
    limit_s  when everything must be asked to stop, in seconds since the run began; None if nothing
             limits it
    grace_s  seconds from then until trials have saved
    end_s    seconds from the end of `grace_s` until nothing costs any more
    """

    lease_s: float
    grace_s: float
    end_s: float
    limit_s: float | None = None


class Retired(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="retired"):
    """An instance will end itself before the run does, since it was rented for earlier limits: it
    is not used any more, and another is wanted in its place.

    instance  id of the instance
    by_s      when it ends itself, in seconds since the run began
    """

    instance: str
    by_s: float


# ------------------------------------------------------------ what the person asks for


class Granted(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="granted"):
    """What the person has asked for is so from now on.

    request  id of the request
    """

    request: str


class Denied(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="denied"):
    """What the person has asked for cannot be, and nothing has changed.

    request  id of the request
    why      why it cannot be
    """

    request: str
    why: DenyCause


# ------------------------------------------------------------ the run


class JobOver(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="job-over"):
    """One of the jobs that share the run gets nothing any more; the others go on.

    job     id of the job
    why     what made it end
    detail  text for people
    """

    job: str
    why: OverCause
    detail: str = ""


class Closing(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="closing"):
    """The run ends: every trial saves and exits, and nothing new is started.

    status          how the run ends
    why             what made it end
    by_s            when no attempt may be left, in seconds since the run began
    close_at_s      when everything must be asked to stop for the deadline, in seconds since the run
                    began
    exhausted_at_s  the same for the budget; None if nothing costs
    release_s       seconds that giving everything back takes at most
    detail          text for people
    """

    status: Status
    why: CloseCause
    by_s: float
    close_at_s: float = 0.0
    exhausted_at_s: float | None = None
    release_s: float = 0.0
    detail: str = ""


class Releasing(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="releasing"):
    """All attempts have ended, or have had their time: everything is given back."""


AnyVerdict = (
    Adopted
    | Declined
    | Failed
    | Blocked
    | Kept
    | Slow
    | Warned
    | Gone
    | Since
    | Again
    | HeldBack
    | Promised
    | Retired
    | Granted
    | Denied
    | JobOver
    | Closing
    | Releasing
)
