"""A run, a trial's life and a moment, explained, as pages for a terminal.

Things of one kind that happened together are one line, and nothing is cut without saying by how
much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import convert
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.ranking import standing
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.explanations import Explanation, Sizes
from seerd.telling.explanation.sentences import (
    ENDINGS,
    STOPS,
    at,
    fill,
    metric_of,
    moved,
    names,
    predicate,
    sentence,
    sizes,
    subject,
    used,
    value,
    waits_for_room,
)
from seerd.telling.explanation.timeline import Chapter, Cost, Timeline, costs
from seerd.telling.harmless import config_text
from seerd.telling.outcomes import in_words
from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table
from seerd.units import count, format_money, ordinal

MOST_LINES = 30
MOST_JUDGED = 16
MOST_INSTANCES = 8

QUIET = {"out", "resized", "reached", "paused", "closing", "hard", "saved", "killed"}
"""Causes of stops and ends that need no line: the table of compared trials, or the end of the run,
explains them.
"""
NEXT = {
    "deadline": "everything must be asked to stop, to keep the deadline",
    "budget": "everything must be asked to stop, to keep the budget",
    "plan": "the stage is over, the policy is asked",
    "again": "the policy is asked again, since its last answer was of no use",
    "launch": "instances are asked for again",
    "closed": "what has not saved by then is given back as it is",
}

STAGE = ", stage {stage} of {stages} (planned until {stage_end_s:at})"
MOMENT = "{run} at {at_s:at} (after event {event}): {phase}[" + STAGE + "]"
SPENT = (
    "spent {spent_gpu_min:.2f} GPU-min{price}, {committed_gpu_min:.2f} if everything were given "
    "back now, left {left_gpu_min:.2f} of {budget_gpu_min:.2f}; {gpus_billed:GPU} billed"
)
WANTED = (
    "wanted: {wanted:sizes}; {instances_needed:instance} needed, {instances_live} there or on the "
    "way"
)
BEST = "best so far[ of {job}]: {trial}, {name} {metric:value} after {epoch:report}"

ATTEMPT = (
    "on {on:places}[, from report {after_reports}]: [trained after {after_s:at}|never trained]"
    "[, {reports:report}: {name} {first:value} to {last:value}]"
    "[, best {best:value} at report {top}]; [ended at {ended_s:at} ({how})|still there]"
)

Parts = Iterator[RenderableType]
Rows = Sequence[tuple[str, str]]


def wrapped(text: str, style: str = "") -> Table:
    """Break text between words where the terminal ends."""
    table = Table.grid()
    table.add_column()
    table.add_row(Text(text, style=style))
    return table


def grid(rows: Rows) -> Table:
    """Show what happened when; of more than `MOST_LINES` rows only the first and the last."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True, min_width=9)
    table.add_column()
    left_out = len(rows) - MOST_LINES
    if left_out > 0:
        note = ("", f"... {count(left_out, 'line')} left out; --json has them all")
        rows = [*rows[: MOST_LINES - 10], note, *rows[-10:]]
    for when, text in rows:
        table.add_row(Text(when), Text(text))
    return table


# ------------------------------------------------------------ a run


def timeline_page(timeline: Timeline, state: State) -> RenderableType:
    """Show the whole run, stage by stage."""
    over = state.end.status if state.phase is RunPhase.OVER else None
    how = "not over" if over is None else ENDINGS[over]
    trials = count(len(state.trials), "trial")
    jobs, problem = state.facts.jobs, state.facts.problem
    who = f"{count(len(jobs), 'job')} ({problem.sharing})" if jobs else problem.params.name
    head = f"{state.facts.run}: {who}, {trials}; {how}\n{', '.join(used(state).values())}"
    parts: list[RenderableType] = [Text(head)]
    parts += [wrapped(f"note: {sentence}") for sentence in state.outline.adjusted]
    paid = costs(timeline, state, state.now)
    for chapter, cost in zip(timeline.chapters, paid, strict=True):
        parts += [Text(), *_chapter(chapter, state), *_cost(cost, state)]
    return Group(*parts, Text())


def _chapter(chapter: Chapter, state: State) -> Parts:
    named, explanations = partial(metric_of, facts=state.facts), chapter.explanations
    until, last = state.now if chapter.until_s is None else chapter.until_s, chapter.planned_end_s
    title = f"the {'end' if chapter.end else 'run'}, {at(chapter.start_s)} to {at(until)}"
    if chapter.stage is not None:
        moved_end = last is not None and abs(until - last) >= 1
        planned = f" (planned until {at(last)})" if last is not None and moved_end else ""
        times = f" ({ordinal(chapter.times)} time)" if chapter.times > 1 else ""
        stage = f"stage {chapter.stage + 1} of {len(state.outline.stages)}{times}"
        when = f"{at(chapter.start_s)} to {at(until)}{planned}"
        title = f"{stage}, {when}: {sizes(chapter.groups)}"
    yield wrapped(title, "bold")
    first = next((one for one in explanations if one.kind == "planned"), None)
    if first is not None:
        yield grid([(at(first.at_s), sentence(first, named(first)))])
    for job in state.jobs:
        judged = [one for one in explanations if one.kind == "judged" and job_of(one.trial) == job]
        if judged:
            best, mode = judged, state.facts.goals[job].mode
            if len(judged) > MOST_JUDGED:
                finite = [one for one in judged if one.metric is not None]
                finite.sort(key=lambda one: standing(one.trial, one.metric, mode))
                best = finite[:MOST_JUDGED]
            if best:  # of many without a finite metric none is best
                yield _judged(best, metric_of(judged[0], state.facts))
        if len(judged) > MOST_JUDGED:
            shown = f"the best {len(best)} of {len(judged)} comparisons; --json has all"
            yield grid([("", shown)])
    rest = [one for one in explanations if one is not first]
    yield grid(list(lines_of(rest, named)))
    started = [one.attempt for one in rest if one.kind == "started"]
    first_time, stops = started.count(1), Counter(one.why for one in rest if one.kind == "stopped")
    parts = [f"{count(first_time, 'trial')} started"] if first_time else []
    again = len(started) - first_time
    parts += [f"{again} started again"] if again else []
    parts += [f"{number} stopped ({STOPS[why]})" for why, number in stops.items()]
    yield grid([("", ", ".join(parts))] if parts else [])


def _judged(judged: Sequence[Explanation], name: str) -> Table:
    several = len({one.bracket for one in judged}) > 1
    columns = ("  trial", "", f">{name}", ">reports", "place", "GPUs")
    table = plain_table(*columns, *["bracket"] * several)
    for one in judged:
        metric = "-" if one.metric is None else value(one.metric)
        place = fill("[{place:th} of {of}]", one.facts)
        if place and 0 < one.best < one.of and not waits_for_room(one):
            place += f", {one.best} go{'es' * (one.best == 1)} on"
        before = f"{gpus_number(one.gpus_before)} -> " if moved(one) else ""
        gpus = f"{before}{gpus_number(one.gpus)}" if one.gpus else ""
        row = (f"  {one.trial}", one.verdict.replace("-", " "), metric, str(one.reports))
        table.add_row(*row, place, gpus, *[str(one.bracket)] * several)
    return table


def lines_of(
    explanations: Sequence[Explanation], named: Callable[[Explanation], str]
) -> Iterator[tuple[str, str]]:
    """Yield when things happened, and what they were. `named` gives the metric of each."""
    taken = {(b.event, t) for b in explanations if b.kind in ("lost", "noticed") for t in b.trials}
    groups: dict[tuple[object, ...], tuple[str, list[Explanation]]] = {}
    for one in explanations:
        if _shown(one, taken):
            text = predicate(one, named(one))
            again = one.kind == "asked" and one.why == "again"  # as often as it was refused
            alike = one.detail if one.kind == "refused" else text
            when = None if again or one.kind == "refused" else round(one.at_s)
            groups.setdefault((one.kind, when, alike), (text, []))[1].append(one)
    for text, together in groups.values():
        who = names([subject(one) for one in together if subject(one)])
        times = f" ({len(together)} times)" if len(together) > 1 and not who else ""
        yield at(together[0].at_s), f"{who}: {text}" if who else f"{text}{times}"


def _shown(one: Explanation, taken: set[tuple[int, str]]) -> bool:
    """Return whether it has a line of its own; `taken`: (event, trial) in lines of others."""
    is_taken = (one.event, one.facts.get("trial")) in taken
    if one.kind == "planned":
        return bool(one.dropped or one.note)
    if one.kind == "stopped":
        return one.why not in QUIET and not (one.why == "leaving" and is_taken)
    if one.kind == "ended":
        lost = one.how == "lost" and one.then != "failed"
        return one.how not in QUIET and not (lost and is_taken)
    return one.kind not in ("judged", "started")


def _cost(cost: Cost, state: State) -> Parts:
    if not cost.billed:
        return
    per_instance = state.facts.cluster.per_instance

    def share(part: float, of: float) -> str:
        # A tenth of a cent is exact enough for the parts to add up.
        book = state.ledger
        usd = f", ${book.part_usd(of, state.now):.3f}" if book.usd_per_gpu_h else ""
        idle = f", {part / of:.0%} idle" if per_instance and of else ""
        return f"{of / 60:.2f} GPU-min{usd}{idle}"

    billed = float(cost.billed)
    boot = " (boot included)" if per_instance else ""
    lines = [f"cost {share(cost.idle, billed)}{boot}, {cost.starting / billed:.0%} starting trials"]
    if len(cost.instances) > 1:
        shown = sorted(cost.instances, key=lambda one: -one.billed)
        some, rest = shown[:MOST_INSTANCES], shown[MOST_INSTANCES:]
        lines += [f"  {one.instance}: {share(one.idle, float(one.billed))}" for one in some]
        minutes = sum(float(one.billed) for one in rest) / 60
        lines += [f"  {count(len(rest), 'more instance')}: {minutes:.2f} GPU-min"] if rest else []
    yield grid([("", line) for line in lines])


# ------------------------------------------------------------ a trial


def trial_page(life: Json) -> RenderableType:
    """Show what `replay --trial --json` prints."""
    result = "; its model is the result" if life["handed_back"] else ""
    became = in_words(life["outcome"], life["outcome_why"])
    return Group(
        wrapped(f"{life['trial']} of {life['run']}: {became}{result}", "bold"),
        grid([("why", life["why"]), ("config", config_text(life["config"]))]),
        Text(),
        *trial_history(life),
    )


def trial_history(life: Json) -> list[RenderableType]:
    """Show where a trial was, and what happened to it and why."""
    name, trial = life["metric"]["name"], life["trial"]
    attempts = []
    for attempt in life["attempts"]:
        first, last, best = attempt["first"], attempt["last"], attempt["best"]
        facts = {**attempt, "name": name, "after_s": None, "top": None}
        if attempt["training_s"] is not None:
            facts["after_s"] = attempt["training_s"] - attempt["start_s"]
        if first is not None:
            facts |= {"first": first["metric"], "last": last["metric"]}
        if best is not None and best["report"] not in (first["report"], last["report"]):
            facts |= {"top": best["report"], "best": best["metric"]}
        if attempt["how"] == "saved" and (attempt["kept"] or 0) <= attempt["after_reports"]:
            facts["how"] = "nothing new saved" if attempt["kept"] else "nothing saved"
        attempts.append((at(attempt["start_s"]), fill(ATTEMPT, facts)))
    beats = [
        (at(one["at_s"]), one["text"].removeprefix(f"{trial}: "))
        for one in life["beats"]
        if one["kind"] != "started"
    ]
    held = f"attempts: {len(attempts)}, which held GPUs for {life['held_gpu_min']:.2f} GPU-min"
    text = "{first:value} to {last:value}, from {lowest:value} to {highest:value}"
    spans = life["other_metrics"].items()
    others = [(metric, fill(text, span)) for metric, span in spans if span is not None]
    others += [("not met", constraint) for constraint in life["violates"]]
    return [
        *_titled(held, attempts),
        *_titled("other metrics", others),
        *_titled("what happened to it, and why", beats),
    ]


def _titled(title: str, rows: Rows) -> list[RenderableType]:
    return [Text(title, style="bold"), grid(rows), Text()] if rows else []


# ------------------------------------------------------------ a moment


def moment_page(moment: Json, state: State) -> RenderableType:
    """Show what `replay --at --json` prints."""
    price = f" ({format_money(moment['spent_usd'])})" if state.ledger.usd_per_gpu_h else ""
    parts: list[RenderableType] = [wrapped(fill(MOMENT, moment)), Text()]
    parts.append(wrapped(fill(SPENT, {**moment, "price": price})))
    run = {"job": "", "metric": moment["metric"]["name"], "best": moment["best"]}
    for job in moment.get("jobs", [run]):
        if job["best"] is not None:
            saved = {**job["best"], "job": job["job"], "name": job["metric"]}
            parts.append(wrapped(fill(BEST, saved)))
    due = [(at(one["at_s"]), NEXT[one["what"]]) for one in moment["next"]]
    if due:
        due[0] = (due[0][0], f"{due[0][1]} (comes first)")
        parts += [Text("next", style="bold"), grid(due)]
    parts.append(Text())
    wanted = convert(moment["wanted"], tuple[Sizes, ...])
    table = plain_table("  instance", "state", "GPUs", "what runs there")
    table.columns[-1].no_wrap = False
    for instance in moment["instances"]:
        here = [
            fill("{trial} ({phase}, {reports:report}) on ", one)
            + gpus_number(on.get("share", len(on["gpus"])))
            for one in moment["running"]
            for on in one["on"]
            if on["instance"] == instance["instance"]
        ]
        cells = ("  {instance}", "{phase}[ by {by_s:at}]", "{busy:gpus} of {gpus:gpus}")
        row = [fill(cell, instance) for cell in cells]
        table.add_row(*row, ", ".join(here) or "nothing")
    where = table if moment["instances"] else Text("  no instance")
    parts += [wrapped(fill(WANTED, {**moment, "wanted": wanted})), where, Text()]
    if moment["waiting"]:
        waiting = names([fill("{trial} ({gpus:gpus})", one) for one in moment["waiting"]])
        parts.append(wrapped(f"waiting for GPUs: {waiting}"))
    under_way = [("", one["text"]) for one in moment["under_way"] if one["kind"] != "set-timer"]
    parts += _titled("under way", under_way)
    if moment["decided"]:
        last = moment["decided"][0]
        title = f"decided last, at {at(last['at_s'])} (event {last['event']})"
        parts += _titled(title, [("", one["text"]) for one in moment["decided"]])
    return Group(*parts)
