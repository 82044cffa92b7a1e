"""Each kind of reason, on runs in which it is the reason."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import RunFacts
from seerd.sim.behaviour import exactly
from seerd.telling.explanation.as_json import fates
from seerd.telling.explanation.sentences import sentence
from tests.explanation.timelines import (
    MakeFacts,
    curve,
    explanations_of,
    policy_world,
    rented_world,
    replayed,
    timeline_of,
)
from tests.scenarios.test_scenarios import SCENARIOS


def test_a_trial_is_out_since_others_were_better_and_the_line_is_told(facts: MakeFacts) -> None:
    state, timeline = timeline_of(SCENARIOS["rented"](facts))
    (out,) = (
        explanation
        for explanation in explanations_of(timeline, "judged")
        if explanation.trial == "t0003"
    )
    assert (out.verdict, out.place, out.of, out.best, out.cut) == ("out", 3, 4, 2, "t0004")
    assert out.metric == pytest.approx(0.346, abs=0.001)
    text = (
        "accuracy 0.346469 after 3 reports was 3rd of 4; the 2 best go on (the last of "
        "them t0004 with 0.510244): it is out"
    )
    assert sentence(out, "accuracy") == f"t0003: {text}"
    became, why = fates(timeline, state)["t0003"]
    assert (became, why) == ("eliminated", text)
    (stop,) = (
        explanation
        for explanation in explanations_of(timeline, "stopped")
        if explanation.trial == "t0003"
    )
    assert (stop.why, stop.saves) == ("out", False)


def test_brackets_are_compared_apart_and_the_best_of_all_get_the_most_gpus(
    facts: MakeFacts,
) -> None:
    _, timeline = timeline_of(SCENARIOS["spot_notice"](facts))
    judged = {explanation.trial: explanation for explanation in explanations_of(timeline, "judged")}
    assert (judged["t0005"].bracket, judged["t0005"].gpus_before, judged["t0005"].gpus) == (1, 1, 2)
    assert (
        judged["t0002"].bracket,
        judged["t0002"].place,
        judged["t0002"].of,
        judged["t0002"].gpus,
    ) == (2, 1, 2, 1)
    resized = {
        explanation.trial: (explanation.gpus_before, explanation.gpus)
        for explanation in explanations_of(timeline, "stopped")
        if explanation.why == "resized"
    }
    assert resized == {"t0002": (2, 1), "t0005": (1, 2)}


def test_why_instances_come_and_go(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["rented"](facts))
    (asked,) = explanations_of(timeline, "asked")
    assert (asked.why, asked.needed, asked.had, len(asked.instances)) == ("plan", 2, 0, 2)
    assert [(sized.trials, sized.gpus_per_trial) for sized in asked.wanted] == [(2, 2), (4, 1)]
    idle, end = explanations_of(timeline, "given-back")
    assert (idle.why, idle.instances, idle.needed, idle.had) == ("idle", ("m2.0",), 1, 2)
    assert (end.why, end.instances) == ("end", ("m2.1",))
    (moved,) = (
        explanation
        for explanation in explanations_of(timeline, "stopped")
        if explanation.why == "moved"
    )
    assert moved.trial == "t0002", "it leaves an instance that is not needed any more"


def test_a_spot_notice_moves_trials_and_asks_for_another_instance(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["spot_notice"](facts))
    (noticed,) = explanations_of(timeline, "noticed")
    assert (noticed.instance, noticed.sure, noticed.by_s) == ("m2.1", True, 200.0)
    assert noticed.trials == ("t0003", "t0004", "t0005", "t0006")
    stops = {
        explanation.trial: (explanation.why, explanation.others)
        for explanation in explanations_of(timeline, "stopped")
        if explanation.event == noticed.event
    }
    assert stops["t0003"] == ("leaving", ())
    assert stops["t0007"] == ("displaced", ("t0003",)), "a more valuable trial gets its GPUs"
    assert [explanation.why for explanation in explanations_of(timeline, "asked")] == [
        "plan",
        "replacement",
    ]
    (given,) = (
        explanation
        for explanation in explanations_of(timeline, "given-back")
        if explanation.instances == ("m2.1",)
    )
    assert given.why == "leaving"


def test_a_lost_instance_takes_its_trials_with_it_and_they_go_on_from_their_checkpoints(
    facts: MakeFacts,
) -> None:
    _, timeline = timeline_of(SCENARIOS["lost_instance"](facts))
    (lost,) = explanations_of(timeline, "lost")
    assert (lost.instance, lost.detail, len(lost.trials)) == ("m2.0", "power failure", 6)
    ended = [
        explanation
        for explanation in explanations_of(timeline, "ended")
        if explanation.event == lost.event
    ]
    assert {(explanation.how, explanation.then, explanation.kept) for explanation in ended} == {
        ("lost", "restarts", 1)
    }
    again = [
        explanation
        for explanation in explanations_of(timeline, "started")
        if explanation.attempt == 2
    ]
    assert {explanation.after_reports for explanation in again} == {1}
    assert explanations_of(timeline, "asked")[1].why == "replacement"


def test_a_crash_is_told_with_its_number_and_where_training_goes_on(facts: MakeFacts) -> None:
    state, timeline = timeline_of(SCENARIOS["crash"](facts))
    crashes = [
        explanation
        for explanation in explanations_of(timeline, "ended")
        if explanation.how == "crashed"
    ]
    assert [
        (explanation.trial, explanation.failures, explanation.then) for explanation in crashes
    ] == [
        ("t0001", 1, "restarts"),
        ("t0001", 2, "failed"),
    ]
    text = sentence(crashes[0], "accuracy")
    assert (
        "it goes on from its checkpoint of report 1 (end number 1 by its own fault, 1 in a row "
        "without coming further; forgiven: 1)" in text
    )
    became, why = fates(timeline, state)["t0001"]
    assert became == "failed"
    assert "crashed: ended with exit status 1" in why


def test_a_rank_that_fails_ends_the_attempt_on_its_other_instance(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["crashed_node"](facts))
    (node,) = (
        explanation
        for explanation in explanations_of(timeline, "stopped")
        if explanation.why == "node"
    )
    assert (node.trial, node.saves) == ("t0001", False)
    first = explanations_of(timeline, "started")[0]
    assert [on["instance"] for on in first.on] == ["m2.0", "m2.1"]


def test_a_refusal_is_told_with_when_it_is_asked_again(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["little_capacity"](facts))
    refused = explanations_of(timeline, "refused")
    assert refused[0].again_s == pytest.approx(refused[0].at_s + 15.0)
    assert [explanation.why for explanation in explanations_of(timeline, "asked")][:3] == [
        "plan",
        "again",
        "again",
    ]


def test_a_run_without_an_instance_ends_for_that_reason(facts: MakeFacts) -> None:
    state, timeline = timeline_of(SCENARIOS["refused"](facts))
    (closing,) = explanations_of(timeline, "closing")
    assert (closing.status, closing.why) == ("failed", "no-instance")
    assert closing.detail
    assert {fate for fate, _ in fates(timeline, state).values()} == {"never-started"}


def test_the_budget_that_ends_a_run_is_told_in_numbers(facts: MakeFacts) -> None:
    _, timeline = timeline_of(rented_world(facts, budget_gpu_s=2400.0))
    (closing,) = explanations_of(timeline, "closing")
    assert (closing.status, closing.why) == ("budget", "budget")
    assert closing.committed_gpu_min == pytest.approx(closing.budget_gpu_min)
    assert closing.spent_gpu_min < closing.budget_gpu_min


def test_the_target_that_ends_a_run_is_told_with_the_model_that_reached_it(
    facts: MakeFacts,
) -> None:
    _, timeline = timeline_of(World(facts(target=0.5), Behaviour(metric=curve)))
    (closing,) = explanations_of(timeline, "closing")
    assert (closing.status, closing.why) == ("target", "target")
    assert sentence(closing, "accuracy") == (
        "the end: the target was reached: t0002 has accuracy 0.518653 after 5 reports, "
        "and 0.5 was wanted"
    )


def test_an_instance_that_the_budget_could_not_pay_is_held_back(facts: MakeFacts) -> None:
    """One of two is lost when the budget is as good as used up."""
    made = rented_world(facts, budget_gpu_s=4800.0).facts
    params = replace(made.problem.params, name="random", trials=2, p_min=4, p_max=4)
    problem = replace(made.problem, params=params, gpus_per_instance=4)
    behaviour = Behaviour(
        metric=curve, unit_s=lambda config, epoch, gpus: 80.0 / gpus, boot=exactly(30.0)
    )
    world = World(msgspec.structs.replace(made, problem=problem), behaviour)
    world.at(560.0, lambda: world.fleet.lose("m2.0"))
    _, timeline = timeline_of(world)
    (held,) = explanations_of(timeline, "held-back")
    assert (held.why, held.needed, held.had, held.at_s) == ("budget", 2, 1, 560.0)


def test_an_interrupted_run_says_who_asked_for_its_end(facts: MakeFacts) -> None:
    state, timeline = timeline_of(SCENARIOS["interrupted"](facts))
    assert not explanations_of(timeline, "stop-wanted")[0].hard
    (closing,) = explanations_of(timeline, "closing")
    assert closing.why == "person"
    assert {fate for fate, _ in fates(timeline, state).values()} == {"survived"}


def test_an_interrupted_run_that_goes_on_begins_its_stage_again(facts: MakeFacts) -> None:
    world = SCENARIOS["interrupted"](facts)
    world.run()
    world.resume()
    world.run_on()
    state, timeline = replayed(world)
    (resumed,) = explanations_of(timeline, "resumed")
    assert resumed.reopened
    assert [(c.stage, c.times) for c in timeline.chapters] == [
        (0, 1),
        (None, 1),
        (0, 2),
        (1, 1),
        (None, 2),
    ]
    assert [explanation.because for explanation in explanations_of(timeline, "planned")] == [
        "began",
        "resumed",
        "clock",
    ]
    assert state.result.published is not None


def test_a_killed_daemon_is_told_with_how_long_nothing_was_written(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["killed_daemon"](facts))
    (resumed,) = explanations_of(timeline, "resumed")
    assert not resumed.reopened
    assert resumed.silent_s == pytest.approx(6.0, abs=1.0)


def test_orders_that_are_given_again_under_their_old_ids_are_told_once(facts: MakeFacts) -> None:
    world = SCENARIOS["plain"](facts)
    world = World(world.facts, world.fleet.behaviour, kill_after=frozenset({2}))
    _, timeline = timeline_of(world)
    assert explanations_of(timeline, "resumed")
    starts = [
        (explanation.trial, explanation.attempt)
        for explanation in explanations_of(timeline, "started")
    ]
    assert len(starts) == len(set(starts))


def test_an_agent_alone_ends_its_trials_when_its_lease_is_over(facts: MakeFacts) -> None:
    world = SCENARIOS["plain"](facts)
    world = World(world.facts, world.fleet.behaviour, kill_after=frozenset({30}))
    world.down_s = 45.0
    _, timeline = timeline_of(world)
    assert {explanation.how for explanation in explanations_of(timeline, "ended")} >= {"lease"}


def test_the_model_is_told_with_the_next_best(facts: MakeFacts) -> None:
    _, timeline = timeline_of(SCENARIOS["rented"](facts))
    (chosen,) = explanations_of(timeline, "chosen")
    assert (chosen.trial, chosen.among, chosen.runner_up) == ("t0005", 6, "t0004")
    assert chosen.better_unsaved is None


def test_a_better_report_without_a_checkpoint_is_told(facts: MakeFacts) -> None:
    """Deaf trials do not save at the end: their last reports are in no checkpoint."""
    world = World(
        facts(), Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus, deaf=True)
    )
    _, timeline = timeline_of(world)
    (chosen,) = explanations_of(timeline, "chosen")
    assert chosen.better_unsaved is not None
    assert chosen.better_unsaved_metric > chosen.metric


def test_the_model_is_told_with_the_mean_that_made_it_the_best(facts: MakeFacts) -> None:
    for smooth, told in ((1, "accuracy 0."), (3, "accuracy (mean of the last 3 reports) 0.")):
        _, timeline = timeline_of(World(facts(smooth=smooth), Behaviour(metric=curve)))
        (chosen,) = explanations_of(timeline, "chosen")
        assert chosen.mean_of == smooth
        assert told in sentence(chosen, "accuracy")


def test_a_script_that_ends_by_itself(facts: MakeFacts) -> None:
    world = World(
        facts(), Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 1.0, most_reports=5)
    )
    state, timeline = timeline_of(world)
    became, why = fates(timeline, state)["t0001"]
    assert became == "finished"
    assert "after 5 reports" in why


def test_halving_stops_trials_to_compare_them_and_completes_the_last(facts: MakeFacts) -> None:
    state, timeline = timeline_of(policy_world(facts, "sha"))
    reached = [
        explanation
        for explanation in explanations_of(timeline, "stopped")
        if explanation.why == "reached"
    ]
    assert {explanation.until for explanation in reached} == {1, 4, 13}
    assert [(c.stage, c.times) for c in timeline.chapters] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (None, 1),
    ]
    last = explanations_of(timeline, "judged")[-1]
    assert (last.verdict, last.reports) == ("complete", 27)
    out = [
        trial
        for trial in state.trials.values()
        if fates(timeline, state)[trial.id][0] == "eliminated"
    ]
    assert len(out) == 26


def test_the_stages_of_hyperband_come_again_with_each_bracket(facts: MakeFacts) -> None:
    _, timeline = timeline_of(policy_world(facts, "hyperband"))
    assert [(c.stage, c.times) for c in timeline.chapters][:6] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (0, 2),
        (1, 2),
    ]
    assert timeline.chapters[4].planned_end_s is None


def test_asha_tells_how_a_trial_stood_at_its_rung(facts: MakeFacts) -> None:
    state, timeline = timeline_of(policy_world(facts, "asha"))
    judged = explanations_of(timeline, "judged")
    assert {explanation.reports for explanation in judged} == {1, 3, 9, 27}
    for explanation in judged:
        assert 1 <= explanation.place <= explanation.of
        assert explanation.verdict != "goes-on" or explanation.place <= explanation.best, (
            "nobody goes on that is not among the best"
        )
    kinds = {fate for fate, _ in fates(timeline, state).values()}
    assert kinds == {"paused", "survived", "never-started"}
    paused = next(t for t in state.trials.values() if fates(timeline, state)[t.id][0] == "paused")
    assert "when more have come there" in fates(timeline, state)[paused.id][1]
    assert [chapter.stage for chapter in timeline.chapters] == [0, None]


@pytest.mark.parametrize("name", ["hypersched", "random", "grid", "e-hyperband", "e-grid", "bohb"])
def test_other_policies_end_with_a_reason_for_every_trial(facts: MakeFacts, name: str) -> None:
    state, timeline = timeline_of(policy_world(facts, name))
    assert all(why for _, why in fates(timeline, state).values())
    assert explanations_of(timeline, "closing")[0].why in ("plan", "last-stage", "late")


def test_a_failed_launch_of_a_run_that_is_resumed_is_asked_for_again(facts: MakeFacts) -> None:
    made: RunFacts = rented_world(facts).facts
    behaviour = Behaviour(metric=curve, unit_s=lambda c, e, g: 20.0 / g, boot=exactly(30.0))
    world = World(made, replace(behaviour), kill_after=frozenset({2}))
    world.down_s = 200.0
    _, timeline = timeline_of(world)
    assert explanations_of(timeline, "resumed")[0].silent_s > 100
