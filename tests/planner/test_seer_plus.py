"""SEER+: windows, rungs, first looks, turns, the finalist's GPUs, and what must hold in any run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.asha import places
from seerd.planner.draft import PATIENCE, settled
from seerd.planner.fixed_cluster import FixedCluster
from seerd.planner.model import Outline, Plan, PolicyParams, View
from seerd.planner.profile import BUNDLED, LINEAR, JobProfile, Latency, Scaling
from seerd.planner.seer_plus import MAKES_ROOM, SEER_PLUS
from seerd.planner.windows import FINALISTS, FIRST, LAST, Windows, first_look, windows_of
from seerd.planning.expected import expected

FLAT = Scaling(((1, 1.0), (2, 1.0)))


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * epoch / (epoch + 1)


def world(gpus: int = 4, deadline_s: float = 400.0, **params: object) -> World:
    made = problem(gpus, deadline_s, **params)
    return World(Asked(SEER_PLUS, made), gpus, by_lr, start_s=0.5)


def view(*histories: list[float | None]) -> View:
    trials = {}
    for number, metrics in enumerate(histories, 1):
        trial = trials[f"t{number}"] = FakeTrial(f"t{number}")
        for epoch, metric in enumerate(metrics, 1):
            trial.report(epoch, metric)
    return View(0.0, "max", trials)


@pytest.mark.parametrize(
    ("deadline_s", "gpus", "scaling", "longest", "rungs"),
    [
        (7.0, 1, LINEAR, None, (2,)),
        (32.0, 1, LINEAR, None, (2, 8)),
        (16.0, 2, LINEAR, None, (2, 8)),
        (16.0, 8, LINEAR, None, (2, 8)),
        (32.0, 8, FLAT, None, (2, 8)),
        (128.0, 1, LINEAR, None, (2, 8, 32)),
        (1e6, 8, LINEAR, 100, (2, 8)),
    ],
)
def test_the_time_says_how_many_rungs_there_are(
    deadline_s: float, gpus: int, scaling: Scaling, longest: int | None, rungs: tuple[int, ...]
) -> None:
    cluster = FixedCluster(gpus, 0.0, deadline_s)
    made = problem(gpus, deadline_s, scaling)
    assert windows_of(made, cluster, 2, 1.0, longest).rungs == rungs


def test_before_anything_is_known_there_is_one_rung() -> None:
    assert windows_of(problem(), FixedCluster(4, 0.0, 1e6), 2, None, None).rungs == (2,)


@given(
    st.floats(0.0, 100.0),
    st.floats(1.0, 1e5),
    st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True).map(sorted),
)
def test_windows_follow_each_other_until_the_end(
    start_s: float, long_s: float, rungs: list[int]
) -> None:
    windows = Windows(start_s, start_s + long_s, tuple(rungs))
    ends = [windows.ends_s(number) for number in range(len(rungs) + 1)]
    assert ends == sorted(ends)
    assert ends[-1] == start_s + long_s
    assert windows.at(start_s) == 0
    for number, end_s in enumerate(ends[:-1]):
        assert windows.at(end_s - 1e-6 * long_s) == number
        assert windows.at(end_s + 1e-6 * long_s) == number + 1
    first_s, last_s = ends[0] - start_s, ends[-1] - ends[-2]
    assert math.isclose(first_s * LAST, last_s * FIRST, rel_tol=1e-6, abs_tol=1e-6)


def test_in_the_last_window_finalists_are_halved_until_one_is_left() -> None:
    windows, now_s = Windows(3.0, 103.0, (2, 8)), 3.0
    begins_s, counts = windows.ends_s(1), []
    while now_s < windows.end_s:
        if now_s >= begins_s:
            counts.append(windows.finalists(now_s))
        assert windows.changes_s(now_s) > now_s
        now_s = windows.changes_s(now_s)
    assert counts == [FINALISTS, FINALISTS // 2, 1]
    assert windows.finalists(windows.end_s + 1.0) == 1


def test_one_report_is_enough_where_the_second_says_the_same() -> None:
    rising = view(*([i, i + 0.5] for i in range(6)))
    assert first_look(PolicyParams(), rising) == 1
    assert first_look(PolicyParams(), view(*([i, i + 0.5] for i in range(5)))) == 2
    assert first_look(PolicyParams(), view(*([i, -i] for i in range(9)))) == 2
    assert first_look(PolicyParams(), view(*([0.1, i] for i in range(9)))) == 2
    assert first_look(PolicyParams(min_reports=5), rising) == 5


def test_a_first_report_that_is_not_finite_is_no_pair() -> None:
    assert first_look(PolicyParams(), view(*([None, i] for i in range(9)))) == 2


def test_all_gpus_are_used_from_beginning_to_end() -> None:
    run = world().run()
    busy = [sum(a.gpus for a in plan.allocations) for plan in run.plans if not plan.done]
    assert set(busy) == {4}


def test_there_are_more_trials_than_gpus_and_the_best_gets_furthest() -> None:
    run = world().run()
    assert len(run.trials) > 10
    best = max(run.trials.values(), key=lambda trial: trial.reports)
    ranked = sorted((float(t.config["lr"]) for t in run.trials.values()), reverse=True)
    assert float(best.config["lr"]) in ranked[:2]


def test_the_finalist_has_the_gpus_that_are_worth_a_restart() -> None:
    assert world().run().plans[-2].allocations[0].gpus == 4
    slow = problem(4, 400.0, FLAT)
    flat = World(Asked(SEER_PLUS, slow), 4, by_lr, start_s=0.5).run()
    assert {a.gpus for plan in flat.plans for a in plan.allocations} == {1}


def test_finalists_share_the_gpus_and_the_best_has_most() -> None:
    run = world(8, 400.0).run()
    shared = [plan for plan, at_s in zip(run.plans, run.asked_s, strict=True) if at_s > 340]
    sizes = [[a.gpus for a in plan.allocations] for plan in shared if plan.allocations]
    assert all(one == sorted(one, reverse=True) for one in sizes)
    assert [len(one) for one in sizes] == sorted((len(one) for one in sizes), reverse=True)
    assert len(sizes[0]) == FINALISTS
    assert sizes[-1] == [8]


def test_who_has_diverged_is_out() -> None:
    made = problem(2, 100.0)
    bad = World(
        Asked(SEER_PLUS, made),
        2,
        lambda trial, epoch: None if trial.id == "t0001" and epoch > 2 else by_lr(trial, epoch),
    ).run()
    assert bad.trials["t0001"].status == "eliminated" or bad.trials["t0001"].reports <= 2
    after = [p for p, s in zip(bad.plans, bad.asked_s, strict=True) if s > 60]
    assert not any(a.trial == "t0001" for plan in after for a in plan.allocations)


@pytest.mark.parametrize(
    ("metrics", "is_so"),
    [
        ([], False),
        ([0.5] * (PATIENCE - 1), False),
        ([0.5] * PATIENCE, True),
        ([0.1, 0.2, 0.3, 0.4, 0.5], False),
        ([0.1, 0.2, 0.2, 0.2, 0.2], True),
        ([0.1, 0.2, 0.1, 0.1, 0.3], False),
        ([0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2], False),
        ([0.1, 0.1, 0.2, 0.2, 0.2, 0.2], True),
        ([0.5, None, None, None, 0.4, 0.4], True),
        ([None, None, None, None, 0.1], False),
    ],
)
def test_who_has_not_improved_for_half_of_its_training_has_settled(
    metrics: list[float | None], is_so: bool
) -> None:
    (trial,) = view(metrics).trials.values()
    assert settled(trial, "max") is is_so
    upside_down = view([None if m is None else -m for m in metrics])
    assert settled(upside_down.trials["t1"], "min") is is_so


@dataclass
class Noted(Asked):
    """A policy of which what it says is kept."""

    notes: list[str] = field(default_factory=list)

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        self.notes.append(plan.note)
        return plan


def test_who_has_settled_waits_though_nobody_is_better() -> None:
    def metric(trial: FakeTrial, epoch: int) -> float:
        return 0.99 if trial.id == "t0001" else 0.9 * (1 - 0.99**epoch)

    asked = Noted(SEER_PLUS, problem(2, 200.0))
    run = World(asked, 2, metric, start_s=0.5).run()
    assert PATIENCE <= run.trials["t0001"].reports < 2 * PATIENCE
    assert next(filter(None, asked.notes)) == MAKES_ROOM.format(names="t0001")
    assert max(trial.reports for trial in run.trials.values()) > 4 * PATIENCE


@dataclass
class Turns(Asked):
    """Counts the turns that ended before the trial had reported, in the windows of a search."""

    had: dict[str, int] = field(default_factory=dict)
    in_vain: list[str] = field(default_factory=list)

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        made = {name: trial.reports for name, trial in view.trials.items()}
        wanted = {one.trial for one in plan.allocations}
        left = [name for name in self.had if name not in wanted and not plan.done]
        self.in_vain += [name for name in left if made[name] == self.had[name]]
        self.had = {name: self.had.get(name, made.get(name, 0)) for name in wanted}
        return plan


def test_no_trial_begins_that_has_to_stop_before_it_can_report() -> None:
    in_vain = []
    for seed in range(40):
        asked = Turns(SEER_PLUS, problem(2, 60.0 + seed, seed=seed))
        World(asked, 2, by_lr, start_s=0.5).run()
        in_vain += asked.in_vain
    assert in_vain == []


@pytest.mark.parametrize("rises", [True, False])
def test_few_configurations_train_until_the_end_whether_they_have_settled_or_not(
    rises: bool,
) -> None:
    made = problem(2, 100.0, trials=2)
    run = World(
        Asked(SEER_PLUS, made), 2, lambda trial, epoch: epoch if rises else 0.5, start_s=0.5
    ).run()
    assert {sum(a.gpus for a in plan.allocations) for plan in run.plans if not plan.done} == {2}
    assert sum(trial.reports for trial in run.trials.values()) > 150


def test_no_more_configurations_than_were_asked_for_and_no_longer_than_r() -> None:
    run = world(trials=5, max_reports=12).run()
    assert len(run.trials) == 5
    assert max(trial.reports for trial in run.trials.values()) <= 12


def test_a_script_that_always_fails_is_not_tried_for_ever() -> None:
    made = problem(2, 1000.0)
    broken = World(Asked(SEER_PLUS, made), 2, by_lr, lives_s=lambda: 0.1).run()
    assert broken.plans[-1].done
    assert len(broken.trials) <= 12


def test_what_is_compared_is_told() -> None:
    compared = [one for plan in world().run().plans for one in plan.compared]
    assert compared
    assert all(1 <= one.place <= one.of for one in compared)
    assert {one.reports for one in compared} <= {1, 2, 4, 8, 16, 32, 64, 128, 512}


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 9),
    st.floats(20.0, 200.0),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([LINEAR, FLAT, BUNDLED["resnet50"]]),
)
def test_what_the_protocol_promises_holds(
    gpus: int, deadline_s: float, p_min: int, seed: int, scaling: Scaling
) -> None:
    """The world checks it at each question."""
    made = problem(max(gpus, p_min), deadline_s, scaling, p_min=p_min, seed=seed)
    run = World(Asked(SEER_PLUS, made), max(gpus, p_min), by_lr, start_s=0.3).run()
    assert run.plans[-1].done


def test_reports_of_one_moment_tell_no_pace() -> None:
    """As an agent tells them that was not heard for a while."""
    made = problem(1, 100.0)
    asked = Asked(SEER_PLUS, made)
    trial = FakeTrial(asked.plan(View(0.0, "max", {})).new[0].id)
    for epoch in (1, 2, 3):
        trial.report(epoch, 0.5, at_s=7.0)
    plan = asked.plan(View(8.0, "max", {trial.id: trial}))
    assert plan.allocations
    assert asked.memory.values["reports_s"] == []
    assert asked.memory.values["firsts_s"] == [7.0]


@pytest.mark.parametrize(
    ("gpus", "deadline_s", "params"),
    [
        (4, 100.0, {}),
        (2, 400.0, {}),
        (8, 200.0, {"eta": 2}),
        (4, 200.0, {"max_reports": 30}),
        (4, 200.0, {"trials": 6}),
    ],
)
def test_what_may_be_expected_is_about_what_comes(
    gpus: int, deadline_s: float, params: dict[str, object]
) -> None:
    run = world(gpus, deadline_s, **params).run()
    made = run.policy.problem
    planned = SEER_PLUS.outline(made)
    assert isinstance(planned, Outline)
    found = expected(made, planned, JobProfile(Latency(1.0, 1.0), start=Latency(0.5, 0.5)))
    assert 0.5 < found.trials / len(run.trials) < 1.8
    assert 0.75 < found.reports / max(trial.reports for trial in run.trials.values()) < 1.5


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 9),
    st.floats(20.0, 100.0),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([None, 1, 3, 40]),
    st.sampled_from([None, 4]),
)
def test_where_a_trial_begins_anew_none_is_ever_paused(
    gpus: int, deadline_s: float, p_min: int, seed: int, most: int | None, trials: int | None
) -> None:
    gpus = max(gpus, p_min)
    made = problem(gpus, deadline_s, p_min=p_min, p_max=p_min, seed=seed, trials=trials)
    run = World(
        Asked(SEER_PLUS, replace(made, begins_anew=True)), gpus, by_lr, start_s=0.3, most=most
    ).run()
    names = [name for _, name, _ in run.started]
    assert len(set(names)) == len(names)
    busy = [len(plan.allocations) for plan in run.plans if not plan.done]
    if trials is None:
        assert set(busy) == {places(gpus, p_min, made.gpus_per_instance)}


def test_where_a_trial_begins_anew_poor_ones_make_room_and_the_best_gets_furthest() -> None:
    made = replace(problem(4, 250.0, p_max=1), begins_anew=True)
    run = World(Asked(SEER_PLUS, made), 4, by_lr, start_s=0.5).run()
    assert len(run.trials) > 20
    ranked = sorted(run.trials.values(), key=lambda trial: float(trial.config["lr"]))
    assert max(run.trials.values(), key=lambda trial: trial.reports) in ranked[-3:]


@pytest.mark.parametrize("begins_anew", [True, False])
def test_what_trials_of_one_number_show_is_learned_from(begins_anew: bool) -> None:
    made = replace(problem(4, 100.0, p_max=1), begins_anew=begins_anew)
    run = World(Asked(SEER_PLUS, made), 4, by_lr, start_s=4.0, most=1).run()
    late = [float(trial.config["lr"]) for trial in run.trials.values()][-20:]
    assert sum(lr > 0.1 for lr in late) > 10
