"""Several jobs that share a run: how many GPUs each has, and what it makes of its share.

A job's policy plans its share as if it were a run of its own. When the share changes, rounds by the
clock are planned anew for what is left (`renewed`); others go on with more or fewer GPUs.

fair         GPUs are divided by weight up to what each job can use (`seerd.planner.dividing`)
round-robin  one by one in turn (Li et al., Ease.ml, VLDB '18, section 4.2)
greedy       one by one to the job whose regret is expected to fall most by it (section 4.3)
hybrid       greedy until that is frozen, then in turn (section 4.4)
worst-first  one by one to the job whose regret is expected to be the largest without it

Round-robin and hybrid divide again every `WHILE_S`, greedy and worst-first at the `LOOKS`, all
while a job uses less than its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from msgspec import structs

from seerd.agent.gpu_shares import Claim
from seerd.planner.caching import IndexCache
from seerd.planner.dividing import Dividing, Prospect, divided, prospects
from seerd.planner.fixed_cluster import fixed_cluster
from seerd.planner.job_parts import (
    VERSION,
    JobTerms,
    ShareTable,
    by_job,
    changes_of,
    in_the_run,
    memory_of,
    never_begins,
    own_left,
    problem_of,
    read_table,
)
from seerd.planner.memory import FORGOTTEN, Json, Memory, differing, recall
from seerd.planner.model import (
    Impossible,
    Limits,
    Outline,
    Plan,
    PlannedJob,
    Policy,
    Problem,
    Stage,
    View,
)
from seerd.planner.policies import BY_THE_CLOCK, named

# shares are divided again after so many seconds at least, and at most so often in a run
WHILE_S, WHILES = 30.0, 40
# when shares are divided by what jobs offer, as parts of the time that is planned with
LOOKS = 1 / 8, 1 / 4, 1 / 2, 3 / 4
FIRST = "{count} jobs share the run ({sharing}); GPUs of each at first: {shares}"
DONE = "what was planned for {job} is done: the others get its share"


@dataclass(slots=True)
class _Asked:
    """A job while a question is answered."""

    job: PlannedJob
    view: View  # what its policy sees, with the trials that it has asked for meanwhile
    memory: Memory  # what its policy remembers
    problem: Problem | None = None  # what it was asked with last; None: it was not asked yet
    plan: Plan = field(default_factory=Plan)  # its last answer
    changes: dict[str, Json] = field(default_factory=dict)  # how the run's memory differs for it
    parts: list[Plan] = field(default_factory=list)  # its answers so far, in the run's names

    @property
    def used(self) -> int:
        """How many GPUs its last answer wants."""
        return sum(allocation.gpus for allocation in self.plan.allocations)

    def ask(self, problem: Problem | None) -> None:
        """Ask the job's policy; None: it has no GPUs. Trials wait for which a smaller share has no
        GPUs: some policies only begin fewer trials then.
        """
        if problem is None:
            self.plan, self.problem = Plan(), None
            return
        if problem is self.problem:
            return
        self.problem = problem
        plan, after = named(problem.params.name).plan(problem, self.memory, self.view)
        self.plan = plan
        left, kept = problem.planned.max_gpus or 0, []
        for allocation in plan.allocations:
            if allocation.gpus <= left:
                kept.append(allocation)
                left -= allocation.gpus
        if len(kept) < len(plan.allocations):
            self.plan = replace(plan, allocations=tuple(kept))
        if after is not self.memory:
            self.changes.update(changes_of(self.job.id, after))
        self.memory = after
        self.view = self.view.with_new(self.plan.new)
        self.parts.append(in_the_run(self.job.id, self.plan))


_memories: IndexCache[dict[str, Memory]] = IndexCache()


def _outline(problem: Problem) -> Outline | Impossible:
    """Outline one stage in which all jobs have their shares."""
    cluster = fixed_cluster(problem)
    if isinstance(cluster, Impossible):
        return cluster
    table, open_ = ShareTable(), [job for job in problem.jobs if not job.over]
    _divide(problem, open_, table, View(problem.start_s, "max", {}))
    outlines = []
    for job in open_:
        left = own_left(problem, job, View(problem.start_s, "max", {}), problem.planned)
        most = min(cluster.gpus, job.problem.limits.max_gpus or cluster.gpus)
        why = never_begins(job, replace(left, max_gpus=most), problem) or table.refused.get(job.id)
        if why is not None:
            return replace(why, reason=f"{job.id}: {why.reason}", job=job.id)
        own = problem_of(job, table.terms[job.id], problem)
        outline = None if own is None else named(own.params.name).outline(own)
        outlines += [outline] if isinstance(outline, Outline) else []
    shares = ", ".join(f"{job.id} {problem.gpus(table.terms[job.id].gpus)}" for job in open_)
    note = FIRST.format(count=len(open_), sharing=problem.sharing, shares=shares)
    first = [group for own in outlines for group in (own.stages[0].groups if own.stages else ())]
    return Outline(
        brackets=tuple(bracket for own in outlines for bracket in own.brackets),
        stages=(Stage(cluster.start_s, cluster.end_s, tuple(first)),),
        first_round_s=min((own.first_round_s for own in outlines), default=0.0),
        adjusted=(*problem.adjusted, note),
        sizes=tuple(sorted({gpus for own in outlines for gpus in own.allocations})),
    )


def _plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    table = recall(memory, VERSION, read_table)
    notes = [FORGOTTEN] if table is None and view.trials else []
    gone: dict[str, Json] = dict.fromkeys(memory.values) if table is None else {}
    remembered, table = (Memory() if table is None else memory), table or ShareTable()
    views, kept = by_job(view, problem.jobs), _memories.take(problem, memory) or {}
    asked = {
        job.id: _Asked(job, views[job.id], kept.get(job.id) or memory_of(job.id, remembered))
        for job in problem.jobs
        if not job.over and job.id not in table.done
    }
    notes += _settle(problem, table, view, asked)
    changes = {key: value for job in asked.values() for key, value in job.changes.items()}
    after = memory.after({**gone, **differing(remembered, table.values()), **changes})
    _memories.keep(problem, after, {**kept, **{name: job.memory for name, job in asked.items()}})
    return _together(problem, table, view, asked, notes), after


def _settle(
    problem: Problem, table: ShareTable, view: View, asked: Mapping[str, _Asked]
) -> list[str]:
    """Divide and ask until every share is used, or no job can use the rest. Return notes."""
    notes: list[str] = []
    open_ = {name: entry.job for name, entry in asked.items()}
    jobs = [*open_.values()]
    changed = table.signature != _signature(problem, jobs)
    if changed or view.now_s >= _again_s(problem, table, jobs):
        table.caps = {}
        _divide(problem, jobs, table, view)
    for _ in range(2 * len(asked) + 1):
        for name, job in open_.items():
            terms = table.terms.get(name)
            asked[name].ask(None if terms is None else problem_of(job, terms, problem))
        ended = [name for name in open_ if asked[name].plan.done]
        for name in ended:
            table.done.append(name)
            notes.append(DONE.format(job=name))
            del open_[name]
        used = {name: asked[name].used for name in open_ if name in table.terms}
        short = {name: gpus for name, gpus in used.items() if gpus < table.terms[name].gpus}
        if not ended and not short:
            break
        table.caps |= short
        if not _divide(problem, [*open_.values()], table, view):
            break
    return notes


def _again_s(problem: Problem, table: ShareTable, open_: Sequence[PlannedJob]) -> float:
    """Return when shares are divided again though nothing has happened; infinite: never."""
    turns = any(not table.terms[job.id].gpus for job in open_ if job.id in table.terms)
    if problem.sharing in ("round-robin", "hybrid") or turns or table.caps:
        return table.divided_s + _while_s(problem)
    if problem.sharing == "fair":
        return math.inf
    looks = (problem.start_s + part * problem.planned.deadline_s for part in LOOKS)
    return min((at_s for at_s in looks if at_s > table.divided_s), default=math.inf)


def _while_s(problem: Problem) -> float:
    return max(WHILE_S, problem.planned.deadline_s / WHILES)


def _signature(problem: Problem, open_: Sequence[PlannedJob]) -> list[str]:
    jobs = [f"{job.id} {job.weight:g}" for job in open_]
    return [problem.sharing, str(problem.extended), *jobs]


def _divide(problem: Problem, open_: Sequence[PlannedJob], table: ShareTable, view: View) -> bool:
    """Give every open job its share. Return whether any has changed."""
    left = table.left(problem, view)
    if left is None or not open_:
        return False
    signature = _signature(problem, open_)
    if signature != table.signature:
        table.signature, table.base = signature, _base(problem, open_, table, view)
    table.divided_s = view.now_s
    params = replace(problem.params, t_min_s=0.0)
    counted = replace(problem, params=params, within=left, extended=problem.extended + 1)
    cluster = fixed_cluster(counted)
    table.gpus = table.gpus if isinstance(cluster, Impossible) else cluster.gpus
    expected: Sequence[Prospect] = ()
    if problem.sharing not in ("fair", "round-robin"):
        expected = prospects(open_, by_job(view, problem.jobs), view.spent)
    had = {name: gpu_s - table.base.get(name, 0.0) for name, gpu_s in view.spent.items()}
    ahead_s, freeze, last = _while_s(problem), table.freeze, table.last
    by = Dividing(problem.sharing, had, ahead_s, left.deadline_s, expected, freeze, last)
    claims = []
    for job in open_:
        own, most = own_left(problem, job, view, left), job.problem.limits.max_gpus
        caps = [table.gpus, table.caps.get(job.id, table.gpus), *([] if most is None else [most])]
        cap = min(caps) if own.deadline_s > 0 and own.budget_gpu_s > 0 else 0
        claims.append(Claim(job.id, cap, job.weight, job.problem.params.p_min))
    division = divided(table.gpus, claims, by)
    table.freeze, table.last = division.freeze, division.last
    together = sum(division.given.values()) or 1
    changed = False
    for job in open_:
        gpus = division.given[job.id]
        share = Limits(left.deadline_s, left.budget_gpu_s * gpus / together, gpus)
        changed |= _give(problem, job, table, _terms(problem, job, table, view, share))
    if any(division.given.get(name, 0) > cap for name, cap in table.caps.items()):
        return _divide(problem, open_, table, view) or changed  # a job's policy refused its share
    return changed


def _base(
    problem: Problem, open_: Sequence[PlannedJob], table: ShareTable, view: View
) -> dict[str, float]:
    """Return from where on each job's GPU time is counted, once jobs or weights are others: as if
    it had what it is ahead of the last one now, at most a turn, so that no job waits for the past.
    """
    had = {job: gpu_s - table.base.get(job, 0.0) for job, gpu_s in view.spent.items()}
    last = min(had.get(job.id, 0.0) / job.weight for job in open_)
    turn = _while_s(problem)
    ahead = {job.id: min(max(0.0, had.get(job.id, 0.0) - last * job.weight), turn) for job in open_}
    return {job: gpu_s - ahead.get(job, 0.0) for job, gpu_s in view.spent.items()}


def _terms(
    problem: Problem, job: PlannedJob, table: ShareTable, view: View, share: Limits
) -> JobTerms:
    """Make a job's terms from its share; only rounds by the clock are planned anew."""
    before, left = table.terms.get(job.id), own_left(problem, job, view, share)
    left_s, left_gpu_s = left.deadline_s, left.budget_gpu_s
    gpus, since_s = share.max_gpus or 0, max(view.now_s, problem.start_s)
    if before is None:
        return JobTerms(gpus, since_s, left_s, left_gpu_s)
    if job.problem.params.name in BY_THE_CLOCK:
        return JobTerms(gpus, since_s, left_s, left_gpu_s, before.renewals + 1)
    lasts_s = since_s - before.start_s + left_s
    return JobTerms(gpus, before.start_s, lasts_s, gpus * lasts_s, before.renewals)


def _give(problem: Problem, job: PlannedJob, table: ShareTable, terms: JobTerms) -> bool:
    """Set a job's terms. Return whether they have changed. If its policy could do nothing with
    them, they stay if it has as many GPUs as before; else it has none, and the others get them.
    """
    before = table.terms.get(job.id)
    if before is not None and before.alike(terms):
        return False
    own = problem_of(job, terms, problem)
    outline = None if own is None else named(own.params.name).outline(own)
    if isinstance(outline, Impossible):
        if before is not None and before.gpus == terms.gpus:
            return False
        table.refused[job.id], table.caps[job.id] = outline, 0
        terms = structs.replace(terms, gpus=0)
    table.terms[job.id] = terms
    return True


def _together(
    problem: Problem,
    table: ShareTable,
    view: View,
    asked: Mapping[str, _Asked],
    notes: Sequence[str],
) -> Plan:
    open_ = {name: job for name, job in asked.items() if name not in table.done}
    plans = [in_the_run(name, job.plan) for name, job in open_.items()]
    parts = [part for job in asked.values() for part in job.parts]
    again_s = _again_s(problem, table, [job.job for job in open_.values()])
    asks = [again_s, *(plan.ask_at_s for plan in plans if plan.ask_at_s is not None)]
    at_s = min((at_s for at_s in asks if view.now_s < at_s < math.inf), default=None)
    rows = zip_longest(*(plan.allocations for plan in plans))
    return Plan(
        tuple(allocation for row in rows for allocation in row if allocation is not None),
        tuple(new for part in parts for new in part.new),
        tuple(dict.fromkeys(name for part in parts for name in part.eliminated)),
        ask_at_s=at_s,
        hold_gpus=sum(plan.hold_gpus for plan in plans),
        ask_on_end=any(plan.ask_on_end for plan in plans),
        done=not open_,
        compared=tuple(compared for part in parts for compared in part.compared),
        note="; ".join([*notes, *(part.note for part in parts if part.note)]),
    )


JOBS = Policy(_outline, _plan)
