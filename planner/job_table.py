"""What is remembered of how jobs share a run, and how it is read and written."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import cast

from seerd.planner.memory import Json, Values, integer, items, real, text, texts
from seerd.planner.model import Impossible, Limits, Problem, View
from seerd.planner.serving import Freeze

ALIKE = 0.1  # terms stay as they are if what they allow differs by less than this part
VERSION = 1


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What one job plans with."""

    gpus: int  # the most GPUs at one moment
    start_s: float  # since when, seconds since the run began
    deadline_s: float  # for how long from then on, seconds
    budget_gpu_s: float  # GPU-seconds from then on
    renewals: int = 0  # how often its terms have changed

    def alike(self, other: JobTerms) -> bool:
        """Return whether planning anew with the other terms would change next to nothing."""
        if self.gpus != other.gpus or not self.gpus:
            return self.gpus == other.gpus
        passed_s = other.start_s - self.start_s
        left_s = max(0.0, self.deadline_s - passed_s)
        left_gpu_s = self.budget_gpu_s * left_s / self.deadline_s if left_s else 0.0
        pairs = (left_s, other.deadline_s), (left_gpu_s, other.budget_gpu_s)
        return all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


@dataclass(slots=True)
class ShareTable:
    """How jobs share a run."""

    gpus: int = 0  # how many GPUs were divided
    extended: int = 0  # how often the run's limits had been extended when `spent_gpu_s` was noted
    # GPU-seconds that all jobs had taken when the present limits were planned with
    spent_gpu_s: float = 0.0
    divided_s: float = 0.0  # when shares were divided last, seconds since the run began
    # job -> GPU-seconds that it had taken when jobs or weights were others
    base: dict[str, float] = field(default_factory=dict)
    terms: dict[str, JobTerms] = field(default_factory=dict)  # what each job plans with
    # job -> how many GPUs it can use, where that is less than its share
    caps: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)  # jobs whose policies want nothing more
    # what the shares follow from, apart from what jobs can use
    signature: list[str] = field(default_factory=list)
    freeze: Freeze = field(default_factory=Freeze)  # what tells whether greedy is frozen
    last: str | None = None  # the job that was given a GPU last
    # job -> why its policy could do nothing with what it was to have; it is not kept
    refused: dict[str, Impossible] = field(default_factory=dict)

    def left(self, problem: Problem, view: View) -> Limits | None:
        """Return what is left of what is planned with, since the last extension, or None."""
        if self.extended != problem.extended:
            self.extended, self.spent_gpu_s = problem.extended, sum(view.spent.values())
        planned = problem.planned
        passed_s = max(0.0, view.now_s - problem.start_s)
        deadline_s = planned.deadline_s - passed_s
        budget_gpu_s = planned.budget_gpu_s - (sum(view.spent.values()) - self.spent_gpu_s)
        if deadline_s <= 0 or budget_gpu_s <= 0:
            return None
        return Limits(deadline_s, budget_gpu_s, planned.max_gpus)

    def values(self) -> dict[str, Json]:
        """Return it as a policy's memory has it."""
        return {
            "version": VERSION,
            "gpus": self.gpus,
            "extended": self.extended,
            "spent": self.spent_gpu_s,
            "divided": self.divided_s,
            "base": cast("dict[str, Json]", dict(self.base)),
            "terms": {name: [*astuple(terms)] for name, terms in self.terms.items()},
            "caps": cast("dict[str, Json]", dict(self.caps)),
            "done": [*self.done],
            "signature": [*self.signature],
            "among": [*sorted(self.freeze.candidates)],
            "best": self.freeze.best if self.freeze.best > float("-inf") else None,
            "unchanged": self.freeze.unchanged,
            "last": self.last,
        }


def read_table(values: Values) -> ShareTable:
    """Read what `ShareTable.values` has returned. Raises `ValueError` for anything else."""
    terms, caps, base = values.get("terms"), values.get("caps"), values.get("base")
    best, last = values.get("best"), values.get("last")
    if not isinstance(terms, dict) or not isinstance(caps, dict) or not isinstance(base, dict):
        raise ValueError(terms)
    return ShareTable(
        gpus=integer(values.get("gpus"), 0),
        extended=integer(values.get("extended"), 0),
        spent_gpu_s=real(values.get("spent")),
        divided_s=real(values.get("divided")),
        base={name: real(gpu_s) for name, gpu_s in base.items()},
        terms={name: _read_terms(value) for name, value in terms.items()},
        caps={name: integer(gpus, 0) for name, gpus in caps.items()},
        done=[*texts(values.get("done"))],
        signature=texts(values.get("signature")),
        freeze=Freeze(
            frozenset(texts(values.get("among"))),
            float("-inf") if best is None else real(best),
            integer(values.get("unchanged"), 0),
        ),
        last=None if last is None else text(last),
    )


def _read_terms(value: Json) -> JobTerms:
    gpus, start_s, deadline_s, budget_gpu_s, renewals = items(value, 5)
    return JobTerms(
        integer(gpus, 0), real(start_s), real(deadline_s), real(budget_gpu_s), integer(renewals, 0)
    )
