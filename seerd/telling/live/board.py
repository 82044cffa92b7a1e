"""What the live view knows of a run at one moment, without any part of the state that changes; and
what it keeps of events. There may be a thousand reports a second: each must cost next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seerd.core.events import TrialReported
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import release_s
from seerd.core.metrics import best_saved, chosen, names_of, value_of
from seerd.core.results import best_configuration
from seerd.core.state import LIVE, PRESENT, Incumbent, Instance, State, Trial
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.gpu_parts import gpus_text as how_many
from seerd.planner.model import Mode, Stage
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of
from seerd.shell.journal import Entry
from seerd.telling.complaints import idle_gpus
from seerd.telling.explanation.explanations import places_json
from seerd.telling.explanation.sentences import STOPS, ending, gpus_text
from seerd.telling.harmless import printable
from seerd.telling.outcomes import (
    AT_REPORT,
    WHYS,
    ShownJob,
    TrialOutcome,
    jobs_of,
    one_metric,
    outcomes,
    parameter_names,
    ranked_by_job,
    report_text,
    standing_text,
    why_text,
)
from seerd.telling.plain import BestSoFar, line_of
from seerd.units import format_duration

MOST_LINES = 60


class Recent:
    """The latest events."""

    def __init__(self) -> None:
        # the latest events in words, oldest first; of reports only those that are the best so far
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self._best = BestSoFar()

    def read(self, entries: Sequence[Entry], state: State) -> None:
        """Take what was just committed; `state` is that after it."""
        for entry in entries:
            event = entry.event
            if isinstance(event, TrialReported):
                if self._best.beaten_by(event, state):
                    name, job = state.facts.goal_of(event.trial).metric, job_of(event.trial)
                    report = f"report {event.reports}: {printable(name)} {event.metric:.6g}"
                    best = f"{report}, the best so far{f' of {job}' if job else ''}"
                    self.lines.append(f"{event.at:7.1f}s  {printable(event.trial)} {best}")
            elif (line := line_of(event, state, entry.decided)) is not None:
                self.lines.extend(line.splitlines())


OWN = "own metric"  # the metric by which trials are compared, where jobs have several
MOST_POINTS = 200  # how many reports of a trial are kept for its curve


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial."""

    id: str
    config: Config
    place: int  # its place by the last report, from 0, those that are out at the end
    word: str  # what it does, in one word
    why: str  # why it is not training, or how it stands, in a few words; may be empty
    gpus: float  # how many GPUs it holds
    on: str  # which GPUs these are
    bracket: int  # in which bracket it is compared, from 1
    reports: int
    # metric -> what its reports had, oldest first, None where it was not finite; of many reports
    # only some, the last one always
    values: Mapping[str, Sequence[float | None]]
    saved: float | None  # metric of its best saved checkpoint, None if there is none
    metric: str  # name of what it is compared by
    mode: Mode  # whether more or less of that is better
    job: str = ""  # its job, where jobs share the run; else empty
    turn: int = 0  # place of its job among the jobs, from 0
    out: bool = False  # True: eliminated or failed

    def last(self, metric: str) -> float | None:
        """Return what the last report had; None if it had nothing finite."""
        values = self.values.get(metric)
        return values[-1] if values else None


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit."""

    name: str  # which limit
    used: float  # share of it that is used
    committed: float  # share of it that is committed
    text: str  # both in words
    more: str = ""  # what is committed, in words; may be empty


@dataclass(frozen=True, slots=True)
class Board:
    """A run at one moment."""

    run: str
    now_s: float  # the moment, in seconds since the run began
    doing: str  # what it does, in words
    running: bool  # True: trials may train
    # names of all metrics; first that by which trials are compared, `OWN` where jobs have several
    metrics: tuple[str, ...]
    gauges: tuple[Gauge, ...]
    deadline_s: float
    stage: int  # index of the present stage, from 0
    stages: tuple[Stage, ...]  # all stages, empty if they were not recorded
    parts: int  # how many slots a GPU has
    idle: str  # what to do about GPUs that compute little; empty: nothing
    best: Incumbent | None  # its best saved model
    rows: tuple[TrialRow, ...]
    machines: tuple[Instance, ...]  # copies of those that are asked for, ready or leaving
    events: tuple[str, ...]  # the latest events in words, oldest first
    parameters: tuple[str, ...]  # hyperparameters, those first that vary
    jobs: tuple[ShownJob, ...] = ()  # the jobs that share the run, empty if it is one job
    # of each job whose script saves none: its best configuration, once the run is over
    configurations: Mapping[str, str] = field(default_factory=dict)

    def row(self, trial: str) -> TrialRow | None:
        """Return the row of a trial; None if there is none."""
        return next((row for row in self.rows if row.id == trial), None)


def board_of(state: State, now_s: float, recent: Recent) -> Board:
    """Take a snapshot of a run; a moment after its end is its end."""
    now_s = min(now_s, state.now) if state.finished else now_s
    goals = state.facts.goals.values()
    own = {goal.metric for goal in goals}
    names = (one_metric(state) or OWN, *(name for name in names_of(state) if name not in own))
    configs = [trial.config for trial in state.trials.values()]
    out = {t.id for t in state.trials.values() if t.out or t.phase is TrialPhase.FAILED}
    by_job = (sorted(its, key=lambda trial: trial.id in out) for its in ranked_by_job(state))
    ordered = [(turn, trial) for turn, its in enumerate(by_job) for trial in its]
    became = outcomes(state) if state.finished else {}
    how, left_s = ending(state), max(0, round((state.end.close_by or now_s) - now_s))
    doing = {
        RunPhase.RUNNING: "running",
        RunPhase.CLOSING: f"{how}: trials save and exit, at most {format_duration(left_s)} more",
        RunPhase.RELEASING: f"{how}: keeping the best model",
        RunPhase.OVER: f"over: {how}",
    }[state.phase]
    return Board(
        run=state.facts.run,
        now_s=now_s,
        doing=doing,
        running=state.phase is RunPhase.RUNNING,
        metrics=names,
        gauges=tuple(gauges_of(state, now_s)),
        deadline_s=state.facts.problem.limits.deadline_s,
        stage=state.plan.stage,
        stages=state.outline.stages,
        parts=state.facts.parts,
        idle="".join(idle_gpus(state)),
        best=chosen(state),
        rows=tuple(
            replace(
                _row(state, its, became.get(its.id), place, names), out=its.id in out, turn=turn
            )
            for place, (turn, its) in enumerate(ordered)
        ),
        machines=tuple(
            replace(instance, busy=dict(instance.busy), claims=dict(instance.claims))
            for instance in state.fleet.instances.values()
            if instance.phase in (*PRESENT, *LIVE)
        ),
        events=tuple(recent.lines),
        parameters=tuple(
            sorted(
                parameter_names(state),
                key=lambda name: len({config.get(name) for config in configs}) < 2,
            )
        ),
        jobs=tuple(jobs_of(state, now_s)),
        configurations={
            job: report_text(state, *found)
            for job in state.jobs
            if (found := best_configuration(state, job)) is not None
        },
    )


def _row(
    state: State, trial: Trial, outcome: TrialOutcome | None, place: int, names: Sequence[str]
) -> TrialRow:
    points = tuple(trial.history[:: 1 + len(trial.history) // MOST_POINTS])
    if points and points[-1] is not trial.history[-1]:
        points = (*points, trial.history[-1])
    goal, held = state.facts.goal_of(trial.id), trial.held or ()
    gpus = state.facts.gpus(sum(len(slots.gpus) for slots in held))
    loads = trial.phase is TrialPhase.RUNNING and trial.training_s is None
    word = "loading" if loads else WORDS[trial.phase]
    values = {names[0]: [point.metric for point in points]}
    if trial.others:  # which most have not, and 400 trials are looked at each second
        keys = {name: goal.metric if name == names[0] else name for name in names}
        values = {
            name: [value_of(state, trial, one, key) for one in points] for name, key in keys.items()
        }
    return TrialRow(
        id=trial.id,
        config=trial.config,
        place=place,
        word=word if outcome is None else outcome.word.replace("-", " "),
        why=why_of(state, trial, outcome),
        gpus=gpus,
        on=_where(places_json(held, state.facts), gpus),
        bracket=trial.bracket + 1,
        reports=trial.reports,
        values=values,
        saved=best_saved(state, trial),
        metric=goal.metric,
        mode=goal.mode,
        job=job_of(trial.id),
    )


def gauges_of(state: State, now_s: float) -> list[Gauge]:
    """Return how much of each limit is used."""
    limits, book = state.facts.problem.limits, state.ledger
    spent, budget, usd = book.spent_gpu_s(now_s), limits.budget_gpu_s, limits.cost_usd
    committed = book.committed_gpu_s(now_s, release_s(state)) if book.open else spent
    clock = f"{format_duration(round(now_s))} of {format_duration(limits.deadline_s)}"
    text, more = f"{spent / 60:.1f} of {budget / 60:g} GPU-min", f", {committed / 60:.1f} committed"
    gauges = [
        Gauge("deadline", now_s / limits.deadline_s, 0.0, clock),
        Gauge("budget", spent / budget, committed / budget, text, more),
    ]
    if usd is not None and book.usd_per_gpu_h:
        spent_usd, ahead_s = book.spent_usd(now_s), release_s(state) if book.open else 0.0
        text = f"${spent_usd:.2f} of ${usd:g}"
        more_usd = book.committed_usd(now_s, ahead_s)
        gauges.append(Gauge("cost", spent_usd / usd, more_usd / usd, text))
    return gauges


WORDS = {
    TrialPhase.WAITING: "waiting",
    TrialPhase.STARTING: "starting",
    TrialPhase.RUNNING: "running",
    TrialPhase.STOPPING: "saving",
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "out",
    TrialPhase.FAILED: "failed",
}


def why_of(state: State, trial: Trial, outcome: TrialOutcome | None) -> str:
    """Write in a few words why a trial is where it is, or until when it goes on."""
    judged = trial.judged
    if trial.phase is TrialPhase.FAILED or (outcome is not None and outcome.word == "failed"):
        return trial.why.partition("\n")[0]
    if outcome is not None:
        return why_text(trial, outcome)
    match trial.phase:
        case TrialPhase.ELIMINATED:
            return _stood(trial) or trial.why
        case TrialPhase.FINISHED:
            return WHYS["script"]
        case TrialPhase.STOPPING:
            cause = STOPS.get(trial.stopped or "", "")
            return f"{cause}: {_stood(trial)}" if trial.out and judged else cause
        case TrialPhase.STARTING | TrialPhase.RUNNING:
            rises = judged is not None and trial.gpus and trial.reports >= judged.reports > 0
            promoted = ["promoted"] if rises else []
            if trial.phase is TrialPhase.RUNNING and trial.until is not None:
                return ", ".join([*promoted, f"to report {trial.until}"])
            if trial.phase is TrialPhase.RUNNING and promoted:
                return f"promoted, {_stood(trial).partition(AT_REPORT)[0]}"
            return "".join(promoted)
        case TrialPhase.WAITING:
            return _waiting_why(state, trial)
    return ""


def _where(on: Sequence[Mapping[str, Any]], gpus: float) -> str:
    if len(on) != 1:
        return how_many(gpus) if on else "-"
    part = f" ({gpus_number(gpus)})" if "share" in on[0] else ""
    return f"{gpus_text(on[0]['gpus'])}{part}"


def _waiting_why(state: State, trial: Trial) -> str:
    judged = trial.judged
    if state.phase is not RunPhase.RUNNING:
        return WHYS["end"] if trial.stopped in ("closing", "hard") else _stood(trial)
    if trial.gpus:
        again = "restarts on " if trial.fault is not None else "for "
        return f"{again}{how_many(state.facts.gpus(trial.gpus))}"
    if trial.reached is not None and (judged is None or judged.reports < trial.reached):
        return STOPS["reached"]
    if judged is not None and judged.final:
        return WHYS["complete"]
    return _stood(trial) or (STOPS["paused"] if trial.attempt else "not begun")


def _stood(trial: Trial) -> str:
    return "" if trial.judged is None else standing_text(trial.judged)
