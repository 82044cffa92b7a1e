"""How numbers, names and missing values are written in sentences.

A template names facts as `{key:how}`. Text in `[...]` is written only if its facts are there; else
what follows a `|` in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from string import Formatter
from typing import Any

from seerd.core.state import State
from seerd.planner.model import Group
from seerd.telling.explanation.explanations import JobModel, On
from seerd.units import count, format_duration, format_gpu_time, format_money, ordinal

MOST_NAMES = 6
ENDINGS = {
    "done": "the plan is carried out",
    "target": "the target was reached",
    "deadline": "the deadline is near",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
    "failed": "nothing can run any more",
}
ALIKE = "every trial fails in the same way"
TOO_LATE = "nothing runs, and it is too late to start anything"


def ending(state: State) -> str:
    """Write how the run ended; empty if it goes on."""
    if state.end.status is None:
        return ""
    if state.end.why in ("alike", "late"):
        return ALIKE if state.end.why == "alike" else TOO_LATE
    tried = any(trial.attempt for trial in state.trials.values())
    return ENDINGS[state.end.status if tried or state.end.status != "done" else "deadline"]


def gpus_text(gpus: Sequence[int]) -> str:
    """Write the numbers of GPUs, neighbours as a range: 0-3,6."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in neighbours(gpus))


def neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other: 0 to 3, 6 to 6."""
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1]


def used(state: State) -> dict[str, str]:
    """Write what a run has used of each limit; of money only if anything is rented."""
    limits, book = state.facts.problem.limits, state.ledger
    spent = book.spent_gpu_s(state.now)
    texts = {
        "time": f"{at(state.now)} of {format_duration(limits.deadline_s)}",
        "GPU time": f"{format_gpu_time(spent)} of {format_gpu_time(limits.budget_gpu_s)}",
    }
    if book.usd_per_gpu_h:
        limit = "" if limits.cost_usd is None else f" of {format_money(limits.cost_usd)}"
        texts["money"] = f"{format_money(book.usd(spent))}{limit}"
    return texts


def at(seconds: float) -> str:
    """Write a moment or a duration, given in seconds, to a tenth of a second."""
    return format_duration(round(seconds, 1))


def names(many: Sequence[str]) -> str:
    """Write the first names of many, and how many more there are."""
    more = len(many) - MOST_NAMES
    return ", ".join(many) if more <= 1 else f"{', '.join(many[:MOST_NAMES])} and {more} more"


def places(on: Sequence[On]) -> str:
    """Write which GPUs: m2.0 GPU 0-3 and m2.1 GPU 2."""
    return " and ".join(f"{some.instance} GPU {gpus_text(some.gpus)}" for some in on)


def sizes(groups: Sequence[Group]) -> str:
    """Write how many trials on how many GPUs: 2 trials x 2 GPUs and 5 trials x 1 GPU."""
    each = [f"{count(g.trials, 'trial')} x {count(g.gpus_per_trial, 'GPU')}" for g in groups]
    return " and ".join(each) or "nobody"


def models(many: Sequence[JobModel]) -> str:
    """Write whose models are where."""
    return ", ".join(f"{model.job} in {model.path}" for model in many)


def value(metric: float | None) -> str:
    """Write what was reported; None: it was missing or not finite."""
    return "missing or not finite" if metric is None else f"{metric:.6g}"


WRITERS: dict[str, Callable[[Any], str]] = {
    "about": lambda seconds: at(round(seconds) or seconds),
    "at": at,
    "ending": ENDINGS.__getitem__,
    "if": lambda _: "",
    "models": models,
    "names": names,
    "places": places,
    "sizes": sizes,
    "th": ordinal,
    "value": value,
}
COUNTED = ("GPU", "report", "instance", "new configuration")


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in WRITERS:
            return WRITERS[format_spec](value)
        if format_spec in COUNTED:
            return count(value if isinstance(value, int) else len(value), format_spec)
        return format(value, format_spec)


WORDS = _Words()
CHOICE = re.compile(r"\[([^|\]]*)\|?([^\]]*)\]")


def fill(template: str, facts: dict[str, Any]) -> str:
    """Write a template with facts. Raises `KeyError` if one is not in `facts`."""

    def choose(match: re.Match[str]) -> str:
        fields = ((key, spec) for _, key, spec, _ in WORDS.parse(match[1]) if key)
        needed = [facts[key] for key, spec in fields if spec != "value"]
        return match[1 if all(fact or isinstance(fact, float) for fact in needed) else 2]

    return WORDS.vformat(CHOICE.sub(choose, template), (), facts)
