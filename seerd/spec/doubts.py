"""What is allowed in a spec and probably not meant.

The one rule: a doubt is told before anything is started, and stops nobody.
"""

from __future__ import annotations

import re

from seerd.spec.spec import Metric, Spec

LESS_IS_BETTER = re.compile(
    r"(^|_)(loss|error|err|mse|rmse|mae|nll|perplexity|ppl|cer|wer|fid|latency)(_|$)"
)
MORE_IS_BETTER = re.compile(
    r"(^|_)(accuracy|acc|f1|auc|auroc|map|bleu|iou|dice|recall|precision)(_|$)"
)


def doubts(spec: Spec) -> list[str]:
    """Say what may not be meant, one sentence each."""
    return [*direction_doubts(spec.metric), *_of_places(spec), *_of_booleans(spec)]


def _of_places(spec: Spec) -> list[str]:
    names, other = spec.unplaced()
    if not names or (other and spec.train.observed is None):
        return []
    what = f"{', '.join(names)} of [space] {'are' if names[1:] else 'is'} in no argument"
    return [f"{what}, train.env or train.fill: only a script that imports seerd gets such values"]


def _of_booleans(spec: Spec) -> list[str]:
    return [
        f"{option} has type=bool in the script, which takes the text false for true, too; "
        f'leave the option out instead: {name} = ["", "{option}=1"], and "{{{name}}}" in train.args'
        for name, option, kind, _ in spec.misread()
        if kind == "bool"
    ]


def direction_doubts(metric: Metric) -> list[str]:
    """Say whether the other mode may be meant."""
    name, other = metric.name.lower(), "min" if metric.mode == "max" else "max"
    wrong = LESS_IS_BETTER if metric.mode == "max" else MORE_IS_BETTER
    right = MORE_IS_BETTER if metric.mode == "max" else LESS_IS_BETTER
    if not wrong.search(name) or right.search(name):
        return []
    which = "largest" if metric.mode == "max" else "smallest"
    text = f'metric.mode is "{metric.mode}": the model with the {which} {metric.name} will be'
    return [f'{text} handed back; if that is not meant, mode = "{other}"']
