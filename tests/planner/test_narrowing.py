"""SEER+ on rented instances for a short time: rounds of ever fewer GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, problem
from seerd.planner.model import Limits, Problem, View
from seerd.planner.seer_plus import SEER_PLUS
from seerd.planner.windows import SHORT, outlined, rounds_of


def rented(
    deadline_s: float = 1600.0,
    gpus: float = 16.0,
    most: int | None = None,
    t_min_s: float = 60.0,
    **params: object,
) -> Problem:
    """Whole instances of four GPUs; `gpus`: as many as the budget pays for all the time."""
    made = problem(8, deadline_s, **params)
    made = replace(made, params=replace(made.params, t_min_s=t_min_s))
    limits = Limits(deadline_s, deadline_s * gpus, most)
    return replace(made, limits=limits, within=None, whole=True, gpus_per_instance=4, start_s=100.0)


@given(
    st.floats(200.0, SHORT * 60.0 - 1),
    st.floats(1.0, 200.0),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([None, 8, 32, 64]),
    st.sampled_from([2.0, 3.0, 4.0]),
)
def test_rounds_fill_the_time_and_keep_to_the_budget(
    deadline_s: float, gpus: float, p_min: int, most: int | None, eta: float
) -> None:
    made = rented(deadline_s, gpus, most, p_min=p_min, eta=eta)
    rounds = rounds_of(made)
    if not rounds:
        return
    assert rounds[0].start_s == 100.0
    assert abs(rounds[-1].end_s - 100.0 - deadline_s) < 1e-6
    assert all(one.end_s == other.start_s for one, other in pairwise(rounds))
    assert sum(one.gpu_s for one in rounds) <= made.limits.budget_gpu_s
    assert all(one.gpus % 4 == 0 and one.gpus >= p_min * one.trials for one in rounds)
    assert all(most is None or one.gpus <= most for one in rounds)
    counts = [one.trials for one in rounds]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1
    stages = outlined(made, rounds).stages
    assert all(stage.gpus <= one.gpus for stage, one in zip(stages, rounds, strict=True))


def test_one_cluster_is_as_good_where_there_is_time_or_all_gpus_are_paid() -> None:
    assert rounds_of(rented())
    assert not rounds_of(replace(rented(), whole=False))
    assert not rounds_of(rented(SHORT * 60.0))
    assert rounds_of(rented(SHORT * 60.0, t_min_s=120.0))
    assert not rounds_of(rented(most=16))
    assert rounds_of(rented(most=20))


def test_most_gpus_are_had_first_and_the_best_ends_alone() -> None:
    made, now_s = rented(), 0.0
    rounds, asked = rounds_of(made), Asked(SEER_PLUS, made)
    plans = [asked.plan(View(now_s, "max", {}))]
    trials = {new.id: FakeTrial(new.id, new.config) for new in plans[0].new}
    assert len(trials) == rounds[0].trials > 32
    for one in rounds[:-1]:
        for allocation in plans[-1].allocations:
            trial = trials[allocation.trial]
            for _ in range(allocation.gpus):
                now_s, made_before = max(now_s, one.start_s) + 1.0, trial.reports
                epoch = made_before + 1
                trial.report(epoch, float(trial.config["lr"]) * epoch / (epoch + 1), now_s)
        assert plans[-1].ask_at_s == one.end_s
        plans.append(asked.plan(View(one.end_s, "max", trials)))
    assert rounds[0].gpus > rounds[1].gpus > rounds[2].gpus
    shared = [sum(a.gpus for a in plan.allocations) for plan in plans]
    assert shared == [one.gpus for one in rounds]
    best = max(trials.values(), key=lambda trial: float(trial.config["lr"]))
    assert plans[-1].allocations[0].trial == best.id
    assert plans[-1].allocations[0].gpus == 4
    assert plans[1].compared[0].of == rounds[0].trials
    assert [plan.compared[0].best for plan in plans[1:]] == [one.trials for one in rounds[1:]]
