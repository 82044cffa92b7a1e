"""The options that several commands take, or that are many: each is declared once, as a field.

The one rule: what a command is asked is a value of one of these classes, which also says how the
command line writes it; `expanded` gives a command the options of the classes that it takes. Nothing
here costs an import that `--help` would wait for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from seerd.spec.experiment import Experiment
    from seerd.spec.reader import Override
    from seerd.spec.spec import Spec

KEYS = {
    "deadline": "limits.deadline",
    "budget": "limits.budget",
    "cost": "limits.cost",
    "max_gpus": "limits.max_gpus",
    "policy": "policy.name",
    "seed": "policy.seed",
    "provider": "cluster.provider",
}
"""The spec's keys that have options of their own."""

Minimize = Literal["cost", "time"]
SpecArg = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec.toml to run.")]
SpecsArg = Annotated[
    list[Path],
    typer.Argument(
        metavar="SPEC...",
        help="The spec.toml to run; several, or a group.toml: they share the run.",
    ),
]
CostOpt = Annotated[str | None, typer.Option(help="Money, e.g. '$40'.", metavar="MONEY")]
MaxGpusOpt = Annotated[
    int | None, typer.Option(help="Most GPUs at one moment.", metavar="N", min=1)
]
IdealOpt = Annotated[
    bool,
    typer.Option(
        "--ideal",
        help="To the letter of the paper: blind to boot, billing minimum and whole instances.",
    ),
]

SetOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any key of the spec, e.g. --set policy.eta=2. May be repeated.",
        metavar="KEY=VALUE",
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """One spec or several, and what the command line says instead of them; None: as in the spec."""

    spec: Path | Sequence[Path]  # its file or files; each command says how it takes them
    deadline: Annotated[
        str | None,
        typer.Option(help="Until the best model is in hand, e.g. 30m.", metavar="TIME"),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(help="GPU time, e.g. 480gpu-min or 8gpu-h.", metavar="GPU-TIME"),
    ] = None
    cost: CostOpt = None
    # what the plan minimises, which the spec need not limit
    minimize: Annotated[
        Minimize | None,
        typer.Option(
            help="Give each stage of --policy sha the GPUs that make it cheapest, or fastest "
            "(RubberBand).",
        ),
    ] = None
    policy: Annotated[str | None, typer.Option(help="Search policy.", metavar="NAME")] = None
    provider: Annotated[
        str | None, typer.Option(help="Where to run: local, hosts or ec2.", metavar="NAME")
    ] = None
    max_gpus: MaxGpusOpt = None
    seed: Annotated[int | None, typer.Option(help="Seed of the search.", metavar="N")] = None
    like: Annotated[
        list[str] | None,
        typer.Option(
            help="Learn from an earlier run: a name, or `last`. Repeatable.", metavar="RUN"
        ),
    ] = None
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
        """Read what is to be run. Raises what `load` raises, and `UsageError` if a limit is
        missing.
        """
        from seerd.errors import UsageError
        from seerd.spec.experiment import require_limits

        asked = self.load()
        if asked.is_shared and (self.minimize is not None or self.ideal):
            raise UsageError("--minimize and --ideal are for one job; several share what there is")
        require_limits(asked, self.minimize)
        return asked

    def job(self) -> Spec:
        """Read the only spec. Raises `SpecError` with all mistakes, `UsageError` for a group."""
        from seerd.spec.spec import load_spec

        return load_spec(self.path, self.overrides())


@dataclass(frozen=True, slots=True)
class Shown:
    """How a run is shown; both False: as a live view, if stdout is a terminal."""

    plain: Annotated[
        bool, typer.Option("--plain", help="One line per event instead of the live view.")
    ] = False
    json: JsonOpt = False


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What is simulated; None: as the spec has it."""

    curves: Annotated[
        Path | None,
        typer.Option(help="Recorded learning curves, an .npz file.", metavar="FILE"),
    ] = None
    policies: Annotated[
        str | None,
        typer.Option(help="e.g. seer,asha.", metavar="NAMES", show_default="all"),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(help="One or several, e.g. 15m,30m,60m.", metavar="TIME"),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(help="One or several, e.g. 240gpu-min,480gpu-min.", metavar="GPU-TIME"),
    ] = None
    cost: CostOpt = None
    max_gpus: MaxGpusOpt = None
    seeds: Annotated[int, typer.Option(help="Runs of each policy.", metavar="N", min=1)] = 5
    scaling: Annotated[
        str | None,
        typer.Option(
            help="Throughput on p GPUs, e.g. 1:1,2:1.87,4:3.42, or resnet50.",
            metavar="TABLE",
        ),
    ] = None
    full_curve: Annotated[
        str | None,
        typer.Option(help="How long the median whole curve takes on one GPU.", metavar="TIME"),
    ] = None
    stragglers: Annotated[
        float,
        typer.Option(
            help="Attempts take 1 + |z| times as long, z with this deviation.",
            metavar="SD",
            min=0,
        ),
    ] = 0.0
    drops: Annotated[
        float,
        typer.Option(
            help="Share of trials that crash in a minute of training.",
            metavar="SHARE",
            min=0,
            max=1,
        ),
    ] = 0.0
    spot: Annotated[
        str | None,
        typer.Option(help="Mean time until an instance is interrupted, e.g. 2h.", metavar="TIME"),
    ] = None
    ideal: IdealOpt = False
    set_: SetOpt = None
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw metric against deadline and budget.", metavar="FILE"),
    ] = None


@dataclass(frozen=True, slots=True)
class LogsAsked:
    """What of the logs is printed."""

    lines: Annotated[
        int,
        typer.Option("--lines", "-n", help="The last lines of each file.", metavar="N", min=0),
    ] = 20
    whole: Annotated[bool, typer.Option("--all", help="Whole files.")] = False
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Go on with what is printed from now on, until the run is over.",
        ),
    ] = False
    files: Annotated[
        bool,
        typer.Option("--files", help="Only list the files, by trial, attempt and rank."),
    ] = False


@dataclass(frozen=True, slots=True)
class NewLimits:
    """Limits of a run that goes on; with a `+` in front what is added. None: as it is."""

    deadline: Annotated[
        str | None,
        typer.Option(
            help="A new deadline, e.g. 2h, or how much longer, e.g. +10m.", metavar="TIME"
        ),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            help="A new budget, e.g. 600gpu-min, or how much more, e.g. +60gpu-min.",
            metavar="GPU-TIME",
        ),
    ] = None
    cost: Annotated[
        str | None,
        typer.Option(help="A new limit in money, e.g. '$40', or '+$10'.", metavar="MONEY"),
    ] = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is to share a run; None: as its spec has it."""

    name: Annotated[
        str | None, typer.Option(help="The job's name in the run; default: its spec's.")
    ] = None
    owner: Annotated[str | None, typer.Option(help="For whom the job is.")] = None
    weight: Annotated[
        float | None, typer.Option(help="The job's share beside the others'; default: 1.")
    ] = None
    target: Annotated[float | None, typer.Option(help="The metric with which the job is over.")] = (
        None
    )
    budget: Annotated[
        str | None, typer.Option(help="Its most GPU time, e.g. 2gpu-h; default: what is left.")
    ] = None
    max_gpus: Annotated[
        int | None, typer.Option(help="The most GPUs that it has at once; default: all.")
    ] = None


@dataclass(frozen=True, slots=True)
class Consent:
    """How the user agrees that something is removed."""

    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show what would be removed, and its size."),
    ] = False
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal."),
    ] = False
    json: JsonOpt = False


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is written of a report."""

    to: Annotated[
        Path | None,
        typer.Option(help="The page.", metavar="FILE", show_default="RUN.html"),
    ] = None
    png: Annotated[
        Path | None,
        typer.Option(help="Put the pictures into this folder as PNG.", metavar="DIR"),
    ] = None
    pdf: Annotated[
        Path | None,
        typer.Option(help="Put the pictures into this folder as PDF.", metavar="DIR"),
    ] = None
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Write the page anew every 10 s, until the run is over."),
    ] = False


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Where a run is exported to, by what is written there."""

    csv: Annotated[
        Path | None,
        typer.Option(help="Tables as CSV, into this folder.", metavar="DIR"),
    ] = None
    parquet: Annotated[
        Path | None,
        typer.Option(help="The same tables as Parquet.", metavar="DIR"),
    ] = None
    tensorboard: Annotated[
        Path | None,
        typer.Option(help="TensorBoard's event files.", metavar="DIR"),
    ] = None
    mlflow: Annotated[
        str | None,
        typer.Option(help="MLflow: a server, or a database of its own.", metavar="URI"),
    ] = None
    optuna: Annotated[
        str | None,
        typer.Option(help="A study in a storage of Optuna's.", metavar="URL"),
    ] = None
    wandb: Annotated[
        Path | None,
        typer.Option(help="Weights & Biases: a folder for `wandb sync`.", metavar="DIR"),
    ] = None


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What the command line says of an image; None: as the spec has it."""

    base: Annotated[
        str | None,
        typer.Option(
            help="Image to begin with: ami-... or ssm:/path.",
            metavar="IMAGE",
            show_default="the spec's",
        ),
    ] = None
    instance_type: Annotated[
        str | None,
        typer.Option(
            help="What to build it on; a cheap type with a GPU will do.",
            metavar="TYPE",
            show_default="the spec's first",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="What the image is called.",
            metavar="NAME",
            show_default="seerd-NAME-DATE",
        ),
    ] = None
    data: Annotated[
        bool,
        typer.Option("--data", help="Put train.data into the image, in /opt/seerd/data."),
    ] = False


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
        kind, *marks = get_args(parameter.annotation) or (parameter.annotation,)
        if get_origin(parameter.annotation) is not Annotated:
            kind = parameter.annotation
        if not is_dataclass(kind):
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        only = next((mark for mark in marks if isinstance(mark, Only)), Only())
        taken = [field for field in fields(kind) if field.name in only.names or not only.names]
        annotations = get_type_hints(kind, include_extras=True) | only.instead
        groups[parameter.name] = kind, [field.name for field in taken]
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=annotations[field.name],
            )
            for field in taken
        ]

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
