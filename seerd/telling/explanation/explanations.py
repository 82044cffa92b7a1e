"""What happened in a run, each with its reason, as data that `seerd replay --json` prints.

The keys of each kind are in docs/json.md; recorded reasons in `seerd.core.commands` and
`seerd.core.verdicts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from msgspec import Struct

Decision = Literal[
    "planned", "declined", "judged", "started", "stopped", "asked", "held-back", "given-back",
    "closing", "chosen", "extended", "added", "denied",
    "retired", "job-over", "job-added", "job-weighed",
]  # fmt: skip
"""What was decided about the plan (planned, declined, judged), an attempt (started, stopped),
instances (asked, held-back, given-back, retired), the run (closing, chosen), what the user asks
for (extended, added, denied) and the jobs that share the run (job-over, job-added, job-weighed).
"""
Kind = Literal[
    Decision, "ended", "came", "refused", "noticed", "shared", "lost", "stop-wanted", "resumed",
    "not-usable", "over", "slow", "warned", "remark",
]  # fmt: skip
"""What was decided, and what happened."""

Judgement = Literal[  # what became of a trial that was compared
    "goes-on",  # it trains on
    "out",  # it is eliminated
    "paused",  # it waits, and may go on later
    "complete",  # it has made all reports of a training
    "finished",  # its script had ended by itself; its model counts
    "failed",  # it had failed for good
]
EndCause = Literal[  # how an attempt ended
    "saved",  # it was asked to save and exit, and did
    "killed",  # it ended without a checkpoint
    "finished",  # its script ended by itself
    "crashed",  # it ended by its own fault
    "blocked",  # it crashed since something was in its way, whatever its configuration
    "refused",  # its agent could not start it
    "lost",  # its instance or agent was gone
    "lease",  # its agent stopped it, since nobody had renewed the lease
    "silent",  # its script ended without a report
]
Then = Literal["waits", "restarts", "finished", "eliminated", "failed"]
"""What the end of an attempt meant for its trial."""


class On(Struct, frozen=True, kw_only=True):
    """Some GPUs of one instance."""

    instance: str
    gpus: tuple[int, ...]  # indices of the GPUs


class JobModel(Struct, frozen=True, kw_only=True):
    """The model of one of the jobs that share a run."""

    job: str
    trial: str  # the trial that has trained it
    metric: float  # metric by which it is the best of its job
    path: str  # where it is


@dataclass(frozen=True, slots=True)
class Explanation:
    """One thing that happened or was decided."""

    kind: Kind  # what it is
    event: int  # number of the event with which it was recorded
    at_s: float  # when the daemon learned of it, in seconds since the run began
    facts: dict[str, Any]  # key -> value, for what else its kind has; also available as attributes

    def __getattr__(self, key: str) -> Any:
        """Return one of its facts. Raises `AttributeError` if it has none of that name."""
        try:
            return self.facts[key]
        except KeyError:
            raise AttributeError(f"{self.kind} has no {key}") from None

    @property
    def decided(self) -> bool:
        """Whether it was decided, and did not only happen."""
        return self.kind in get_args(Decision)
