"""From a problem to a plan that can be started: what is promised to a person who pays for it."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from seerd.backends.ec2.backend import Ec2Backend
from seerd.backends.ec2.keys import Ec2Keys
from seerd.errors import LimitsError, UsageError
from seerd.planner.clouds import EC2, JOB, ORPHAN_SPARE_S, PAPERS_TYPE, PRICES_AS_OF, assumed
from seerd.planner.model import ClusterFacts, Impossible, Limits, Outline, PolicyParams, Problem
from seerd.planner.parameter import plain
from seerd.planner.policies import POLICIES
from seerd.planner.policy import outline_of
from seerd.planner.profile import CloudProfile, JobProfile, Latency, Profile
from seerd.planner.space import Parameter, Space
from seerd.planning.facts import BEGINS_ANEW, problem_of
from seerd.planning.planned import CONFIGS, Planned, first_configs, others, plan_for
from seerd.runs import clusters
from seerd.sim.curves import synthetic
from seerd.sim.setting import alone
from seerd.spec.spec import load_spec
from seerd.telling.plan_json import plan_json
from seerd.telling.tables import plan_view
from tests.examples import few
from tests.planner.spaces import MIXED
from tests.sim import hand

LR = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
NAMES = sorted(POLICIES)
ROOT = Path(__file__).parent.parent
PER_TRIAL = ClusterFacts("held", 8, max_instances=1)


def rented(gpus: int) -> ClusterFacts:
    return ClusterFacts("rented", gpus, usd_per_gpu_h=3.06, terminate_s=4.0)


def problem(
    minutes: float,
    gpu_minutes: float,
    *,
    per_instance: int = 8,
    max_gpus: int | None = None,
    cost_usd: float | None = None,
    **params: object,
) -> Problem:
    t_min_s = float(params.pop("t_min", 1.0)) * 60  # type: ignore[arg-type]
    limits = Limits(minutes * 60, gpu_minutes * 60, max_gpus, cost_usd)
    return Problem(
        limits, LR, PolicyParams(t_min_s=t_min_s, **params), gpus_per_instance=per_instance
    )  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn, names: list[str] = NAMES) -> tuple[Problem, ClusterFacts, Profile]:
    """Any policy; rented instances of 1, 4 or 8 GPUs, or this machine."""
    is_rented, size = draw(st.booleans()) or draw(st.booleans()), draw(st.sampled_from([1, 4, 8]))
    cluster = rented(size) if is_rented else ClusterFacts("held", size, max_instances=1)
    most = draw(st.one_of(st.none(), st.integers(1, 64)))
    made = problem(
        draw(st.one_of(st.floats(2, 15), st.floats(5, 120))),
        draw(st.one_of(st.floats(1, 60), st.floats(20, 2000))),
        per_instance=size,
        max_gpus=most if is_rented else min(most or size, size),
        cost_usd=draw(st.one_of(st.none(), st.none(), st.floats(0.5, 50))) if is_rented else None,
        name=draw(st.sampled_from(names)),
        p_min=draw(st.sampled_from([1, 1, 1, min(2, size)])),
        p_max=draw(st.sampled_from([None, 4, 8])),
        t_min=draw(st.sampled_from([0.5, 1, 5])),
    )
    return made, cluster, assumed(rented=is_rented)


def test_trials_that_no_instances_have_room_for_are_refused() -> None:
    with pytest.raises(UsageError, match="4 or 8 can be had"):
        plan_for(problem(60, 2000, per_instance=4, p_min=6), rented(4), assumed(rented=True))


@given(cases())
@settings(max_examples=20, deadline=None)
def test_a_plan_is_billed_within_the_limits_or_the_minima_that_are_said_would_do(
    case: tuple[Problem, ClusterFacts, Profile],
) -> None:
    made, cluster, profile = case
    limits = made.limits
    try:
        planned = plan_for(made, cluster, profile)
    except LimitsError as error:
        size = cluster.gpus_per_instance if cluster.per_instance else 1
        if limits.max_gpus is not None and limits.max_gpus // size * size < made.params.p_min:
            return
        least = error.min_deadline_s, error.min_budget_gpu_s
        assert (
            least[0] > limits.deadline_s
            or least[1] > limits.budget_gpu_s
            or limits.cost_usd is not None
        )
        for enough in (
            least,
            (max(limits.deadline_s, least[0]), max(limits.budget_gpu_s, least[1])),
        ):
            plan_for(replace(made, limits=Limits(*enough, limits.max_gpus)), cluster, profile)
        return
    assert planned.forecast.gpu_s.p95 <= limits.budget_gpu_s * (1 + 1e-9)
    assert planned.forecast.usd.p95 <= (limits.cost_usd or 1e9) * (1 + 1e-9)
    assert planned.forecast.time_s.p95 <= limits.deadline_s
    assert planned.outline.peak_gpus <= (limits.max_gpus or 10**9)
    assert planned.outline.adjusted or planned.problem.planned == limits


@given(cases(["seer", "random", "grid", "e-grid", "e-hyperband", "sha"]))
@settings(max_examples=few(40), deadline=None)
def test_ideal_is_the_published_plan_to_the_letter(
    case: tuple[Problem, ClusterFacts, Profile],
) -> None:
    made, cluster, profile = case
    published = outline_of(made)
    if isinstance(published, Impossible):
        with pytest.raises(LimitsError) as raised:
            plan_for(made, cluster, profile, ideal=True)
        assert raised.value.min_budget_gpu_s == published.min_budget_gpu_s
        return
    planned = plan_for(made, cluster, profile, ideal=True)
    assert planned.outline == published
    assert planned.problem == made


@pytest.mark.parametrize(
    ("minutes", "gpu_minutes", "params", "first", "brackets"),
    [
        (10, 80, {"eta": 2}, 1.429, [(1, 8), (2, 4)]),
        (30, 480, {}, 1.429, [(1, 32), (2, 16), (4, 12)]),
        (15, 60, {"p_max": 4}, 3, [(1, 4), (2, 3)]),
        (120, 1920, {"p_max": 8, "t_min": 10}, 24, [(1, 8), (2, 4), (4, 6)]),
    ],
)
def test_ideal_gives_the_check_vectors_of_the_papers_page(
    minutes: float,
    gpu_minutes: float,
    params: dict[str, float],
    first: float,
    brackets: list[tuple[int, int]],
) -> None:
    made = problem(minutes, gpu_minutes, **params)
    outline = plan_for(made, rented(4), assumed(rented=True), ideal=True).outline
    assert outline.first_round_s / 60 == pytest.approx(first, abs=1e-3)
    assert [(b.gpus_per_trial, b.trials) for b in outline.brackets] == brackets
    assert outline.adjusted == ()


def test_the_bill_of_the_published_plan_is_what_the_margin_is_about() -> None:
    """The 42 GPU-min of the published plan for 15 min and 60 GPU-min are billed as more than 60 on
    instances of four GPUs.
    """
    made, cluster, profile = problem(15, 60, per_instance=4), rented(4), assumed(rented=True)
    published, with_margin = (
        plan_for(made, cluster, profile, ideal=ideal) for ideal in (True, False)
    )
    assert published.forecast.gpu_s.p95 > 60 * 60 >= with_margin.forecast.gpu_s.p95
    assert with_margin.outline.trials < published.outline.trials
    assert with_margin.outline.adjusted


class TestWarnings:
    MEASURED = Profile(JobProfile(Latency(100.0, 110.0), start=Latency(8.0, 12.0)), EC2, "measured")

    def warned(
        self, made: Problem, cluster: ClusterFacts, profile: Profile, *, ideal: bool = False
    ) -> str:
        return "\n".join(plan_for(made, cluster, profile, ideal=ideal).warnings)

    def test_bohb_says_that_it_is_asha_with_tpe(self) -> None:
        made = plan_for(problem(30, 60, name="bohb"), PER_TRIAL, assumed(rented=False))
        told = plan_json(made, {})
        console = Console(file=io.StringIO(), width=200)
        console.print(plan_view(told))
        assert "bohb is ASHA with configurations from TPE" in console.file.getvalue()

    def test_booting_that_takes_much_of_the_budget(self) -> None:
        few = self.warned(problem(12, 200, per_instance=4), rented(4), assumed(rented=True))
        assert "of the budget: a longer deadline or a faster image would help" in few
        assert "booting" not in self.warned(
            problem(240, 4000, per_instance=4), rented(4), assumed(rented=True)
        )
        assert "booting" not in self.warned(problem(12, 50), PER_TRIAL, assumed(rented=False))

    def test_too_few_gpus_for_the_budget(self) -> None:
        sentence = "there may be only 8 GPUs at one moment"
        assert sentence in self.warned(
            problem(30, 480, max_gpus=8), PER_TRIAL, assumed(rented=False)
        )
        assert sentence not in self.warned(
            problem(30, 20, max_gpus=8), PER_TRIAL, assumed(rented=False)
        )
        assert sentence not in self.warned(
            problem(30, 480), ClusterFacts("held", 8), assumed(rented=False)
        )

    def test_too_few_gpus_to_eliminate_anybody(self) -> None:
        advice = (
            "it compares only 2 and eliminates none; with so few GPUs `--policy "
            "hyperband` tries more"
        )
        few = problem(30, 60, max_gpus=2)
        assert advice in self.warned(few, PER_TRIAL, assumed(rented=False))
        other = replace(few, params=replace(few.params, name="hyperband"))
        assert "eliminates none" not in self.warned(other, PER_TRIAL, assumed(rented=False))
        assert "eliminates none" not in self.warned(
            problem(30, 480, max_gpus=8), PER_TRIAL, assumed(rented=False)
        )

    def test_seer_plus_says_what_it_does_and_no_more(self) -> None:
        machine = problem(30, 200, max_gpus=8, name="seer+")
        planned = plan_for(machine, PER_TRIAL, assumed(rented=False))
        notes = " ".join(planned.outline.adjusted)
        assert "take turns" in notes
        assert "with 5s for a report on one GPU and 4s to start, as assumed, about" in notes
        assert planned.outline == outline_of(planned.problem)
        assert not any("at one moment" in warning for warning in planned.warnings)

    def test_seer_plus_says_who_goes_on_in_rounds(self) -> None:
        made = problem(30, 480, per_instance=4, name="seer+")
        planned = plan_for(made, rented(4), assumed(rented=True))
        notes = " ".join(planned.outline.adjusted)
        assert "after each stage the best 1 in 4 go on, but at least 4" in notes
        assert f"about {planned.outline.trials} configurations will be tried" in notes

    def test_nothing_was_measured(self) -> None:
        sentence = "nothing was measured for this script yet"
        assert sentence in self.warned(problem(30, 480), rented(8), Profile(JOB, EC2, "assumed"))
        assert sentence not in self.warned(
            problem(30, 480), rented(8), Profile(JOB, EC2, "measured")
        )

    def test_a_first_stage_without_a_report(self) -> None:
        """A report comes after 108 s; the first round of the published plan lasts 86 s."""
        published = self.warned(problem(30, 480), rented(8), self.MEASURED, ideal=True)
        assert "the first stage lasts 86s, and the first report comes after about 108s" in published
        assert "raise policy.t_min" in published
        assert "first report" not in self.warned(
            problem(30, 480, t_min=3), rented(8), self.MEASURED
        )
        assert "first report" not in self.warned(
            problem(30, 480), rented(8), replace(self.MEASURED, source="assumed")
        )

    def test_nothing_to_warn_of(self) -> None:
        quick = Profile(JobProfile(Latency(10.0, 11.0)), CloudProfile(), "measured")
        assert plan_for(problem(30, 60), ClusterFacts("held", 8), quick).warnings == ()


def test_why_a_policy_has_no_plan_is_told() -> None:
    planned = plan_for(problem(30, 480), rented(4), assumed(rented=True))
    printed = io.StringIO()
    compared = {"bohb": Impossible("it needs a package", 0.0, 0.0), "seer": planned}
    Console(file=printed, width=100).print(plan_view(plan_json(planned, compared)))
    lines = printed.getvalue().splitlines()
    assert lines[-1] == "bohb: it needs a package"
    assert next(line for line in lines if line.startswith("bohb ")).split() == ["bohb", *"-----"]


def test_the_others_are_planned_with_the_same_limits() -> None:
    made = problem(30, 480, per_instance=4)
    compared = others(made, rented(4), assumed(rented=True))
    assert sorted(compared) == sorted(name for name in POLICIES if name != "seer")
    for name, planned in compared.items():
        assert not isinstance(planned, Impossible)
        assert planned.problem.limits == made.limits
        alone = plan_for(
            replace(made, params=replace(made.params, name=name)), rented(4), assumed(rented=True)
        )
        assert planned.outline == alone.outline


def test_a_policy_whose_trials_could_never_all_begin_is_not_listed_with_their_number() -> None:
    made, cluster = problem(1, 2, max_gpus=2), ClusterFacts("held", 2, max_instances=1)
    profile = Profile(job=JobProfile(Latency(5.0, 6.0), start=Latency(4.0, 8.0)))
    for name in ("sha", "hyperband"):
        other = others(made, cluster, profile)[name]
        assert isinstance(other, Impossible)
        assert re.search(
            r"^\d{3} trials planned, .* time to start \d\d of them, at 4s", other.reason
        )
        alone = replace(made, params=replace(made.params, name=name))
        planned = plan_for(alone, cluster, profile)
        assert isinstance(planned, Planned)
        assert planned.warnings[0] == other.reason
    few = replace(made, params=replace(made.params, trials=16))
    assert isinstance(others(few, cluster, profile)["sha"], Planned)


BY_RESULTS = {"gp-ucb"}
"""What it tries next follows from results: what it begins with is all that can be shown."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_configurations_that_are_shown_are_tried_in_that_order(name: str, seed: int) -> None:
    setting = alone(synthetic(MIXED, "max", 10.0), hand.limits(), hand.IDEAL, hand.profile())
    made = hand.planned(setting, name, seed=seed)
    world = hand.play(setting, made, seed)
    tried = [trial.config for trial in world.state.trials.values()][:CONFIGS]
    shown = first_configs(made, "max")
    assert shown[: len(tried)] == tried
    assert len(shown) == CONFIGS or (name in BY_RESULTS and 0 < len(shown) < CONFIGS)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_is_as_trials_would_get_it(name: str) -> None:
    made = replace(problem(20, 40, per_instance=2, max_gpus=2, name=name), space=MIXED)
    shown = first_configs(made, "max")
    assert len(shown) == CONFIGS or (name in BY_RESULTS and 0 < len(shown) < CONFIGS)
    assert all(MIXED.allows(config) for config in shown)
    printed = io.StringIO()
    planned = plan_for(made, PER_TRIAL, assumed(rented=False))
    table = plan_view(plan_json(planned, {}, shown))
    Console(file=printed, width=200).print(table)
    assert re.search(r"configurations +lr ", printed.getvalue())
    assert json.loads(json.dumps(plan_json(planned, {}, shown)))["configs"] == list(
        map(plain, shown)
    )


def test_a_small_grid_shows_no_more_than_it_has() -> None:
    space = Space((Parameter("lr", (0.1, 0.2, 0.3)),))
    shown = first_configs(replace(problem(20, 40, name="grid"), space=space), "max")
    assert sorted(float(config["lr"]) for config in shown) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("name", ["grid", "gp-ucb"])
def test_a_grid_of_which_no_point_is_allowed_is_refused(name: str) -> None:
    parameters = (Parameter("a", low=0.0, high=1.0), Parameter("b", low=0.0, high=1.0))
    space = Space(parameters, constraints=("a < b", "b < a + 0.1"))
    made = replace(problem(20, 40, name=name), space=space)
    with pytest.raises(UsageError, match="no point of the grid meets the constraints"):
        plan_for(made, PER_TRIAL, assumed(rented=False))
    seer = replace(made, params=replace(made.params, name="seer"))
    assert isinstance(others(seer, PER_TRIAL, assumed(rented=False))[name], Impossible)
    assert all(space.allows(config) for config in first_configs(seer, "max"))


def test_what_fits_nothing_costs_little_time_to_say() -> None:
    before = time.process_time()
    with pytest.raises(LimitsError, match="takes 194s with boot and closing"):
        plan_for(problem(2, 1, per_instance=4), rented(4), assumed(rented=True))
    assert time.process_time() - before < 3.0


def test_an_outline_is_what_the_policy_of_the_adjusted_problem_will_do() -> None:
    planned = plan_for(problem(30, 480, per_instance=4), rented(4), assumed(rented=True))
    again = outline_of(planned.problem)
    assert isinstance(again, Outline)
    assert again == planned.outline


def test_no_instance_is_rented_that_nobody_has_named() -> None:
    """Neither planned with: the papers' machines are what `simulate` takes."""
    unnamed = Ec2Backend(Ec2Keys())
    for ask in (lambda: unnamed.unasked_quote(None), unnamed._check_types):
        with pytest.raises(UsageError, match=r'instance_type = \["g6\.xlarge"'):
            ask()
    assert clusters.simulated(None).keys.types == (PAPERS_TYPE,)


@pytest.mark.parametrize(
    ("named", "gpus", "usd_per_h"),
    [
        (("g6.xlarge", "g5.xlarge", "g4dn.xlarge"), 1, 1.006),
        (("g6e.12xlarge",), 4, 10.49264),
        (("p5.48xlarge",), 8, 55.04),
    ],
)
def test_todays_instances_are_planned_with(
    named: tuple[str, ...], gpus: int, usd_per_h: float
) -> None:
    quote = Ec2Backend(Ec2Keys(instance_type=named)).unasked_quote(None)
    assert (quote.facts.gpus_per_instance, quote.usd_per_h) == (gpus, usd_per_h)
    assert PRICES_AS_OF in quote.notes[0]


def test_types_without_a_price_are_planned_with_at_the_person_s() -> None:
    one = Ec2Keys(instance_type=("p6-b200.48xlarge",))
    with pytest.raises(UsageError, match=r"no price of p6-b200\.48xlarge .* price = "):
        Ec2Backend(one).unasked_quote(None)
    assert Ec2Backend(replace(one, price=100.0)).unasked_quote(None).usd_per_h == 100.0


def test_any_type_is_planned_with_whose_gpus_and_price_are_given() -> None:
    one = Ec2Keys(instance_type=("g9f.large",), price=1.5)
    with pytest.raises(UsageError, match=r"the GPUs of g9f\.large.*: gpus = 1 and price = "):
        Ec2Backend(one).unasked_quote(None)
    quote = Ec2Backend(replace(one, gpus=2)).unasked_quote(None)
    assert (quote.facts.gpus_per_instance, quote.usd_per_h) == (2, 1.5)
    with pytest.raises(
        UsageError, match=r"cluster\.gpus = 2 is not so: g9f\.large 2, g5\.xlarge 1"
    ):
        Ec2Backend(replace(one, gpus=2, instance_type=("g9f.large", "g5.xlarge"))).unasked_quote(
            None
        )
    new = [("cluster.instance_type", "g9f.large"), ("cluster.gpus", "1"), ("cluster.price", "$1.5")]
    backend = clusters.of(load_spec(ROOT / "examples" / "aws" / "spec.toml", new))
    assert "g9f.large at $1.5 an hour (the spec says so)" in backend.unasked_quote(None).notes


@pytest.mark.parametrize(
    ("named", "boot_s"),
    [
        (("g5.xlarge",), 420.0),
        (("p4d.24xlarge",), 900.0),
        (("g5.48xlarge", "p5.48xlarge"), 900.0),
        (("g4dn.metal",), 1500.0),
    ],
)
def test_large_instances_have_longer_to_boot(named: tuple[str, ...], boot_s: float) -> None:
    cluster = Ec2Keys(instance_type=named)
    assert cluster.boot_s == boot_s
    facts = Ec2Backend(replace(cluster, price=1.0)).unasked_quote(None).facts
    assert facts.orphan_s == boot_s + ORPHAN_SPARE_S, "it does not end itself while it boots"
    assert replace(cluster, boot=1200.0).boot_s == 1200.0


def test_a_recommendation_to_leave_is_followed_if_the_person_says_so() -> None:
    cluster = Ec2Keys(instance_type=("g5.xlarge",))
    assert not Ec2Backend(cluster).unasked_quote(None).facts.hints_move
    moves = replace(cluster, on_rebalance="move")
    assert Ec2Backend(moves).unasked_quote(None).facts.hints_move


@pytest.mark.parametrize("name", ["argparse", "one_number"])
def test_a_script_without_a_checkpoint_is_planned_without_moves(name: str) -> None:
    spec = load_spec(ROOT / "examples" / name / "spec.toml")
    spec = replace(spec, policy=replace(spec.policy, p_max=None))
    made = problem_of(spec, PER_TRIAL, assumed(rented=False))
    begins_anew = name == "one_number"
    assert (made.begins_anew, made.params.p_max) == (begins_anew, 1 if begins_anew else None)
    assert (BEGINS_ANEW in made.adjusted) == begins_anew
    wider = replace(spec, policy=replace(spec.policy, p_max=4))
    notes = problem_of(wider, PER_TRIAL, assumed(rented=False)).adjusted
    assert any("policy.p_max = 4 is not used" in note for note in notes) == begins_anew
    assert not any("p_max" in note for note in made.adjusted)
    aimed = replace(spec, goal=msgspec.structs.replace(spec.goal, target=0.9))
    notes = problem_of(aimed, PER_TRIAL, assumed(rented=False)).adjusted
    ends = "a trial reports" if begins_anew else "a model is saved with"
    assert f"the run ends as soon as {ends} accuracy at least 0.9" in notes


def test_a_script_that_loads_nothing_that_it_has_saved_is_planned_without_moves(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("import sys; open('last.pt', 'w').write(sys.argv[1])")
    (tmp_path / "spec.toml").write_text(
        'metric = { name = "loss", mode = "min", target = 0.1 }\n[space]\nlr = [0.1, 0.2]\n[train]\n'
        'script = "train.py"\nargs = ["{lr}"]\nreport = "loss {number}"\ncheckpoint = "last.pt"\n'
    )
    spec = load_spec(tmp_path / "spec.toml")
    spec = replace(spec, limits=replace(spec.limits, deadline_s=3600.0, budget_gpu_s=3600.0))
    made = problem_of(spec, PER_TRIAL, assumed(rented=False))
    assert (made.begins_anew, made.saves, made.params.p_max) == (True, True, 1)
    assert "the run ends as soon as a model is saved with loss at most 0.1" in made.adjusted
    (tmp_path / "train.py").write_text("import sys; open('last.pt', 'r')")
    assert not problem_of(spec, PER_TRIAL, assumed(rented=False)).begins_anew
