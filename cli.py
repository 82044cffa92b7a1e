"""The command line: commands, options and help texts; what commands do is in `seerd/commands`.

The one rule: every import that costs more than typer itself happens inside the command that needs
it, so that `--help` stays instant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from seerd import commands
from seerd.commands import common as c
from seerd.commands import options as o

RunArg = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's name, the beginning of one, or `last`.")
]
HomeOpt = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Folder of all runs.", envvar="SEERD_HOME", show_default="XDG state folder"
    ),
]
SpecAndSet = Annotated[o.SpecOptions, o.Only("spec", "set_", spec=o.SpecArg)]
SpecsAndAll = Annotated[o.SpecOptions, o.Only(spec=o.SpecsArg)]
SpecAndWhere = Annotated[
    o.SpecOptions,
    o.Only("spec", "deadline", "budget", "cost", "provider", "max_gpus", "set_", spec=o.SpecArg),
]
NeedModelOpt = Annotated[
    bool,
    typer.Option("--need-model", help="Exit with 4 if the result is a configuration, not a model."),
]
PolicyOpt = Annotated[
    bool, typer.Option("--policy", help="Print the IAM policy that this needs, and nothing else.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tune a model under a deadline and a budget: a script and a space in, the best model out.",
)
image = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Images of your own, from which instances start sooner.",
)


def command(
    name: str | None = None, of: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a command, with an option for each field of the dataclasses that it takes."""
    return lambda function: of.command(name)(o.expanded(function))


@app.callback()
def seerd(
    version: bool = typer.Option(
        False,
        "--version",
        callback=c.tell_version,
        is_eager=True,
        help="Print the versions of seerd, Python, journal format and agent protocol.",
    ),
) -> None:
    """Take the options that stand before a command."""
    c.say_damages()


@command()
def run(
    asked: SpecsAndAll,
    shown: o.Shown,
    unless_running: bool = typer.Option(
        False, "--unless-running", help="Do nothing while a run of this name goes on; for cron."
    ),
    need_model: NeedModelOpt = False,
    home: HomeOpt = None,
) -> None:
    """Tune within the deadline and the budget, and hand back the best model.

    Ctrl-C ends the run in order: trials save, the best model so far is kept, everything is given
    back; `seerd resume` goes on from there. Ctrl-C twice ends it at once, and gives back too.

    Several specs, or a group.toml, share one deadline, one budget and the same machines; each job
    hands back its own best model.
    """
    commands.run.run(
        asked, c.home_of(home), shown, unless_running=unless_running, need_model=need_model
    )


@command()
def resume(
    run: RunArg,
    shown: o.Shown,
    home: HomeOpt = None,
    up_to: int | None = typer.Option(
        None, metavar="EVENT", help="Go on from this event of a damaged journal, which is kept."
    ),
    need_model: NeedModelOpt = False,
) -> None:
    """Continue a run that was interrupted, or whose process was killed. Nothing saved is trained
    again. The clock of a killed run has gone on; that of an interrupted run stood still.
    """
    commands.run.resume(c.find(run, home), shown, up_to, need_model=need_model)


@command()
def plan(asked: SpecsAndAll, home: HomeOpt = None, json: o.JsonOpt = False) -> None:
    """Show what would be run, what it would take, and what will be billed. This starts nothing and
    needs no credentials.
    """
    c.quickly()
    commands.plan.plan(asked, c.home_of(home), json=json)


@command()
def profile(
    asked: Annotated[
        o.SpecOptions,
        o.Only("spec", "deadline", "budget", "provider", "max_gpus", "set_", spec=o.SpecArg),
    ],
    shown: o.Shown,
    home: HomeOpt = None,
) -> None:
    """Measure how long reports take on 1, 2, 4 ... GPUs, and starts and checkpoints: later plans of
    this script on this kind of machine use these times.

    One configuration is trained, for a few reports on each number of GPUs, in five minutes unless
    there is a --deadline. Only rented machines need a budget.
    """
    commands.run.profile(asked, c.home_of(home), shown)


@command()
def simulate(
    asked: o.SimulateOptions,
    specs: list[Path] | None = typer.Argument(
        None, metavar="SPEC...", help="What to simulate; several, or a group.toml, share the run."
    ),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Compare policies before anything is paid for: the real planner and core in a simulated cloud.
    Trials follow recorded learning curves, or made-up ones over the spec's space.
    """
    commands.simulation.simulate_specs(asked, specs or [], c.home_of(home), json=json)


@command("list")
def list_(home: HomeOpt = None, json: o.JsonOpt = False) -> None:
    """List all runs, the newest last: begin, end, and what they took of their limits."""
    commands.show.list_runs(c.home_of(home), json=json)


@command()
def show(
    run: RunArg = "last",
    every: bool = typer.Option(False, "--all", help="List every trial, not only the best 20."),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Show what a run has tried, and its best model."""
    commands.show.show(c.find(run, home), every=every, json=json)


@command()
def watch(
    run: RunArg = "last",
    at: str | None = typer.Option(
        None, help="As it stood then, e.g. 5m; ← and → go on from there.", metavar="TIME"
    ),
    home: HomeOpt = None,
) -> None:
    """Show the live view of a run, also back in time; ? shows its keys. q ends only the view."""
    commands.running.watch(c.find(run, home), at)


@command()
def logs(
    run: RunArg,
    wanted: o.LogsAsked,
    trial: str | None = typer.Argument(None, metavar="TRIAL", help="One trial, e.g. t3."),
    home: HomeOpt = None,
) -> None:
    """Print the end of what the trials have printed, the latest last: of each trial its newest
    attempt, of TRIAL all attempts. What they print on other machines is brought every half minute.
    """
    commands.logs.logs(c.find(run, home), trial, wanted)


@command()
def ledger(run: RunArg = "last", home: HomeOpt = None, json: o.JsonOpt = False) -> None:
    """Show what a run has cost, and for what: spent, committed and allowed."""
    commands.show.ledger(c.find(run, home), json=json)


@command()
def best(
    run: RunArg = "last",
    to: Path | None = typer.Option(None, help="Copy the model into this folder.", metavar="DIR"),
    job: str | None = typer.Option(None, help="Whose model, of several jobs.", metavar="JOB"),
    need_model: NeedModelOpt = False,
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Show the best model of a run: its configuration and its checkpoint. If its script saves none,
    it is the configuration alone, which --to writes as config.json.

    While the run goes on it is the best so far, from the checkpoint store; --to copies that too.
    """
    commands.best.best(c.find(run, home), to, json=json, job=job, need_model=need_model)


@command()
def stop(
    run: RunArg,
    job: str | None = typer.Argument(None, metavar="JOB", help="Only this one of its jobs."),
    home: HomeOpt = None,
) -> None:
    """End a run in order, as Ctrl-C in its terminal does; with JOB, only this one of its jobs: its
    trials save, its best model is handed back, and the others get its share.
    """
    commands.running.stop(c.find(run, home), job)


@command("set")
def set_(
    run: RunArg,
    job: str = typer.Argument(..., metavar="JOB", help="One of the jobs that share the run."),
    what: str = typer.Argument(..., metavar="weight=N", help="Its share beside the others'."),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Give one of the jobs that share a run another weight, while the run goes on."""
    commands.asking.weigh(c.find(run, home), job, what, json=json)


@command()
def pause(run: RunArg, home: HomeOpt = None) -> None:
    """End a run in order, as stop does, and wait until nothing is held or billed any more.
    Its clock stands still until `seerd resume` goes on with what is left of the limits.
    """
    commands.running.pause(c.find(run, home))


@command()
def extend(run: RunArg, limits: o.NewLimits, home: HomeOpt = None, json: o.JsonOpt = False) -> None:
    """Give a run that goes on a later deadline, a larger budget, or both. What is left is planned
    anew at once. Limits are never lowered: `seerd stop` ends a run sooner.
    """
    commands.asking.extend(c.find(run, home), limits, json=json)


@command()
def add(
    run: RunArg,
    job: o.NewJob,
    spec: Path | None = typer.Argument(None, metavar="SPEC", help="The spec.toml of a job."),
    config: list[str] | None = typer.Option(
        None, help="Values, e.g. lr=0.1; others are drawn. Repeatable.", metavar="NAME=VALUE,..."
    ),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Add a configuration to a run that goes on, or a job to one that jobs share.

    With --config, the configuration is the policy's next new trial, whenever it begins one.

    With SPEC, the job gets its share of what is left, at once, and hands back its own best model.
    """
    commands.asking.add(c.find(run, home), spec, config, job, json=json)


@command()
def rm(run: RunArg, consent: o.Consent, home: HomeOpt = None) -> None:
    """Remove a run that is over from this disk: its journal, model, checkpoints and logs.
    Checkpoints in S3 stay until the bucket's lifecycle rule removes them.
    """
    commands.tidy.rm(c.find(run, home), consent)


@command()
def gc(
    consent: o.Consent,
    older_than: str = typer.Option("168h", help="Of runs that ended so long ago.", metavar="TIME"),
    home: HomeOpt = None,
) -> None:
    """Free what runs that are over need no more: checkpoints but the best model, and their logs.
    Models, journals and specs stay. A run that can still be resumed is left as it is.
    """
    commands.tidy.gc(c.home_of(home), c.seconds(older_than), consent)


@command()
def replay(
    run: RunArg = "last",
    trial: str | None = typer.Option(None, help="Tell of one trial, e.g. t3.", metavar="TRIAL"),
    at: str | None = typer.Option(
        None, help="Tell of one moment, e.g. 12m, or @57: after that event.", metavar="TIME"
    ),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Tell from its journal why a run went as it did, and whether the same would be decided now.

    Without options it tells stage by stage: which trials were compared and went on, why instances
    came and went, what it cost. `--trial t3` tells the life of one trial, and why it was stopped;
    `--at 12m` what ran, was wanted and paid then. Nothing is started or written.
    """
    c.quickly()
    commands.replay.replay(c.find(run, home), trial, at, json=json)


@command()
def report(
    options: o.ReportOptions,
    runs: list[str] | None = typer.Argument(
        None, metavar="[RUN]...", help="One run, or several to compare; default: last."
    ),
    home: HomeOpt = None,
) -> None:
    """Write a page on a run: which trial won and why, what it cost, and what to try next.

    It is one HTML file that needs no network: GPUs over time, learning curves, billing, the
    importance of hyperparameters, all trials and decisions. Several runs are compared.
    """
    c.quickly()
    commands.report.report([c.find(run, home) for run in runs or ["last"]], options)


@command()
def export(targets: o.ExportOptions, run: RunArg = "last", home: HomeOpt = None) -> None:
    """Write a run for other programs: tables of its trials, reports and charges, or what trackers
    of experiments keep. Exporting again adds what is missing and nothing twice; `[export]` in the
    spec does it as the run goes on.

    seerd export last --csv tables

    seerd export last --mlflow http://127.0.0.1:5000
    """
    c.quickly()
    commands.export.export(c.find(run, home), targets)


@command()
def doctor(
    asked: SpecAndWhere,
    policy: PolicyOpt = False,
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Check whether a run could begin: credentials, permissions, quota, image, network, bucket,
    price, clock, machines. This starts nothing, and says what to do where something is wrong.
    """
    commands.doctor.doctor(asked, c.home_of(home), policy_only=policy, json=json)


@command()
def machines(
    spec: Path | None = typer.Argument(
        None, metavar="[SPEC]", help="Look at this spec's hosts.", show_default="this machine"
    ),
    set_: o.SetOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Show whose runs have which GPUs: on this machine, or on the hosts of a spec."""
    commands.doctor.machines(None if spec is None else o.SpecOptions(spec, set_=set_), json=json)


@command()
def canary(
    asked: SpecAndSet,
    gpu: bool = typer.Option(
        False, "--gpu", help="Also import torch on a g4dn.xlarge, for five minutes at most."
    ),
    policy: PolicyOpt = False,
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Prove on your own account, for a few cents, that EC2 and S3 do what seerd relies on, and
    measure how long they take.

    It rents three small instances, with the image, network and bucket of the spec, and ends each in
    another way. What that may cost is said before, and is at most $0.10, or $0.20 with --gpu; the
    instances power themselves off after 12 minutes, whatever happens. Ctrl-C gives everything back.

    What `--json` prints has no account, address or name in it. Later plans use the times. The exit
    status is 1 if a check has failed, or if the times or the report could not be kept.
    """
    commands.canary.canary(asked, c.home_of(home), gpu=gpu, policy_only=policy, json=json)


@command()
def sweep(
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be ended."),
    older_than: str | None = typer.Option(
        None, help="End also what is older and no process here runs, e.g. 2h.", metavar="TIME"
    ),
    region: str | None = typer.Option(
        None, help="AWS region.", metavar="NAME", show_default="as for any AWS tool"
    ),
    home: HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Find by their tags the instances and disks that your runs have left in EC2, and end the dead.

    Dead is what is past its hard end, and what belongs to a run of this machine that is over or
    that no process runs any more. The rest is listed, and kept.
    """
    commands.sweep.sweep(c.home_of(home), region, older_than, dry_run=dry_run, json=json)


@command()
def init(
    what: Path = typer.Argument(
        Path(), metavar="[SCRIPT | FOLDER]", help="A script, or where to begin."
    ),
) -> None:
    """Write a spec for a script, which is read, not run; or, into a folder, a small script with its
    spec that runs at once. Guesses are marked. Nothing that is there is overwritten.
    """
    commands.init.init(what)


app.add_typer(image, name="image")


@command(of=image)
def build(
    asked: SpecAndSet, wanted: o.ImageOptions, home: HomeOpt = None, json: o.JsonOpt = False
) -> None:
    """Make an image with everything that the spec's training needs: driver, torch,
    requirements.txt, the setup commands. What it has installed is paid once, not at every boot.

    One instance is rented for it, and ends by itself after two hours whatever happens. The last
    lines say what to write into the spec. Ctrl-C gives everything back.
    """
    commands.image.build(asked, wanted, c.home_of(home), json=json)


def main() -> None:
    """Run the command that the arguments name."""
    try:
        with c.orderly():
            app()
    except SystemExit as end:
        c.leave(end)


if __name__ == "__main__":
    main()
