"""What was decided, as beats: each with the reason that the journal says.

The one rule: nothing is concluded here. What stands beside a reason, the numbers that a person
wants to see with it, is read from the state after the event.
"""

from __future__ import annotations

from collections.abc import Iterator

from seerd.core.commands import (
    AskPolicy,
    Finish,
    Launch,
    Publish,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, PolicyAnswered
from seerd.core.incumbent import better_report
from seerd.core.lifecycle import TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.plans import PlanChange
from seerd.core.state import Checkpoint, State
from seerd.core.verdicts import Adopted, Closing, Declined, HeldBack, Slow
from seerd.planner.model import Compared
from seerd.planner.ranking import standing
from seerd.story import beats
from seerd.story.beats import tell
from seerd.story.chapters import Story, needed, wanted
from seerd.story.facts import Beats, Before, Decided


def decisions(
    before: Before,
    event: AnyEvent,
    decided: Decided,
    story: Story,
    state: State,
) -> Beats:
    """What was decided with one event, in order; instances that come or go together are told so."""
    for one in decided:
        if isinstance(one, Adopted) and isinstance(event, PolicyAnswered):
            yield _planned(one, event.plan, story, state)
            yield from _judgements(event.plan, before, state)
        yield from _one(one, story, state)
    yield from _instances(before, decided, state)
    for one in decided:
        if isinstance(one, HeldBack) and one.why is not None:
            yield tell(beats.HeldBack, state, one, trials=(one.trial,) if one.trial else ())


def _one(one: AnyDecision, story: Story, state: State) -> Beats:
    match one:
        case AskPolicy():
            story.question = one
        case Launch():
            story.asked_s[one.id] = state.now
        case Declined():
            yield _declined(one, story, state)
        case Slow():
            yield tell(beats.Slow, state, one)
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
            story.published = one
            yield _chosen(one, state)
        case Finish():
            yield _over(one, state)


# ------------------------------------------------------------ the plan


def _planned(verdict: Adopted, plan: PlanChange, story: Story, state: State) -> beats.Planned:
    asked = story.question or AskPolicy(id=verdict.question)
    more = {"because": asked.why, "trial": asked.trial, "dropped": verdict.dropped}
    groups, stage = wanted(state), plan.stage + 1
    about = {"groups": groups, "stage": stage, "new": len(plan.new), "note": plan.note}
    return tell(beats.Planned, state, **more, **about)


def _declined(verdict: Declined, story: Story, state: State) -> beats.Declined:
    earlier = story.chapters[-1].beats if story.chapters else ()
    stands = any(isinstance(beat, beats.Planned) for beat in earlier)
    return tell(beats.Declined, state, verdict, detail=verdict.why, stands=stands)


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
    return tell(
        beats.Judged,
        state,
        one,
        verdict=_verdict(one, state),
        place=one.place or None,
        bracket=one.bracket + 1,
        cut=cut and cut.trial,
        cut_metric=cut and cut.metric,
        gpus_before=before.gpus.get(one.trial, 0),
        gpus=state.trials[one.trial].gpus,
    )


def _verdict(one: Compared, state: State) -> beats.Verdict:
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
    where = ((command.instance, command.gpus), *command.beside)
    on = tuple(beats.On(instance=instance, gpus=tuple(gpus)) for instance, gpus in where)
    newest = command.checkpoints[0] if command.checkpoints else None
    reports = kept[0].reports if kept else 0
    return tell(beats.Started, state, command, on=on, checkpoint=newest, after_reports=reports)


def _stopped(command: StopTrial, state: State) -> beats.Stopped:
    trial = state.trials[command.trial]
    return tell(
        beats.Stopped,
        state,
        command,
        saves=command.checkpoint,
        grace_s=round(command.grace_s, 3),
        gpus_before=sum(len(slots.gpus) for slots in trial.held or ()),
        gpus=trial.gpus,
        until=trial.reached if command.why == "reached" else None,
    )


# ------------------------------------------------------------ instances


def _instances(before: Before, decided: Decided, state: State) -> Beats:
    """Those that are asked for together, and those that are given back for the same reason."""
    launches = [one for one in decided if isinstance(one, Launch)]
    if launches:
        names, had = tuple(one.id for one in launches), state.fleet.live - len(launches)
        more = {"instances": names, "gpus_each": launches[0].gpus, "had": had}
        trials = {"wanted": wanted(state), "needed": needed(state)}
        yield tell(beats.Asked, state, why=launches[0].why, **more, **trials)
    ended = [one for one in decided if isinstance(one, Terminate)]
    for why in dict.fromkeys(one.why for one in ended):
        names = tuple(one.instance for one in ended if one.why == why)
        left = 0 if why == "end" else needed(state)
        yield tell(beats.GivenBack, state, why=why, instances=names, needed=left, had=before.live)


# ------------------------------------------------------------ the run


def _closing(verdict: Closing, state: State) -> beats.Closing:
    book = state.ledger
    spent = book.spent_gpu_s(state.now)
    committed = book.committed_gpu_s(state.now, verdict.release_s) if book.open else spent
    gpu_s = {"spent": spent, "committed": committed, "budget": budget_gpu_s(state)}
    minutes = {f"{what}_gpu_min": round(seconds / 60, 4) for what, seconds in gpu_s.items()}
    return tell(beats.Closing, state, verdict, **minutes)


def _chosen(command: Publish, state: State) -> beats.Chosen:
    """Beside what else there was."""
    usable = _usable(state)
    others = (one for one in usable.items() if one[0] != command.trial)
    mode = state.facts.mode
    second = min(others, key=lambda one: standing(one[0], one[1].metric, mode), default=None)
    unsaved = better_report(state, command.metric)
    kept = state.trials[command.trial].checkpoints
    return tell(
        beats.Chosen,
        state,
        command,
        reports=next(one.reports for one in kept if one.name == command.checkpoint),
        among=len(usable),
        runner_up=second and second[0],
        runner_up_metric=second and second[1].metric,
        better_unsaved=unsaved and unsaved[0],
        better_unsaved_metric=unsaved and unsaved[1],
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
    best = published and published.incumbent
    path, trial = published and published.path, best and best.trial
    return tell(beats.Over, state, command, path=path, trial=trial, metric=best and best.metric)
