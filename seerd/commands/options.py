"""The options that several commands take, or that are many: each is declared once, as a field of a
dataclass. Nothing here costs an import that `--help` would wait for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from seerd.spec.experiment import Experiment
    from seerd.spec.reader import Override
    from seerd.spec.spec import Spec


def option(about: str, *names: str, default: Any = None, **how: Any) -> Any:
    """Return a dataclass field that the command line writes as this option."""
    return field(default=default, metadata={"option": typer.Option(*names, help=about, **how)})


def flag(about: str, *names: str) -> Any:
    """Return a dataclass field that is False unless the command line has this flag."""
    return option(about, *names, default=False)


# The keys of a spec that have options of their own.
KEYS = {
    "deadline": "limits.deadline",
    "budget": "limits.budget",
    "cost": "limits.cost",
    "max_gpus": "limits.max_gpus",
    "policy": "policy.name",
    "seed": "policy.seed",
    "provider": "cluster.provider",
}

Minimize = Literal["cost", "time"]
SpecArg = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec.toml to run.")]
SpecsArg = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC...", help="The spec.toml; several, or a group.toml, share a run."),
]
CostOpt = Annotated[str | None, typer.Option(help="Money, e.g. '$40'.", metavar="MONEY")]
MaxGpusOpt = Annotated[int | None, typer.Option(help="Most GPUs at once.", metavar="N", min=1)]
IdealOpt = Annotated[
    bool, typer.Option("--ideal", help="To the letter of the paper, whatever is billed.")
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", help="A key of the spec: policy.eta=2. Repeatable.", metavar="KEY=VALUE"),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """One spec or several, and what the command line changes in them; None: as in the spec."""

    spec: Path | Sequence[Path]  # its file or files; each command says how it takes them
    deadline: str | None = option("Until the best model is in hand, e.g. 30m.", metavar="TIME")
    budget: str | None = option("GPU time, e.g. 480gpu-min or 8gpu-h.", metavar="GPU-TIME")
    cost: CostOpt = None
    # what the plan minimises, which the spec need not limit
    minimize: Minimize | None = option(
        "Give the stages of --policy sha the GPUs that keep this least."
    )
    policy: str | None = option("Search policy.", metavar="NAME")
    provider: str | None = option("Where to run: local, hosts or ec2.", metavar="NAME")
    max_gpus: MaxGpusOpt = None
    seed: int | None = option("Seed of the search.", metavar="N")
    like: list[str] | None = option("Learn from an earlier run. Repeatable.", metavar="RUN")
    set_: SetOpt = None
    ideal: IdealOpt = False

    @property
    def paths(self) -> Sequence[Path]:
        """The specs' files."""
        return [self.spec] if isinstance(self.spec, Path) else self.spec

    @property
    def path(self) -> Path:
        """The file of the first spec."""
        return self.paths[0]

    def overrides(self) -> list[Override]:
        """List what is changed in the spec. Raises `UsageError` for a --set without a key."""
        from seerd.errors import UsageError
        from seerd.spec.reader import Override

        values = ((key, getattr(self, name), name) for name, key in KEYS.items())
        changes = [
            Override(key, str(value), f"--{name.replace('_', '-')}")
            for key, value, name in values
            if value is not None
        ]
        if self.like:
            changes.append(Override("policy.like", dumps(self.like), "--like"))
        for text in self.set_ or []:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise UsageError(f"--set {text}: write KEY=VALUE, for example --set policy.eta=2")
            changes.append(Override(key.strip(), value.strip()))
        return changes

    def load(self) -> Experiment:
        """Read what is to be run. Raises `SpecError` with all mistakes."""
        from seerd.spec import experiment

        return experiment.load(self.paths, self.overrides())

    def complete(self) -> Experiment:
        """Read what is to be run. Raises what `load` raises, and `UsageError` without limits."""
        from seerd.errors import UsageError
        from seerd.spec.experiment import require_limits

        experiment = self.load()
        if experiment.is_shared and (self.minimize is not None or self.ideal):
            raise UsageError("--minimize and --ideal are for one job; several share what there is")
        require_limits(experiment, self.minimize)
        return experiment

    def job(self) -> Spec:
        """Read the only spec. Raises `SpecError` with all mistakes, `UsageError` for a group."""
        from seerd.spec.spec import load_spec

        return load_spec(self.path, self.overrides())


@dataclass(frozen=True, slots=True)
class Shown:
    """How a run is shown; both False: as a live view, if stdout is a terminal."""

    plain: bool = flag("One line per event instead of the live view.", "--plain")
    json: JsonOpt = False


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What is simulated; None: as the spec has it."""

    curves: Path | None = option("Recorded learning curves, an .npz file.", metavar="FILE")
    policies: str | None = option("e.g. seer,asha.", metavar="NAMES", show_default="all")
    deadline: str | None = option("One or several, e.g. 15m,30m,60m.", metavar="TIME")
    budget: str | None = option("The same, e.g. 240gpu-min.", metavar="GPU-TIME")
    cost: CostOpt = None
    max_gpus: MaxGpusOpt = None
    seeds: int = option("Runs of each policy.", metavar="N", min=1, default=5)
    scaling: str | None = option("Throughput, e.g. 1:1,2:1.87, or resnet50.", metavar="TABLE")
    full_curve: str | None = option("Of the median whole curve on one GPU.", metavar="TIME")
    stragglers: float = option(
        "Attempts take 1 + |z| times as long.", metavar="SD", min=0, default=0.0
    )
    drops: float = option(
        "Crashes per trial and minute.", metavar="SHARE", min=0, max=1, default=0.0
    )
    spot: str | None = option("Mean time until an interruption, e.g. 2h.", metavar="TIME")
    ideal: IdealOpt = False
    set_: SetOpt = None
    plot: Path | None = option("Draw metric against deadline and budget.", metavar="FILE")


@dataclass(frozen=True, slots=True)
class LogsAsked:
    """What of the logs is printed."""

    lines: int = option("Of each file.", "--lines", "-n", metavar="N", min=0, default=20)
    whole: bool = flag("Whole files.", "--all")
    follow: bool = flag("Go on until the run is over; Ctrl-C ends only this.", "--follow", "-f")
    files: bool = flag("Only list the files, by trial, attempt and rank.", "--files")


@dataclass(frozen=True, slots=True)
class NewLimits:
    """Limits of a run that goes on; with a `+` in front what is added. None: as it is."""

    deadline: str | None = option("A new deadline, e.g. 2h, or +10m.", metavar="TIME")
    budget: str | None = option("A new one, e.g. 600gpu-min, or +60gpu-min.", metavar="GPU-TIME")
    cost: str | None = option("A new limit in money, e.g. '$40', or '+$10'.", metavar="MONEY")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is to share a run; None: as its spec has it."""

    name: str | None = option("The job's name in the run; default: its spec's.")
    owner: str | None = option("For whom the job is.")
    weight: float | None = option("The job's share beside the others'; default: 1.")
    target: float | None = option("The metric with which the job is over.")
    budget: str | None = option("Its most GPU time, e.g. 2gpu-h; default: what is left.")
    max_gpus: int | None = option("The most GPUs that it has at once; default: all.")


@dataclass(frozen=True, slots=True)
class Consent:
    """How the user agrees that something is removed."""

    dry_run: bool = flag("Only show what would be removed, and its size.", "--dry-run")
    yes: bool = flag("Do not ask; needed where there is no terminal.", "--yes", "-y")
    json: JsonOpt = False


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is written of a report."""

    to: Path | None = option("The page.", metavar="FILE", show_default="RUN.html")
    png: Path | None = option("Put the pictures into this folder as PNG.", metavar="DIR")
    pdf: Path | None = option("Put the pictures into this folder as PDF.", metavar="DIR")
    follow: bool = flag("Write the page anew every 10 s, until the run is over.", "--follow")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Where a run is exported to, by what is written there."""

    csv: Path | None = option("Tables as CSV, into this folder.", metavar="DIR")
    tensorboard: Path | None = option("TensorBoard's event files.", metavar="DIR")
    mlflow: str | None = option("MLflow: a server, or a database of its own.", metavar="URI")
    optuna: str | None = option("A study in a storage of Optuna's.", metavar="URL")
    wandb: Path | None = option("Weights & Biases: a folder for `wandb sync`.", metavar="DIR")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What the command line says of an image; None: as the spec has it."""

    base: str | None = option("Image to begin with: ami-... or ssm:/path.", metavar="IMAGE")
    instance_type: str | None = option("To build it on; it needs a GPU.", metavar="TYPE")
    name: str | None = option("What the image is called.", metavar="NAME")
    data: bool = flag("Put train.data into the image, in /opt/seerd/data.", "--data")


class Only:
    """Marks a parameter of a command: of its class, the command takes only some options."""

    def __init__(self, *names: str, **instead: Any) -> None:
        self.names = names  # the fields; none: all of them
        self.instead = instead  # field -> its annotation for this command


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of the dataclasses that it takes."""
    groups: dict[str, tuple[Any, list[str]]] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if not is_dataclass(kind):
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        (only,) = getattr(parameter.annotation, "__metadata__", (Only(),))
        types = get_type_hints(kind, include_extras=True)
        taken = [each for each in fields(kind) if each.name in only.names or not only.names]
        groups[parameter.name] = kind, [each.name for each in taken]
        for each in taken:
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            annotation = only.instead.get(each.name, types[each.name])
            if "option" in each.metadata:
                annotation = Annotated[annotation, each.metadata["option"]]
            as_option = parameter.replace(name=each.name, default=default, annotation=annotation)
            options.append(as_option.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**values: Any) -> None:
        made = {
            name: kind(**{key: values.pop(key) for key in keys})
            for name, (kind, keys) in groups.items()
        }
        command(**values, **made)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called
