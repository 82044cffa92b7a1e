"""What a run's journal shows of its job and its cloud: how long reports, starts, saves and boots
took. A pure function of the events and commands of any run; a run of `seerd profile` shows the
most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET

from seerd.core.commands import Launch, StartTrial, StopTrial, Terminate
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    InstanceReady,
    InstanceTerminated,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.core.verdicts import Grown
from seerd.planner.gpu_parts import gpus_of


@dataclass(slots=True)
class Measured:
    """Samples in seconds, in the order in which they were made, of what a `KeptProfile` has."""

    report_s: dict[float, list[float]] = field(default_factory=dict)  # of each number of GPUs
    # numbers of GPUs for which all timed reports had a warm-up or a checkpoint in them
    rough: set[float] = field(default_factory=set)
    start_s: list[float] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    checkpoint_bytes: int = 0
    memory: tuple[int, int] = (0, 0)  # most bytes of one GPU for a trial, and that GPU's bytes
    pending_s: list[float] = field(default_factory=list)
    boot_s: list[float] = field(default_factory=list)
    release_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Attempt:
    """One attempt. Moments are seconds since the run began."""

    gpus: float
    ordered_s: float  # when it was ordered
    training_s: float | None = None  # when it trained; None: it has not
    reports: list[tuple[int, float]] = field(default_factory=list)  # number and moment of each
    saved: set[int] = field(default_factory=set)  # reports after which it saved
    asked_s: float | None = None  # when it was asked to save and exit, if it trained


def measured(entries: Iterable[tuple[AnyEvent, Sequence[AnyDecision]]], parts: int = 1) -> Measured:
    """Collect samples from events with the decisions that followed from them, in order. `parts`:
    how many slots a GPU had.
    """
    samples = Measured()
    attempts: dict[tuple[str, int], _Attempt] = {}
    newest: dict[str, tuple[str, int]] = {}  # trial -> its newest attempt
    smaller: list[_Attempt] = []  # attempts as they were before they grew on their GPU
    asked: dict[str, float] = {}
    for event, commands in entries:
        if isinstance(event, InstanceReady | InstanceTerminated):
            _see_instance(event, asked.get(event.command), samples)
        if isinstance(event, TrialTraining | TrialReported | TrialCheckpointed | TrialExited):
            _see_attempt(event, attempts.get((event.trial, event.attempt)), samples)
        for command in commands:
            if isinstance(command, StartTrial):
                slots = len(command.gpus) + sum(len(gpus) for _, gpus in command.beside)
                gpus = gpus_of(slots, parts)
                newest[command.trial] = command.trial, command.attempt
                attempts[command.trial, command.attempt] = _Attempt(gpus, event.at)
            elif isinstance(command, Grown):
                before = attempts[newest[command.trial]]
                smaller.append(before)
                gpus = gpus_of(len(command.gpus), parts)
                attempts[newest[command.trial]] = _Attempt(gpus, before.ordered_s, event.at)
            elif isinstance(command, StopTrial):
                if attempt := attempts.get((command.trial, command.attempt)):
                    # Being killed tells nothing of how long saving takes.
                    saves = command.checkpoint and attempt.training_s is not None
                    attempt.asked_s = event.at if saves else None
            elif isinstance(command, Launch | Terminate):
                asked.setdefault(command.id, event.at)
    _reports([*smaller, *attempts.values()], samples)
    return samples


def _see_instance(
    event: InstanceReady | InstanceTerminated, asked_s: float | None, samples: Measured
) -> None:
    if asked_s is not None and isinstance(event, InstanceReady):
        if event.running_since > event.at:  # it did not boot for this run
            return
        samples.pending_s.append(max(0.0, event.running_since - asked_s))
        samples.boot_s.append(event.at - event.running_since)
    elif asked_s is not None:
        samples.release_s.append(event.at - asked_s)


def _see_attempt(
    event: TrialTraining | TrialReported | TrialCheckpointed | TrialExited,
    attempt: _Attempt | None,
    samples: Measured,
) -> None:
    if attempt is None:
        return
    if isinstance(event, TrialTraining):
        attempt.training_s = event.happened
        (samples.restore_s if event.reports else samples.start_s).append(
            event.happened - attempt.ordered_s
        )
    elif isinstance(event, TrialReported):
        attempt.reports.append((event.reports, event.happened))
    elif isinstance(event, TrialCheckpointed):
        attempt.saved.add(event.reports)
        samples.save_s.append(event.save_s)
        samples.checkpoint_bytes = max(samples.checkpoint_bytes, event.size)
    else:
        if event.memory is not UNSET and attempt.gpus <= 1:
            samples.memory = max(samples.memory, event.memory)
        if attempt.asked_s is not None and event.cause == "asked":
            samples.stop_s.append(max(0.0, event.happened - attempt.asked_s))


def _reports(attempts: list[_Attempt], samples: Measured) -> None:
    """Collect the seconds from report to report: those without a checkpoint in between where there
    are any, else all; for a single report, the seconds since training began.
    """
    for gpus in sorted({attempt.gpus for attempt in attempts}):
        clean, rough = [], []
        for attempt in (attempt for attempt in attempts if attempt.gpus == gpus):
            for (reports, before), (_, at) in pairwise(attempt.reports):
                rough.append(at - before)
                if reports not in attempt.saved:
                    clean.append(at - before)
            if len(attempt.reports) == 1 and attempt.training_s is not None:
                rough.append(attempt.reports[0][1] - attempt.training_s)
        clean, rough = ([s for s in seconds if s > 0] for seconds in (clean, rough))
        if clean or rough:
            samples.report_s[gpus] = clean or rough
        if rough and not clean:
            samples.rough.add(gpus)
