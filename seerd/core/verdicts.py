"""What was decided beside commands: each changes the state, and nobody has to be told. Recorded
with the event that they follow from.

The one rule: a verdict says everything that `record` needs to write it down. Whoever reads a run
applies it, and knows no rule.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from seerd.core.commands import Status
from seerd.core.plans import Put

FailCause = Literal["crashes", "losses", "silent"]
"""crashes: it has ended by its own fault too often; losses: by its machines' too often; silent: its
script has ended without a report.
"""

CloseCause = Literal[
    "plan",
    "last-stage",
    "deadline",
    "budget",
    "person",
    "no-instance",
    "no-trial",
    "policy",
    "unknown",
]
"""plan: the policy wants nothing more; last-stage: the plan was in its last one when the deadline
came near, or was carried out when the budget ended; deadline, budget: that limit came near before;
person: asked for it; no-instance: none could be had; no-trial: none is left, and none has reported;
policy: it gave no plan that could be used, again and again; unknown: format 1 does not say.
"""

HoldCause = Literal["budget", "late", "most"]
"""budget: it could not be paid; late: it would not be ready early enough before the end; most: no
more may be there at one moment.
"""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Something that was decided."""


# ------------------------------------------------------------ the plan


class Adopted(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="adopted"):
    """The answer to this question is the plan from now on, but for `dropped`: trials that had ended
    since it was asked.
    """

    question: str
    dropped: tuple[str, ...] = ()


class Declined(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="declined"):
    """The question has no usable answer, for the `failures`-th time in a row: the last plan stands,
    and it is asked again at `again_s`.
    """

    question: str
    why: str
    failures: int
    again_s: float


# ------------------------------------------------------------ trials


class Failed(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """A trial has failed for good; `detail` for people, empty: what its last end said."""

    trial: str
    why: FailCause
    detail: str = ""


class Kept(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="kept"):
    """Only so many of a trial's newest checkpoints are needed any more."""

    trial: str
    newest: int


class Slow(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="slow"):
    """A rank of the trial's present attempt keeps the others waiting; `detail` for people."""

    trial: str
    rank: int
    detail: str


# ------------------------------------------------------------ instances and money


class Gone(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="gone"):
    """An instance that a resumed run did not find; it stopped costing at `at_s` (seconds since the
    run began).
    """

    instance: str
    at_s: float


class Since(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="since"):
    """The open charge for `what` counts from `at_s` on."""

    what: str
    at_s: float


class Again(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="again"):
    """Launches have been refused `refusals` times in a row, the last ones together as `batch`; they
    are asked for again at `at_s`, None: asking again cannot help.
    """

    refusals: int
    batch: int
    at_s: float | None = None


class HeldBack(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="held-back"):
    """Instances, or GPUs for a `trial` that waits, are wanted and not asked for now; told when it
    begins to be so. No `why`: not any more.
    """

    why: HoldCause | None = None
    trial: str | None = None
    needed: int = 0
    had: int = 0


class Promised(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="promised"):
    """How long agents may go on without the daemon from now on.

    lease_s  since it was last heard of, if no limit comes before
    limit_s  when everything must be asked to stop, None if nothing limits it (seconds since the run
             began)
    grace_s  and `end_s`: from then until trials have saved, and until nothing costs any more
    """

    lease_s: float
    grace_s: float
    end_s: float
    limit_s: float | None = None


# ------------------------------------------------------------ the run


class Closing(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="closing"):
    """The run ends: every trial saves and exits, nothing new is started. No attempt may be left at
    `by_s`.

    close_at_s      when everything must be asked to stop for the deadline; `exhausted_at_s`: the
                    same for the budget, None if nothing costs
    release_s       how long giving everything back takes, at most
    detail          for people
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


# ------------------------------------------------------------ what only journals of format 1 need


class Eliminated(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="eliminated"):
    """A trial was out from here on."""

    trial: str


class Assumed(Verdict, frozen=True, kw_only=True, omit_defaults=True, tag="assumed"):
    """The plan was not recorded: whoever ran is taken to be wanted."""

    put: tuple[Put, ...]


AnyVerdict = (
    Adopted
    | Declined
    | Failed
    | Kept
    | Slow
    | Gone
    | Since
    | Again
    | HeldBack
    | Promised
    | Closing
    | Releasing
    | Eliminated
    | Assumed
)
