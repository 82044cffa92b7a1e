"""The life of one trial, to be read on a terminal.

The one rule: made of the values that `--json` prints; the numbers that were compared are in the sentences.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from seerd.core.state import State
from seerd.story.beats import Started
from seerd.story.chapters import Story
from seerd.story.layout import grid, shortened, wrapped
from seerd.story.words import at, count, sentence
from seerd.view.plain import config_text

Json = dict[str, Any]


def trial_page(told: Json, story: Story, state: State) -> RenderableType:
    """The value of `replay --trial --json`, to be read."""
    name = state.facts.metric
    result = "; its model is the result" if told["handed_back"] else ""
    heads = [wrapped(f"{told['trial']} of {told['run']}: {told['fate']}{result}", "bold")]
    heads += [grid([("why", told["why"]), ("config", config_text(told["config"]))])]
    rows = [(at(attempt["start_s"]), _attempt(attempt, name)) for attempt in told["attempts"]]
    beats = [beat for beat in story.of_trial(told["trial"]) if not isinstance(beat, Started)]
    lines = [(at(beat.at_s), _without_name(sentence(beat, name), told["trial"])) for beat in beats]
    parts: list[RenderableType] = [*heads, Text()]
    if rows:
        spent = f"attempts: {len(rows)}, which held GPUs for {told['held_gpu_min']:.2f} GPU-min"
        parts += [Text(spent, style="bold"), grid(rows), Text()]
    if lines:
        parts += [Text("what happened to it, and why", style="bold"), grid(shortened(lines)), Text()]
    return Group(*parts)


def _without_name(text: str, trial: str) -> str:
    return text.removeprefix(trial).removeprefix(":").strip()


def _attempt(attempt: Json, name: str) -> str:
    on = " and ".join(f"{on['instance']} GPU {','.join(map(str, on['gpus']))}" for on in attempt["on"])
    since = f", from report {attempt['after_reports']}" if attempt["after_reports"] else ""
    if attempt["training_s"] is None:
        told = f"on {on}: never trained"
    else:
        told = f"on {on}{since}: trained after {at(attempt['training_s'] - attempt['start_s'])}"
    if attempt["reports"]:
        first, last = attempt["first"], attempt["last"]
        told += f", {count(attempt['reports'], 'report')}: {name} {_value(first)} to {_value(last)}"
        if attempt["best"] is not None and attempt["best"]["report"] not in (first["report"], last["report"]):
            told += f", best {_value(attempt['best'])} at report {attempt['best']['report']}"
    if attempt["ended_s"] is None:
        return f"{told}; still there"
    return f"{told}; ended at {at(attempt['ended_s'])} ({attempt['how']})"


def _value(report: Json) -> str:
    return "missing or not finite" if report["metric"] is None else f"{report['metric']:.6g}"
