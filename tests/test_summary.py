"""What is said at the end of a run that has no model: why, and what to do."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from msgspec import structs
from rich.console import Console

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import StartTrial
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import Complaint, State
from seerd.planner.space import Parameter
from seerd.telling.complaints import notes_of
from seerd.telling.summary import MOST_ROWS, summary
from tests.conftest import small_facts


def told(state: State, most: int | None = MOST_ROWS, width: int = 300) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(summary(state, most=most))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_reports_without_the_metric_are_named() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: None)).run()
    assert "no report had a finite accuracy" in told(state)


def test_reports_without_a_checkpoint_are_named() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    assert "there is no model" not in told(state)
    state.result.of_jobs.clear()
    for trial in state.trials.values():
        trial.checkpoints = ()
    assert "trials reported, and saved no checkpoint: that is done in trial.running()" in told(
        state
    )
    assert "track" not in told(state), "nobody knows whether it does not track"
    for trial in state.trials.values():
        trial.trained = False
    assert "trials reported, and never called trial.running()" in told(state)
    state.signs.complaints["not-stored"] = Complaint("not-stored", "t0001", "why")
    assert "there is no model: trials reported, and a checkpoint of t0001 could not" in told(state)


def test_the_target_stands_beside_the_metric() -> None:
    behaviour = Behaviour(metric=lambda config, epoch: 0.5)
    reached = told(World(small_facts(target=0.25), behaviour).run())
    assert "small: the target was reached;" in reached
    assert "accuracy 0.5 (target 0.25), lr=" in reached
    assert "target" not in told(World(small_facts(), behaviour).run())


def test_the_metric_of_the_model_is_told_as_a_mean_if_it_is_one() -> None:
    behaviour = Behaviour(metric=lambda config, epoch: 0.5)
    smoothed = World(small_facts(target=0.25, smooth=3), behaviour).run()
    best = smoothed.result.published
    assert best is not None
    assert best.incumbent.checkpoint.reports == 1
    assert "accuracy 0.5 (target 0.25), lr=" in told(smoothed), "one report is its own mean"
    state = World(small_facts(smooth=3), behaviour).run()
    assert "accuracy (mean of the last 3 reports) 0.5, lr=" in told(state)
    assert "mean" not in told(World(small_facts(), behaviour).run())


def test_nobody_is_sent_back_to_a_run_whose_deadline_has_passed() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    state.end.status, deadline_s = "interrupted", state.facts.problem.limits.deadline_s
    state.clock.now = deadline_s - 1
    assert "go on with: seerd resume" in told(state)
    state.clock.now = deadline_s + 1
    assert "go on with" not in told(state)
    assert "take the model with: seerd best" in told(state)


def test_a_trial_that_never_began_is_not_said_to_have_been_kept() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    trial = list(state.trials.values())[-1]
    trial.phase, trial.attempt = TrialPhase.WAITING, 0
    assert "not started" in told(state)
    trial.attempt = 1
    assert "not started" not in told(state)


def test_the_column_of_gpus_has_what_the_last_attempt_got() -> None:
    facts = small_facts(budget_gpu_s=480.0)
    params = replace(facts.problem.params, name="hyperband", p_max=8, max_reports=27)
    facts = structs.replace(facts, problem=replace(facts.problem, params=params))
    world = World(facts, Behaviour(metric=lambda config, epoch: config["lr"]))
    state = world.run()
    got = {
        made.trial: len(made.gpus) + sum(len(gpus) for _, gpus in made.beside)
        for _, decisions in world.journal
        for made in decisions
        if isinstance(made, StartTrial)
    }
    of_brackets = [bracket.gpus_per_trial for bracket in state.outline.brackets]
    assert any(gpus != of_brackets[state.trials[name].bracket] for name, gpus in got.items())
    rows = [line.split() for line in told(state).splitlines() if line.startswith("t0")]
    assert len(rows) == 20
    assert {row[0]: row[4] for row in rows} == {row[0]: str(got.get(row[0], "-")) for row in rows}


def test_a_better_report_than_the_model_is_explained() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    assert "had reported" not in told(state)
    trial = next(trial for trial in state.trials.values() if trial.history)
    trial.history[0] = trial.history[0]._replace(metric=0.75)
    assert f"({trial.id} had reported 0.75, of which there is no checkpoint: " in told(state)


def test_only_configurations_are_folded_where_there_is_little_room() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.123456)).run()
    for trial in state.trials.values():
        trial.config = {f"hyperparameter_{n}": 0.123456 for n in range(6)}
    page = told(state, width=80)
    assert "…" not in page
    assert all(trial in page for trial in state.trials)
    assert "hyperparameter_5=0.1235" in told(state, width=100)


def test_how_much_of_a_grid_was_tried_is_told() -> None:
    facts = small_facts()
    params = replace(facts.problem.params, name="grid", t_min_s=20.0)
    space = replace(facts.problem.space, parameters=(Parameter("lr", choices=tuple(range(500))),))
    facts = structs.replace(facts, problem=replace(facts.problem, params=params, space=space))
    state = World(facts, Behaviour(metric=lambda config, epoch: 0.5)).run()
    tried = sum(trial.attempt > 0 for trial in state.trials.values())
    assert 0 < tried < 50
    assert f"tried {tried} of the 500 configurations of the grid" in told(state)
    few = (Parameter("lr", choices=(1, 2)),)
    problem = replace(facts.problem, space=replace(space, parameters=few))
    whole = World(structs.replace(facts, problem=problem), Behaviour(metric=lambda c, e: 0.5)).run()
    assert "of the grid" not in told(whole)


@pytest.mark.parametrize(
    ("policy", "reports", "is_told"),
    [("asha", 1, True), ("seer+", 1, False), ("bohb", 1, False), ("asha", 3, False)],
)
def test_a_policy_that_needs_curves_says_so_where_a_training_makes_one_report(
    policy: str, reports: int, *, is_told: bool
) -> None:
    facts = small_facts()
    params = replace(facts.problem.params, name=policy, max_reports=9)
    facts = structs.replace(facts, problem=replace(facts.problem, params=params))
    behaviour = Behaviour(metric=lambda c, e: 0.5, most_reports=reports)
    state = World(facts, behaviour).run()
    assert any("makes one report" in note and policy in note for note in notes_of(state)) == is_told
    assert (f"note: a training makes one report here, so {policy} has" in told(state)) == is_told
