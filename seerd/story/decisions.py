"""What was decided, as beats: each with the reason that the journal says.

The one rule: nothing is concluded here. What stands beside a reason, the numbers that a person wants
to see with it, is read from the state after the event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.model import Compared
from planner.ranking import standing
from seerd.core.commands import (
    AskPolicy,
    Finish,
    Launch,
    Publish,
    StartTrial,
    StopTrial,
    Terminate,
    TerminateCause,
)
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, PolicyAnswered
from seerd.core.incumbent import better_report
from seerd.core.lifecycle import TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.plans import PlanChange
from seerd.core.state import Checkpoint, State
from seerd.core.verdicts import Adopted, Closing, Declined, HeldBack, Slow
from seerd.story import beats
from seerd.story.beats import AnyBeat, On, Planned, Verdict
from seerd.story.chapters import Story, needed, wanted
from seerd.story.facts import Before, when


def decisions(
    before: Before, event: AnyEvent, decided: Sequence[AnyDecision], story: Story, state: State
) -> Iterator[AnyBeat]:
    """What was decided with one event, in order; instances that come or go together are told so."""
    for one in decided:
        if isinstance(one, Adopted) and isinstance(event, PolicyAnswered):
            yield _planned(one, event.plan, story, state)
            yield from _judgements(event.plan, before, state)
        yield from _one(one, story, state)
    launched = [one for one in decided if isinstance(one, Launch)]
    if launched:
        yield _asked(launched, state)
    yield from _given_back(before, decided, state)
    yield from (_held_back(one, state) for one in decided if isinstance(one, HeldBack) and one.why)


def _one(one: AnyDecision, story: Story, state: State) -> Iterator[AnyBeat]:
    match one:
        case AskPolicy():
            story.question = one
        case Launch():
            story.asked_s[one.id] = state.now
        case Declined():
            yield _declined(one, story, state)
        case Slow():
            yield beats.Slow(**when(state), trial=one.trial, rank=one.rank, detail=one.detail)
        case Closing():
            yield _closing(one, state)
        case StopTrial():
            stopped = _stopped(one, state)
            story.attempts.stop(stopped)
            yield stopped
        case StartTrial():
            started = _started(one, state)
            story.attempts.start(started)
            yield started
        case Publish():
            yield _chosen(one, state)
        case Finish():
            yield _over(one, state)


# ------------------------------------------------------------ the plan


def _planned(verdict: Adopted, plan: PlanChange, story: Story, state: State) -> Planned:
    asked = story.question or AskPolicy(id=verdict.question)
    return Planned(
        **when(state),
        because=asked.why,
        trial=asked.trial,
        stage=plan.stage + 1,
        groups=wanted(state),
        new=len(plan.new),
        dropped=verdict.dropped,
        note=plan.note,
    )


def _declined(verdict: Declined, story: Story, state: State) -> beats.Declined:
    return beats.Declined(
        **when(state),
        detail=verdict.why,
        failures=verdict.failures,
        again_s=round(verdict.again_s, 3),
        stands=bool(story.chapters) and story.chapters[-1].stage is not None,
    )


def _judgements(plan: PlanChange, before: Before, state: State) -> Iterator[beats.Judged]:
    """Everyone that the plan has compared, and those that are out without having been."""
    compared = [one.compared() for one in plan.compared]
    cuts = {(one.bracket, one.of): one for one in compared if one.place == one.best}
    for one in compared:
        yield _judged(one, cuts.get((one.bracket, one.of)), before, state)
    known = {one.trial for one in compared}
    for trial in (state.trials[name] for name in plan.eliminated if name not in known):
        alone = Compared(trial.id, trial.metric, trial.reports, 0, 0, 0, trial.bracket)
        yield _judged(alone, None, before, state)


def _judged(one: Compared, cut: Compared | None, before: Before, state: State) -> beats.Judged:
    return beats.Judged(
        **when(state),
        trial=one.trial,
        verdict=_verdict(one, state),
        metric=one.metric,
        reports=one.reports,
        place=one.place or None,
        of=one.of,
        best=one.best,
        cut=None if cut is None else cut.trial,
        cut_metric=None if cut is None else cut.metric,
        bracket=one.bracket + 1,
        gpus_before=before.gpus.get(one.trial, 0),
        gpus=state.trials[one.trial].gpus,
    )


def _verdict(one: Compared, state: State) -> Verdict:
    trial = state.trials[one.trial]
    if trial.phase is TrialPhase.FAILED:
        return "failed"
    if trial.out:
        return "out"
    if one.trial in state.plan.order:
        return "goes-on"
    if trial.phase is TrialPhase.FINISHED:
        return "finished"
    return "complete" if one.final else "paused"


# ------------------------------------------------------------ attempts


def _started(command: StartTrial, state: State) -> beats.Started:
    kept = state.trials[command.trial].checkpoints
    on = ((command.instance, command.gpus), *command.beside)
    return beats.Started(
        **when(state),
        trial=command.trial,
        attempt=command.attempt,
        why=command.why,
        on=tuple(On(instance=instance, gpus=tuple(gpus)) for instance, gpus in on),
        checkpoint=command.checkpoints[0] if command.checkpoints else None,
        after_reports=kept[0].epoch if kept else 0,
    )


def _stopped(command: StopTrial, state: State) -> beats.Stopped:
    trial = state.trials[command.trial]
    return beats.Stopped(
        **when(state),
        trial=command.trial,
        attempt=command.attempt,
        why=command.why,
        saves=command.checkpoint,
        grace_s=round(command.grace_s, 3),
        gpus_before=sum(len(slots.gpus) for slots in trial.held or ()),
        gpus=trial.gpus,
        until=trial.reached if command.why == "reached" else None,
        others=command.others,
    )


# ------------------------------------------------------------ instances


def _asked(commands: Sequence[Launch], state: State) -> beats.Asked:
    return beats.Asked(
        **when(state),
        why=commands[0].why,
        instances=tuple(command.id for command in commands),
        gpus_each=commands[0].gpus,
        wanted=wanted(state),
        needed=needed(state),
        had=state.fleet.live - len(commands),
    )


def _given_back(
    before: Before, decided: Sequence[AnyDecision], state: State
) -> Iterator[beats.GivenBack]:
    causes: dict[TerminateCause, list[str]] = {}
    for one in decided:
        if isinstance(one, Terminate):
            causes.setdefault(one.why, []).append(one.instance)
    for why, names in causes.items():
        yield beats.GivenBack(
            **when(state),
            why=why,
            instances=tuple(names),
            needed=0 if why == "end" else needed(state),
            had=before.live,
        )


def _held_back(verdict: HeldBack, state: State) -> beats.HeldBack:
    assert verdict.why is not None
    return beats.HeldBack(
        **when(state),
        why=verdict.why,
        needed=verdict.needed,
        had=verdict.had,
        trials=() if verdict.trial is None else (verdict.trial,),
    )


# ------------------------------------------------------------ the run


def _closing(verdict: Closing, state: State) -> beats.Closing:
    book = state.ledger
    spent = book.spent_gpu_s(state.now)
    committed = book.committed_gpu_s(state.now, verdict.release_s) if book.open else spent
    return beats.Closing(
        **when(state),
        status=verdict.status,
        why=verdict.why,
        detail=verdict.detail,
        close_at_s=verdict.close_at_s,
        exhausted_at_s=verdict.exhausted_at_s,
        release_s=verdict.release_s,
        spent_gpu_min=round(spent / 60, 4),
        committed_gpu_min=round(committed / 60, 4),
        budget_gpu_min=round(budget_gpu_s(state) / 60, 4),
    )


def _chosen(command: Publish, state: State) -> beats.Chosen:
    """Beside what else there was."""
    usable = _usable(state)
    others = (one for one in usable.items() if one[0] != command.trial)
    mode = state.facts.mode
    runner_up = min(others, key=lambda one: standing(one[0], one[1].metric, mode), default=None)
    unsaved = better_report(state, command.metric)
    kept = state.trials[command.trial].checkpoints
    return beats.Chosen(
        **when(state),
        why=command.why,
        trial=command.trial,
        metric=command.metric,
        reports=next(one.epoch for one in kept if one.name == command.checkpoint),
        checkpoint=command.checkpoint,
        among=len(usable),
        runner_up=runner_up[0] if runner_up else None,
        runner_up_metric=runner_up[1].metric if runner_up else None,
        better_unsaved=unsaved[0] if unsaved else None,
        better_unsaved_metric=unsaved[1] if unsaved else None,
    )


def _usable(state: State) -> dict[str, Checkpoint]:
    """Each trial's best checkpoint that could be handed back."""
    best: dict[str, Checkpoint] = {}
    for trial in state.trials.values():
        kept = (c for c in trial.checkpoints if c.metric is not None)
        found = [c for c in kept if f"{trial.id}/{c.name}" not in state.result.unreadable]
        if found:
            best[trial.id] = min(found, key=lambda c: standing("", c.metric, state.facts.mode))
    return best


def _over(command: Finish, state: State) -> beats.Over:
    published = state.result.published
    return beats.Over(
        **when(state),
        status=command.status,
        trial=published.incumbent.trial if published else None,
        metric=published.incumbent.metric if published else None,
        path=published.path if published else None,
    )
