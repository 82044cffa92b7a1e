"""Transcripts of runs to which anything happens: what was decided of each event, in short, and
digits that stand for every word of it and for all that can be asked of the run then.

`pytest tests/core --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.testbed.invariants import violations
from seerd.core import failures, jobs, limits, metrics, provisioning, settle
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.ledger import Ledger
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State, new_state
from seerd.core.step import follow
from seerd.telling import diagnosis
from seerd.telling.complaints import complaints_of, notes_of
from seerd.telling.outcomes import fate, outcomes, without_gpu
from tests.core.eventful import Eventful
from tests.digests import digest
from tests.recorded import differing

FOLDER = Path(__file__).parent / "transcripts"
SEEDS = (
    *(9, 11, 39, 46, 48, 52, 55, 56, 63, 65, 71, 75, 77, 82, 95, 96, 106, 107, 121, 124, 128, 132),
    *(137, 158, 1006, 1011, 1014, 1016, 1017, 1025, 1027, 1047, 1057, 1065, 1066, 1081, 1086, 1094),
    *(2000, 2001, 2002, 2003, 2004, 2005),
    *(3006, 3009, 3015),
    *(4600, 4630, 4749),
    *(5057, 5087, 5207),
)
"""Together they reach nearly every branch that any of hundreds reaches."""
EVENTS = 120
NOT_KEPT = "the_budget_is_kept"
"""What no core can see to: daemons come back here long after everything should have ended."""


def holding(state: State, job: str) -> bool:
    return failures.running(state, job) > 0


def waits_for(state: State) -> str | None:
    return complaints_of(state)["waits"] if without_gpu(state) else None


OF_A_RUN = (
    *(limits.grace_s, limits.terminate_s, limits.end_s, limits.publish_s, limits.shortest_s),
    *(limits.release_s, limits.close_at, limits.exhausted_at, limits.budget_gpu_s),
    *(limits.quiet_by, limits.grace_left_s, limits.time_left, limits.alone_until),
    *(limits.orphan_timeout_s, limits.own_limit_at, limits.least_s),
    *(limits.limit_at, limits.training_ends_at, limits.gone_by, limits.wake_at, limits.retiring),
    *(failures.hopeless_jobs, jobs.open_jobs, jobs.to_publish, metrics.names_of),
    *(provisioning.launches, provisioning.affordable_one, provisioning.held_back),
    *(provisioning.refused, metrics.incumbent, metrics.chosen, waits_for),
    *(diagnosis.diagnose, diagnosis.complaints, outcomes),
)
"""What can be asked of a run at any moment."""
AT_A_MOMENT = (
    *(limits.lease_s, limits.lease_grace_s, limits.off_in_s, limits.spare_s, limits.last_s),
)
OF_GPUS = limits.affordable, limits.affordable_launch
OF_A_JOB = (
    *(limits.job_grace_left_s, jobs.target_reached, holding, failures.alike),
    *(failures.running, failures.always_blocked, metrics.incumbent, metrics.best_report),
)
OF_A_TRIAL = (
    *(fate, diagnosis.hint_of, metrics.best_checkpoint, metrics.best_saved),
    *(metrics.best_value, metrics.violations_of, failures.has_to_wait, failures.again_is_useless),
)
WARNINGS = failures.still_quiet, settle.identical_warning, settle.disk_warning


def answers(state: State) -> Iterator[object]:
    """Yield what all of these say now."""
    yield from (ask(state) for ask in OF_A_RUN)
    yield from (ask(state, state.now + more_s) for ask in AT_A_MOMENT for more_s in (0.0, 3.0))
    yield from (ask(state, gpus) for ask in OF_GPUS for gpus in (1, 4, 40))
    for job in state.jobs:
        yield from (ask(state, job) for ask in OF_A_JOB)
        yield from (limits.affordable_for_job(state, job, gpus) for gpus in (1, 40))
    for trial in state.trials.values():
        yield from (ask(state, trial) for ask in OF_A_TRIAL)
        yield from (warn(state, trial.id) for warn in WARNINGS)
        yield metrics.last_value(state, trial, "latency")
    yield from as_if_over(state)


def as_if_over(state: State) -> Iterator[object]:
    """Yield what would be said of the run if it were over now."""
    phase, state.end.phase = state.end.phase, RunPhase.OVER
    yield diagnosis.diagnose(state)
    yield diagnosis.complaints(state)
    yield outcomes(state)
    yield diagnosis.failure_groups(state)
    state.end.phase = phase


def costs(ledger: Ledger, now: float) -> Iterator[object]:
    """Yield what a ledger says of now and of later."""
    for later_s in (0.0, 10.0, 70.0):
        spent = ledger.spent_gpu_s(now + later_s)
        yield spent
        yield ledger.usd(spent)
        for budget in (spent - 1.0, spent, spent + 50.0):
            yield ledger.within(budget, now + later_s)
            yield ledger.exhausted_at(budget, 2.0)


def line(event: AnyEvent, decided: list[AnyDecision], state: State) -> str:
    """Write what happened, what was decided, and digits for all of it."""
    about = [getattr(event, name, None) for name in ("trial", "instance", "cause", "what")]
    said = " ".join([type(event).__name__, *(str(one) for one in about if one)])
    then = " ".join(type(one).__name__ for one in decided) or "nothing"
    asked = digest(answers(state), costs(state.ledger, state.now), notes_of(state))
    return f"{event.at:7.2f} {said} -> {then} {digest(decided)}; {asked}"


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_is_decided_as_its_transcript_says(
    seed: int, pytestconfig: pytest.Config
) -> None:
    run, lines, read = Eventful(seed), [], new_state(Eventful(seed).state.facts, None)  # type: ignore[arg-type]
    for event, decided in run.play(EVENTS):
        broken = [what for what in violations(run.state) if not what.startswith(NOT_KEPT)]
        assert broken == []
        lines.append(line(event, decided, run.state))
        follow(read, event, decided)
    assert differing(read, run.state) == []
    path = FOLDER / f"eventful_{seed}.txt"
    shown = "\n".join(lines) + "\n"
    if pytestconfig.getoption("rewrite"):
        path.write_text(shown)
    assert path.read_text() == shown
