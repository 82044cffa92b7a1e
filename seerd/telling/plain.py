"""What happened, as one plain line per event, and a run as such lines.

What is explained of an entry has the sentence of its explanation; only the rest has texts here.
Showing never changes a run, and an output that cannot be written to never ends one.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TextIO

from seerd.core import commands, events
from seerd.core.attempts import crash_text
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.failures import OVER_TIME
from seerd.core.last_words import error_line
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import time_left
from seerd.core.metrics import metric_name, sign_of, violated_by
from seerd.core.results import best_configuration
from seerd.core.state import Complaint, Note, State, Trial
from seerd.core.verdicts import Grown
from seerd.planner.gpu_parts import gpus_number, gpus_text
from seerd.planner.trial_ids import job_of
from seerd.runs.reading import begin, follow, replay
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.complaints import IN_THE_WAY, NOTES, complaint_text
from seerd.telling.diagnosis import unsaved
from seerd.telling.explanation.explanations import Explanation, places_json, sizes_of
from seerd.telling.explanation.reasons import explained_after
from seerd.telling.explanation.sentences import at, ending, gpus_on, sentence, sizes, value
from seerd.telling.harmless import config_text, harmless
from seerd.telling.outcomes import report_text, standing_text
from seerd.units import SLOW_S, count, format_duration, format_gpu_time, format_size

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher


SENTENCES = frozenset(
    {
        *("declined", "stop-wanted", "resumed", "extended", "added", "denied", "remark", "warned"),
        *("job-over", "job-added", "job-weighed", "noticed", "shared", "lost"),
    }
)
"""Kinds of explanations of which the sentence is a line."""
MOST_OTHERS = 3  # how many other metrics stand in the line of a report
LATE_S = 2.0
"""A stage is said to begin if its plan comes at most this many seconds after its start: the machine
may be busy.
"""


class BestSoFar:
    """The best metric of each job, kept so that a report costs the same in a long run."""

    def __init__(self) -> None:
        self._worth: dict[str, float] = {}  # job -> its best metric, with the sign of its goal

    def beaten_by(self, event: events.TrialReported, state: State) -> bool:
        """Return whether a report is the best of its job so far, and remember it."""
        goal, job = state.facts.goal_of(event.trial), job_of(event.trial)
        metrics = {**event.others, goal.metric: event.metric}
        if event.metric is None or violated_by(metrics, goal):
            return False
        sign = sign_of(goal)
        if job not in self._worth:  # the run may have been resumed
            earlier = (
                sign * report.metric
                for trial in state.trials_of(job)
                for report in trial.history
                if report.metric is not None
                and report.at_s <= event.happened
                and (trial.id, report.reports) != (event.trial, event.reports)
            )
            self._worth[job] = max(earlier, default=-math.inf)
        is_best = sign * event.metric > self._worth[job]
        self._worth[job] = max(self._worth[job], sign * event.metric)
        return is_best


def line_of(
    event: AnyEvent,
    state: State,
    decided: Sequence[AnyDecision] = (),
    best: BestSoFar | None = None,
) -> str | None:
    """Return the line on an event and its decisions, if any.

    state  the one after it
    best   of the reports before; None: it is found in the state
    """
    if (  # an agent may report on trials that do not exist
        isinstance(event, events.TrialTraining | events.TrialReported | events.TrialExited)
        and event.trial not in state.trials
    ):
        return None
    text = TEXTS.get(type(event))
    texts = [] if text is None else [text(event, state)]
    if isinstance(event, events.TrialReported):
        texts = [_reported(event, state, best or BestSoFar())]
    texts += [_grown(one, state) for one in decided if isinstance(one, Grown)]
    texts += [_explained(one, event, state) for one in explained_after(event, decided, state)]
    if decided and isinstance(decided[-1], commands.Finish):
        texts.append(_configured(state))
    lines = [f"{event.at:7.1f}s  {text}" for text in texts if text is not None]
    return harmless("\n".join(lines)) if lines else None


def _explained(explanation: Explanation, event: AnyEvent, state: State) -> str | None:
    match explanation.kind:
        case "planned":
            stage, stages = state.plan.stage, state.outline.stages
            begins = 0 < stage < len(stages) and 0 <= event.at - stages[stage].start_s < LATE_S
            return stage_text(state) if begins else None
        case "closing" if explanation.why != "person":  # a person is answered at once
            how = explanation.detail if explanation.why in ("alike", "store") else ending(state)
            return f"{how}: {'trials save and exit' if state.fleet.holding else 'the run ends'}"
        case "refused":
            return sentence(explanation, "") if _is_told(explanation, state) else None
        case "awaited" if explanation.what != "reached":
            return sentence(explanation, "") if _is_first(explanation, state) else None
        case "held-back" if explanation.why == "scout":
            return sentence(explanation, "")
        case "came":
            ready = (i.id for i in state.fleet.instances.values() if i.ready_at is not None)
            is_first = next(ready) == explanation.instance
            return sentence(explanation, "") + (f"; {stage_text(state)}" if is_first else "")
        case kind:
            return sentence(explanation, "") if kind in SENTENCES else None


def _is_told(refusal: Explanation, state: State) -> bool:
    """Return whether a refusal has a line: the first launch of a request that was refused for this
    reason, and of these requests the 1st, 2nd, 4th, 8th, and so on.
    """
    launches = reversed(state.fleet.instances.values())
    refused = [launch.id for launch in launches if launch.why == refusal.detail]
    firsts = {id_.partition(".")[0]: id_ for id_ in refused}
    return refusal.instance in firsts.values() and len(firsts) & (len(firsts) - 1) == 0


def _grown(verdict: Grown, state: State) -> str:
    gpus, before = (state.facts.gpus(slots) for slots in (len(verdict.gpus), verdict.had))
    instead = f" instead of {gpus_number(before)}" if before else ""
    return f"{verdict.trial} trains on with {gpus_text(gpus)}{instead}"


def _is_first(explanation: Explanation, state: State) -> bool:
    """Return whether no other instance that is awaited cannot be reached for the same cause."""
    waiting = (i for i in state.fleet.instances.values() if i.phase is InstancePhase.REQUESTED)
    alike = [i.id for i in waiting if explanation.detail and i.unreached == explanation.detail]
    return not alike or alike == [explanation.asked]


def _configured(state: State) -> str | None:
    found = filter(None, (best_configuration(state, job) for job in state.jobs))
    best = [f"the best configuration is {report_text(state, *one)}" for one in found]
    return "; ".join([*best, unsaved(state)]) if best else None


def stage_text(state: State) -> str:
    """Write which stage it is, and how many trials run in it."""
    number, stages = state.plan.stage, state.outline.stages
    stage = stages[number]
    groups = sizes(sizes_of(stage.groups, state.facts))
    return f"stage {number + 1} of {len(stages)} until {at(stage.end_s)}: {groups}"


def _started(event: events.RunStarted, state: State) -> str:
    limits = event.facts.problem.limits
    notes = "".join(f"\n{'':10}{sentence}" for sentence in state.outline.adjusted)
    trials, jobs = count(state.outline.trials, "trial"), len(event.facts.jobs)
    trials = f"{count(jobs, 'job')}, {trials}" if jobs else trials
    budget = format_gpu_time(limits.budget_gpu_s)
    return f"{trials}, deadline {format_duration(limits.deadline_s)}, budget {budget}{notes}"


def _training(event: events.TrialTraining, state: State) -> str:
    trial = state.trials[event.trial]
    since = f"goes on after report {event.reports}" if event.reports else "trains"
    several = sum(i.phase is InstancePhase.READY for i in state.fleet.instances.values()) > 1
    held = places_json(trial.held, state.facts)
    places = " and ".join((f"{on['instance']} " if several else "") + gpus_on(on) for on in held)
    where = f" on {places}" if places else ""
    return f"{event.trial} {since}{where}  {config_text(trial.config)}"


def _reported(event: events.TrialReported, state: State, best: BestSoFar) -> str:
    others = "".join(
        f", {name} {'not finite' if other is None else f'{other:.6g}'}"
        for name, other in list(event.others.items())[:MOST_OTHERS]
    )
    goal, job = state.facts.goal_of(event.trial), job_of(event.trial)
    is_first = event.line and sum(len(t.history) for t in state.trials_of(job)) == 1
    read = f', read from "{event.line}"' if is_first else ""
    text = (
        f"{event.trial} report {event.reports}: {goal.metric} {value(event.metric)}{others}{read}"
    )
    if broken := violated_by({**event.others, goal.metric: event.metric}, goal):
        return f"{text}  (not {' and '.join(map(str, broken))})"
    whose = f" of {job}" if job else ""
    return f"{text}  (best{whose})" if best.beaten_by(event, state) else text


def _exited(event: events.TrialExited, state: State) -> str:
    trial = state.trials[event.trial]
    if trial.phase is TrialPhase.ELIMINATED:
        stood = "" if trial.judged is None else standing_text(trial.judged)
        return f"{event.trial} is out: {trial.why}{f', {stood}' if stood else ''}"
    if event.cause == "crashed":
        last = f": {error_line(event.tail)}" if event.tail else ""
        return f"{event.trial} {crash_text(event)}{_then(trial, state)}{last}"
    if trial.phase is TrialPhase.FAILED:
        return f"{event.trial} has failed: {trial.why}"
    if event.cause == "finished":
        return f"{event.trial} has finished"
    if event.cause == "lost":
        return f"{event.trial} was lost with its agent{_then(trial, state)}"
    if trial.checkpoints:
        return f"{event.trial} has stopped, saved up to report {trial.checkpoints[0].reports}"
    if trial.history or trial.began_s is None:
        return f"{event.trial} has stopped, nothing saved"
    after = format_duration(round(event.happened - trial.began_s))
    later = trial.stopped != "closing" and state.phase is RunPhase.RUNNING
    return f"{event.trial} has stopped after {after} without a report{f': {OVER_TIME}' * later}"


def _then(trial: Trial, state: State) -> str:
    block = state.jobs[job_of(trial.id)].block
    if block is not None and trial.fault == "blocked":
        beside = f", and at most {block.most} train{'s' * (block.most == 1)} at a time"
        beside = beside if block.most and not block.on else ""
        return f" since {IN_THE_WAY[block.why]}; it waits{beside} until {at(block.again_s)}"
    if trial.phase is TrialPhase.FAILED:
        return " and has failed"
    if trial.fault == "small" and trial.gpus:
        more = gpus_text(state.facts.gpus(trial.gpus))
        return f" for lack of memory on its part of a GPU; it will go on with {more}"
    return " and will be restarted" if trial.gpus and time_left(state) else ""


def _complained(event: events.TrialComplained, state: State) -> str | None:
    complaint, signs = Complaint(event.what, event.trial, event.why), state.signs
    is_first = signs.complaints.get(event.what) == complaint
    if event.what == "waits":
        is_first = signs.warned.get("waits") == event.at
    return complaint_text(state, complaint) if is_first else None


def _published(event: events.ModelPublished, state: State) -> str:
    for job, model in state.result.of_jobs.items():
        if model.path == event.path:
            best, whose = model.incumbent, f" of {job}" if job else ""
            metric = f"{metric_name(state, best)} {best.metric:.6g}"
            return f"the best model{whose} is that of {best.trial}, {metric}: {event.path}"
    return f"the best model is in {event.path}"


def _kept(event: events.InstanceKept, state: State) -> str | None:
    notes = (n for n in state.result.notes if isinstance(n, Note) and n.what == "kept")
    facts = next((note.facts for note in notes if note.facts[0] == event.instance), None)
    return None if facts is None else NOTES["kept"].format(*facts)


TEXTS: dict[type[AnyEvent], Callable[[Any, State], str | None]] = {
    events.RunStarted: _started,
    events.EventsMissing: lambda event, state: (
        f"the journal lacks events of {event.instance}, from before the run was resumed: "
        "all GPUs are charged until then"
        if state.clock.gap_s >= event.at
        else None
    ),
    events.InstanceTerminated: lambda event, state: (
        f"{event.instance} has been given back" if state.facts.cluster.per_instance else None
    ),
    events.InstanceKept: _kept,
    events.CheckpointFetched: lambda event, _: (
        f"the model of {event.checkpoint.trial} could not be stored, and was fetched from "
        f"{event.instance}{' into the store' if event.stored else ''}"
    ),
    events.OrderRefused: lambda event, _: f"{event.instance} refused an order: {event.why}",
    events.TrialTraining: _training,
    events.TrialExited: _exited,
    events.TrialCheckpointed: lambda event, state: (
        f"{event.trial} took {at(event.save_s)} to save {format_size(event.size)}: the end of the "
        "run allows for that; smaller checkpoints leave more time for training"
        if event.save_s >= max(SLOW_S, state.end.slowest_s)
        else None
    ),
    events.TrialComplained: _complained,  # the first of each kind
    events.TrialWaited: lambda event, state: (  # once: when the note was made
        state.trials[event.trial].note
        if event.at in state.trials[event.trial].slow.values()
        else None
    ),
    events.ModelPublished: _published,
    events.PublishFailed: lambda event, _: (
        f"a checkpoint cannot be used, trying the next best: {event.why}"
        if event.damaged
        else f"the best model is in the store, but could not be fetched: {event.why}"
    ),
}
"""Type of an event -> its text beside what is explained of it."""


RECENT = 12
POLL_S = 0.5


def lines_to(folder: RunFolder, out: TextIO) -> Watcher:
    """Return a watcher that writes a line for each event that people need to know."""
    print(f"run {folder.run}", file=out, flush=True)
    best = BestSoFar()

    def watcher(state: State, now_s: float, entries: list[Entry]) -> None:
        for entry in entries:
            # ValueError: the encoding lacks a character, or the stream is closed
            with contextlib.suppress(OSError, ValueError):
                _write(entry, state, out, best)

    return watcher


def _write(entry: Entry, state: State, out: TextIO, best: BestSoFar) -> None:
    line = line_of(entry.event, state, entry.decided, best)
    if line is not None:
        print(line, file=out, flush=True)


def watch_run(folder: RunFolder, at_s: float | None = None) -> None:
    """Write a run's lines from its journal until it is over or no process runs it; or, with `at_s`,
    what is there until so many seconds after it began.

    Raises `JournalError`, and `BrokenPipeError` if nobody reads the lines any more.
    """
    print(f"run {folder.run}", flush=True)
    best = BestSoFar()
    with Journal.open(folder.journal, read_only=True) as journal:
        if at_s is not None:
            state, entries = begin(journal)
            for entry in takewhile(lambda one: one.event.at <= at_s, entries):
                follow(state, [entry])
                _write(entry, state, sys.stdout, best)
            return
        state = replay(journal)
        for entry in journal.entries(max(0, state.clock.seq - RECENT)):
            _write(entry, state, sys.stdout, best)
        while not state.finished and folder.owner() is not None:
            time.sleep(POLL_S)
            for entry in journal.entries(state.clock.seq):
                follow(state, [entry])
                _write(entry, state, sys.stdout, best)
