"""`seerd profile`: an ordinary run, whose policy and result are of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from seerd.backends.base import Quote
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import State, Trial
from seerd.errors import NothingMeasuredError
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.model import ClusterFacts
from seerd.planning.measured import measured
from seerd.planning.profiles import Target, keep, kept_of, target_of
from seerd.shell.home import RunFolder
from seerd.shell.journal import Journal
from seerd.spec.spec import Spec
from seerd.telling.complaints import notes_of
from seerd.telling.explanation.sentences import ENDINGS
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.run_json import status_of
from seerd.telling.summary import failure_lines
from seerd.units import format_duration

SUFFIX = "-profile"
LONGEST_NAME = 64


def profiling_spec(spec: Spec, cluster: ClusterFacts, *, budget_given: bool) -> Spec:
    """Return the spec of the run that measures. On machines that are not rented, if no budget was
    given, it has one that lasts until the deadline.
    """
    limits = spec.limits
    if not budget_given and not cluster.per_instance:
        budget_gpu_s = (limits.deadline_s or 0.0) * (cluster.most_gpus(None) or 0)
        limits = replace(limits, budget_gpu_s=budget_gpu_s)
    name = spec.name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
    return replace(spec, name=name, policy=replace(spec.policy, name="profile"), limits=limits)


def aim(folder: RunFolder, spec: Spec, quote: Quote) -> None:
    """Write into the run's folder what it measures."""
    folder.target.write_bytes(msgspec.json.encode(target_of(spec, quote.machine_types[0])))


def finish(folder: RunFolder, state: State) -> Json:
    """Keep the profile that the run has measured, and return the object of `profile --json`. Raises
    `NothingMeasuredError` if no trial has reported.
    """
    target = msgspec.json.decode(folder.target.read_bytes(), type=Target)
    with Journal.open(folder.journal, read_only=True) as journal:
        entries = ((entry.event, entry.decided) for entry in journal.entries())
        times = measured(entries, state.facts.parts)
        ended = datetime.fromtimestamp(journal.origin + state.now, UTC)
    if not times.report_s:
        failures = [line for trial in _failed(state) for line in failure_lines(state, [trial])]
        why = [*failures, *(printable(note) for note in dict.fromkeys(notes_of(state)))]
        within = format_duration(state.facts.problem.limits.deadline_s)
        default = (
            f"nothing was measured: there was no report within {within}; give more time with "
            f"--deadline, or look at: seerd logs {state.facts.run}"
        )
        raise NothingMeasuredError("\n".join(["nothing was measured:", *why]) if why else default)
    notes = tuple(_missing(state, set(times.report_s)))
    kept = kept_of(target, times, folder.run, ended.isoformat(timespec="seconds"), notes)
    return {
        "status": status_of(state, alive=False),
        "elapsed_s": round(state.now, 3),
        "gpu_min": round(state.ledger.spent_gpu_s(state.now) / 60, 4),
        "kept": str(keep(folder.path.parent, kept)),
        **msgspec.to_builtins(kept),
    }


def _missing(state: State, seen: set[float]) -> Iterator[str]:
    """Yield which numbers of GPUs were planned and not measured, and why."""
    planned = [state.facts.gpus(bracket.gpus_per_trial) for bracket in state.outline.brackets]
    missing = [gpus for gpus in planned if gpus not in seen]
    if not missing:
        return
    what = f"not measured: {' and '.join(map(gpus_number, missing))} GPUs"
    if failed := _failed(state):
        trial, logs = failed[0], f"seerd logs {state.facts.run} {failed[0].id}"
        last = f" ({printable(trial.tail[-1])})" if trial.tail else ""
        yield f"{what}, since {trial.id} {trial.why}{last}; look at: {logs}"
    else:
        how = ENDINGS[state.end.status or "failed"]
        yield f"{what}, since {how}; give more time with --deadline"


def _failed(state: State) -> list[Trial]:
    trials = state.trials.values()
    return [trial for trial in trials if trial.phase is TrialPhase.FAILED or trial.crashes]
