"""`seerd init`: a spec for an existing script, or a small spec and script to begin with. No file is
ever overwritten. A spec is valid: what cannot be known is a marked guess that works, or a
line that is commented out; what is needed before it can run is marked `to do`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from seerd.agent.patterns import NUMBER_PLACE
from seerd.commands.common import writing
from seerd.commands.init.hyperparameters import ENVIRONMENT, LENGTHS, dimension, tuned_of
from seerd.commands.init.options import ScriptOption
from seerd.commands.init.reading import ScriptFacts, read
from seerd.commands.init.saving import OUT, given_folder
from seerd.errors import UsageError
from seerd.shell.home import default_home
from seerd.shell.source_copy import CopyTerms, links_out

SPEC = "spec.toml"
OF_CONDA = re.compile(r"^name\s*:\s*['\"]?([\w.-]+)", re.MULTILINE)
# A project's own file -> how its environment is entered; empty: conda's, by the name in it.
MADE = {
    "uv.lock": "uv run python",
    "poetry.lock": "poetry run python",
    "pdm.lock": "pdm run python",
    "pixi.lock": "pixi run python",
    "Pipfile": "pipenv run python",
    **dict.fromkeys(("environment.yml", "environment.yaml", "conda.yaml", "conda.yml"), ""),
}
HIGHEST = 2  # folders above the script that are looked at, inside its repository


def init(what: Path) -> None:
    """Write a spec for the script `what`, or a spec and a script into the folder `what`. Raises
    `UsageError` if that is not possible.
    """
    is_script = what.suffix == ".py" or what.is_file()
    spec = what.with_name(SPEC) if is_script else what / SPEC
    if os.path.lexists(spec):  # a link may lead nowhere
        raise UsageError(f"{spec} is there already, and is not overwritten")
    if not is_script:
        here, script = Path(__file__).parent, what / "train.py"
        if script.exists():
            hint = f"for a script of yours: seerd init {script}"
            raise UsageError(f"{script} is there already, and is not overwritten; {hint}")
        with writing(what):
            what.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here / "start_train.py", script)
            shutil.copyfile(here / "start_spec.toml", spec)
        print(f"{spec} and {script}: a small script, and what to tune of it")
        print(f"next: seerd run {spec}")
        return
    script, folder = what, what.absolute().parent
    try:
        facts = read(script)
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"{script} cannot be read: {getattr(error, 'strerror', error)}") from error
    except SyntaxError as error:
        raise UsageError(f"{script} is no Python: line {error.lineno}, {error.msg}") from error
    follow = links_out(folder / facts.above, default_home(), CopyTerms(), refuse=False)
    text, missing = written(script.name, facts, _python_lines(folder), follow)
    with writing(spec), spec.open("x", encoding="utf-8") as out:
        out.write(text)
    print(f"{spec}: written for {script.name}; look at what is marked as a guess")
    for todo in missing:
        print(f"to do: {todo}")
    print(f"next: seerd plan {spec}, then seerd run {spec}")


def _python_lines(folder: Path) -> list[str]:
    """Return the line of `[train]` that names the interpreter: of the environment that lies beside
    the script or above it in its project, or of the active one. Nothing is started for it.
    """
    more = "(docs/environments.md)"
    for up, place in enumerate([folder, *folder.parents[:HIGHEST]]):
        for name in (".venv", "venv", "env"):
            if (place / name / "bin" / "python").exists():
                own = f"{'../' * up}{name}/bin/python"
                return [f'python   = "{own}"  # the project\'s own {more}']
        for name, command in MADE.items():
            if not (place / name).is_file():
                continue
            if command:
                return [f'python   = "{command}"  # by {name} {more}']
            text = (place / name).read_text(encoding="utf-8", errors="replace")
            if named := OF_CONDA.search(text):
                own = f"conda run -n {named[1]} --no-capture-output python"
                return [f'python   = "{own}"  # by {name} {more}']
        if (place / ".git").exists():
            break
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or sys.prefix
    if Path(active).resolve() != Path(sys.prefix).resolve():
        return [f'python   = "{active}/bin/python"  # of the environment that is active']
    return []


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
        env = {"PYTHONPATH": facts.above} if facts.above else {}
        env |= {
            option.flag[1:]: value
            for option, value in arguments
            if option.flag.startswith(ENVIRONMENT)
        }
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
        lines += [f"env      = {{ {pairs} }}"] if env else []
    if facts.by_options and not _callbacks(facts):
        patterns = [_literal(one.pattern) for one in facts.printed[:4]]
        patterns = patterns or [_literal(f"accuracy[=: ]+{NUMBER_PLACE}")]
        lines += [f"report   = {patterns[0]}{GUESS}", *(f"# or {one}" for one in patterns[1:])]
        lines += _checkpoint(facts)
    lines += ["", "[space]", *(f"{one.name} = {dimension(one)}{GUESS}" for one in tuned)]
    if not tuned:
        lines.append(f"# {LR}" if facts.by_options else f"{LR}{GUESS}")
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


def _missing(facts: ScriptFacts, arguments: Arguments) -> Iterator[str]:
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
    if callbacks := _callbacks(facts):
        yield from (HOW[name] for name in callbacks)
    else:
        yield from _missing_output(facts)


def _missing_output(facts: ScriptFacts) -> Iterator[str]:
    goal, saves = next(iter(facts.printed), None), facts.saves
    if goal is None:
        yield "it is not seen what the script prints: write `report` for its metric"
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
