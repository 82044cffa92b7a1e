"""What can be said on the command line: every option that a command takes, with its help.

The one rule: types and words only; what they mean is read where it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

SpecArg = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec.toml to run.")]
RunArg = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the beginning of one, or `last`.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
HomeOpt = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of all runs.", envvar="SEERD_HOME", show_default="XDG state folder"),
]
DeadlineOpt = Annotated[str | None, typer.Option(help="Until the best model is in hand, e.g. 30m.", metavar="TIME")]
BudgetOpt = Annotated[str | None, typer.Option(help="GPU time, e.g. 480gpu-min or 8gpu-h.", metavar="GPU-TIME")]
CostOpt = Annotated[str | None, typer.Option(help="Money, e.g. '$40'.", metavar="MONEY")]
PolicyOpt = Annotated[str | None, typer.Option(help="Search policy.", metavar="NAME")]
ProviderOpt = Annotated[str | None, typer.Option(help="Where to run: local, hosts or ec2.", metavar="NAME")]
MaxGpusOpt = Annotated[int | None, typer.Option(help="Most GPUs at one moment.", metavar="N", min=1)]
SeedOpt = Annotated[int | None, typer.Option(help="Seed of the search.", metavar="N")]
MinimizeOpt = Annotated[
    Literal["cost", "time"] | None,
    typer.Option(help="Give each stage of --policy sha the GPUs that make it cheapest, or fastest (RubberBand)."),
]
IdealOpt = Annotated[
    bool,
    typer.Option("--ideal", help="To the letter of the paper: blind to boot, billing minimum and whole instances."),
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any key of the spec, e.g. --set policy.eta=2. May be repeated.", metavar="KEY=VALUE"),
]
PlainOpt = Annotated[bool, typer.Option("--plain", help="One line per event instead of the live view.")]
CurvesSpecArg = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="Limits, cluster and policy are taken from it.")
]
CurvesOpt = Annotated[Path | None, typer.Option(help="Recorded learning curves, an .npz file.", metavar="FILE")]
PoliciesOpt = Annotated[str | None, typer.Option(help="e.g. seer,asha.", metavar="NAMES", show_default="all")]
DeadlinesOpt = Annotated[str | None, typer.Option(help="One or several, e.g. 15m,30m,60m.", metavar="TIME")]
BudgetsOpt = Annotated[str | None, typer.Option(help="One or several, e.g. 240gpu-min,480gpu-min.", metavar="GPU-TIME")]
SeedsOpt = Annotated[int, typer.Option(help="Runs of each policy.", metavar="N", min=1)]
ScalingOpt = Annotated[
    str | None, typer.Option(help="Throughput on p GPUs, e.g. 1:1,2:1.87,4:3.42, or resnet50.", metavar="TABLE")
]
FullCurveOpt = Annotated[
    str | None, typer.Option(help="How long the median whole curve takes on one GPU.", metavar="TIME")
]
StragglersOpt = Annotated[
    float, typer.Option(help="Attempts take 1 + |z| times as long, z with this deviation.", metavar="SD", min=0)
]
DropsOpt = Annotated[
    float, typer.Option(help="Share of trials that crash in a minute of training.", metavar="SHARE", min=0, max=1)
]
SpotOpt = Annotated[
    str | None, typer.Option(help="Mean time until an instance is interrupted, e.g. 2h.", metavar="TIME")
]
PlotOpt = Annotated[Path | None, typer.Option(help="Draw metric against deadline and budget.", metavar="FILE")]
JsonRowsOpt = Annotated[bool, typer.Option("--json", help="Print one JSON array, a row for each policy.")]
BaseOpt = Annotated[
    str | None,
    typer.Option(help="Image to begin with: ami-... or ssm:/path.", metavar="IMAGE", show_default="the spec's"),
]
InstanceTypeOpt = Annotated[
    str | None,
    typer.Option(
        help="What to build it on; a cheap type with a GPU will do.", metavar="TYPE", show_default="the spec's first"
    ),
]
ImageNameOpt = Annotated[
    str | None, typer.Option(help="What the image is called.", metavar="NAME", show_default="seerd-NAME-DATE")
]
ImageDataOpt = Annotated[bool, typer.Option("--data", help="Put train.data into the image, in /opt/seerd/data.")]
PolicyDocOpt = Annotated[
    bool, typer.Option("--policy", help="Print the least-privilege IAM policy for the coordinator, and nothing else.")
]
DryRunOpt = Annotated[bool, typer.Option("--dry-run", help="Only show what would be ended.")]
OlderThanOpt = Annotated[
    str | None,
    typer.Option(help="End also what is older, unless a process of this machine runs it, e.g. 2h.", metavar="TIME"),
]
RegionOpt = Annotated[str | None, typer.Option(help="AWS region.", metavar="NAME", show_default="as for any AWS tool")]
TrialOpt = Annotated[str | None, typer.Option("--trial", help="Tell of one trial, e.g. t3.", metavar="TRIAL")]
AtOpt = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="Tell of one moment: since the run began, e.g. 90s or 12m, or after an event, e.g. @57.",
        metavar="TIME",
    ),
]
