"""A run's story, stage by stage, to be read on a terminal.

The one rule: nothing is said here that `--json` does not say too; long lists are cut, and say by how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.core.commands import StopCause
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.planner.ranking import standing
from seerd.story.beats import AnyBeat, Judged, Planned, Started, Stopped, Verdict
from seerd.story.chapters import Chapter, Story
from seerd.story.costs import Cost, costs
from seerd.story.gathering import lines_of
from seerd.story.layout import MOST_LINES, grid, wrapped
from seerd.story.words import at, count, ordinal, sentence, sizes
from seerd.units import format_duration, format_gpu_time, format_money
from seerd.view.plain import ENDINGS

MOST_JUDGED = 16
MOST_INSTANCES = 8

MANY: dict[Verdict, str] = {
    "goes-on": "go on",
    "out": "are out",
    "paused": "wait",
    "complete": "complete",
    "finished": "finished by themselves",
    "failed": "have failed",
}
STOPS: dict[StopCause, str] = {
    "out": "out",
    "resized": "moved to another number of GPUs",
    "moved": "moved",
    "displaced": "made to wait",
    "reached": "stopped to be compared",
    "paused": "paused",
    "leaving": "moved off what the cloud takes away",
    "node": "ended with another of their instances",
    "hung": "killed since they hung",
    "closing": "saved at the end",
    "hard": "killed at the end",
    "unknown": "asked to end",
}
VERDICTS: dict[Verdict, str] = {
    "goes-on": "goes on",
    "out": "out",
    "paused": "waits",
    "complete": "complete",
    "finished": "finished",
    "failed": "failed",
}

Json = dict[str, Any]


def story_page(story: Story, state: State) -> RenderableType:
    """The whole run, stage by stage."""
    parts: list[RenderableType] = [_head(state)]
    parts += [wrapped(f"note: {told}") for told in state.outline.adjusted]
    for chapter, cost in zip(story.chapters, costs(story, state, state.now), strict=True):
        parts += [Text(), *_chapter(chapter, cost, state)]
    return Group(*parts, Text())


def _head(state: State) -> Text:
    limits, book = state.facts.problem.limits, state.ledger
    spent = book.spent_gpu_s(state.now)
    price = f", {format_money(book.usd(spent))}" if book.usd_per_gpu_h else ""
    how = ENDINGS[state.end.status] if state.end.status and state.phase is RunPhase.OVER else "not over"
    return Text(
        f"{state.facts.run}: {state.facts.problem.params.name}, {count(len(state.trials), 'trial')}; {how}\n"
        f"{at(state.now)} of {format_duration(limits.deadline_s)}, "
        f"{format_gpu_time(spent)} of {format_gpu_time(limits.budget_gpu_s)}{price}"
    )


def _chapter(chapter: Chapter, cost: Cost, state: State) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(chapter, state)]
    judged = [beat for beat in chapter.beats if isinstance(beat, Judged)]
    first = next((beat for beat in chapter.beats if isinstance(beat, Planned)), None)
    if first is not None:
        parts.append(grid([(at(first.at_s), sentence(first, state.facts.metric))]))
    if judged:
        parts.append(_judged(judged, state))
        if _best_get_most(judged, state):
            parts.append(grid([("", "of those that go on, the best have the most GPUs")]))
    parts.append(_lines([beat for beat in chapter.beats if beat is not first], state))
    return [*parts, *_cost(cost, state)]


def _title(chapter: Chapter, state: State) -> RenderableType:
    until = state.now if chapter.until_s is None else chapter.until_s
    when = f"{at(chapter.start_s)} to {at(until)}"
    if chapter.stage is None:
        return wrapped(f"the {'end' if chapter.end else 'run'}, {when}", "bold")
    last = chapter.planned_end_s
    planned = f" (planned until {at(last)})" if last is not None and abs(until - last) >= 1 else ""
    again = f" ({ordinal(chapter.times)} time)" if chapter.times > 1 else ""
    stages = len(state.outline.stages)
    stage = f"stage {chapter.stage + 1} of {stages}{again}, {when}{planned}"
    return wrapped(f"{stage}: {sizes(chapter.groups) or 'nobody'}", "bold")


def _judged(judged: Sequence[Judged], state: State) -> RenderableType:
    """Who was compared: each of them, or of many what it took to go on."""
    if len(judged) > MOST_JUDGED:
        return grid([("", line) for line in _cuts(judged, state)])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    several = len({beat.bracket for beat in judged}) > 1
    for column in ("  trial", "", state.facts.metric, "reports", "place", "GPUs", *["bracket"] * several):
        table.add_column(column, justify="right" if column in (state.facts.metric, "reports") else "left", no_wrap=True)
    for beat in judged:
        metric = "-" if beat.metric is None else f"{beat.metric:.6g}"
        place = "" if beat.place is None else f"{ordinal(beat.place)} of {beat.of}"
        best = f", {beat.best} go{'es' * (beat.best == 1)} on" if beat.best and place else ""
        row = [f"  {beat.trial}", VERDICTS[beat.verdict], metric, str(beat.reports), place + best, _gpus(beat)]
        table.add_row(*row, *[str(beat.bracket)] * several)
    return table


def _best_get_most(judged: Sequence[Judged], state: State) -> bool:
    """Whether that explains why some have other numbers of GPUs than before."""
    on = [beat for beat in judged if beat.verdict == "goes-on" and beat.gpus]
    gpus = [beat.gpus for beat in _ordered(on, state)]
    moved = any(beat.gpus_before not in (0, beat.gpus) for beat in on)
    return moved and len(set(gpus)) > 1 and gpus == sorted(gpus, reverse=True)


def _gpus(beat: Judged) -> str:
    if not beat.gpus:
        return ""
    return str(beat.gpus) if beat.gpus_before in (0, beat.gpus) else f"{beat.gpus_before} -> {beat.gpus}"


def _cuts(judged: Sequence[Judged], state: State) -> Iterator[str]:
    """Of many trials: who just went on and who just did not, or, if they were compared as they came, how many did."""
    as_they_came = len({beat.event for beat in judged}) > 1
    rounds: dict[tuple[int, int], list[Judged]] = {}
    for beat in judged:
        rounds.setdefault((beat.bracket, beat.reports if as_they_came else 0), []).append(beat)
    for (bracket, reports), beats in sorted(rounds.items()):
        if as_they_came:
            yield f"bracket {bracket}, report {reports}: {_came(beats, state)}"
        else:
            yield f"bracket {bracket}: {_cut(beats, state)}"


def _came(beats: Sequence[Judged], state: State) -> str:
    on = {beat.trial for beat in beats if beat.verdict == "goes-on"}
    trials = {beat.trial for beat in beats}
    last = all(beat.verdict == "complete" for beat in beats)
    told = f"{count(len(trials), 'trial')} came there" + ("" if last else f", {len(on)} went on")
    best = _ordered(beats, state)[:1]
    return told + "".join(f"; best {beat.trial} with {state.facts.metric} {beat.metric:.6g}" for beat in best)


def _cut(beats: Sequence[Judged], state: State) -> str:
    counts = Counter(beat.verdict for beat in beats)
    told = ", ".join(f"{number} {MANY[verdict]}" for verdict, number in counts.items())
    ordered, best = _ordered(beats, state), beats[0].best
    named = [("best", 0), ("last that goes on", best - 1), ("first that does not", best)]
    cuts = [f"{what} {ordered[i].trial} with {ordered[i].metric:.6g}" for what, i in named if 0 <= i < len(ordered)]
    return f"{told} of {beats[0].of} by {state.facts.metric}; {', '.join(cuts)}"


def _ordered(beats: Sequence[Judged], state: State) -> list[Judged]:
    """Those with a finite metric, best first."""
    finite = [beat for beat in beats if beat.metric is not None]
    return sorted(finite, key=lambda beat: standing(beat.trial, beat.metric, state.facts.mode))


def _lines(beats: Sequence[AnyBeat], state: State) -> RenderableType:
    rows = [(at(seconds), text) for seconds, text in lines_of(beats, state.facts.metric)]
    if len(rows) > MOST_LINES:
        left_out = len(rows) - MOST_LINES
        note = ("", f"... {count(left_out, 'line')} left out; --json has them all")
        rows = [*rows[: MOST_LINES - 10], note, *rows[-10:]]
    trials = _trials(beats)
    return grid([*rows, *([("", trials)] if trials else [])])


def _trials(beats: Sequence[AnyBeat]) -> str:
    """How many attempts were started and stopped, and why."""
    started = [beat for beat in beats if isinstance(beat, Started)]
    first = sum(beat.attempt == 1 for beat in started)
    stops = Counter(beat.why for beat in beats if isinstance(beat, Stopped))
    parts = [f"{count(first, 'trial')} started"] if first else []
    parts += [f"{len(started) - first} started again"] if len(started) > first else []
    parts += [f"{number} {STOPS[why]}" for why, number in stops.items()]
    return ", ".join(parts)


def _cost(cost: Cost, state: State) -> list[RenderableType]:
    billed = float(cost.billed)
    if not billed:
        return []
    rented = state.facts.cluster.billing == "rented"
    price = _usd(billed, state)
    idle = f"{cost.idle / billed:.0%} idle (boot included), " if rented else ""
    told = f"cost {billed / 60:.2f} GPU-min{price}; {idle}{cost.starting / billed:.0%} starting trials"
    if len(cost.instances) < 2:
        return [grid([("", told)])]
    shown = sorted(cost.instances, key=lambda one: -one.billed)
    rows = [("", told)]
    for one in shown[:MOST_INSTANCES]:
        part = float(one.billed)
        usd = _usd(part, state)
        share = f", {one.idle / part:.0%} idle" if rented and part else ""
        rows.append(("", f"  {one.instance}: {part / 60:.2f} GPU-min{usd}{share}"))
    rest = shown[MOST_INSTANCES:]
    if rest:
        rows.append(
            ("", f"  {count(len(rest), 'more instance')}: {sum(float(o.billed) for o in rest) / 60:.2f} GPU-min")
        )
    return [grid(rows)]


def _usd(gpu_s: float, state: State) -> str:
    """Parts are told to a tenth of a cent, so that they add up."""
    return f", ${state.ledger.usd(gpu_s):.3f}" if state.ledger.usd_per_gpu_h else ""
