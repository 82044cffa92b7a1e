"""What is allowed in a spec and probably not meant: reported before the start, and never an
error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from seerd.agent.arguments import places
from seerd.core.events import Goal
from seerd.spec.program import SEERD, TO_HOLD, misread, shown, shows
from seerd.spec.spec import Spec

LESS_IS_BETTER = re.compile(
    r"(^|_)(loss|error|err|mse|rmse|mae|nll|perplexity|ppl|cer|wer|fid|latency)(_|$)"
)
# found in scripts that take arguments
READS_ARGUMENTS = re.compile(
    rb"argv|[Pp]arse|\b(?:click|typer|fire|absl|hydra|tyro|getopt|docopt|tap|defopt|plac|sacred)\b"
    rb"|cli\b|CLI\b|\bexec\("
)
LOADS_NOTHING = (
    "a trial that is stopped begins anew, whatever it has saved, so none takes turns; have it load "
    'that, or take an option for it: resume = ["--resume", "{checkpoint}"]'
)
MORE_IS_BETTER = re.compile(
    r"(^|_)(accuracy|acc|f1|auc|auroc|map|bleu|iou|dice|recall|precision)(_|$)"
)


def doubts(spec: Spec) -> list[str]:
    """List what is allowed and probably not meant, one sentence each."""
    train, names = spec.train, spec.unplaced()
    script = train.source / train.script
    lines = direction_doubts(spec.goal)
    if names and not shows(SEERD, script) and (train.observed or not spec.takes_part()):
        what = f"{', '.join(names)} of [space] {'are' if names[1:] else 'is'} in no argument"
        lines.append(
            f"{what}, train.env or train.fill: only a script that imports seerd gets such values"
        )
    lines += [
        f"{option} has type=bool in the script, which takes the text false for true, too; "
        f'leave the option out instead: {name} = ["", "{option}=1"], and "{{{name}}}" in train.args'
        for name, option, kind, _ in misread(spec.space, train)
        if kind == "bool"
    ]
    if spec.loads_nothing():
        lines.append(f"train.resume is missing, and {train.script} loads nothing: {LOADS_NOTHING}")
    elif train.launcher != "command" and train.observed is None and _tracks_nothing(script):
        lines.append(
            f"{train.script} gives nothing to trial.track: its checkpoints will hold no model, "
            "and a trial that is stopped goes on with a new one; trial.track(model=model)"
        )
    return [*lines, *memory_doubts(spec), *_of_what_is_not_read(spec)]


def memory_doubts(spec: Spec) -> Iterator[str]:
    """Yield a doubt if trials share a GPU and nothing holds them to their parts of its memory."""
    if (spec.cluster.parts or 1) > 1 and spec.takes_any_memory():
        yield (
            f"cluster.parts = {spec.cluster.parts}, and no Python file of the source imports torch "
            "or JAX: nothing holds a trial to its part of a GPU's memory, and one that takes more "
            f"fails its neighbours, too; {TO_HOLD}"
        )


def _of_what_is_not_read(spec: Spec) -> Iterator[str]:
    train, names = spec.train, spec.space.names
    if not spec.takes_no_part():
        return
    for variable, text in train.env.items():
        word = re.compile(rb"\b%s\b" % re.escape(variable.encode()))
        if places(text, names) and shown(word, train.source, ".py") is False:
            yield (
                f"{variable} of train.env has a hyperparameter, and no Python file of the source "
                "names it"
            )
    by_arguments = any(places(text, names) for text in train.args)
    if by_arguments and shown(READS_ARGUMENTS, train.source, ".py") is False:
        yield "train.args has hyperparameters, and no Python file of the source reads arguments"


def _tracks_nothing(script: Path) -> bool:
    """Return whether a script uses its `seerd.trial()` in plain sight, and never to save."""
    try:
        nodes = list(ast.walk(ast.parse(script.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return False
    made = {
        ast.unparse(target)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "seerd.trial()"
        for target in node.targets
    }
    names = {*made, "seerd"}
    reads = [node for node in nodes if isinstance(node, ast.Name) and node.id in names]
    used = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names
    ]
    is_plain = sum(isinstance(name.ctx, ast.Load) for name in reads) == len(used)
    return bool(made) and is_plain and not {"track", "checkpoint"} & {*used}


def direction_doubts(goal: Goal) -> list[str]:
    """Return a doubt if the other mode is probably meant."""
    name, other = goal.metric.lower(), "min" if goal.mode == "max" else "max"
    wrong = LESS_IS_BETTER if goal.mode == "max" else MORE_IS_BETTER
    right = MORE_IS_BETTER if goal.mode == "max" else LESS_IS_BETTER
    if not wrong.search(name) or right.search(name):
        return []
    which = "largest" if goal.mode == "max" else "smallest"
    text = f'metric.mode is "{goal.mode}": the model with the {which} {goal.metric} will be'
    return [f'{text} handed back; if that is not meant, mode = "{other}"']
