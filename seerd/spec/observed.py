"""The keys of `[train]` for a script that does not import seerd."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from seerd.agent.arguments import CHECKPOINT, GPUS, named, places
from seerd.agent.protocol import ObservedScript

MEANT = {GPUS: "the number of GPUs of an attempt", CHECKPOINT: "the path of a checkpoint"}
Get = Callable[..., Any]
Wrong = Callable[..., None]


def observed(get: Get, names: Sequence[str], wrong: Wrong) -> ObservedScript | None:
    """Return how the script is observed; None if it imports seerd. Mistakes go to `wrong`.

    get    returns a value of the spec by the path of its key
    names  the hyperparameters
    """
    _check_names("train.args", get, [GPUS, *names], wrong)
    _check_names("train.resume", get, [GPUS, *names, CHECKPOINT], wrong)
    variables = get("train.env", {}).values()
    for name, texts in (
        (GPUS, [*get("train.args", ()), *get("train.resume", ()), *variables]),
        (CHECKPOINT, get("train.resume", ())),
    ):
        if name in names and any(places(text, [name]) for text in texts):
            wrong(f"space.{name}", None, f"needs another name: {{{name}}} is {MEANT[name]}")
    report, checkpoint, resume = (get(f"train.{key}") for key in ("report", "checkpoint", "resume"))
    if checkpoint is not None and report is None:
        wrong(
            "train.checkpoint",
            checkpoint,
            "is for a script that does not import seerd, which needs `report` too: "
            "a pattern for what it prints",
        )
    if resume is not None and checkpoint is None:
        wrong("train.resume", list(resume), "needs `checkpoint`: the path that the script saves to")
    if report is None:
        return None
    metric = get("metric.name", "")
    patterns = {name or metric: pattern for name, pattern in report.items()}
    if metric and metric not in patterns:
        near = difflib.get_close_matches(metric, patterns, 1, 0.5)
        wrong("train.report", None, f"has no pattern for the spec's metric {metric!r}", *near)
    for constraint in get("metric.constraint", ()):
        if constraint.metric not in patterns:
            why = (
                f"train.report has no pattern for {constraint.metric!r}, so nothing would report it"
            )
            wrong("metric.constraint", str(constraint), why)
    return ObservedScript(patterns, checkpoint or "", list(resume or ()))


def _check_names(key: str, get: Get, names: Sequence[str], wrong: Wrong) -> None:
    for argument in get(key, ()):
        for name in named(argument):
            if name in names:
                continue
            if name == CHECKPOINT:
                wrong(key, argument, "only `resume` may have {checkpoint}: without one it is empty")
                continue
            why = f"[space] has no {name}; a brace that means no hyperparameter is written {{{{"
            wrong(key, argument, why, *difflib.get_close_matches(name, names, 1, 0.5))
