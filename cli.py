"""The command line: options, exit codes, what is printed where. No decision about a run is made here.

The one rule: every import that costs more than typer itself happens inside the command that needs it, so that `--help` stays instant.
"""

from __future__ import annotations

import time

STARTED = time.time() - time.process_time()
"""When this command began, as near as can be told: the deadline counts from here."""

import json as jsonlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Annotated  # noqa: E402

import typer  # noqa: E402

from seerd.commands import common as c  # noqa: E402
from seerd.commands import options as o  # noqa: E402

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tune a model under a deadline and a budget: hand in a training script and a search space, get back the best model.",
)


@app.callback()
def seerd(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=c.tell_version,
            is_eager=True,
            help="Print the versions of seerd, Python, journal format and agent protocol.",
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def run(
    spec: o.SpecArg,
    deadline: o.DeadlineOpt = None,
    budget: o.BudgetOpt = None,
    cost: o.CostOpt = None,
    minimize: o.MinimizeOpt = None,
    policy: o.PolicyOpt = None,
    provider: o.ProviderOpt = None,
    max_gpus: o.MaxGpusOpt = None,
    seed: o.SeedOpt = None,
    set_: o.SetOpt = None,
    ideal: o.IdealOpt = False,
    home: o.HomeOpt = None,
    plain: o.PlainOpt = False,
    json: o.JsonOpt = False,
) -> None:
    """Tune within the deadline and the budget, and hand back the best model.

    Ctrl-C once ends the run in order: trials save, the best model so far is kept, everything is released; `seerd resume` goes on from
    there. Ctrl-C twice ends it at once, and still releases everything.
    """
    from seerd.planning import plans
    from seerd.runs import clusters, runs

    loaded = c.spec(spec, c.options(deadline, budget, cost, policy, provider, max_gpus, seed, set_), minimize)
    place = clusters.quoted(loaded, c.home(home))
    c.sweep_before(loaded.cluster, place.offer.owner, c.home(home))
    made = plans.of_spec(loaded, place, ideal=ideal, minimize=minimize)
    clusters.of(loaded).check_quota(made)
    folder, state = runs.create(loaded, made, c.home(home), STARTED, place.offer)
    with c.watcher(folder, plain=plain, json=json) as watcher:
        ended = runs.begin(folder, state, watcher)
    c.end(folder, ended, json=json)


@app.command()
def resume(
    run: o.RunArg,
    home: o.HomeOpt = None,
    plain: o.PlainOpt = False,
    json: o.JsonOpt = False,
) -> None:
    """Go on with a run that was interrupted, or whose process was killed.

    Nothing that was saved is trained again. The clock of a killed run has gone on; that of an interrupted one stood still.
    """
    from seerd.runs import runs

    folder = c.home(home).find(run)
    with c.watcher(folder, plain=plain, json=json) as watcher:
        ended = runs.resume(folder, watcher)
    c.end(folder, ended, json=json)


@app.command()
def plan(
    spec: o.SpecArg,
    deadline: o.DeadlineOpt = None,
    budget: o.BudgetOpt = None,
    cost: o.CostOpt = None,
    minimize: o.MinimizeOpt = None,
    policy: o.PolicyOpt = None,
    provider: o.ProviderOpt = None,
    max_gpus: o.MaxGpusOpt = None,
    seed: o.SeedOpt = None,
    set_: o.SetOpt = None,
    ideal: o.IdealOpt = False,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Show what would be run, what it would take, and what will be billed. Starts nothing, needs no credentials."""
    with c.quickly():
        from seerd.planning import plans
        from seerd.runs import clusters
        from seerd.view.plan_json import plan_json
        from seerd.view.plan_table import plan_view

        loaded = c.spec(spec, c.options(deadline, budget, cost, policy, provider, max_gpus, seed, set_), minimize)
        place = clusters.place_of(loaded, c.home(home), unbounded=ideal)
        made = plans.of_spec(loaded, place, ideal=ideal, minimize=minimize)
        told = plan_json(made, {} if minimize else plans.others_of(loaded, place, ideal=ideal))
        c.tell(told, None if json else plan_view(told))


@app.command()
def profile(
    spec: o.SpecArg,
    deadline: Annotated[
        str | None, typer.Option(help="Until everything is measured.", metavar="TIME", show_default="5m")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="GPU time, e.g. 20gpu-min.", metavar="GPU-TIME", show_default="all of the time")
    ] = None,
    provider: o.ProviderOpt = None,
    max_gpus: o.MaxGpusOpt = None,
    set_: o.SetOpt = None,
    home: o.HomeOpt = None,
    plain: o.PlainOpt = False,
    json: o.JsonOpt = False,
) -> None:
    """Measure how long reports take on 1, 2, 4 ... GPUs, and what starts and checkpoints take. Plans count with it from then on.

    One configuration is trained, for a few reports on each number of GPUs. What is measured is kept for this script on this kind of machine.
    """
    from seerd.commands import profiling
    from seerd.planning import plans
    from seerd.runs import clusters, runs
    from seerd.spec.spec import load_spec

    options = c.options(deadline or profiling.DEADLINE, budget, None, None, provider, max_gpus, None, set_)
    loaded = load_spec(spec, options)
    place = clusters.quoted(loaded, c.home(home))
    measuring = profiling.profiling_spec(loaded, place.offer.facts, budget_given=budget is not None)
    made = plans.of_spec(measuring, place, ideal=True)
    clusters.of(measuring).check_quota(made)
    folder, state = runs.create(measuring, made, c.home(home), STARTED, place.offer)
    profiling.aim(folder, measuring, place)
    with c.watcher(folder, plain=plain, json=json) as watcher:
        ended = runs.begin(folder, state, watcher)
    c.end(folder, ended, json=json)


@app.command()
def simulate(
    spec: o.CurvesSpecArg = None,
    curves: o.CurvesOpt = None,
    policies: o.PoliciesOpt = None,
    deadline: o.DeadlinesOpt = None,
    budget: o.BudgetsOpt = None,
    cost: o.CostOpt = None,
    max_gpus: o.MaxGpusOpt = None,
    seeds: o.SeedsOpt = 5,
    scaling: o.ScalingOpt = None,
    full_curve: o.FullCurveOpt = None,
    stragglers: o.StragglersOpt = 0.0,
    drops: o.DropsOpt = 0.0,
    spot: o.SpotOpt = None,
    ideal: o.IdealOpt = False,
    set_: o.SetOpt = None,
    plot: o.PlotOpt = None,
    home: o.HomeOpt = None,
    json: o.JsonRowsOpt = False,
) -> None:
    """Compare policies before anything is paid for: the real planner and core in a simulated cloud.

    Trials follow recorded learning curves, or made-up ones over the spec's space. Same seeds, same answer, to the bit.
    """
    from seerd.commands import simulate, study
    from seerd.errors import LimitsError, UsageError
    from seerd.planning import machine
    from seerd.sim.setting import Faults
    from seerd.spec.spec import load_spec
    from seerd.view import study_table

    if set_ and spec is None:
        raise UsageError("--set changes keys of a spec: give a SPEC as well")
    loaded = load_spec(spec, c.options(None, None, None, None, None, None, None, set_)) if spec else None
    lifetime_s = simulate.duration("--spot", spot) if spot else None
    asked = simulate.Asked(
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
        Faults(stragglers, drops, lifetime_s),
    )
    made = simulate.make(asked, loaded, c.home(home).path, machine.this_machine())
    if plot is not None:
        study_table.check_plot(plot)
    with c.progress(study.runs(made.study)) as tick:
        found = [study.row_json(row) for row in study.rows(made.study, tick)]
    if plot is not None:
        study_table.draw(found, made.metric, plot)
    c.tell(found, None if json else study_table.study_view(found, made.study.setting.curves.mode, made.notes))
    if all("impossible" in row for row in found):
        raise typer.Exit(LimitsError.exit_code)


@app.command(name="list")
def list_(home: o.HomeOpt = None, json: o.JsonOpt = False) -> None:
    """All runs, the newest last."""
    from seerd.errors import JournalError
    from seerd.runs import reading
    from seerd.view import run_json
    from seerd.view.tables import runs_table

    rows = []
    for folder in c.home(home).runs():
        try:
            state = reading.read(folder)
        except JournalError as error:
            rows.append(run_json.unreadable(folder.run, str(error)))
        else:
            rows.append(run_json.result(state, c.status(folder, state)))
    c.tell({"runs": rows}, None if json else runs_table(rows))


@app.command()
def show(run: o.RunArg = "last", home: o.HomeOpt = None, json: o.JsonOpt = False) -> None:
    """What a run has tried, and its best model."""
    from seerd.runs import reading
    from seerd.view import run_json as views
    from seerd.view.summary import summary

    folder = c.home(home).find(run)
    state = reading.read(folder)
    c.tell(views.details(state, c.status(folder, state)), None if json else summary(state))


@app.command()
def watch(run: o.RunArg = "last", home: o.HomeOpt = None) -> None:
    """The live view of a run, from any terminal. Ctrl-C ends the view, not the run."""
    from seerd.view.watch import watch_run

    folder = c.home(home).find(run)
    watch_run(folder)


@app.command()
def logs(
    run: o.RunArg,
    trial: Annotated[str | None, typer.Argument(metavar="TRIAL", help="One trial, e.g. t3.")] = None,
    home: o.HomeOpt = None,
) -> None:
    """What the trials have printed, by trial, attempt and rank; without TRIAL, the list of log files."""
    from seerd.view.logs import lines, log_files
    from seerd.view.plain import printable

    folder = c.home(home).find(run)
    paths = log_files(folder, trial)
    if not paths:
        print(f"seerd: {c.harmless(trial or 'no trial')} has printed nothing", file=sys.stderr)
    for path in paths:
        if trial is None:
            print(printable(str(path)))
            continue
        print(f"==> {printable(str(path))} <==")
        sys.stdout.writelines(lines(path))


@app.command()
def ledger(run: o.RunArg = "last", home: o.HomeOpt = None, json: o.JsonOpt = False) -> None:
    """What a run has cost, and for what: spent, committed and allowed."""
    from seerd.runs import reading
    from seerd.view import run_json
    from seerd.view.tables import ledger_table

    folder = c.home(home).find(run)
    state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin if folder.owner() else state.now
    told = run_json.ledger(state, now_s)
    c.tell(told, None if json else ledger_table(told))


@app.command()
def best(
    run: o.RunArg = "last",
    to: Annotated[
        Path | None, typer.Option(help="Copy checkpoint and configuration into this folder.", metavar="DIR")
    ] = None,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """The best model of a run: its configuration and its checkpoint."""
    from seerd.errors import NoModelError
    from seerd.runs import reading
    from seerd.shell.home import copy_result
    from seerd.view import run_json

    folder = c.home(home).find(run)
    found = run_json.best(reading.read(folder))
    if found is None or found["checkpoint"] is None:
        raise NoModelError(f"{folder.run} has no model to hand back{'' if found is None else ' before it has ended'}")
    if to is not None:
        found["checkpoint"] = str(copy_result(folder, to))
    text = f"{found['trial']}  {found['metric']:.6g}\n{jsonlib.dumps(found['config'])}\n{found['checkpoint']}"
    c.tell(found, None if json else text)


@app.command()
def stop(run: o.RunArg, home: o.HomeOpt = None) -> None:
    """End a run in order, as Ctrl-C in its terminal does."""
    folder = c.home(home).find(run)
    owner = folder.owner()
    if owner is None:
        from seerd.errors import UsageError

        raise UsageError(f"{folder.run} is not running (seerd show {folder.run} tells how it ended)")
    os.kill(owner, signal.SIGINT)
    print(f"asked {folder.run} to stop; its trials save now")


@app.command()
def replay(
    run: o.RunArg = "last",
    trial: o.TrialOpt = None,
    at: o.AtOpt = None,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Tell from its journal why a run went as it did, and whether the same would be decided now.

    Without options, stage by stage: who was compared with whom and went on, why instances came and went, what it cost. `--trial t3`: the life of
    one trial, and why it was stopped. `--at 12m`: what ran, was wanted, under way and paid then, and what had been decided last. With both, the
    trial's life until then. Nothing is started or written; a run that still goes on can be replayed too.
    """
    from seerd.commands import retelling
    from seerd.shell.journal import Journal

    until = retelling.moment_of(at) if at is not None else None
    folder = c.home(home).find(run)
    with c.quickly(), Journal.open(folder.journal, read_only=True) as journal:
        retold = retelling.retell(journal, trial, until, alive=folder.owner() is not None)
    c.tell(retold.told, None if json else retold.page)


@app.command()
def doctor(
    spec: o.SpecArg,
    deadline: o.DeadlineOpt = None,
    budget: o.BudgetOpt = None,
    cost: o.CostOpt = None,
    provider: o.ProviderOpt = None,
    max_gpus: o.MaxGpusOpt = None,
    set_: o.SetOpt = None,
    policy: o.PolicyDocOpt = False,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Look whether a run could begin: credentials, permissions, quota, image, network, bucket, price, clock, machines. Starts nothing.

    One line a check, with what to do where something is wrong.
    """
    from seerd.commands import doctor as doctors
    from seerd.spec.spec import load_spec
    from seerd.view.findings import doctor_view

    options = c.options(deadline, budget, cost, None, provider, max_gpus, None, set_)
    if policy:
        print(jsonlib.dumps(doctors.policy_of(load_spec(spec, options)), indent=2))
        return
    findings = doctors.examine(spec, options, c.home(home))
    told = doctors.findings_json(findings)
    c.tell(told, None if json else doctor_view(told, str(spec)))
    raise typer.Exit(doctors.exit_code(findings))


@app.command()
def sweep(
    dry_run: o.DryRunOpt = False,
    older_than: o.OlderThanOpt = None,
    region: o.RegionOpt = None,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Find by their tags what runs of yours have left in EC2, and end what is dead: instances and disks.

    Dead is what is past its hard end, or of a run of this machine that is over or that nobody runs any more. The rest is listed, and kept.
    """
    from seerd.commands import sweep as sweeps
    from seerd.errors import CloudError

    older_than_s = sweeps.age(older_than) if older_than else None
    swept = sweeps.run(c.home(home), region, dry_run=dry_run, older_than_s=older_than_s)
    if json:
        c.tell(sweeps.sweep_json(swept), None)
    else:
        print(*map(c.harmless, sweeps.sweep_lines(swept)), sep="\n")
    raise typer.Exit(CloudError.exit_code if any(one.trouble for one in swept.found) else 0)


image = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Images of your own, from which instances start sooner."
)
app.add_typer(image, name="image")


@image.command()
def build(
    spec: o.SpecArg,
    base: o.BaseOpt = None,
    instance_type: o.InstanceTypeOpt = None,
    name: o.ImageNameOpt = None,
    data: o.ImageDataOpt = False,
    set_: o.SetOpt = None,
    home: o.HomeOpt = None,
    json: o.JsonOpt = False,
) -> None:
    """Make an image with everything that the spec's training needs: driver, torch, requirements.txt, the setup commands.

    Boot seconds are billed GPU seconds, on every instance of every run; what an image has installed is paid once. One instance is rented for it,
    installed over SSH, checked, cleaned, imaged and terminated; it ends by itself after two hours whatever happens. The last lines
    say what to write into the spec. Ctrl-C gives everything back.
    """
    from seerd.commands import image_build, imaging
    from seerd.spec.spec import load_spec

    loaded = load_spec(spec, c.options(None, None, None, None, None, None, None, set_))
    plans = imaging.plan(loaded, imaging.Asked(base, instance_type, name, data), c.home(home))
    with imaging.telling(sys.stderr if json else sys.stdout) as tell:
        built = image_build.build(plans, tell)
    if json:
        c.tell(built.json(), None)
    else:
        print(*imaging.lines(built), sep="\n")
    raise typer.Exit(1 if built.left else 0)


def main() -> None:
    """The entry point: errors become one message on stderr and an exit code."""
    from seerd.errors import SeerdError

    signal.signal(signal.SIGINT, _interrupted)
    c.write_anything()
    try:
        app()
    except SeerdError as error:
        print(f"seerd: {c.harmless(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in c.DISK_ERRORS:
            raise
        print(f"seerd: {c.disk_text(error)}", file=sys.stderr)
        sys.exit(1)


def _interrupted(*_: object) -> None:
    """Ctrl-C where nothing runs that would have to be ended in order; while a run goes on, its daemon handles it."""
    print("seerd: interrupted", file=sys.stderr)
    raise SystemExit(130)


if __name__ == "__main__":
    main()
