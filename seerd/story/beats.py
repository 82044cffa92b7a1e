"""What happened in a run, each with its reason as a typed value.

The one rule: a beat is data, in the units that its keys name; `seerd replay --json` prints it as it
is, `words` says it in a sentence. Why anything was decided is what the journal says of it; what
each cause means is in `seerd.core.commands` and `seerd.core.verdicts`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from msgspec import Struct

from seerd.core.commands import (
    AskCause,
    LaunchCause,
    PublishCause,
    StartCause,
    Status,
    StopCause,
    TerminateCause,
)
from seerd.core.events import Notice
from seerd.core.state import State
from seerd.core.verdicts import CloseCause, HoldCause


class On(Struct, frozen=True, kw_only=True):
    """Some GPUs of one instance, by index."""

    instance: str
    gpus: tuple[int, ...]


class Sized(Struct, frozen=True, kw_only=True):
    """So many trials on so many GPUs each."""

    trials: int
    gpus_per_trial: int


class Beat(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`event`: the event's number; `at_s`: when it was learned, seconds since the run began."""

    event: int
    at_s: float


class Decision(Beat, frozen=True, kw_only=True):
    """Something that was decided, not something that happened."""


SomeBeat = TypeVar("SomeBeat", bound=Beat)


def tell(kind: type[SomeBeat], state: State, source: object = None, **more: Any) -> SomeBeat:
    """A beat of now, with what the source has under the same names, and with more."""
    names = [name for name in kind.__struct_fields__ if hasattr(source, name)]
    shared = {name: getattr(source, name) for name in names}
    return kind(**{**shared, **more, "event": state.clock.seq, "at_s": state.now})


# ------------------------------------------------------------ what the policy wanted


class Planned(Decision, frozen=True, kw_only=True, tag="planned"):
    """An answer of the policy became the plan.

    because   why it had been asked; `trial`: whose report or end that was, if it was one's
    stage     from 1; `new`: so many new trials
    dropped   trials that the answer wanted, and that had ended since the question
    note      what the policy says of it; empty if nothing
    """

    because: AskCause
    trial: str | None
    stage: int
    groups: tuple[Sized, ...]
    new: int
    dropped: tuple[str, ...]
    note: str


class Declined(Decision, frozen=True, kw_only=True, tag="declined"):
    """The policy gave no plan that could be used, for the `failures`-th time in a row.

    detail    why, in words
    again_s   when it may be asked again
    stands    there was a plan before, and it stands
    """

    detail: str
    failures: int
    again_s: float
    stands: bool


Verdict = Literal["goes-on", "out", "paused", "complete", "finished", "failed"]
"""goes-on: it trains on; out: eliminated; paused: it waits, and may go on later; complete: it has
made all reports of a training; finished: its script had ended by itself, its model counts; failed:
it had crashed too often.
"""


class Judged(Decision, frozen=True, kw_only=True, tag="judged"):
    """A trial was compared with others: it was number `place` of `of`, and the `best` first ones
    may go on.

    metric, reports   what it was judged by: the metric after so many reports; None if that was not
                      finite, or if there was none
    gpus_before, gpus how many GPUs were wanted for it before and from then on
    place             None where the policy says only that it is out
    cut, cut_metric   the last of the `best` ones, None where that is not known
    bracket           from 1; trials of different brackets are not compared
    """

    trial: str
    verdict: Verdict
    metric: float | None
    reports: int
    place: int | None
    of: int
    best: int
    cut: str | None
    cut_metric: float | None
    bracket: int
    gpus_before: int
    gpus: int


# ------------------------------------------------------------ attempts of trials


class Started(Decision, frozen=True, kw_only=True, tag="started"):
    """An attempt was ordered. `checkpoint`, `after_reports`: what it goes on from; None and 0 for
    the first line of training.
    """

    trial: str
    attempt: int
    why: StartCause
    on: tuple[On, ...]
    checkpoint: str | None
    after_reports: int


class Stopped(Decision, frozen=True, kw_only=True, tag="stopped"):
    """An attempt was asked to save and exit within `grace_s`, or was killed (not `saves`).
    `others`: trials that get its GPUs.
    """

    trial: str
    attempt: int
    why: StopCause
    saves: bool
    grace_s: float
    gpus_before: int
    gpus: int
    until: int | None
    others: tuple[str, ...]


EndCause = Literal["saved", "killed", "finished", "crashed", "refused", "lost", "lease", "silent"]
"""saved: it was asked to, saved and exited; killed: without a checkpoint; finished: its script
ended by itself; crashed; refused: its agent could not start it; lost: its instance or agent was
gone; lease: its agent stopped it, nobody had renewed the lease; silent: without a report.
"""
Then = Literal["waits", "restarts", "finished", "eliminated", "failed"]


class Ended(Beat, frozen=True, kw_only=True, tag="ended"):
    """An attempt has ended, and what that meant for its trial.

    detail        in words, of a crash, a refusal or a loss; empty if there is nothing to say
    failures      how often the trial has ended by its own fault; `most_failures`: more than so
                  many, and it has failed; `losses` the same for ends that were the machine's fault
    reports       how many it had made; `kept`: of them in its newest checkpoint, None without one
    """

    trial: str
    attempt: int
    how: EndCause
    then: Then
    detail: str
    failures: int
    most_failures: int
    losses: int
    reports: int
    kept: int | None


# ------------------------------------------------------------ instances


class Asked(Decision, frozen=True, kw_only=True, tag="asked"):
    """Instances were asked for: the trials that are wanted (`wanted`) need `needed` of them (None:
    the plan is not known), and there were `had`.
    """

    why: LaunchCause
    instances: tuple[str, ...]
    gpus_each: int
    wanted: tuple[Sized, ...]
    needed: int | None
    had: int


class HeldBack(Decision, frozen=True, kw_only=True, tag="held-back"):
    """Instances, or GPUs for a waiting trial (`trials`), are from now on not asked for."""

    why: HoldCause
    needed: int
    had: int
    trials: tuple[str, ...]


class Came(Beat, frozen=True, kw_only=True, tag="came"):
    """An instance takes orders. `asked`: its launch; `after_s`: since it was asked for."""

    instance: str
    asked: str
    gpus: int
    after_s: float


class Refused(Beat, frozen=True, kw_only=True, tag="refused"):
    """There is no instance. `again_s`: when it will be asked for again, None: not for this reason."""

    instance: str
    detail: str
    again_s: float | None


class Noticed(Beat, frozen=True, kw_only=True, tag="noticed"):
    """The cloud will take an instance away, at `by_s` (None: it does not say when), or it must not
    be used any more (`notice`), and `detail`. `sure`: the cloud has said so, it is not only likely.
    """

    instance: str
    notice: Notice
    detail: str
    sure: bool
    by_s: float | None
    trials: tuple[str, ...]


class Lost(Beat, frozen=True, kw_only=True, tag="lost"):
    """An instance is gone, and was not given back: since `ended_s`, with what ran there."""

    instance: str
    detail: str
    ended_s: float
    trials: tuple[str, ...]


class GivenBack(Decision, frozen=True, kw_only=True, tag="given-back"):
    """Instances were given back: `needed` were needed from then on (None: the plan is not known),
    and `had` had been there.
    """

    why: TerminateCause
    instances: tuple[str, ...]
    needed: int | None
    had: int


# ------------------------------------------------------------ the run


class Closing(Decision, frozen=True, kw_only=True, tag="closing"):
    """The run is being ended.

    close_at_s      when everything must be asked to stop for the deadline; `exhausted_at_s`: the
                    same for the budget, None if nothing costs
    release_s       how long giving everything back takes, at most
    spent_gpu_min   and `committed_gpu_min`: what will have been billed by then
    """

    status: Status
    why: CloseCause
    detail: str
    close_at_s: float
    exhausted_at_s: float | None
    release_s: float
    spent_gpu_min: float
    committed_gpu_min: float
    budget_gpu_min: float


class StopWanted(Beat, frozen=True, kw_only=True, tag="stop-wanted"):
    """The person asked for the end: in order, or at once (`hard`)."""

    hard: bool


class Resumed(Beat, frozen=True, kw_only=True, tag="resumed"):
    """A new daemon took the run up. `alive`: instances it found; `gone`: those that were not there
    any more; `silent_s`: how long nothing had been written, by the run's clock; `reopened`: the run
    had been interrupted, and goes on.
    """

    alive: tuple[str, ...]
    gone: tuple[str, ...]
    silent_s: float
    reopened: bool


class Chosen(Decision, frozen=True, kw_only=True, tag="chosen"):
    """The model to hand back was chosen: the best confirmed checkpoint.

    why            "next": the one before could not be read
    among          trials that had one with a finite metric; `runner_up`: the best of another trial
    better_unsaved the best report of any trial that was better, and is in no checkpoint any more
    """

    why: PublishCause
    trial: str
    metric: float
    reports: int
    checkpoint: str
    among: int
    runner_up: str | None
    runner_up_metric: float | None
    better_unsaved: str | None
    better_unsaved_metric: float | None


class NotUsable(Beat, frozen=True, kw_only=True, tag="not-usable"):
    """The chosen checkpoint could not be fetched. `damaged`: it never can be."""

    trial: str
    detail: str
    damaged: bool


class Over(Beat, frozen=True, kw_only=True, tag="over"):
    """The run is over. `path`: where its model lies, None without one."""

    status: Status
    trial: str | None
    metric: float | None
    path: str | None


class Slow(Beat, frozen=True, kw_only=True, tag="slow"):
    """A rank of a trial keeps the others waiting; `detail` in words."""

    trial: str
    rank: int
    detail: str


class Remark(Beat, frozen=True, kw_only=True, tag="remark"):
    """Something that took its time, in words."""

    text: str


AnyBeat = (
    Planned
    | Declined
    | Judged
    | Started
    | Stopped
    | Ended
    | Asked
    | HeldBack
    | Came
    | Refused
    | Noticed
    | Lost
    | GivenBack
    | Closing
    | StopWanted
    | Resumed
    | Chosen
    | NotUsable
    | Over
    | Slow
    | Remark
)
