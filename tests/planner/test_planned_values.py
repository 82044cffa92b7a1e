"""What plans are expected to take and which are chosen, over a table of stages, clouds and limits:
every value stands in its page.

`pytest tests/planner --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.many.priors import from_quality_vectors, from_rows
from bench.testbed.policy_world import FakeTrial
from seerd.planner.allocations import (
    AllocationTerms,
    option_gpus,
    options,
)
from seerd.planner.clouds import INSTANCE_TYPES, UNPRICED_GPUS, assumed, boot_limit_s
from seerd.planner.draft import settled
from seerd.planner.forecast import (
    Forecast,
    Spread,
    closed_early,
    forecast_outline,
    forecast_stages,
)
from seerd.planner.gp_ucb import from_configurations
from seerd.planner.model import (
    ClusterFacts,
    Group,
    Limits,
    Mode,
    Outline,
    PolicyParams,
    Problem,
    Report,
    Stage,
)
from seerd.planner.parameter import Parameter, ends
from seerd.planner.profile import BUNDLED, NONE, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.ranking import compared, metric_at, rank, seconds_per_report, standing_at
from seerd.planner.rubberband import ElasticPlan, cheapest, fastest
from seerd.planner.stages import WorkStage, halving_rungs, work_stages
from seerd.planner.windows import rounds_of
from tests.digests import plain
from tests.planner.spaces import MIXED

LOGS = False, True
FILE = Path(__file__).with_name("values.txt")
CLUSTERS = {
    "rented 4": ClusterFacts("rented", 4, usd_per_gpu_h=3.06),
    "rented 1": ClusterFacts("rented", 1, minimum_s=5.0, usd_per_gpu_h=1.0),
    "rented 8, at most 3": ClusterFacts("rented", 8, max_instances=3, minimum_s=200.0),
    "rented 2 instantly": ClusterFacts("rented", 2, usd_per_gpu_h=2.0, instant=True),
    "held 8": ClusterFacts("held", 8, max_instances=2, usd_per_gpu_h=0.5),
}
UNEVEN = Profile(
    JobProfile(
        Latency(30.0, 45.0), BUNDLED["resnet50"], Latency(8.0, 12.0), Latency(2.0, 4.0), 3.0
    ),
    CloudProfile(Latency(12.0, 25.0), Latency(50.0, 90.0), Latency(1.0, 3.0), 0.02),
)
STAGES = (
    (WorkStage(8, 1, 8), WorkStage(4, 3, 8), WorkStage(1, 9, 4)),
    (WorkStage(3, 4, groups=(Group(4, 1), Group(1, 2))), WorkStage(6, 2, 3), WorkStage(2, 5, 16)),
)
OUTLINES = (
    Outline((), (Stage(0.0, 60.0, (Group(1, 8),)), Stage(60.0, 200.0, (Group(4, 2),))), 60.0),
    Outline(
        (),
        (
            Stage(0.0, 30.0, (Group(2, 1), Group(1, 2))),
            Stage(30.0, 90.0, (Group(2, 5),)),
            Stage(90.0, 93.0, (Group(1, 3),)),
        ),
        30.0,
    ),
)


def spread(one: Spread) -> str:
    return f"{one.p50:.5g} {one.p95:.5g} {one.mean:.5g}"


def shown(one: Forecast) -> str:
    return f"{spread(one.time_s)} s, {spread(one.gpu_s)} GPU-s, {spread(one.usd)} USD"


def forecasts() -> Iterator[str]:
    for (name, cluster), stages in product(CLUSTERS.items(), STAGES):
        yield f"{name}: {shown(forecast_stages(stages, cluster, UNEVEN, samples=40, seed=1))}"
    for (name, cluster), outline in product(CLUSTERS.items(), OUTLINES):
        for start_s in (0.0, 70.0):
            made = forecast_outline(outline, cluster, UNEVEN, start_s=start_s, samples=40)
            yield f"{name} from {start_s:g}s: {shown(made)}"
            yield f"  closed early: {shown(closed_early(made, outline, cluster, 91.0))}"


def alone() -> Iterator[str]:
    """What single stages may have, and what they take."""
    yield f"without a boot: {AllocationTerms(CLUSTERS['rented 4'], Profile()).boot_of(3)}"
    for (name, cluster), stage in product(CLUSTERS.items(), (*STAGES[0], WorkStage(5, 2, p_max=2))):
        terms = AllocationTerms(cluster, UNEVEN)
        gpus = option_gpus(stage, cluster, 24)
        yield f"{name}, {stage.trials} trials: {gpus}"
        for one in options(stage, gpus[::3], terms):
            yield f"  {one.gpus} {one.instances} {one.work_s:.5g} {one.held_gpu_s:.5g}"
        prices = (terms.per_gpu_s, terms.per_instance_s, terms.per_fetch, terms.release_s)
        boots = [*map(terms.boot_of, (1, 2, 3)), terms.pending_s]
        yield f"  {' '.join(f'{value:.5g}' for value in (*prices, *boots))}"


def elastic(plan: ElasticPlan | None) -> str:
    return "none" if plan is None else f"{plan.gpus} {shown(plan.forecast)}"


def chosen() -> Iterator[str]:
    stages = work_stages(halving_rungs(8, 1, 9, 2))
    for name in ("rented 4", "rented 2 instantly", "held 8"):
        cluster = CLUSTERS[name]
        for deadline_s in (500.0, 900.0):
            yield f"{name} in {deadline_s:g}s: {elastic(cheapest(stages, cluster, UNEVEN, deadline_s, max_gpus=16))}"
        yield f"{name} for 2 USD: {elastic(fastest(stages, cluster, UNEVEN, cost_usd=2.0))}"
        yield f"{name} for 3000: {elastic(fastest(stages, cluster, UNEVEN, budget_gpu_s=3000.0, max_gpus=8))}"


def trials(rng: random.Random) -> Iterator[FakeTrial]:
    for number in range(12):
        status = rng.choice(["live", "live", "failed", "finished"])
        trial, reports, at_s = FakeTrial(f"t{number}", status=status), 0, 0.0
        for _ in range(rng.choice([0, 1, 3, 6, 9])):
            reports, at_s = reports + rng.choice([1, 1, 2, 4]), at_s + rng.choice([1.0, 2.0, 7.0])
            trial.history.append(Report(at_s, reports, rng.choice([None, 0.1, 0.4, 0.4, 0.7])))
        yield trial


def standings() -> Iterator[str]:
    modes: tuple[Mode, Mode] = ("max", "min")
    for seed, mode in product(range(6), modes):
        made = list(trials(random.Random(seed)))
        order = rank(made, mode)
        yield f"{mode} {seed}: {' '.join(one.id for one in order)}"
        yield f"  places {[one.place for one in compared(order, 3, 1)]}"
        for trial in made:
            at = [metric_at(trial, reports) for reports in (1, 2, 4, 7)]
            pace = [seconds_per_report(trial, reports) for reports in (1, 3, 9)]
            stood = [standing_at(trial, reports, mode)[:2] for reports in (1, 4)]
            yield f"  {at} {pace} {stood} {settled(trial, mode)}"


def parameters() -> Iterator[str]:
    shares, rng = (0.0, 0.01, 0.3, 0.5, 0.77, 1.0), random.Random(0)
    more = (
        Parameter("coarse", low=0.0, high=1.0, step=0.3),
        Parameter("logs", low=0.5, high=20.0, step=0.5, log=True),
        Parameter("near", mean=0.5, std=0.2, low=0.0, high=1.0, step=0.25),
    )
    for one in (*MIXED.parameters, *more):
        if one.choices:
            yield f"{one.name}: {one.values(3)} {one.default()} {one.sample(rng)}"
            continue
        at = [float(one.at(share)) for share in shares]  # type: ignore[arg-type]
        back = [one.share(value) for value in at]
        spread_out = [float(value) for n in (1, 2, 5) for value in one.values(n)]  # type: ignore[arg-type]
        values = (*at, *back, *spread_out, float(one.default()), float(one.sample(rng)))  # type: ignore[arg-type]
        yield f"{one.name}: {' '.join(f'{value:.5g}' for value in values)}"
        yield f"  {[one.may_be(value) for value in (one.low, one.high, one.high + 1, 'x', True, 2)]}"


def refusals() -> Iterator[str]:
    """Ranges and normals at the border of what there may be."""
    some: tuple[dict[str, Any], ...] = (
        *(
            {"low": low, "high": 1.0, "log": log}
            for low in (-1.0, 0.0, 0.5, 1.0, 2.0)
            for log in LOGS
        ),
        *({"low": 1, "high": high, "integer": True, "step": 1} for high in (0, 1, 2)),
        *({"low": 0.0, "high": 1.0, "step": step} for step in (-1.0, 0.0, 1e-12, 0.5, 1.0, 1.5)),
        *({"low": 0, "high": 4, "integer": True, "step": step} for step in (0, 1, 4, 5)),
        *({"low": low, "high": 1.0} for low in (float("-inf"), float("nan"), -1e308)),
        *(
            {"mean": mean, "std": 2.0, "low": 0.5, "high": 9.0, "log": log}
            for mean in (0.0, 1.0)
            for log in LOGS
        ),
        *(
            {"mean": 1.0, "std": std, "low": 0.5, "high": 9.0, "log": log}
            for std in (0.0, 1.0, 1.1)
            for log in LOGS
        ),
        *({"mean": mean, "std": 1.0, "low": 0.0, "high": 1.0} for mean in (-9.0, 7.0, 20.0)),
        *({"choices": choices} for choices in ((), (1,), (1, 1), (1, True), (1, 1.0), ("a", "a"))),
    )
    for one in some:
        try:
            made = Parameter("x", **one)
        except ValueError as error:
            yield f"{one}: {error}"
        else:
            yield f"{one}: {plain(made.default())} {made.stepped}"
    for mean, std, step, log in product((0.0, 1.0), (0.0, 1.0, 1e17, 2.0), (None, 0.3), LOGS):
        try:
            yield f"{mean} {std} {step} {log}: {plain(ends(mean, std, step, log=log))}"
        except ValueError as error:
            yield f"{mean} {std} {step} {log}: {error}"


def rounds() -> Iterator[str]:
    """How the time on rented machines is divided."""
    for deadline_s, gpus, eta, trials in product(
        (240.0, 900.0, 2000.0), (5, 12), (2, 4), (None, 6)
    ):
        params = PolicyParams("seer+", eta=eta, p_min=1 if gpus > 5 else 2, trials=trials)
        limits = Limits(deadline_s, gpus * deadline_s, 40 if eta == 2 else None)
        made = Problem(limits, MIXED, params, gpus_per_instance=4, whole=True, start_s=50.0)
        shown_rounds = [(one.start_s, one.end_s, one.gpus, one.trials) for one in rounds_of(made)]
        yield f"{deadline_s:g}s {gpus} {eta} {trials}: {plain(shown_rounds)}"


def priors() -> Iterator[str]:
    """What is believed of candidates before any result."""
    rng = np.random.default_rng(4)
    for jobs, gaps in product((2, 3, 4, 7), (False, True)):
        rows = rng.standard_normal((jobs, 4)).cumsum(axis=0)
        if gaps:
            rows[0, 1] = rows[-1, 2] = np.nan
        for made in (from_rows(rows), from_quality_vectors(rows)):
            values = [*made.mean, *made.covariance.ravel(), made.noise]
            yield f"{jobs} {gaps}: {' '.join(f'{value:.3g}' for value in values)}"
    configs = [
        {"lr": 0.1, "net": "a"},
        {"lr": 0.2},
        {"lr": 0.9, "net": "b"},
        {"lr": 0.2, "net": "a"},
    ]
    guessed = from_configurations(configs, 0.5)
    values = (*(0.2 + guessed.mean), *(9 * guessed.covariance.ravel()))
    yield " ".join(f"{value:.3g}" for value in values)


def assumptions() -> Iterator[str]:
    for name in (*INSTANCE_TYPES, *UNPRICED_GPUS):
        yield f"{name}: {boot_limit_s([name]):g}s"
    yield f"{boot_limit_s([]):g} {boot_limit_s(['g5.xlarge', 'g4dn.metal', 'p5.48xlarge']):g}"
    for is_rented in (False, True):
        made = assumed(rented=is_rented)
        yield f"{is_rented} {made.is_measured} {made.job.report} {made.cloud.boot}"
    for one in (NONE, Latency(2.0, 3.0), Latency(2.0, 1.0)):
        draws = [one.draw(random.Random(seed)) for seed in range(3)]
        values = (one.sigma, one.quantile(-1.0), one.quantile(1.0), *draws)
        yield f"{one}: {' '.join(f'{value:.5g}' for value in values)}"
    for name, scaling in BUNDLED.items():
        yield f"{name}: {' '.join(f'{scaling.speed(n):.5g}' for n in (1, 2, 3, 5, 8, 16, 40))}"


PARTS = (
    forecasts,
    alone,
    chosen,
    standings,
    parameters,
    refusals,
    rounds,
    priors,
    assumptions,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_values_are_those_of_their_page(
    part: Callable[[], Iterator[str]], pytestconfig: pytest.Config
) -> None:
    head = f"## {part.__name__}\n"
    now = "".join(f"{line}\n" for line in part())
    pages = dict(page.split("\n", 1) for page in FILE.read_text().split("## ")[1:])
    if pytestconfig.getoption("rewrite"):
        pages[part.__name__] = now
        FILE.write_text("".join(f"## {name}\n{pages[name]}" for name in sorted(pages)))
    assert head + pages.get(part.__name__, "") == head + now
