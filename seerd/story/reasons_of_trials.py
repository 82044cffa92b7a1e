"""Why trials went on, were stopped, moved or failed: from the state before a step, its event and commands, and the state after it.

The one rule: pure functions; each looks for the one fact that made the core ask for this, in the order in which the core looks at them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.model import Compared
from seerd.core.attempts import MAX_CRASHES
from seerd.core.commands import StartTrial, StopTrial
from seerd.core.events import (
    AnyEvent,
    OrderRefused,
    RunResumed,
    RunStarted,
    TimerFired,
    TrialExited,
    TrialReported,
)
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.story.beats import (
    EndCause,
    Ended,
    Judged,
    On,
    PlanCause,
    Planned,
    Sized,
    Started,
    StopCause,
    Stopped,
    Then,
    Verdict,
)
from seerd.story.before import Before, TrialBefore

THENS: dict[TrialPhase, Then] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


def sized(gpus: Counter[int]) -> tuple[Sized, ...]:
    """How many trials have each number of GPUs, largest first."""
    return tuple(Sized(trials=n, gpus_per_trial=size) for size, n in sorted(gpus.items(), reverse=True) if n > 0)


def planned(before: Before, event: AnyEvent, state: State) -> Planned:
    """The plan that came with this step."""
    because: PlanCause = "ended"
    trial = getattr(event, "trial", None)
    if isinstance(event, RunStarted):
        because = "began"
    elif isinstance(event, RunResumed) and before.phase is not RunPhase.RUNNING:
        because = "resumed"
    elif isinstance(event, TrialReported):
        because = "reports"
    elif isinstance(event, TimerFired) or (before.plan.ask_at_s is not None and state.now >= before.plan.ask_at_s):
        because, trial = "clock", None
    groups = sized(Counter(allocation.gpus for allocation in state.plan.wanted.values()))
    new = len(state.plan.last.new)
    return Planned(
        event=state.seq,
        at_s=state.now,
        because=because,
        trial=trial,
        stage=state.plan.stage + 1,
        groups=groups,
        new=new,
    )


def judged(before: Before, state: State) -> Iterator[Judged]:
    """Everyone that the new plan has compared, and those that are out without having been."""
    plan = state.plan
    known = set()
    cuts = {(one.bracket, one.of): one for one in plan.compared if one.place == one.best}
    for one in plan.compared:
        known.add(one.trial)
        yield _judged(one, cuts.get((one.bracket, one.of)), before, state)
    for name in plan.eliminated:
        if name not in known:
            trial = state.trials[name]
            yield _judged(Compared(name, trial.metric, trial.reports, 0, 0, 0, trial.bracket), None, before, state)


def _judged(one: Compared, cut: Compared | None, before: Before, state: State) -> Judged:
    was = before.wanted.get(one.trial)
    return Judged(
        event=state.seq,
        at_s=state.now,
        trial=one.trial,
        verdict=_verdict(one, state.trials[one.trial], state),
        metric=one.metric,
        reports=one.reports,
        place=one.place or None,
        of=one.of,
        best=one.best,
        cut=None if cut is None else cut.trial,
        cut_metric=None if cut is None else cut.metric,
        bracket=one.bracket + 1,
        gpus_before=0 if was is None else was.gpus,
        gpus=state.trials[one.trial].gpus,
    )


def _verdict(one: Compared, trial: Trial, state: State) -> Verdict:
    if trial.phase is TrialPhase.FAILED:
        return "failed"
    if trial.out or trial.phase is TrialPhase.ELIMINATED:
        return "out"
    if any(allocation.trial == one.trial for allocation in state.plan.order):
        return "goes-on"
    if trial.phase is TrialPhase.FINISHED:
        return "finished"
    return "complete" if one.final else "paused"


def started(command: StartTrial, state: State) -> Started:
    """An attempt that was ordered."""
    trial = state.trials[command.trial]
    on = ((command.instance, command.gpus), *command.beside)
    return Started(
        event=state.seq,
        at_s=state.now,
        trial=command.trial,
        attempt=command.attempt,
        on=tuple(On(instance=instance, gpus=tuple(gpus)) for instance, gpus in on),
        checkpoint=command.checkpoints[0] if command.checkpoints else None,
        after_reports=trial.checkpoints[0].epoch if trial.checkpoints else 0,
    )


def stopped(before: Before, command: StopTrial, state: State) -> Stopped:
    """An attempt that was asked to end, or killed."""
    trial = state.trials[command.trial]
    held = sum(len(slots.gpus) for slots in trial.held or ())
    was = before.wanted.get(trial.id)
    until = None if was is None or was.until is None or trial.reports < was.until else was.until
    why = _stop_cause(trial, held, until, state)
    return Stopped(
        event=state.seq,
        at_s=state.now,
        trial=command.trial,
        attempt=command.attempt,
        why=why,
        saves=command.checkpoint,
        grace_s=round(command.grace_s, 3),
        gpus_before=held,
        gpus=trial.gpus,
        until=until if why == "reached" else None,
        others=_heirs(trial, state) if why in ("displaced", "moved") else (),
    )


def _stop_cause(trial: Trial, held: int, until: int | None, state: State) -> StopCause:
    if state.hard:
        return "hard"
    if trial.out:
        return "out"
    if trial.broken:
        return "node"
    if state.phase is not RunPhase.RUNNING:
        return "closing"
    if any(state.fleet.instances[slots.node].phase is InstancePhase.LEAVING for slots in trial.left):
        return "leaving"
    if trial.gpus == 0:
        return "paused" if until is None else "reached"
    if trial.gpus != held:
        return "resized"
    return "displaced" if trial.target is None else "moved"


def _heirs(trial: Trial, state: State) -> tuple[str, ...]:
    """Who gets the GPUs that it has to leave."""
    claims = (state.fleet.instances[s.node].claims.get(gpu) for s in trial.left for gpu in s.gpus)
    return tuple(dict.fromkeys(name for name in claims if name is not None and name != trial.id))


def ended(before: Before, event: AnyEvent, state: State) -> Iterator[Ended]:
    """Attempts of which no process is left after this step."""
    for name, old in before.trials.items():
        trial = state.trials[name]
        if old.held is None or (trial.held is not None and trial.attempt == old.attempt):
            continue
        how = _end_cause(old, trial, event)
        told = how in ("crashed", "refused", "lost", "silent") and (trial.phase is not TrialPhase.ELIMINATED)
        yield Ended(
            event=state.seq,
            at_s=state.now,
            trial=name,
            attempt=old.attempt,
            how=how,
            then=_then(old, trial),
            detail=trial.why if told else "",
            failures=trial.crashes,
            most_failures=MAX_CRASHES,
            losses=trial.losses,
            reports=trial.reports,
            kept=trial.checkpoints[0].epoch if trial.checkpoints else None,
        )


def _end_cause(old: TrialBefore, trial: Trial, event: AnyEvent) -> EndCause:
    if trial.losses > old.losses:
        return "lost"
    if trial.crashes > old.crashes:
        return "refused" if isinstance(event, OrderRefused) else "crashed"
    if trial.phase is TrialPhase.FINISHED:
        return "finished"
    if trial.phase is TrialPhase.FAILED:
        return "silent"
    cause = event.cause if isinstance(event, TrialExited) else "lost"
    if cause in ("lease", "lost"):
        return "lease" if cause == "lease" else "lost"
    return "saved" if old.stop is not None and old.stop.checkpoint else "killed"


def _then(old: TrialBefore, trial: Trial) -> Then:
    if trial.phase in THENS:
        return THENS[trial.phase]
    again = trial.gpus > 0 and (trial.crashes > old.crashes or trial.losses > old.losses)
    return "restarts" if again else "waits"
