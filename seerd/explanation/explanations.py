"""What happened in a run, each with its reason: an explanation is what was recorded, with the
numbers that a person wants to see beside it.

The one rule: an explanation is data, in the units that its keys name; `seerd replay --json` prints
it as it is. Each kind's keys are in docs/json.md; what a recorded reason means is told where it is
recorded, in `seerd.core.commands` and `seerd.core.verdicts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

Kind = Literal[
    "planned", "declined", "judged", "started", "stopped", "ended", "asked", "held-back",
    "came", "refused", "noticed", "lost", "given-back", "closing", "stop-wanted", "resumed",
    "chosen", "not-usable", "over", "slow", "remark",
]  # fmt: skip
"""What was decided, about the plan (planned, declined, judged), an attempt (started, stopped),
instances (asked, held-back, given-back) and the run (closing, chosen); and what happened.
"""
DECISIONS: tuple[Kind, ...] = (
    *("planned", "declined", "judged", "started", "stopped", "asked", "held-back", "given-back"),
    *("closing", "chosen"),
)

Judgement = Literal["goes-on", "out", "paused", "complete", "finished", "failed"]
"""goes-on: it trains on; out: eliminated; paused: it waits, and may go on later; complete: it has
made all reports of a training; finished: its script had ended by itself, its model counts; failed:
it had crashed too often.
"""
EndCause = Literal["saved", "killed", "finished", "crashed", "refused", "lost", "lease", "silent"]
"""saved: it was asked to, saved and exited; killed: without a checkpoint; finished: its script
ended by itself; crashed; refused: its agent could not start it; lost: its instance or agent was
gone; lease: its agent stopped it, nobody had renewed the lease; silent: without a report.
"""
Then = Literal["waits", "restarts", "finished", "eliminated", "failed"]
"""What the end of an attempt meant for its trial."""


class On(Struct, frozen=True, kw_only=True):
    """Some GPUs of one instance, by index."""

    instance: str
    gpus: tuple[int, ...]


class Sized(Struct, frozen=True, kw_only=True):
    """So many trials on so many GPUs each."""

    trials: int
    gpus_per_trial: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """One thing that happened, or was decided.

    event  the event's number; `at_s`: when it was learned, seconds since the run began
    facts  what else its kind has, by key; also to be had as attributes
    """

    kind: Kind
    event: int
    at_s: float
    facts: dict[str, Any]

    def __getattr__(self, key: str) -> Any:
        """Give one of its facts. Raises `AttributeError`."""
        try:
            return self.facts[key]
        except KeyError:
            raise AttributeError(f"{self.kind} has no {key}") from None

    @property
    def decided(self) -> bool:
        """Tell whether it was decided, and did not only happen."""
        return self.kind in DECISIONS

    def named(self, trial: str) -> bool:
        """Tell whether it happened to a trial; a plan is about all of them."""
        return self.kind != "planned" and self.facts.get("trial") == trial
