"""The spec for a script, as text, with every guess marked as one.

The one rule: it is valid. What cannot be known is a guess that works, or a line that is commented
out; what is needed before it can run is marked `to do`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seerd.agent.patterns import NUMBER_PLACE
from seerd.commands.init.configs import ENVIRONMENT
from seerd.commands.init.guessing import LENGTHS, dimension, tuned_of
from seerd.commands.init.options import ScriptOption
from seerd.commands.init.printing import PrintedMetric
from seerd.commands.init.reading import RESUMES, ScriptFacts
from seerd.commands.init.saving import OUT, given_folder

GUESS = "  # guess"
LONG = 1000
"""Epochs, or steps, that no trial is likely to come to the end of."""
EACH_EPOCH = ("checkpointing_steps",)
"""What an option is called that says when to save, and may be "epoch"."""
LIMITS = ["", "[limits]", f'deadline = "10m"{GUESS}', f'budget   = "20gpu-min"{GUESS}']
HOW_TO_PLACE = (
    '[space] and args ("--lr", "{lr}"), or fill = ["config.yaml"] where a file sets it '
    "(docs/scripts.md)"
)
NO_OPTIONS = f"no option is seen: give the script one for each hyperparameter, write {HOW_TO_PLACE}"
NOT_TUNED = f"no option looks like a hyperparameter: write {HOW_TO_PLACE}"
NO_HYDRA = (
    "no override is known that is a hyperparameter: write [space] and args (optimizer.lr={lr})"
)
EDITED = "have the script read what follows of its environment (`import os` at the top)"
LR = "lr = { low = 0.0003, high = 0.3, log = true }"
HOW = {
    "transformers": "use seerd.transformers.Callback in the script (docs/frameworks.md)",
    "lightning": "use seerd.lightning.Callback in the script (docs/frameworks.md)",
    "accelerate": "use trial.track() and trial.running() in the script (docs/frameworks.md)",
}


@dataclass(frozen=True, slots=True)
class Written:
    """A spec."""

    text: str  # text of the spec file
    missing: tuple[str, ...]  # what the person has to do before it can be run


def written(
    script: str, found: ScriptFacts, python: Sequence[str] = (), follow: Sequence[str] = ()
) -> Written:
    """Write the spec of a script that has this name, in the folder of the spec.

    python  the lines that name its interpreter
    follow  the links that lead out of its source
    """
    tuned = tuned_of(found.options)
    goal = next(iter(found.logged if _callbacks(found) else found.printed), None)
    given = _given(found, tuned) if found.by_options else []
    missing = _missing(found, given)
    lines = [
        f"# For {script}, as `seerd init` has read it. Look at what is marked as a guess.",
        *(f"# to do: {one}" for one in missing),
        "",
        f"metric = {_metric(goal)}{GUESS}",
        "",
        "[train]",
        f"script   = {json.dumps(script)}",
        *([f'source   = "{_above(found)}"'] if found.up else []),
        *([f"follow   = {_texts(follow)}  # links that lead out of it"] if follow else []),
        _launcher(found),
        *python,
    ]
    if found.by_options:
        args = [part for one in given for part in one.option.arguments(one.value)]
        lines += [f"args     = {_texts([*found.given, *args])}"]
        lines += _environment(found, given)
    if found.by_options and not _callbacks(found):
        lines += [*_report(found), *_checkpoint(found)]
    lines += [
        "",
        "[space]",
        *(f"{one.name} = {dimension(one)}{GUESS}" for one in tuned),
        *([] if tuned else [f"# {LR}" if found.by_options else f"{LR}{GUESS}"]),
    ]
    lines += _others(found, given)
    if not _by_ranks(found):
        lines += ["", "[policy]", "p_max = 1  # it is one process, which uses one GPU"]
    return Written("\n".join([*lines, *LIMITS]) + "\n", missing)


class Given(NamedTuple):
    """An option, and the value that it is given."""

    option: ScriptOption
    value: str


def _given(found: ScriptFacts, tuned: list[ScriptOption]) -> list[Given]:
    """Return what the script is given: hyperparameters, a length that no trial comes to the end of,
    a folder of its own, and what has it save.
    """
    given = [Given(one, f"{{{one.name}}}") for one in tuned]
    lengths = [one for one in found.options if one.word in LENGTHS and _is_long(one)]
    given += [
        Given(one, str(max(LONG, int(one.default or 0))))
        for one in ([] if found.saves.at_end else lengths[:1])
    ]
    for one in found.options:
        if given_folder(one) and one.name not in {other.option.name for other in given}:
            given.append(Given(one, OUT))
        elif one.word in EACH_EPOCH and one.default is None:
            given.append(Given(one, "epoch"))
        elif one.word.startswith("save") and one.kind == "bool" and one.default is False:
            given.append(Given(one, ""))
    return given


def _is_long(option: ScriptOption) -> bool:
    return option.required or (isinstance(option.default, int | float) and option.default > 0)


def _callbacks(found: ScriptFacts) -> list[str]:
    """Return the frameworks whose callback must report, since nothing is printed of a metric."""
    if not found.options:
        return sorted(found.frameworks)
    return ["lightning"] if "lightning" in found.frameworks and not found.printed else []


def _by_ranks(found: ScriptFacts) -> bool:
    return found.distributed or bool(found.frameworks)


def _metric(goal: PrintedMetric | None) -> str:
    name, mode = (goal.name, goal.mode) if goal else ("accuracy", "max")
    return f'{{ name = "{name}", mode = "{mode}" }}'


def _launcher(found: ScriptFacts) -> str:
    if _by_ranks(found):
        return 'launcher = "torchrun"  # one process for each GPU'
    return 'launcher = "python"  # one process; "torchrun" starts one for each GPU'


def _environment(found: ScriptFacts, given: list[Given]) -> list[str]:
    """Return the line for what is set by the environment: hyperparameters, and where modules are
    that lie above the script.
    """
    env = {"PYTHONPATH": _above(found)} if found.up else {}
    env |= {
        one.option.flag[1:]: one.value for one in given if one.option.flag.startswith(ENVIRONMENT)
    }
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    return [f"env      = {{ {pairs} }}"] if env else []


def _above(found: ScriptFacts) -> str:
    return "/".join([".."] * found.up)


def _report(found: ScriptFacts) -> list[str]:
    patterns = [_literal(one.pattern) for one in found.printed[:4]]
    first = patterns[0] if patterns else _literal(f"accuracy[=: ]+{NUMBER_PLACE}")
    return [f"report   = {first}{GUESS}", *(f"# or {other}" for other in patterns[1:])]


def _checkpoint(found: ScriptFacts) -> list[str]:
    paths = found.saves.paths
    if not paths:
        return ['# checkpoint = "out/last.pt"  # what the script saves, to go on from']
    lines = [f"checkpoint = {json.dumps(paths[0])}{GUESS}"]
    lines += [f"# or {json.dumps(other)}" for other in paths[1:3]]
    if found.again:
        return [*lines, f"resume   = {_texts(found.again)}"]
    if found.saves.resumes:
        return [*lines, "# it looks for its checkpoint by itself: no `resume` is needed"]
    return [*lines, '# resume = ["--resume", "{checkpoint}"]  # if it has such an option']


def _others(found: ScriptFacts, given: list[Given]) -> list[str]:
    names = {one.option.name for one in given}
    flags = [
        one.flag
        for one in found.options
        if one.name not in names and not one.required and one.word not in (*LENGTHS, *RESUMES)
        if not one.edit and (one.flag.startswith("-") or not one.flag.endswith("="))
    ]
    if not flags:
        return []
    more = f" and {len(flags) - 8} others" if len(flags) > 8 else ""
    return [f"# {' '.join(flags[:8])}{more} could be tuned too, or given a value in args"]


def _missing(found: ScriptFacts, given: list[Given]) -> tuple[str, ...]:
    """Return what the person has to do."""
    names = {one.option.name for one in given}
    needed = [one for one in found.options if one.required and one.name not in names]
    missing = list(found.stops)
    if needed:
        *flags, last = [one.flag.rstrip("=") for one in needed]
        listed, them = (f"{', '.join(flags)} and {last}", "them") if flags else (last, "it")
        missing.append(f"the script needs {listed}: put {them} into args{_about(needed)}")
    if found.unread:
        missing.append(
            f"options of {', '.join(found.unread)} are not read: put what they need into args"
        )
    if "seerd" in found.frameworks:
        return tuple(missing)
    if found.by_options and not tuned_of(found.options):
        missing.append(NO_HYDRA if found.hydra else NOT_TUNED if found.options else NO_OPTIONS)
    edits = [one.option.edit for one in given if one.option.edit]
    missing += [f"no option sets a hyperparameter: {EDITED}", *edits] if edits else []
    if callbacks := _callbacks(found):
        return (*missing, *(HOW[name] for name in callbacks))
    return (*missing, *_of_report(found), *_of_checkpoint(found))


def _of_report(found: ScriptFacts) -> list[str]:
    if not found.printed:
        return ["it is not seen what the script prints: write `report` for its metric"]
    goal = found.printed[0]
    if goal.is_assumed:
        return ["a table of metrics is printed: write the name of one for accuracy in `report`"]
    alike = (
        f"{goal.name} is printed of training and of validation alike: have the script print them "
        "in different words, and write `report` for the one that counts"
    )
    return [alike] if goal.ambiguous else []


def _of_checkpoint(found: ScriptFacts) -> list[str]:
    saves = found.saves
    if not saves.paths:
        return ["it is not seen what the script saves: without `checkpoint` no model is kept"]
    at_end = (
        f"{saves.paths[0]} is saved only at the end: have the script save in each epoch, or a "
        "trial that is stopped leaves no model"
    )
    anew = (
        "no option is seen that takes a checkpoint to go on from: write `resume`, or a trial that "
        "is stopped and goes on begins anew"
    )
    return [at_end] if saves.at_end else [] if found.again or saves.resumes else [anew]


def _about(options: list[ScriptOption]) -> str:
    about = [
        f"{one.flag.rstrip('=')}: {' '.join(one.about.split()):.60}" for one in options if one.about
    ]
    return f" ({'; '.join(about)})" if about else ""


def _literal(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    return f"'''{text}'''" if "\\" in text else json.dumps(text)


def _texts(texts: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(text, ensure_ascii=False) for text in texts) + "]"
