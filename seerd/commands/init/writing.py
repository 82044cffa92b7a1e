"""The spec for a script, as text, with every guess marked as one.

The one rule: it is valid. What cannot be known is a guess that works, or a line that is commented
out.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.commands.init.guessing import FIXED, RESUMES, dimension, resumes
from seerd.commands.init.reading import PrintedMetric, ScriptFacts, ScriptOption

GUESS = "  # guess"
LONG = 1000
"""Epochs, or steps, that no trial is likely to come to the end of."""
OF_TRAINER = [
    ScriptOption("--learning_rate", "float", 5e-5),
    ScriptOption("--weight_decay", "float", 0.01),
]
PRINTED_BY_TRAINER = PrintedMetric("eval_loss", "'eval_loss': '?([-+.0-9eE]+)")
NO_OPTION = [ScriptOption("--lr", "float", 1e-2)]


@dataclass(frozen=True, slots=True)
class Written:
    """A spec.

    text      of the file
    missing   what the person has to do before it can be run
    """

    text: str
    missing: tuple[str, ...]


def written(script: str, found: ScriptFacts) -> Written:
    """Write the spec of a script that has this name, in the folder of the spec."""
    inside = found.frameworks & {"seerd", "transformers", "lightning", "accelerate"}
    by_options = not inside or (inside == {"transformers"} and found.parses)
    options = [*found.options, *(OF_TRAINER if found.parses else ())]
    tuned = [one for one in options if dimension(one)] or (
        [] if by_options and options else NO_OPTION
    )
    printed = [*found.printed, *([PRINTED_BY_TRAINER] if found.parses else ())]
    goal = printed[0] if printed else None
    lines = [
        f"# For {script}, as `seerd init` has read it. Look at what is marked as a guess.",
        "",
        f"metric = {_metric(goal)}{GUESS}",
        "",
        "[train]",
        f'script   = "{script}"',
        *_launcher(found),
    ]
    if by_options:
        lines += _by_options(found, tuned or NO_OPTION, goal)
    lines += ["", "[space]", *_space(tuned or NO_OPTION), *_others(options, tuned)]
    lines += _policy(found)
    return Written(
        "\n".join([*lines, *LIMITS]) + "\n", tuple(_missing(found, options, tuned, goal))
    )


LIMITS = [
    "",
    "[limits]",
    f'deadline = "10m"{GUESS}',
    f'budget   = "20gpu-min"{GUESS}',
]
HOW = {
    "transformers": "use seerd.transformers.Callback in the script (docs/frameworks.md)",
    "lightning": "use seerd.lightning.Callback in the script (docs/frameworks.md)",
    "accelerate": "use trial.track() and trial.running() in the script (docs/frameworks.md)",
}


def _metric(goal: PrintedMetric | None) -> str:
    if goal is None:
        return '{ name = "accuracy", mode = "max" }'
    return f'{{ name = "{goal.name}", mode = "{goal.mode}" }}'


def _launcher(found: ScriptFacts) -> list[str]:
    if found.distributed or found.frameworks:
        return ['launcher = "torchrun"  # one process for each GPU']
    return ['launcher = "python"  # one process; "torchrun" starts one for each GPU']


def _by_options(
    found: ScriptFacts, tuned: list[ScriptOption], goal: PrintedMetric | None
) -> list[str]:
    arguments = [part for one in tuned for part in (one.flag, f"{{{one.name}}}")]
    for one in found.options:
        if one.name in FIXED:
            arguments += [one.flag, str(LONG)]
    pattern = goal.pattern if goal else "accuracy[=: ]+([0-9.]+)"
    lines = [f"args     = {_texts(arguments)}", f"report   = '''{pattern}'''{GUESS}"]
    saved = ["out/checkpoint-*"] if found.parses else found.saved
    if not saved:
        return [*lines, '# checkpoint = "out/last.pt"  # what the script saves, to go on from']
    lines.append(f'checkpoint = "{saved[0]}"{GUESS}')
    lines += [f'# or "{other}"' for other in saved[1:3]]
    option = next((one for one in found.options if resumes(one)), None)
    if found.parses:
        option = option or ScriptOption("--resume_from_checkpoint")
    if option is None:
        return [*lines, '# resume = ["--resume", "{checkpoint}"]  # if it has such an option']
    return [*lines, f'resume   = ["{option.flag}", "{{checkpoint}}"]']


def _space(tuned: list[ScriptOption]) -> list[str]:
    return [f"{one.name} = {dimension(one)}{GUESS}" for one in tuned]


def _others(options: list[ScriptOption], tuned: list[ScriptOption]) -> list[str]:
    others = [
        one.flag for one in options if one not in tuned and one.name not in (*FIXED, *RESUMES)
    ]
    if not others:
        return []
    return [f"# {script_options(others)} could be tuned too, or given a value in args"]


def script_options(flags: list[str]) -> str:
    """Return these options as the beginning of a sentence."""
    return " ".join(flags[:8]) + (f" and {len(flags) - 8} others" if len(flags) > 8 else "")


def _policy(found: ScriptFacts) -> list[str]:
    if found.distributed or found.frameworks:
        return []
    return ["", "[policy]", "p_max = 1  # it is one process, which uses one GPU"]


def _missing(
    found: ScriptFacts,
    options: list[ScriptOption],
    tuned: list[ScriptOption],
    goal: PrintedMetric | None,
) -> list[str]:
    inside = found.frameworks & set(HOW)
    if "seerd" in found.frameworks:
        return []
    if inside and not (inside == {"transformers"} and found.parses):
        return [HOW[name] for name in sorted(inside)]
    missing = []
    if not [one for one in tuned if one in options]:
        missing.append("no option looks like a hyperparameter: write [space] and args yourself")
    if goal is None:
        missing.append("it is not seen what the script prints: write `report` for its metric")
    if not found.saved and not found.parses:
        missing.append(
            "it is not seen what the script saves: without `checkpoint` no model is kept"
        )
    return missing


def _texts(texts: list[str]) -> str:
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"
