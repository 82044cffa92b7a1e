"""What is allowed in a spec and probably not meant.

The one rule: a doubt is told before anything is started, and stops nobody.
"""

from __future__ import annotations

import re

from seerd.spec.spec import Metric

LESS_IS_BETTER = re.compile(
    r"(^|_)(loss|error|err|mse|rmse|mae|nll|perplexity|ppl|cer|wer|fid|latency)(_|$)"
)
MORE_IS_BETTER = re.compile(
    r"(^|_)(accuracy|acc|f1|auc|auroc|map|bleu|iou|dice|recall|precision)(_|$)"
)


def doubts(metric: Metric) -> list[str]:
    """Say what may not be meant, one sentence each."""
    name, other = metric.name.lower(), "min" if metric.mode == "max" else "max"
    wrong = LESS_IS_BETTER if metric.mode == "max" else MORE_IS_BETTER
    right = MORE_IS_BETTER if metric.mode == "max" else LESS_IS_BETTER
    if not wrong.search(name) or right.search(name):
        return []
    which = "largest" if metric.mode == "max" else "smallest"
    text = f'metric.mode is "{metric.mode}": the model with the {which} {metric.name} will be'
    return [f'{text} handed back; if that is not meant, mode = "{other}"']
