"""`seerd simulate`: from a spec, a file of curves and options to a study.

The one rule: what the command line does not say comes from the spec; what the spec does not say
either comes from the SEER paper's setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seerd.backends.base import Machine
from seerd.commands.common import tell
from seerd.commands.options import SimulateOptions
from seerd.commands.study import Study, row_json, rows, runs
from seerd.core.events import Goal
from seerd.errors import LimitsError, UsageError
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.planner.policies import POLICIES
from seerd.planner.profile import Profile
from seerd.planner.scaling import Scaling, parse_scaling
from seerd.planner.space import Space
from seerd.planning.facts import budget_of, most_gpus, with_t_min
from seerd.planning.machine import this_machine
from seerd.planning.profiles import profile_for
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.sim.curves import Curves, load_curves
from seerd.sim.setting import Faults, alone
from seerd.sim.synthetic import synthetic
from seerd.spec.experiment import of_one
from seerd.spec.spec import Spec, SpecLimits
from seerd.telling import study_table
from seerd.units import count, parse_duration, parse_gpu_time, parse_money

PAPER_P_MAX = {"seer": 4, "e-grid": 4}
"""Most GPUs per trial in SEER's evaluation (section 6.3); there the other policies have no such
limit.
"""


@dataclass(frozen=True, slots=True)
class Made:
    """A study and what it is about."""

    study: Study
    metric: str  # the metric's name
    notes: tuple[str, ...]  # what the curves and the machines are, one line each


def simulate(asked: SimulateOptions, spec: Spec | None, home: Home, *, json: bool) -> None:
    """Compare policies and print the comparison; also draw it, if that is asked for.

    Raises `UsageError`, and `typer.Exit` with the code of `LimitsError` if no policy could run.
    """
    plot = asked.plot
    made = make(asked, spec, home.path, this_machine())
    if plot is not None:
        study_table.check_plot(plot)
    with progress(runs(made.study)) as tick:
        found = [row_json(row) for row in rows(made.study, tick)]
    if plot is not None:
        study_table.draw(found, made.metric, plot)
    mode = made.study.setting.job.curves.mode
    tell(found, lambda told: study_table.study_view(told, mode, made.notes), json=json)
    if all("impossible" in row for row in found):
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


def faults_of(asked: SimulateOptions) -> Faults:
    """Make the faults of the simulated world. Raises `UsageError`."""
    for option, number in (("--stragglers", asked.stragglers), ("--drops", asked.drops)):
        if not math.isfinite(number):  # NaN is neither below a range nor above it
            raise UsageError(f"{option}: write a number, not {number}")
    spot = _read("--spot", parse_duration, asked.spot) if asked.spot else None
    return Faults(asked.stragglers, asked.drops, spot)


def make(asked: SimulateOptions, spec: Spec | None, home: Path, machine: Machine) -> Made:
    """Make the study. Raises `UsageError` that says what is missing or wrong."""
    if spec is None and asked.curves is None:
        raise UsageError("give a SPEC, or --curves FILE with recorded learning curves, or both")
    cluster, profile = _cluster(asked, spec, home, machine)
    profile = _scaled(profile, asked.scaling)
    curves, note = curves_of(asked, spec, profile)
    limits = limits_of(asked, spec.limits if spec else None, cluster)
    if spec:
        _check_target(spec, curves)
        spec = replace(spec, policy=with_t_min(spec, profile, *limits))
    goal = simulated_goal(spec, curves) if spec else None
    setting = alone(curves, limits[0], cluster, profile, faults_of(asked), goal)
    params = tuple(_params(name, spec) for name in _names(asked.policies))
    metric = spec.goal.metric if spec else "metric"
    return Made(
        Study(setting, params, limits, asked.seeds, asked.ideal),
        metric,
        (note, _cluster_text(cluster)),
    )


def duration(option: str, text: str) -> float:
    """Read an option as seconds, more than 0. Raises `UsageError` that names the option."""
    return _read(option, parse_duration, text)


def _cluster(
    asked: SimulateOptions, spec: Spec | None, home: Path, machine: Machine
) -> tuple[ClusterFacts, Profile]:
    kind = clusters.simulated(of_one(spec) if spec else None)
    profile = profile_for(home, spec, kind.machine_types(machine)) if spec else assumed(rented=True)
    if asked.ideal:
        return ClusterFacts("held", 8, instant=True), profile
    return kind.unasked_quote(machine).facts, profile


def _cluster_text(cluster: ClusterFacts) -> str:
    if cluster.instant:
        return "ideal: nothing but training takes time, every GPU is paid by itself"
    if not cluster.per_instance:
        return f"{count(cluster.gpus_per_instance, 'GPU')} that are not rented"
    return (
        f"instances of {count(cluster.gpus_per_instance, 'GPU')}, "
        f"billed whole and for {cluster.minimum_s:g}s at least"
    )


def _scaled(profile: Profile, scaling: str | None) -> Profile:
    if scaling is None:
        return profile
    try:
        found: Scaling = parse_scaling(scaling)
    except ValueError as error:
        raise UsageError(f"--scaling: {error}") from error
    return replace(profile, job=replace(profile.job, scaling=found))


def curves_of(asked: SimulateOptions, spec: Spec | None, profile: Profile) -> tuple[Curves, str]:
    """Return the curves that trials replay, and what they are. Raises `UsageError`."""
    if asked.curves is None:
        assert spec is not None
        space: Space = spec.space
        curves = synthetic(space, spec.goal.mode, profile.job.report.p50_s)
        note = "made-up curves: they compare plans, not models (--curves takes recorded ones)"
    else:
        curves, note = load_curves(asked.curves), f"curves of {asked.curves.name}"
    if asked.full_curve is not None:
        speed = profile.job.scaling.speed(curves.gpus)
        curves = curves.lasting(_read("--full-curve", parse_duration, asked.full_curve), speed)
    return curves, note


def _check_target(spec: Spec, curves: Curves) -> None:
    """Raise `UsageError` if the spec's target is for another mode than the curves have."""
    goal = spec.goal
    if goal.target is not None and goal.mode != curves.mode:
        raise UsageError(
            f"metric.target = {goal.target:g} is for mode = {goal.mode!r}, and the curves have "
            f"{curves.mode!r}: leave it out, or give curves of the same metric"
        )


def simulated_goal(spec: Spec, curves: Curves) -> Goal:
    """Return the spec's goal as far as curves of one metric can show it."""
    return msgspec.structs.replace(spec.goal, mode=curves.mode, constraints=())


def limits_of(
    asked: SimulateOptions, own: SpecLimits | None, cluster: ClusterFacts
) -> tuple[Limits, ...]:
    """Return every pair of limits that is asked for; `own`: those of the spec. Raises
    `UsageError`.
    """
    given = own or SpecLimits(None, None, None, None)
    if asked.cost is not None:
        given = replace(given, cost_usd=_read("--cost", parse_money, asked.cost))
    deadlines = _list("--deadline", parse_duration, asked.deadline, given.deadline_s)
    budgets = _list("--budget", parse_gpu_time, asked.budget, budget_of(given, cluster))
    most = most_gpus(asked.max_gpus or given.max_gpus, cluster)
    return tuple(
        Limits(deadline_s, budget, most, given.cost_usd)
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


def _names(policies: str | None) -> Sequence[str]:
    if policies in (None, "all"):
        return list(POLICIES)
    assert policies is not None
    names = list(dict.fromkeys(name.strip() for name in policies.split(",")))
    for name in names:
        if name not in POLICIES:
            near = difflib.get_close_matches(name, POLICIES, 1, 0.5)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"--policies: there is no {name!r}{hint}; there are {', '.join(POLICIES)}"
            )
    return names


def _params(name: str, spec: Spec | None) -> PolicyParams:
    if spec is not None:
        return replace(spec.policy, name=name)
    return PolicyParams(name=name, p_max=PAPER_P_MAX.get(name))
