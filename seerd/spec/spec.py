"""spec.toml, read strictly, with all mistakes reported at once. A `Spec` is checked here, and
nowhere again.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seerd.agent.arguments import CHECKPOINT, GPUS, named, places
from seerd.agent.patterns import ObservedScript
from seerd.agent.warm.gpu_share import MPS
from seerd.core.events import Goal
from seerd.errors import SpecError, UsageError
from seerd.planner.model import PolicyParams
from seerd.planner.parameter import listed, plain
from seerd.planner.policies import POLICIES
from seerd.planner.space import Space, why_not
from seerd.registry import STORES, WRITTEN, scheme_of
from seerd.spec import program
from seerd.spec import values as v
from seerd.spec.clusters import cluster_of
from seerd.spec.keys import BackendKeys
from seerd.spec.program import HELD, LOADS, SEERD, misread, shown, shows
from seerd.spec.reader import SECTIONS, THE_DICT, Override, Reader, text_of, toml_of
from seerd.spec.targets import paths_of


@dataclass(frozen=True, slots=True)
class Train:
    """How a trial is started."""

    script: str  # the script or program, relative to `source`
    source: Path  # the folder that is shipped
    launcher: str  # what starts it: torchrun, python or command
    args: tuple[str, ...] = ()  # arguments of the script, with names of hyperparameters in braces
    python: str | None = None  # the interpreter; None: the one that runs seerd, or python3
    setup: tuple[str, ...] = ()  # commands that prepare a machine
    data: tuple[v.Data, ...] = ()  # what every instance fetches once
    env: dict[str, str] = field(default_factory=dict)
    # environment variables of which trials get this machine's values, which are in no file
    secrets: tuple[str, ...] = ()
    container: str = ""  # the image that trials and `setup` run in; empty: none
    mounts: tuple[str, ...] = ()  # folders of the machines that it sees too
    ingress_gb: float = 0.0  # GB that every instance fetches, whatever fetches them
    # modules that are imported before trials start; None: that is learned; none of them: trials
    # start with nothing imported
    preload: tuple[str, ...] | None = None
    # files of the source in which names in braces are filled, as in `args`
    fill: tuple[str, ...] = ()
    # links of the source that may lead out of it; `*` stands for parts of a name
    follow: tuple[str, ...] = ()
    # for a script that does not import seerd: how it is observed; None: it does
    observed: ObservedScript | None = None

    @property
    def saves(self) -> bool:
        """Whether anything of a trial is saved."""
        return self.observed is None or bool(self.observed.checkpoint)


@dataclass(frozen=True, slots=True)
class SpecLimits:
    """The limits as far as they are given."""

    # seconds from the command's start until the best model is in the store
    deadline_s: float | None
    budget_gpu_s: float | None
    cost_usd: float | None
    max_gpus: int | None  # most GPUs at one moment

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SpecLimits:
        """Take the limits from the values of a spec or a group, by the path of their key."""
        return cls(*(values.get(f"limits.{key}") for key in SECTIONS["limits"]))


@dataclass(frozen=True, slots=True)
class Spec:
    """A job, as its spec.toml asks for it."""

    name: str  # its name, the beginning of its own runs' names
    goal: Goal  # what trials are compared by
    train: Train  # how a trial is started
    space: Space
    policy: PolicyParams  # the `[policy]` table; sizes are in GPUs, rounded up to whole ones
    t_min_s: float | None  # the shortest first round, as given; None: the measured time decides
    like: tuple[str, ...]  # earlier runs to learn from, as the person named them
    limits: SpecLimits  # the limits as far as they are given; in a shared run, of the job alone
    cluster: BackendKeys  # where trials run: in a shared run, as the group says
    folder: Path  # the folder of its file
    text: str  # the text of its file; with overrides, the whole spec as TOML
    on_end: str = ""  # the shell command that is run here when the run is over; empty: none
    # tracker -> where the run is exported to as it goes on
    export: dict[str, str] = field(default_factory=dict)
    file: Path | None = None  # its file; None if it is a dict
    # fewest and most GPUs per trial as given, maybe parts of one; None: not given
    p_min: float | None = None
    p_max: float | None = None
    # of one of the jobs that share a run:
    id: str = ""  # its name in the run; empty: the run has no other job
    owner: str = ""  # its owner; empty: none is named
    weight: float = 1.0  # its share beside the others'
    # the file of recorded curves that `seerd simulate` has it replay; None: made-up ones
    curves: Path | None = None

    def unplaced(self) -> list[str]:
        """Return the hyperparameters that are in no argument, variable or filled file."""
        train, space = self.train, self.space
        files = ((train.source / file).read_text("utf-8", "replace") for file in train.fill)
        texts = [*train.args, *train.env.values(), *files]
        placed = {name for text in texts for name in places(text, space.names)}
        for parameter in reversed(space.parameters):  # what selects others is seen by those
            if parameter.name in placed:
                placed |= {condition.parameter for condition in parameter.when}
        return [name for name in space.names if name not in placed]

    def takes_part(self) -> bool | None:
        """Return whether the source imports seerd, or names its variables; None: too many files."""
        train = self.train
        suffix = "" if train.launcher == "command" else ".py"
        return shows(SEERD, train.source / train.script) or shown(SEERD, train.source, suffix)

    def takes_no_part(self) -> bool:
        """Return whether certainly only arguments and printed lines connect it with the run."""
        train = self.train
        open_ended = train.launcher == "command" or "PYTHONPATH" in train.env
        return not open_ended and self.takes_part() is False

    def takes_any_memory(self) -> bool:
        """Return whether certainly nothing holds a trial to its part of a GPU's memory: neither
        torch nor JAX, nor MPS.
        """
        train = self.train
        if train.launcher == "torchrun" or train.env.get(MPS) == "1":
            return False
        return shown(HELD, train.source, ".py") is False

    def loads_nothing(self) -> bool:
        """Return whether trials certainly save, and never go on from that."""
        observed = self.train.observed
        if observed is None or not observed.checkpoint or observed.resume:
            return False
        return self.takes_no_part() and shown(LOADS, self.train.source, ".py") is False

    def exported(self) -> frozenset[Path]:
        """Return where runs are exported to, which is not copied, but for the script's folders."""
        script = (self.train.source / self.train.script).resolve()
        paths = paths_of(self.export, self.folder)
        return frozenset(path for path in paths if not script.is_relative_to(path))


def load_spec(path: Path, overrides: Sequence[Override] = ()) -> Spec:
    """Read the spec in this file, with overrides. Raises `SpecError` with all mistakes."""
    return _read(Reader(path), overrides)


def spec_of(document: Mapping[str, Any], overrides: Sequence[Override] = ()) -> Spec:
    """Read a spec that is a dict; its paths start at the working directory. Raises `SpecError`."""
    return _read(Reader(Path(THE_DICT), toml_of(document)), overrides)


def _read(reader: Reader, overrides: Sequence[Override]) -> Spec:
    document = reader.document([Override(*override) for override in overrides])
    if isinstance(document.get("job"), list):
        raise UsageError(
            f"{reader.path} is a group of jobs, and one spec is needed here: give that of a job"
        )
    values = reader.sections(document)
    space = reader.space(document.get("space"))
    spec = _build(values, space, reader)
    reader.check()
    for name, option, kind, value in misread(space, spec.train):
        if kind != "bool":
            lists = "; several arguments are a list, as [[64], [64, 128]]"
            why = f"{option} has type={kind} in the script{lists if ' ' in str(value) else ''}"
            reader.wrong(f"space.{name}", listed(value), why)
    names = spec.unplaced() if spec.train.observed else []
    for name in names if names and spec.takes_no_part() else ():
        reader.wrong(
            f"space.{name}",
            None,
            f"reaches the script in no way: it is in no argument. Put {{{name}}} into train.args, "
            f'as "--{name}", "{{{name}}}", or into train.env or a file of train.fill',
        )
    reader.check()
    return replace(spec, text=reader.as_run(document))


def _build(values: dict[str, Any], space: Space, reader: Reader) -> Spec:
    get, folder = values.get, reader.folder
    cluster = cluster_of(values, store_of(get("cluster.store"), reader))
    policy = _policy(get, space, reader)
    goal: Any = {
        GOAL_FIELDS.get(key, key): values[name]
        for key in SECTIONS["metric"]
        if (name := f"metric.{key}") in values
    }
    if goal.get("metric") in goal.get("objectives", ()):
        reader.wrong("metric.objectives", goal["metric"], "it decides already: leave it out here")
    return Spec(
        name=get("name")
        or v.name(re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", folder.name)[:64] or "run"),
        goal=Goal(**{"metric": "", "mode": "max", **goal}),  # what is missing is a mistake already
        train=_train(get, reader, space, here=cluster.here),
        space=space,
        policy=policy,
        t_min_s=get("policy.t_min"),
        p_min=get("policy.p_min"),
        p_max=get("policy.p_max"),
        like=get("policy.like", ()),
        limits=SpecLimits.of(values),
        cluster=cluster,
        folder=folder,
        text="",
        file=reader.file,
        on_end=get("on_end", ""),
        export=exports_of(values),
    )


def exports_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Take `[export]` from the values of a spec or a group, by the path of their key."""
    return {kind: values[key] for kind in SECTIONS["export"] if (key := f"export.{kind}") in values}


Get = Callable[..., Any]  # returns a value of the spec by the path of its key
# key of `[metric]` -> its field of `Goal`, where that has another name
GOAL_FIELDS = {"name": "metric", "constraint": "constraints"}
# what names in braces mean that are no hyperparameters
MEANT = {GPUS: "the number of GPUs of an attempt", CHECKPOINT: "the path of a checkpoint"}
T_MIN_S = 60.0  # the shortest first round for a script that was not measured
# the default: the best in the bench, on existing and on rented machines (docs/comparison.md)
POLICY = "seer+"


def _policy(get: Get, space: Space, reader: Reader) -> PolicyParams:
    name = get("policy.name", POLICY)
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, 1, 0.5)
        reader.wrong("policy.name", name, f"this version has: {', '.join(POLICIES)}", *near)
    p_max = get("policy.p_max")
    p_min = get("policy.p_min", min(1, p_max or 1))
    if p_max is not None and p_max < p_min:
        reader.wrong("policy.p_max", p_max, f"it must be at least p_min = {p_min}")
    start = get("policy.start", ())
    for guess in start:
        if why := why_not(space, guess):
            reader.wrong("policy.start", plain(guess), why)
    for key in ("start", "like"):
        if name == "grid" and get(f"policy.{key}"):
            reader.wrong(
                f"policy.{key}", None, "is for policies that draw; grid tries all there is"
            )
    own = {key: get(f"policy.{key}") for key in SECTIONS["policy"] if key not in ("t_min", "like")}
    given = {key: value for key, value in own.items() if value is not None}
    # parts of a GPU are counted when it is known how many there are (`planning/parts.py`)
    given |= {key: max(1, int(given[key])) for key in ("p_min", "p_max") if key in given}
    t_min_s = get("policy.t_min", T_MIN_S)
    return PolicyParams(**{"name": name, "eta": 4.0, "t_min_s": t_min_s, **given})


def _train(get: Get, reader: Reader, space: Space, *, here: bool) -> Train:
    source = _path(get("train.source", "."), "train.source", reader)
    script = get("train.script", "")
    launcher = get("train.launcher", "torchrun")
    if not source.is_dir():
        reader.wrong("train.source", get("train.source"), "there is no such folder")
    elif script and launcher != "command":
        script = _script(script, source, reader)
    elif script and not get("train.setup") and not get("train.data"):  # these may bring it
        search = get("train.env", {}).get("PATH") or os.environ.get("PATH", os.defpath)
        try:
            is_here = here and not get("train.container")
            reason = program.why_not(script, source, search, here=is_here)
        except (OSError, RuntimeError, ValueError) as error:
            reason = _no_path(error)
        if reason:
            reader.wrong("train.script", script, reason)
    for name in get("train.secrets", ()):
        if name in get("train.env", {}):
            reader.wrong("train.secrets", name, "it is in train.env too, which is kept in files")
    if get("train.mounts") and not get("train.container"):
        reader.wrong("train.mounts", None, "is for trials in a container: name its image")
    plain = ["args", "python", "setup", "data", "env", "secrets", "container", "mounts"]
    plain += ["preload", "follow"]
    given = {key: value for key in plain if (value := get(f"train.{key}")) is not None}
    return Train(
        script=script,
        source=source,
        launcher=launcher,
        ingress_gb=get("train.ingress", 0.0),
        fill=_fill(get("train.fill", ()), source, space, reader),
        observed=_observed(get, space.names, reader),
        **given,
    )


def _script(script: str, source: Path, reader: Reader) -> str:
    """Return the script's path inside the source folder, which is shipped; note mistakes."""
    path = _path(script, "train.script", reader)
    if not path.is_file():
        others = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        reader.wrong(
            "train.script",
            script,
            program.as_command(script) or "there is no such file",
            *difflib.get_close_matches(path.name, others, 1, 0.5),
        )
    elif not path.is_relative_to(source):
        reader.wrong("train.script", script, f"it must lie inside the source folder {source}")
    else:
        package = path.parent / "seerd"
        is_other = (package / "__init__.py").is_file()
        is_other = is_other and not (package / "training" / "trial.py").is_file()
        if is_other or package.with_suffix(".py").is_file():
            hiding = f"{'the folder seerd/' if is_other else 'seerd.py'} beside it"
            reader.wrong("train.script", script, f"{hiding} hides the package seerd: rename it")
        return path.relative_to(source).as_posix()
    return script


def _fill(files: tuple[str, ...], source: Path, space: Space, reader: Reader) -> tuple[str, ...]:
    for file in files:
        path = source / file
        if not path.is_file() or path.resolve() != path:
            reader.wrong("train.fill", file, f"there is no such file in {source} (links are none)")
            continue
        try:
            named = places(text_of(path), [GPUS, *space.names])
        except SpecError as error:
            reader.wrong("train.fill", file, error.problems[0].allowed)
            continue
        inactive = [p.name for p in space.parameters if p.when and p.name in named]
        if not named:
            reader.wrong("train.fill", file, "no hyperparameter in braces is in it, as {lr}")
        elif inactive and path.suffix == ".toml":
            reader.wrong("train.fill", file, f"{inactive[0]} may be inactive, and TOML has no null")
    return files


def _observed(get: Get, names: Sequence[str], reader: Reader) -> ObservedScript | None:
    """Return how the script is observed; None if it imports seerd."""
    wrong = reader.wrong
    _check_names("train.args", get, [GPUS, *names], reader)
    _check_names("train.resume", get, [GPUS, *names, CHECKPOINT], reader)
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
    bounded = [constraint.metric for constraint in get("metric.constraint", ())]
    for name in dict.fromkeys([*bounded, *get("metric.objectives", ())]):
        if name not in patterns:
            why = f"train.report has no pattern for {name!r}, so nothing would report it"
            wrong(f"metric.{'constraint' if name in bounded else 'objectives'}", name, why)
    return ObservedScript(patterns, checkpoint or "", list(resume or ()))


def _check_names(key: str, get: Get, names: Sequence[str], reader: Reader) -> None:
    for argument in get(key, ()):
        for name in named(argument):
            if name in names:
                continue
            if name == CHECKPOINT:
                why = "only `resume` may have {checkpoint}: without one it is empty"
                reader.wrong(key, argument, why)
                continue
            why = f"[space] has no {name}; a brace that means no hyperparameter is written {{{{"
            reader.wrong(key, argument, why, *difflib.get_close_matches(name, names, 1, 0.5))


def store_of(store: str | None, reader: Reader) -> str | None:
    """Resolve where checkpoints are kept, a directory or an address; note mistakes."""
    if store is None or ((scheme := scheme_of(store)) and scheme in STORES):
        return store
    if scheme:
        reader.wrong("cluster.store", store, f"a directory or {WRITTEN} is allowed")
    path = _path(store, "cluster.store", reader)
    if path.exists() and not path.is_dir():
        reader.wrong("cluster.store", store, "it is no folder")
    return str(path)


def _path(name: str, key: str, reader: Reader) -> Path:
    """Resolve a path, following links; if it cannot be one, note that and return the folder."""
    try:
        path = (reader.folder / name).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
        reader.wrong(key, name, _no_path(error))
        return reader.folder
    return path


def _no_path(error: Exception) -> str:
    return f"it cannot be a path: {getattr(error, 'strerror', None) or error}"
