"""The spec for a script, as text. It is valid: what cannot be known is a marked guess that works,
or a line that is commented out; what is needed before it can run is marked `to do`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from seerd.agent.patterns import NUMBER_PLACE
from seerd.commands.init.hyperparameters import ENVIRONMENT, LENGTHS, dimension, tuned_of
from seerd.commands.init.options import ScriptOption
from seerd.commands.init.reading import RESUMES, ScriptFacts
from seerd.commands.init.saving import OUT, given_folder

GUESS = "  # guess"
LONG = 1000  # epochs, or steps, that no trial is likely to come to the end of
EACH_EPOCH = ("checkpointing_steps",)  # options that say when to save, and may be "epoch"
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

Arguments = list[tuple[ScriptOption, str]]  # options, each with the value that the script gets


def written(
    script: str, facts: ScriptFacts, python: Sequence[str], follow: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the spec of a script in the folder of the spec, and what the user has to do before it
    can be run; `python` are the lines that name its interpreter, `follow` the links that lead out
    of its source.
    """
    tuned = tuned_of(facts.options)
    goal = next(iter(facts.logged if _callbacks(facts) else facts.printed), None)
    name, mode = (goal.name, goal.mode) if goal else ("accuracy", "max")
    arguments = _arguments(facts, tuned) if facts.by_options else []
    missing = list(_missing(facts, arguments))
    by_ranks = facts.distributed or bool(facts.frameworks)
    launcher = 'launcher = "python"  # one process; "torchrun" starts one for each GPU'
    if by_ranks:
        launcher = 'launcher = "torchrun"  # one process for each GPU'
    lines = [
        f"# For {script}, as `seerd init` has read it. Look at what is marked as a guess.",
        *(f"# to do: {todo}" for todo in missing),
        "",
        f'metric = {{ name = "{name}", mode = "{mode}" }}{GUESS}',
        "",
        "[train]",
        f"script   = {json.dumps(script)}",
        *([f'source   = "{facts.above}"'] if facts.above else []),
        *([f"follow   = {_texts(follow)}  # links that lead out of it"] if follow else []),
        launcher,
        *python,
    ]
    if facts.by_options:
        words = [word for option, value in arguments for word in option.arguments(value)]
        lines += [f"args     = {_texts([*facts.given, *words])}"]
        lines += _environment(facts, arguments)
    if facts.by_options and not _callbacks(facts):
        patterns = [_literal(one.pattern) for one in facts.printed[:4]]
        patterns = patterns or [_literal(f"accuracy[=: ]+{NUMBER_PLACE}")]
        lines += [f"report   = {patterns[0]}{GUESS}", *(f"# or {one}" for one in patterns[1:])]
        lines += _checkpoint(facts)
    lines += ["", "[space]", *(f"{one.name} = {dimension(one)}{GUESS}" for one in tuned)]
    if not tuned:
        lines.append(f"# {LR}" if facts.by_options else f"{LR}{GUESS}")
    lines += _others(facts, arguments)
    if not by_ranks:
        lines += ["", "[policy]", "p_max = 1  # it is one process, which uses one GPU"]
    return "\n".join([*lines, *LIMITS]) + "\n", missing


def _arguments(facts: ScriptFacts, tuned: list[ScriptOption]) -> Arguments:
    """Return what the script gets: hyperparameters, a length that no trial comes to the end of, a
    folder of its own, and what has it save.
    """
    arguments = [(one, f"{{{one.name}}}") for one in tuned]
    for one in [] if facts.saves.at_end else facts.options:
        has_length = isinstance(one.default, int | float) and one.default > 0
        if one.word in LENGTHS and (one.required or has_length):
            arguments.append((one, str(max(LONG, int(one.default or 0)))))
            break
    for one in facts.options:
        if given_folder(one) and one.name not in {option.name for option, _ in arguments}:
            arguments.append((one, OUT))
        elif one.word in EACH_EPOCH and one.default is None:
            arguments.append((one, "epoch"))
        elif one.word.startswith("save") and one.kind == "bool" and one.default is False:
            arguments.append((one, ""))
    return arguments


def _callbacks(facts: ScriptFacts) -> list[str]:
    """Return the frameworks whose callback must report, since nothing is printed of a metric."""
    if not facts.options:
        return sorted(facts.frameworks)
    return ["lightning"] if "lightning" in facts.frameworks and not facts.printed else []


def _environment(facts: ScriptFacts, arguments: Arguments) -> list[str]:
    """Return the line for what is set by the environment: hyperparameters, and where modules are
    that lie above the script.
    """
    env = {"PYTHONPATH": facts.above} if facts.above else {}
    for option, value in arguments:
        if option.flag.startswith(ENVIRONMENT):
            env[option.flag[1:]] = value
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    return [f"env      = {{ {pairs} }}"] if env else []


def _checkpoint(facts: ScriptFacts) -> list[str]:
    paths = facts.saves.paths
    if not paths:
        return ['# checkpoint = "out/last.pt"  # what the script saves, to go on from']
    lines = [f"checkpoint = {json.dumps(paths[0])}{GUESS}"]
    lines += [f"# or {json.dumps(other)}" for other in paths[1:3]]
    if facts.again:
        return [*lines, f"resume   = {_texts(facts.again)}"]
    if facts.saves.resumes:
        return [*lines, "# it looks for its checkpoint by itself: no `resume` is needed"]
    return [*lines, '# resume = ["--resume", "{checkpoint}"]  # if it has such an option']


def _others(facts: ScriptFacts, arguments: Arguments) -> list[str]:
    names = {option.name for option, _ in arguments}
    flags = [
        one.flag
        for one in facts.options
        if one.name not in names and not one.required and one.word not in (*LENGTHS, *RESUMES)
        if not one.edit and (one.flag.startswith("-") or not one.flag.endswith("="))
    ]
    if not flags:
        return []
    more = f" and {len(flags) - 8} others" if len(flags) > 8 else ""
    return [f"# {' '.join(flags[:8])}{more} could be tuned too, or given a value in args"]


def _missing(facts: ScriptFacts, arguments: Arguments) -> Iterator[str]:
    """Yield what the user has to do."""
    yield from facts.stops
    names = {option.name for option, _ in arguments}
    needed = [one for one in facts.options if one.required and one.name not in names]
    if about := {one.flag.rstrip("="): " ".join(one.about.split()) for one in needed}:
        *flags, last = about
        listed, them = (f"{', '.join(flags)} and {last}", "them") if flags else (last, "it")
        texts = "; ".join(f"{flag}: {text:.60}" for flag, text in about.items() if text)
        help_texts = f" ({texts})" if texts else ""
        yield f"the script needs {listed}: put {them} into args{help_texts}"
    if facts.unread:
        unread = ", ".join(facts.unread)
        yield f"options of {unread} are not read: put what they need into args"
    if "seerd" in facts.frameworks:
        return
    if facts.by_options and not tuned_of(facts.options):
        yield NO_HYDRA if facts.hydra else NOT_TUNED if facts.options else NO_OPTIONS
    if edits := [option.edit for option, _ in arguments if option.edit]:
        yield from (f"no option sets a hyperparameter: {EDITED}", *edits)
    if callbacks := _callbacks(facts):
        yield from (HOW[name] for name in callbacks)
    else:
        yield from _missing_output(facts)


def _missing_output(facts: ScriptFacts) -> Iterator[str]:
    goal, saves = next(iter(facts.printed), None), facts.saves
    if goal is None:
        yield "it is not seen what the script prints: write `report` for its metric"
    elif goal.is_assumed:
        yield "a table of metrics is printed: write the name of one for accuracy in `report`"
    elif goal.ambiguous:
        yield (
            f"{goal.name} is printed of training and of validation alike: have the script print "
            "them in different words, and write `report` for the one that counts"
        )
    if not saves.paths:
        yield "it is not seen what the script saves: without `checkpoint` no model is kept"
    elif saves.at_end:
        yield (
            f"{saves.paths[0]} is saved only at the end: have the script save in each epoch, or a "
            "trial that is stopped leaves no model"
        )
    elif not facts.again and not saves.resumes:
        yield (
            "no option is seen that takes a checkpoint to go on from: write `resume`, or a trial "
            "that is stopped and goes on begins anew"
        )


def _literal(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    return f"'''{text}'''" if "\\" in text else json.dumps(text)


def _texts(texts: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(text, ensure_ascii=False) for text in texts) + "]"
