"""The command line: commands, options and help texts; what commands do is in `seerd/commands`.

The one rule: every import that costs more than click itself happens inside the command that needs
it, so that `--help` stays instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from seerd.commands import common as c

Parameter = Callable[[Callable[..., Any]], Callable[..., Any]]
Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


class Argument(click.Argument):
    """An argument with a help text, which not every version of click has."""

    def __init__(self, declared: Sequence[str], help: str, **other: Any) -> None:
        super().__init__(declared, **other)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return how it is called, and its help text."""
        return self.make_metavar(ctx), self.help or ""


class Number(click.FloatRange):
    """A number of a range, and never NaN, which is neither below nor above it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that was written."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def takes(*parameters: Parameter) -> Callable[[Command], Command]:
    """Give a command these arguments and options, which its help lists in this order."""

    def give(command: Command) -> Command:
        for parameter in reversed(parameters):
            parameter(command)
        return command

    return give


# ------------------------------------------------------------ what several commands take

SPEC = click.argument("spec", cls=Argument, metavar="SPEC", type=PATH, help="The spec.toml to run.")
A_RUN = "A run's name, the beginning of one, or `last`."
RUN = click.argument("run", cls=Argument, metavar="RUN", help=A_RUN)
RUN_OR_LAST = click.argument(
    "run", cls=Argument, metavar="[RUN]", default="last", help=f"{A_RUN}  [default: last]"
)
JSON = click.option("--json", is_flag=True, help="Print one JSON object instead of text.")
HOME = click.option(
    "--home",
    type=PATH,
    envvar="SEERD_HOME",
    help="Folder of all runs.",
    show_envvar=True,
    show_default="XDG state folder",
)
DEADLINE = click.option(
    "--deadline",
    help="Until the best model is in hand, e.g. 30m.",
    metavar="TIME",
)
BUDGET = click.option("--budget", help="GPU time, e.g. 480gpu-min or 8gpu-h.", metavar="GPU-TIME")
COST = click.option("--cost", help="Money, e.g. '$40'.", metavar="MONEY")
POLICY = click.option("--policy", help="Search policy.", metavar="NAME")
PROVIDER = click.option("--provider", help="Where to run: local, hosts or ec2.", metavar="NAME")
MAX_GPUS = click.option(
    "--max-gpus",
    type=click.IntRange(min=1),
    help="Most GPUs at one moment.",
    metavar="N",
)
SEED = click.option("--seed", type=int, help="Seed of the search.", metavar="N")
LIKE = click.option(
    "--like",
    multiple=True,
    help="Learn from an earlier run: a name, or `last`. Repeatable.",
    metavar="RUN",
)
MINIMIZE = click.option(
    "--minimize",
    type=click.Choice(["cost", "time"]),
    help="Give each stage of --policy sha the GPUs that make it cheapest, or fastest (RubberBand).",
)
IDEAL = click.option(
    "--ideal",
    is_flag=True,
    help="To the letter of the paper: blind to boot, billing minimum and whole instances.",
)
SET = click.option(
    "--set",
    "set_",
    multiple=True,
    help="Any key of the spec, e.g. --set policy.eta=2. May be repeated.",
    metavar="KEY=VALUE",
)
PLAIN = click.option(
    "--plain",
    is_flag=True,
    help="One line per event instead of the live view.",
)

# ------------------------------------------------------------ the commands


class InOrder(click.Group):
    """A group whose help lists its commands in the order in which they are written here."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the names of the commands."""
        return list(self.commands)


@click.group(
    cls=InOrder,
    no_args_is_help=True,
    context_settings={"max_content_width": 80},
    help="Tune a model under a deadline and a budget: hand in a training script and a search "
    "space, get back the best model.",
)
@takes(
    click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=c.tell_version,
        help="Print the versions of seerd, Python, journal format and agent protocol.",
    ),
    click.option(
        "--show-completion",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=c.tell_completion,
        help="Print what teaches the current shell (bash, zsh or fish) commands and options.",
    ),
)
def app() -> None:
    """Take the options that stand before a command."""


@app.command()
@takes(
    SPEC,
    DEADLINE,
    BUDGET,
    COST,
    MINIMIZE,
    POLICY,
    PROVIDER,
    MAX_GPUS,
    SEED,
    LIKE,
    SET,
    IDEAL,
    HOME,
    PLAIN,
    JSON,
)
def run(
    spec: Path,
    deadline: str | None,
    budget: str | None,
    cost: str | None,
    minimize: c.Minimize | None,
    policy: str | None,
    provider: str | None,
    max_gpus: int | None,
    seed: int | None,
    like: tuple[str, ...],
    set_: tuple[str, ...],
    ideal: bool,
    home: Path | None,
    plain: bool,
    json: bool,
) -> None:
    """Tune within the deadline and the budget, and hand back the best model.

    Ctrl-C once ends the run in order: trials save, the best model so far is kept, everything is
    given back; `seerd resume` continues from there. Ctrl-C twice ends it at once, and still gives
    everything back.
    """
    from seerd.commands import run as command

    command.run(
        c.SpecOptions(
            spec,
            deadline,
            budget,
            cost,
            policy,
            provider,
            max_gpus,
            seed,
            like,
            set_,
            minimize,
            ideal,
        ),
        c.home_of(home),
        command.Shown(plain, json),
    )


@app.command()
@takes(
    RUN,
    HOME,
    PLAIN,
    JSON,
)
def resume(
    run: str,
    home: Path | None,
    plain: bool,
    json: bool,
) -> None:
    """Continue a run that was interrupted, or whose process was killed.

    Nothing that was saved is trained again. The clock of a killed run has gone on; that of an
    interrupted run stood still.
    """
    from seerd.commands import run as command

    command.resume(c.find(run, home), command.Shown(plain, json))


@app.command()
@takes(
    SPEC,
    DEADLINE,
    BUDGET,
    COST,
    MINIMIZE,
    POLICY,
    PROVIDER,
    MAX_GPUS,
    SEED,
    LIKE,
    SET,
    IDEAL,
    HOME,
    JSON,
)
def plan(
    spec: Path,
    deadline: str | None,
    budget: str | None,
    cost: str | None,
    minimize: c.Minimize | None,
    policy: str | None,
    provider: str | None,
    max_gpus: int | None,
    seed: int | None,
    like: tuple[str, ...],
    set_: tuple[str, ...],
    ideal: bool,
    home: Path | None,
    json: bool,
) -> None:
    """Show what would be run, what it would take, and what will be billed. This starts nothing and
    needs no credentials.
    """
    with c.quickly():
        from seerd.commands import plan as command

        command.plan(
            c.SpecOptions(
                spec,
                deadline,
                budget,
                cost,
                policy,
                provider,
                max_gpus,
                seed,
                like,
                set_,
                minimize,
                ideal,
            ),
            c.home_of(home),
            json=json,
        )


@app.command()
@takes(
    SPEC,
    click.option(
        "--deadline",
        help="Until everything is measured.",
        metavar="TIME",
        show_default="5m",
    ),
    click.option(
        "--budget",
        help="GPU time, e.g. 20gpu-min.",
        metavar="GPU-TIME",
        show_default="all of the time; for rented instances, that of the spec",
    ),
    PROVIDER,
    MAX_GPUS,
    SET,
    HOME,
    PLAIN,
    JSON,
)
def profile(
    spec: Path,
    deadline: str | None,
    budget: str | None,
    provider: str | None,
    max_gpus: int | None,
    set_: tuple[str, ...],
    home: Path | None,
    plain: bool,
    json: bool,
) -> None:
    """Measure how long reports take on 1, 2, 4 ... GPUs, and what starts and checkpoints take.
    Later plans use these times.

    One configuration is trained, for a few reports on each number of GPUs. What is measured is kept
    for this script on this kind of machine.
    """
    from seerd.commands import run as command

    command.profile(
        c.SpecOptions(
            spec,
            deadline,
            budget,
            provider=provider,
            max_gpus=max_gpus,
            set_=set_,
            ideal=True,
        ),
        c.home_of(home),
        command.Shown(plain, json),
    )


@app.command()
@takes(
    click.argument(
        "spec",
        cls=Argument,
        type=PATH,
        required=False,
        metavar="[SPEC]",
        help="Limits, cluster and policy are taken from it.",
    ),
    click.option(
        "--curves",
        type=PATH,
        help="Recorded learning curves, an .npz file.",
        metavar="FILE",
    ),
    click.option(
        "--policies",
        help="e.g. seer,asha.",
        metavar="NAMES",
        show_default="all",
    ),
    click.option(
        "--deadline",
        help="One or several, e.g. 15m,30m,60m.",
        metavar="TIME",
    ),
    click.option(
        "--budget",
        help="One or several, e.g. 240gpu-min,480gpu-min.",
        metavar="GPU-TIME",
    ),
    COST,
    MAX_GPUS,
    click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        help="Runs of each policy.",
        metavar="N",
    ),
    click.option(
        "--scaling",
        help="Throughput on p GPUs, e.g. 1:1,2:1.87,4:3.42, or resnet50.",
        metavar="TABLE",
    ),
    click.option(
        "--full-curve",
        help="How long the median whole curve takes on one GPU.",
        metavar="TIME",
    ),
    click.option(
        "--stragglers",
        type=Number(min=0),
        default=0.0,
        show_default=True,
        help="Attempts take 1 + |z| times as long, z with this deviation.",
        metavar="SD",
    ),
    click.option(
        "--drops",
        type=Number(min=0, max=1),
        default=0.0,
        show_default=True,
        help="Share of trials that crash in a minute of training.",
        metavar="SHARE",
    ),
    click.option(
        "--spot",
        help="Mean time until an instance is interrupted, e.g. 2h.",
        metavar="TIME",
    ),
    IDEAL,
    SET,
    click.option(
        "--plot",
        type=PATH,
        help="Draw metric against deadline and budget.",
        metavar="FILE",
    ),
    HOME,
    click.option(
        "--json",
        is_flag=True,
        help="Print one JSON array, a row for each policy.",
    ),
)
def simulate(
    spec: Path | None,
    curves: Path | None,
    policies: str | None,
    deadline: str | None,
    budget: str | None,
    cost: str | None,
    max_gpus: int | None,
    seeds: int,
    scaling: str | None,
    full_curve: str | None,
    stragglers: float,
    drops: float,
    spot: str | None,
    ideal: bool,
    set_: tuple[str, ...],
    plot: Path | None,
    home: Path | None,
    json: bool,
) -> None:
    """Compare policies before anything is paid for: the real planner and core in a simulated cloud.

    Trials follow recorded learning curves, or made-up ones over the spec's space. The same seeds
    give the same answer, to the last bit.
    """
    from seerd.commands import simulate as command

    command.simulate(
        command.Asked(
            curves,
            policies,
            deadline,
            budget,
            cost,
            seeds,
            scaling,
            full_curve,
            max_gpus,
            ideal,
            command.faults_of(stragglers, drops, spot),
        ),
        spec,
        set_,
        plot,
        c.home_of(home),
        json=json,
    )


@app.command("list")
@takes(
    HOME,
    JSON,
)
def list_(
    home: Path | None,
    json: bool,
) -> None:
    """List all runs, the newest last."""
    from seerd.commands import show as command

    command.list_runs(c.home_of(home), json=json)


@app.command()
@takes(
    RUN_OR_LAST,
    HOME,
    JSON,
)
def show(
    run: str,
    home: Path | None,
    json: bool,
) -> None:
    """Show what a run has tried, and its best model."""
    from seerd.commands import show as command

    command.show(c.find(run, home), json=json)


@app.command()
@takes(
    RUN_OR_LAST,
    HOME,
)
def watch(
    run: str,
    home: Path | None,
) -> None:
    """Show the live view of a run, from any terminal. Ctrl-C ends the view, not the run."""
    from seerd.view.watch import watch_run

    watch_run(c.find(run, home))


@app.command()
@takes(
    RUN,
    click.argument(
        "trial",
        cls=Argument,
        required=False,
        metavar="[TRIAL]",
        help="One trial, e.g. t3.",
    ),
    HOME,
)
def logs(
    run: str,
    trial: str | None,
    home: Path | None,
) -> None:
    """Print what the trials have printed, by trial, attempt and rank; without TRIAL, list the log
    files.
    """
    from seerd.commands import logs as command

    command.logs(c.find(run, home), trial)


@app.command()
@takes(
    RUN_OR_LAST,
    HOME,
    JSON,
)
def ledger(
    run: str,
    home: Path | None,
    json: bool,
) -> None:
    """Show what a run has cost, and for what: spent, committed and allowed."""
    from seerd.commands import show as command

    command.ledger(c.find(run, home), json=json)


@app.command()
@takes(
    RUN_OR_LAST,
    click.option(
        "--to",
        type=PATH,
        help="Copy checkpoint and configuration into this folder.",
        metavar="DIR",
    ),
    HOME,
    JSON,
)
def best(
    run: str,
    to: Path | None,
    home: Path | None,
    json: bool,
) -> None:
    """Show the best model of a run: its configuration and its checkpoint."""
    from seerd.commands import show as command

    command.best(c.find(run, home), to, json=json)


@app.command()
@takes(
    RUN,
    HOME,
)
def stop(
    run: str,
    home: Path | None,
) -> None:
    """End a run in order, as Ctrl-C in its terminal does."""
    from seerd.commands import stop as command

    command.stop(c.find(run, home))


@app.command()
@takes(
    RUN_OR_LAST,
    click.option(
        "--trial",
        help="Tell of one trial, e.g. t3.",
        metavar="TRIAL",
    ),
    click.option(
        "--at",
        help="Tell of one moment: since the run began, e.g. 90s or 12m, or after an "
        "event, e.g. @57.",
        metavar="TIME",
    ),
    HOME,
    JSON,
)
def replay(
    run: str,
    trial: str | None,
    at: str | None,
    home: Path | None,
    json: bool,
) -> None:
    """Tell from its journal why a run went as it did, and whether the same would be decided now.

    Without options it tells stage by stage: which trials were compared and went on, why instances
    came and went, what it cost. `--trial t3` tells the life of one trial, and why it was stopped.
    `--at 12m` tells what ran, was wanted, under way and paid then, and what had been decided last.
    With both, it tells the trial's life until then. Nothing is started or written; a run that still
    goes on can be replayed too.
    """
    with c.quickly():
        from seerd.commands import replay as command

        command.replay(c.find(run, home), trial, at, json=json)


@app.command()
@takes(
    SPEC,
    DEADLINE,
    BUDGET,
    COST,
    PROVIDER,
    MAX_GPUS,
    SET,
    click.option(
        "--policy",
        is_flag=True,
        help="Print the least-privilege IAM policy for the coordinator, and nothing else.",
    ),
    HOME,
    JSON,
)
def doctor(
    spec: Path,
    deadline: str | None,
    budget: str | None,
    cost: str | None,
    provider: str | None,
    max_gpus: int | None,
    set_: tuple[str, ...],
    policy: bool,
    home: Path | None,
    json: bool,
) -> None:
    """Check whether a run could begin: credentials, permissions, quota, image, network, bucket,
    price, clock, machines. This starts nothing.

    There is one line for each check, with what to do where something is wrong.
    """
    from seerd.commands import doctor as command

    command.doctor(
        c.SpecOptions(
            spec,
            deadline,
            budget,
            cost,
            provider=provider,
            max_gpus=max_gpus,
            set_=set_,
        ),
        c.home_of(home),
        policy_only=policy,
        json=json,
    )


@app.command()
@takes(
    SPEC,
    click.option(
        "--gpu",
        is_flag=True,
        help="Also rent a g4dn.xlarge, for five minutes at most, and import torch there.",
    ),
    click.option(
        "--policy",
        is_flag=True,
        help="Print the IAM policy that this command needs, and nothing else.",
    ),
    SET,
    HOME,
    JSON,
)
def canary(
    spec: Path,
    gpu: bool,
    policy: bool,
    set_: tuple[str, ...],
    home: Path | None,
    json: bool,
) -> None:
    """Prove on your own account, for a few cents, that EC2 and S3 do what seerd relies on, and
    measure how long they take.

    It rents three small instances without a GPU, with the image, network and bucket of the spec,
    and ends each in another way: by its lease, by a reboot, by its termination. What that may cost
    at most is said before, and is never more than $0.10, or $0.20 with --gpu; the instances power
    themselves off after 12 minutes, whatever happens. Ctrl-C gives everything back.

    It ends with a table. What `--json` prints has no account, address or name in it, and may be
    attached to an issue. Later plans use the times. The exit status is 1 if a check has failed, or
    if the times or the report could not be kept.
    """
    from seerd.commands import canary as command

    command.canary(
        c.SpecOptions(spec, set_=set_),
        c.home_of(home),
        gpu=gpu,
        policy_only=policy,
        json=json,
    )


@app.command()
@takes(
    click.option(
        "--dry-run",
        is_flag=True,
        help="Only show what would be ended.",
    ),
    click.option(
        "--older-than",
        help="End also what is older, unless a process of this machine runs it, e.g. 2h.",
        metavar="TIME",
    ),
    click.option(
        "--region",
        help="AWS region.",
        metavar="NAME",
        show_default="as for any AWS tool",
    ),
    HOME,
    JSON,
)
def sweep(
    dry_run: bool,
    older_than: str | None,
    region: str | None,
    home: Path | None,
    json: bool,
) -> None:
    """Find by their tags what your runs have left in EC2, and end what is dead: instances and
    disks.

    Dead is what is past its hard end, and what belongs to a run of this machine that is over or
    that no process runs any more. The rest is listed, and kept.
    """
    from seerd.commands import sweep as command

    command.sweep(c.home_of(home), region, older_than, dry_run=dry_run, json=json)


@app.group(no_args_is_help=True, help="Images of your own, from which instances start sooner.")
def image() -> None:
    """Take what stands before a command on images."""


@image.command()
@takes(
    SPEC,
    click.option(
        "--base",
        help="Image to begin with: ami-... or ssm:/path.",
        metavar="IMAGE",
        show_default="the spec's",
    ),
    click.option(
        "--instance-type",
        help="What to build it on; a cheap type with a GPU will do.",
        metavar="TYPE",
        show_default="the spec's first",
    ),
    click.option(
        "--name",
        help="What the image is called.",
        metavar="NAME",
        show_default="seerd-NAME-DATE",
    ),
    click.option(
        "--data",
        is_flag=True,
        help="Put train.data into the image, in /opt/seerd/data.",
    ),
    SET,
    HOME,
    JSON,
)
def build(
    spec: Path,
    base: str | None,
    instance_type: str | None,
    name: str | None,
    data: bool,
    set_: tuple[str, ...],
    home: Path | None,
    json: bool,
) -> None:
    """Make an image with everything that the spec's training needs: driver, torch,
    requirements.txt, the setup commands.

    The seconds of a boot are billed as GPU time, on every instance of every run; what an image has
    installed is paid once. One instance is rented for it, installed over SSH, checked, cleaned,
    imaged and terminated; it ends by itself after two hours whatever happens. The last lines say
    what to write into the spec. Ctrl-C gives everything back.
    """
    from seerd.commands import image as command

    wanted = command.ImageOptions(base, instance_type, name, data)
    command.build(c.SpecOptions(spec, set_=set_), wanted, c.home_of(home), json=json)


def main() -> None:
    """Run the command that the arguments name."""
    with c.orderly():
        app(prog_name="seerd")


if __name__ == "__main__":
    main()
