"""`seerd simulate` of one job: every policy under every pair of limits, with every seed. A run
depends only on its setting, problem and seed, so the answer is the same on any number of cores.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar, cast

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seerd.backends.base import Machine, Quote
from seerd.commands.common import tell, writing
from seerd.commands.options import SimulateOptions
from seerd.core.events import Goal
from seerd.errors import LimitsError, UsageError
from seerd.planner.clouds import assumed
from seerd.planner.gpu_parts import gpus_text
from seerd.planner.model import ClusterFacts, Impossible, Limits, PolicyParams, Problem
from seerd.planner.policies import POLICIES
from seerd.planner.profile import Profile, parse_scaling
from seerd.planning.facts import budget_of, with_t_min
from seerd.planning.machine import this_machine
from seerd.planning.parts import in_slots
from seerd.planning.planned import plan_for
from seerd.planning.profiles import profile_for
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.sim.curves import Curves, load_curves, synthetic
from seerd.sim.setting import Faults, Outcome, Setting, alone, problem_of, run
from seerd.spec.experiment import of_one
from seerd.spec.spec import Spec, SpecLimits
from seerd.telling.tables import study_view
from seerd.units import parse_duration, parse_gpu_time, parse_money

# Most GPUs per trial in SEER's evaluation (section 6.3), where other policies have no such limit.
PAPER_P_MAX = {"seer": 4, "e-grid": 4}
IDEAL = ClusterFacts("held", 8, instant=True)  # the cluster of --ideal

Json = dict[str, Any]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared."""

    setting: Setting  # the setting of all runs; each of `limits` replaces its limits
    policies: tuple[PolicyParams, ...]
    limits: tuple[Limits, ...]  # the limits under which each policy runs
    seeds: int  # how many runs of each policy
    ideal: bool = False  # nothing is set aside for the cloud
    metric: str = "metric"  # the metric's name
    notes: tuple[str, ...] = ()  # what the curves and the machines are, one line each


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one pair of limits."""

    params: PolicyParams
    limits: Limits
    problem: Problem | Impossible  # its problem, or why it has none
    outcomes: tuple[Outcome, ...] = ()  # one outcome per seed; empty if the limits fit nothing


def simulate(asked: SimulateOptions, spec: Spec | None, home: Home, *, json: bool) -> None:
    """Compare policies and print the comparison; also draw it, if that is asked for.

    Raises `UsageError`, and `typer.Exit` with the code of `LimitsError` if no policy could run.
    """
    plot = asked.plot
    study = make(asked, spec, home.path, this_machine())
    if plot is not None:
        # only here: it takes what reports are drawn with
        from seerd.telling.page import charts, drawing

        drawing.check(plot)
    with progress(runs(study)) as tick:
        result = [row_json(row) for row in rows(study, tick)]
    if plot is not None:
        with writing(plot):
            drawing.write(charts.study(result, study.metric), plot)
    mode = study.setting.job.curves.mode
    tell(result, lambda table: study_view(table, mode, study.notes), json=json)
    if all("impossible" in row for row in result):
        raise typer.Exit(LimitsError.exit_code)


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr if that is a terminal; yield what advances it by one run."""
    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def make(asked: SimulateOptions, spec: Spec | None, home: Path, machine: Machine) -> Study:
    """Make the study. Raises `UsageError` that says what is missing or wrong."""
    if spec is None and asked.curves is None:
        raise UsageError("give a SPEC, or --curves FILE with recorded learning curves, or both")
    kind = clusters.simulated(of_one(spec) if spec else None)
    profile = profile_for(home, spec, kind.machine_types(machine)) if spec else assumed(rented=True)
    cluster = IDEAL if asked.ideal else kind.unasked_quote(machine).facts
    if asked.scaling is not None:
        try:
            scaling = parse_scaling(asked.scaling)
        except ValueError as error:
            raise UsageError(f"--scaling: {error}") from error
        profile = replace(profile, job=replace(profile.job, scaling=scaling))
    curves, note = curves_of(asked, spec, profile)
    if spec:
        offer = Quote(cluster)  # also CPU slots are simulated as if they were GPUs
        counted = in_slots(of_one(spec), offer, [profile], whole=asked.ideal)
        spec, cluster, profile = counted.experiment.jobs[0], counted.cluster, counted.profiles[0]
        curves = replace(curves, gpus=curves.gpus * cluster.parts)
    limits = limits_of(asked, spec.limits if spec else None, cluster)
    names = _policies(asked.policies)
    metric, goal = "metric", None
    params = tuple(PolicyParams(name=name, p_max=PAPER_P_MAX.get(name)) for name in names)
    if spec:
        metric, target = spec.goal.metric, spec.goal.target
        if target is not None and spec.goal.mode != curves.mode:
            raise UsageError(
                f"metric.target = {target:g} is for mode = {spec.goal.mode!r}, and the curves have "
                f"{curves.mode!r}: leave it out, or give curves of the same metric"
            )
        goal = simulated_goal(spec, curves)
        params = tuple(
            with_t_min(spec, profile, *limits, name=name, ideal=asked.ideal, parts=cluster.parts)
            for name in names
        )
    setting = alone(curves, limits[0], cluster, profile, faults_of(asked), goal)
    gpus = gpus_text(cluster.gpus(cluster.gpus_per_instance))
    machines = f"instances of {gpus}, billed whole and for {cluster.minimum_s:g}s at least"
    if cluster.instant:
        machines = "ideal: nothing but training takes time, every GPU is paid by itself"
    elif not cluster.per_instance:
        machines = f"{gpus} that are not rented"
    return Study(setting, params, limits, asked.seeds, asked.ideal, metric, (note, machines))


def faults_of(asked: SimulateOptions) -> Faults:
    """Return the faults of the simulated world. Raises `UsageError`."""
    for option, number in (("--stragglers", asked.stragglers), ("--drops", asked.drops)):
        if not math.isfinite(number):  # NaN is neither below a range nor above it
            raise UsageError(f"{option}: write a number, not {number}")
    spot = _read("--spot", parse_duration, asked.spot) if asked.spot else None
    return Faults(asked.stragglers, asked.drops, spot)


def curves_of(asked: SimulateOptions, spec: Spec | None, profile: Profile) -> tuple[Curves, str]:
    """Return the curves that trials replay, and a note on them. Raises `UsageError`."""
    if asked.curves is None:
        assert spec is not None
        curves = synthetic(spec.space, spec.goal.mode, profile.job.report.p50_s)
        note = "made-up curves: they compare plans, not models (--curves takes recorded ones)"
    else:
        curves, note = load_curves(asked.curves), f"curves of {asked.curves.name}"
    if asked.full_curve is not None:
        speed = profile.job.scaling.speed(curves.gpus)
        curves = curves.lasting(_read("--full-curve", parse_duration, asked.full_curve), speed)
    return curves, note


def simulated_goal(spec: Spec, curves: Curves) -> Goal:
    """Return the spec's goal as far as curves of one metric can show it."""
    return msgspec.structs.replace(spec.goal, mode=curves.mode, constraints=(), objectives={})


def limits_of(
    asked: SimulateOptions, own: SpecLimits | None, cluster: ClusterFacts
) -> tuple[Limits, ...]:
    """Return every pair of limits that is asked for; `own` are the spec's. Raises `UsageError`."""
    limits = own or SpecLimits(None, None, None, None)
    if asked.cost is not None:
        limits = replace(limits, cost_usd=_read("--cost", parse_money, asked.cost))
    deadlines = _list("--deadline", parse_duration, asked.deadline, limits.deadline_s)
    budgets = _list("--budget", parse_gpu_time, asked.budget, budget_of(limits, cluster))
    asked_most = None if asked.max_gpus is None else asked.max_gpus * cluster.parts
    most = cluster.most_gpus(asked_most or limits.max_gpus)
    return tuple(
        Limits(deadline_s, budget, most, limits.cost_usd)
        for deadline_s in deadlines
        for budget in budgets
    )


def _list(
    option: str, parse: Callable[[str], float], text: str | None, otherwise: float | None
) -> list[float]:
    if text is not None:
        return list(dict.fromkeys(_read(option, parse, part) for part in text.split(",")))
    if otherwise is None:
        raise UsageError(
            f"give {option}, several with commas between them, or a SPEC that has it in [limits]"
        )
    return [otherwise]


def _read(option: str, parse: Callable[[str], float], text: str) -> float:
    try:
        value = parse(text.strip())
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    if not 0 < value < math.inf:
        raise UsageError(f"{option}: {text.strip()} is not more than nothing")
    return value


def _policies(policies: str | None) -> Sequence[str]:
    if policies is None or policies == "all":
        return list(POLICIES)
    names = list(dict.fromkeys(name.strip() for name in policies.split(",")))
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policies: there is no {name!r}; there are {', '.join(POLICIES)}")
    return names


def rows(study: Study, tick: Callable[[], None]) -> list[Row]:
    """Run the study, `tick` after every run; rows are in the order of limits, then of policies."""
    rows: list[Row] = []
    for limits, params in product(study.limits, study.policies):
        setting = replace(study.setting, limits=limits)
        cluster, profile = setting.cluster, setting.job.profile
        problem: Problem | Impossible
        try:
            own = problem_of(setting, params)
            problem = plan_for(own, cluster, profile, ideal=study.ideal).problem
        except LimitsError as error:
            problem = Impossible(error.reason, error.min_deadline_s, error.min_budget_gpu_s)
        except UsageError as error:
            problem = Impossible(str(error), 0.0, 0.0)
        rows.append(Row(params, limits, problem))
    tasks = [
        (replace(study.setting, limits=row.limits), row.problem, row.params.seed + seed)
        for row in rows
        for seed in range(study.seeds if isinstance(row.problem, Problem) else 0)
    ]
    outcomes = iter(cast("list[Outcome]", each(run, tasks, tick)))  # a problem has an outcome
    return [
        replace(row, outcomes=tuple(islice(outcomes, study.seeds)))
        if isinstance(row.problem, Problem)
        else row
        for row in rows
    ]


def runs(study: Study) -> int:
    """Count the runs that the study takes at most."""
    return len(study.limits) * len(study.policies) * study.seeds


def each(
    work: Callable[..., R], tasks: Sequence[tuple[Any, ...]], tick: Callable[[], None]
) -> list[R]:
    """Do this work with the arguments of each task, one on each core, `tick` after every one;
    return the results in their order. Processes are killed at once if anything ends the work early,
    Ctrl-C included.
    """
    has_call = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_call else os.cpu_count() or 1
    pool = ProcessPoolExecutor(max(1, min(cores, len(tasks))), initializer=_begin)
    try:
        waiting = [pool.submit(work, *task) for task in tasks]
        for done in as_completed(waiting):
            done.result()
            tick()
        return [future.result() for future in waiting]
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Ignore Ctrl-C, which only the command handles, and end with the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = multiprocessing.parent_process()
    assert command is not None

    def end_with_command() -> None:
        command.join()
        os._exit(1)

    Thread(target=end_with_command, daemon=True).start()


def row_json(row: Row) -> Json:
    """Return one row of `simulate --json`."""
    outcomes, limits = row.outcomes, row.limits
    best = [outcome.metric for outcome in outcomes]
    metrics = [metric for metric in best if metric is not None]
    center, n = mean(metrics) or 0.0, len(metrics)
    off = math.fsum((metric - center) ** 2 for metric in metrics)
    in_limits = [outcome.within_deadline and outcome.within_budget for outcome in outcomes]
    json: Json = {
        "policy": row.params.name,
        "deadline_s": limits.deadline_s,
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "best": best,
        "mean": mean(metrics),
        # the standard error of the mean
        "stderr": math.sqrt(off / max(1, n - 1) / n) if metrics else None,
        "regret": mean([outcome.regret for outcome in outcomes if outcome.regret is not None]),
        "gpu_min": mean([outcome.gpu_s / 60 for outcome in outcomes]),
        "elapsed_s": mean([outcome.elapsed_s for outcome in outcomes]),
        "trials": mean([outcome.trials for outcome in outcomes]),
        "violations": in_limits.count(False),
        "without_model": len(best) - len(metrics),
    }
    if isinstance(row.problem, Impossible):
        json["impossible"] = row.problem.reason
    return json


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None for no value."""
    return math.fsum(values) / len(values) if values else None
