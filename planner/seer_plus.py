"""SEER+: many configurations for a short time, ever fewer for longer, and at the end the best one
on all GPUs. How deep the search goes follows from the time and from how long a report takes.

The time is divided into windows (`windows`); there are rungs at r, eta r, eta^2 r, ... reports, one
fewer than windows. In the first window a free GPU goes to a trial that is among the best 1/eta of
its rung, else to a new configuration, as in ASHA (Li et al., MLSys '20), if it can report before
the window ends. In window k, from 0, trials that have not come to rung k wait. In the last window
the best trials of the highest rung share the GPUs: four, then two, then one. Trials take turns,
except where a stopped trial begins anew. Configurations are random until `LEARNS` trials have come
to the first rung, then four in five are by `surrogate`; where some have failed, `chance` leaves
out what will probably fail too. Where instances are rented and the time is
short, rounds of ever fewer GPUs take the place of windows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from seerd.planner.adapted import longest_training
from seerd.planner.asha import HOPELESS, TRAINS_S, fixed_outline, places, sizes
from seerd.planner.caching import prepared
from seerd.planner.chance import is_weighed, likely_draw
from seerd.planner.draft import PlanDraft, SearchMemory, Turn, diverged, read_search, settled
from seerd.planner.draws import added_for
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import FORGOTTEN, Memory, recall
from seerd.planner.model import (
    Compared,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Problem,
    TrialView,
    Tried,
    View,
)
from seerd.planner.ranking import compared, metric_at, rank
from seerd.planner.surrogate import propose
from seerd.planner.windows import (
    FINALISTS,
    LOOK,
    ElasticRound,
    Windows,
    first_look,
    outlined,
    rounds_of,
    windows_of,
)

LEARNS = 12
AT_RANDOM = 0.2  # the share of configurations that are drawn at random even so
TURNS = (
    "{count} trials train at a time and take turns: how many there will be depends on how long "
    "their reports take"
)
NO_TURNS = "{count} trials train at a time, each until it ends or is out: none takes turns"
MAKES_ROOM = "{names} stopped improving: others get their GPUs first"


def _without_turns(draft: PlanDraft) -> None:
    """Let trials train until they end or others are tried in their place."""
    size, rungs = draft.problem.params.p_min, draft.windows.rungs
    room = places(draft.cluster.gpus, size, draft.problem.gpus_per_instance)
    for trial in sorted(draft.runnable(), key=lambda trial: trial.id not in draft.search.turns):
        other = _new(draft) if draft.is_beaten(trial) else None
        if other is not None:
            draft.out.append(trial.id)
            draft.allocate(other, size, rungs[0])
        elif len(draft.allocations) < room:
            following = (rung for rung in rungs if rung > trial.reports)
            draft.allocate(trial, size, next(following, None))
    while len(draft.allocations) < room and (made := _new(draft)) is not None:
        draft.allocate(made, size, rungs[0])
    draft.allocations = dict(sorted(draft.allocations.items()))


def _narrow(draft: PlanDraft, present: ElasticRound) -> None:
    if not draft.view.trials:
        while len(draft.new) < present.trials and (made := _new(draft)) is not None:
            draft.allocate(made, draft.problem.params.p_min, None)
        return
    draft.share(draft.waiting(), present.trials)


def _search(draft: PlanDraft) -> None:
    size, windows = draft.problem.params.p_min, draft.windows
    runnable = {trial.id: trial for trial in draft.runnable()}
    for name, turn in draft.search.turns.items():
        trial = runnable.get(name)
        if (
            trial is not None
            and turn.until is not None
            and trial.reports < turn.until
            and windows.level(trial) >= draft.number
            and draft.free >= size
            and not settled(trial, draft.view.mode)
        ):
            draft.allocate(trial, size, turn.until)
    queue = _Queue(draft, [t for name, t in runnable.items() if name not in draft.allocations])
    room = places(draft.cluster.gpus, size, draft.problem.gpus_per_instance)
    while len(draft.allocations) < room:
        trial = queue.take() or _new(draft) or queue.take_rest()
        if trial is None:
            break
        following = (rung for rung in windows.rungs if rung > trial.reports)
        draft.allocate(trial, size, next(following, None))
    furthest = sorted(draft.allocations.values(), key=lambda a: (-(a.until or math.inf), a.trial))
    draft.allocations = {allocation.trial: allocation for allocation in furthest}


class _Queue:
    """The order in which waiting trials go on, by how far they have come. In the first window only
    the best 1/eta of a rung below the last do, while new ones can report before it ends.
    """

    def __init__(self, draft: PlanDraft, waiting: Sequence[TrialView]) -> None:
        windows, eta = draft.windows, draft.problem.params.eta
        still = {trial.id for trial in waiting if not draft.comes_last(trial)}
        self._last = sorted((t for t in waiting if t.id not in still), key=draft.best_first)
        waiting = [trial for trial in waiting if trial.id in still]
        self._waiting: dict[int, list[TrialView]] = {}
        self._best: dict[int, set[str]] = {}
        for level in range(windows.last, -1, -1):
            here = [trial for trial in waiting if windows.level(trial) == level]
            self._waiting[level] = sorted(here, key=partial(draft.standing, level=level))
            if 0 < level < windows.last:
                arrived = draft.arrived(level)
                self._best[level] = {t.id for t in arrived[: int(len(arrived) / eta)]}
        self._first = draft.number == 0 and not draft.ends_soon

    def take(self) -> TrialView | None:
        """Take out the next one that should rather go on than that a new one begins, or None."""
        for level, waiting in self._waiting.items():
            if waiting and waiting[0].id in self._best.get(level, ()):
                return waiting.pop(0)
        without_rung = self._waiting[0]
        if self._first:
            return without_rung.pop(0) if without_rung else None
        return self._furthest()

    def take_rest(self) -> TrialView | None:
        """Take out the next of all that are left; see `PlanDraft.comes_last`."""
        return self._furthest() or (self._last.pop(0) if self._last else None)

    def _furthest(self) -> TrialView | None:
        return next((waiting.pop(0) for waiting in self._waiting.values() if waiting), None)


def _finish(draft: PlanDraft) -> None:
    waiting = draft.waiting()
    draft.share(waiting, draft.windows.finalists(draft.view.now_s))
    size = draft.problem.params.p_min
    while not waiting and draft.free >= size and (made := _new(draft)) is not None:
        draft.allocate(made, size, None)


def _new(draft: PlanDraft) -> NewTrial | None:
    """Ask for a configuration that was not tried before; None if no more are wanted."""
    search, view, params = draft.search, draft.view, draft.problem.params
    if params.trials is not None and search.drawn >= params.trials:
        return None
    reported = any(trial.history for trial in view.trials.values())
    failed = sum(trial.status == "failed" for trial in view.trials.values())
    if not reported and failed >= max(HOPELESS, draft.cluster.gpus // params.p_min):
        return None
    chances = draft.chances if is_weighed(draft.problem, search.drawn) else None
    results = draft.results()
    first = sum(result.rung == 0 for result in results)
    at_random = random.Random(f"{params.seed} {search.drawn}").random() < AT_RANDOM
    added = added_for(draft.problem, search.drawn)
    is_given = search.drawn < len(params.start) or added is not None
    config = None
    if first >= LEARNS and not at_random and not is_given:
        seen: Sequence[Tried] = (*params.earlier, *view.trials.values(), *draft.new)
        tried = [trial.config for trial in seen]
        config, search.kernel = propose(
            draft.problem,
            tried,
            results,
            search.drawn,
            search.kernel,
            None if chances is None else chances.likely,
        )
    if config is None:
        config = likely_draw(draft.problem, search.drawn, None if is_given else chances)
    search.drawn += 1
    made = NewTrial(search.names.of(search.drawn), config)
    draft.new.append(made)
    return made


def _compared(draft: PlanDraft) -> Iterator[Compared]:
    """Yield how trials stand whose turn has ended at a rung; in rounds all, when one begins."""
    if draft.round is not None:
        if draft.search.asked_s < draft.round.start_s <= draft.view.now_s:
            had_gpus = (draft.view.trials.get(name) for name in draft.search.turns)
            ranked = rank((trial for trial in had_gpus if trial is not None), draft.view.mode)
            yield from compared(ranked, draft.round.trials, 0)
        return
    windows, eta = draft.windows, draft.problem.params.eta
    for name, turn in draft.search.turns.items():
        trial = draft.view.trials.get(name)
        if trial is None or turn.until not in windows.rungs or trial.reports < turn.until:
            continue
        level = windows.rungs.index(turn.until) + 1
        order = [other.id for other in draft.arrived(level)]
        metric = metric_at(trial, turn.until)
        best = max(1, int(len(order) / eta)) if level < windows.last else FINALISTS
        yield Compared(name, metric, turn.until, order.index(name) + 1, len(order), best)


def _answer(draft: PlanDraft) -> Plan:
    view, present, turns = draft.view, draft.round, draft.search.turns
    compared_trials = tuple(_compared(draft))
    left = (t for t in draft.runnable() if t.id not in draft.allocations)
    stalled = ", ".join(t.id for t in left if t.id in turns and settled(t, draft.view.mode))
    draft.search.turns = {}
    for name, wanted in draft.allocations.items():
        before = turns.get(name)
        same = before is not None and before.gpus == wanted.gpus
        since_s = before.since_s if before is not None and same else view.now_s
        draft.search.turns[name] = Turn(wanted.gpus, since_s, wanted.until)
    allocations = tuple(draft.allocations.values())
    if present is None and draft.search.pace.report_s is None:
        # ask again at the next report, as long as it is not known how long one takes
        trials = view.with_new(draft.new).trials
        allocations = tuple(a._replace(until=trials[a.trial].reports + 1) for a in allocations)
    gone = (t.id for t in view.trials.values() if t.status == "live" and diverged(t))
    changes_s = draft.windows.changes_s(view.now_s) if present is None else present.end_s
    ask_at_s = draft.cluster.ask_at_s
    if view.now_s < changes_s and (present is not None or draft.search.pace.report_s is not None):
        ask_at_s = changes_s
    return Plan(
        allocations,
        tuple(draft.new),
        (*gone, *draft.out),
        stage=draft.stage,
        ask_at_s=ask_at_s,
        hold_gpus=draft.cluster.gpus if present is None else 0,
        done=not allocations,
        compared=compared_trials,
        note=MAKES_ROOM.format(names=stalled) if stalled else "",
    )


def _cluster(problem: Problem) -> FixedCluster | Impossible:
    rounds = rounds_of(problem)
    return FixedCluster(rounds[0].gpus, 0.0, 0.0, True) if rounds else fixed_cluster(problem)


def _outline(problem: Problem, cluster: FixedCluster) -> Outline:
    """Outline the rounds, or one stage on the whole cluster: how long reports take is not known."""
    if rounds := rounds_of(problem):
        return outlined(problem, rounds)
    beside = places(cluster.gpus, problem.params.p_min, problem.gpus_per_instance)
    made = fixed_outline(problem, cluster, ((LOOK,),), beside, sizes(problem, cluster.gpus))
    note = NO_TURNS if problem.begins_anew else TURNS
    note = note.format(count=made.stages[0].groups[0].trials)
    return replace(made, adjusted=(*made.adjusted, note))


def _plan(
    problem: Problem, cluster: FixedCluster, memory: Memory, view: View
) -> tuple[Plan, Memory]:
    if cluster.over(view.now_s):
        return Plan(done=True), memory.after({})
    search = recall(memory, 1, read_search)
    forgotten = search is None and len(view.trials) > 0
    if search is None:
        beside = places(cluster.gpus, problem.params.p_min, problem.gpus_per_instance)
        search = SearchMemory.new(view, beside * int(problem.planned.deadline_s / TRAINS_S))
    search.look(view, problem.scaling)
    draft = _draft(problem, cluster, view, search)
    if problem.begins_anew:
        _without_turns(draft)
    elif draft.round is not None:
        _narrow(draft, draft.round)
    elif draft.number == draft.windows.last:
        _finish(draft)
    else:
        _search(draft)
    answer = _answer(draft)
    after = search.remembered(memory)
    return (replace(answer, note=FORGOTTEN) if forgotten else answer), after


def _draft(problem: Problem, cluster: FixedCluster, view: View, search: SearchMemory) -> PlanDraft:
    if rounds := rounds_of(problem):
        stage = min(len(rounds) - 1, sum(view.now_s >= round_.end_s for round_ in rounds))
        present, end_s = rounds[stage], rounds[-1].end_s
        cluster = FixedCluster(present.gpus, present.start_s, end_s, idle_paid=True)
        windows = Windows(rounds[0].start_s, end_s, ())
        return PlanDraft(problem, cluster, view, search, windows, stage, present)
    longest = longest_training(problem, view)
    look = first_look(problem.params, view)
    if longest is not None:
        look = min(look, longest)
    windows = windows_of(problem, cluster, look, search.pace.report_s, longest)
    return PlanDraft(problem, cluster, view, search, windows)


SEER_PLUS = prepared(_cluster, _outline, _plan)
