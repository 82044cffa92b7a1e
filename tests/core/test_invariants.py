"""Each invariant is broken where a state is wrong in just that, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.testbed.invariants import EPSILON_S, violations
from seerd.core.commands import Publish
from seerd.core.events import Checkpoint, RunFacts
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.placement import Slots
from seerd.core.state import AttemptEnd, Incumbent, Published, State
from tests.core.test_several_nodes import Pair

MakeFacts = Callable[..., RunFacts]


def held_twice(state: State) -> None:
    trial = state.trials["t0001"]
    assert trial.held
    trial.held = (*trial.held, trial.held[1])


def not_busy(state: State) -> None:
    state.fleet.instances["b"].busy.clear()


def would_fit(state: State) -> None:
    state.fleet.instances["a"].gpus = 4


def would_not_quite_fit(state: State) -> None:
    state.fleet.instances["a"].gpus = 3


def waits_with_gpus(state: State) -> None:
    state.trials["t0001"].phase = TrialPhase.WAITING


def not_charged(state: State) -> None:
    del state.ledger.open["a"]


def charged_for_nothing(state: State) -> None:
    state.ledger.start(Charge("c", "c", 2, 0.0))


def miscounted(name: str, by: int) -> Callable[[State], None]:
    def count(state: State) -> None:
        setattr(state.fleet, name, getattr(state.fleet, name) + by)

    return count


def rests_for_nothing(state: State) -> None:
    state.fleet.until_change, state.fleet.present = True, 0


def rests_while_there_are_some(state: State) -> None:
    state.fleet.until_change = True


def leaves_with_trials(state: State) -> None:
    state.fleet.instances["b"].phase = InstancePhase.LEAVING
    state.fleet.live, state.fleet.leaving = 1, 1
    state.fleet.instances["b"].claims.clear()
    state.trials["t0001"].target = None


def leaves_with_a_target(state: State) -> None:
    leaves_with_trials(state)
    state.trials["t0001"].phase = TrialPhase.STOPPING
    state.trials["t0001"].target = (Slots("b", (0, 1)),)


def hangs_on(state: State) -> None:
    state.trials["t0001"].hung = True


def spent(more_gpu_s: float) -> Callable[[State], None]:
    """So much more than the budget."""

    def spend(state: State) -> None:
        left_s = budget_gpu_s(state) - state.ledger.spent_gpu_s(state.now)
        state.ledger.start(Charge("x", "x", 1, 0.0))
        state.ledger.end("x", left_s + more_gpu_s, left_s + more_gpu_s)

    return spend


def over_too_early(state: State) -> None:
    state.end.phase, state.end.status, state.end.why = RunPhase.OVER, "deadline", "why"
    state.end.close_by = 1.0


def ends_without_why(state: State) -> None:
    state.end.phase, state.end.status, state.end.close_by = RunPhase.CLOSING, "deadline", 1.0
    state.plan.wanted.clear()
    state.plan.question = None


def why_without_end(state: State) -> None:
    state.end.why = "why"


def kill_without_end(state: State) -> None:
    state.end.hard = True


def back_in_time(state: State) -> None:
    state.clock.previous_s = state.clock.now + 0.001


def before_the_run(state: State) -> None:
    state.clock.previous_s = -0.001


def a_number_below_zero(state: State) -> None:
    state.clock.issued = -1


def the_first_moment(state: State) -> None:
    state.clock.previous_s, state.clock.issued = 0.0, 0


def wanted_though_out(state: State) -> None:
    state.trials["t0001"].out = True


def wanted_beyond_the_plan(state: State) -> None:
    state.trials["t0001b"] = replace(
        state.trials["t0001"], id="t0001b", phase=TrialPhase.WAITING, held=None, target=None
    )
    state.plan.wanted["t0001b"] = state.plan.wanted["t0001"]


def nobody_awaits(state: State) -> None:
    state.clock.timer = None


def claimed_by_nobody(state: State) -> None:
    state.fleet.instances["a"].claims.clear()


def aimed_at_nothing(state: State) -> None:
    state.aims.aimed.clear()


def job_miscounted(state: State) -> None:
    state.jobs[""].gpus += 1


def job_over_unknown_to_the_policy(state: State) -> None:
    state.jobs[""].over = "person"


def ended_everywhere(state: State) -> None:
    trial = state.trials["t0001"]
    assert trial.held
    trial.phase = TrialPhase.STOPPING
    trial.ends = {slots.node: AttemptEnd("asked", False) for slots in trial.held}
    for instance in state.fleet.instances.values():
        instance.busy.clear()
        state.ledger.open.pop(instance.id, None)
        state.ledger.start(Charge(instance.id, instance.id, 2, 0.0))
    state.jobs[""].gpus = 0


def model(name: str, reports: int, metric: float, trial: str = "t0001") -> Incumbent:
    saved = {"attempt": 1, "name": name, "sha256": "0", "size": 1}
    checkpoint = Checkpoint(trial=trial, reports=reports, metric=metric, **saved)  # type: ignore[arg-type]
    return Incumbent(trial, checkpoint, metric)


def never_confirmed(state: State) -> None:
    state.result.of_jobs[""] = Published(model("1", 3, 0.5), "best")


def replaced_by_a_newer_one(state: State) -> None:
    never_confirmed(state)
    state.trials["t0001"].checkpoints = (model("2", 4, 0.4).checkpoint,)


def replaced_by_an_older_one(state: State) -> None:
    never_confirmed(state)
    state.trials["t0001"].checkpoints = (model("2", 3, 0.4).checkpoint,)


def of_another_job(state: State) -> None:
    kept = model("1", 3, 0.5)
    state.trials["t0001"].checkpoints = (kept.checkpoint,)
    state.result.of_jobs["x"] = Published(kept, "best/x")


def better_kept(metric: float, told: str = "") -> Callable[[State], None]:
    """A run is over whose model has 0.5, and a checkpoint with another metric is kept."""

    def keep(state: State) -> None:
        over_too_early(state)
        published, kept = model("1", 3, 0.5), model("2", 4, metric)
        state.trials["t0001"].checkpoints = (kept.checkpoint, published.checkpoint)
        state.result.of_jobs[""] = Published(published, "best")
        if told == "unreadable":
            state.result.unreadable.add("t0001/2")
        if told == "no model":
            state.result.no_model.add("")

    return keep


def published_without_a_command(state: State) -> None:
    state.result.publishing = model("1", 3, 0.5)


def published_by_nobody(state: State) -> None:
    what = {"config": {}, "checkpoint": "1", "sha256": "0", "metric": 0.5}
    state.under_way["9.9"] = Publish(id="9.9", trial="t0001", why="best", **what)  # type: ignore[arg-type]


def published_though_the_store_gives_none(state: State) -> None:
    published_by_nobody(state)
    published_without_a_command(state)
    state.result.no_model.add("")


def asked_while_it_ends(state: State) -> None:
    state.end.phase, state.end.status, state.end.why = RunPhase.CLOSING, "deadline", "late"
    state.end.close_by = 1.0
    state.plan.wanted.clear()
    state.plan.answer = "none"


def awaits_a_release(state: State) -> None:
    state.fleet.instances["b"].terminate_command = "9.9"
    leaves_with_trials(state)
    state.fleet.instances["b"].phase = InstancePhase.RELEASING
    state.fleet.leaving = 0


OVER_TOO_EARLY = {"nothing_is_left_at_the_end", "what_is_wanted_may_run"}
FILE = Path(__file__).parent / "transcripts" / "broken.txt"
"""What each check says of each of these states."""

BROKEN: list[tuple[Callable[[State], None], set[str]]] = [
    (
        held_twice,
        {"no_gpu_is_held_twice", "what_jobs_hold_is_counted"},
    ),
    (not_busy, {"no_gpu_is_held_twice"}),
    (would_fit, {"a_trial_that_fits_is_not_split"}),
    (would_not_quite_fit, set()),
    (waits_with_gpus, {"phases_and_gpus_agree"}),
    (not_charged, {"what_is_held_is_paid"}),
    (charged_for_nothing, {"what_is_held_is_paid"}),
    (miscounted("live", 1), {"what_is_counted_is_there"}),
    (miscounted("leaving", 1), {"what_is_counted_is_there"}),
    (miscounted("present", -1), {"what_is_counted_is_there"}),
    (miscounted("holding", -1), {"what_is_counted_is_there"}),
    (
        rests_for_nothing,
        {"what_is_counted_is_there", "launches_rest_only_until_a_change_that_can_come"},
    ),
    (rests_while_there_are_some, set()),
    (leaves_with_trials, {"a_leaving_instance_gets_nothing_new", "targets_and_claims_agree"}),
    (leaves_with_a_target, {"a_leaving_instance_gets_nothing_new", "targets_and_claims_agree"}),
    (hangs_on, {"the_nodes_of_an_attempt_end_together"}),
    (spent(2 * EPSILON_S), {"the_budget_is_kept"}),
    (spent(0.0), set()),
    (over_too_early, {"nothing_is_left_at_the_end", "what_is_wanted_may_run"}),
    (ends_without_why, {"the_end_is_known_when_it_begins"}),
    (why_without_end, {"the_end_is_known_when_it_begins"}),
    (kill_without_end, {"the_end_is_known_when_it_begins"}),
    (back_in_time, {"time_does_not_go_back"}),
    (before_the_run, {"time_does_not_go_back"}),
    (a_number_below_zero, {"time_does_not_go_back"}),
    (the_first_moment, set()),
    (wanted_though_out, {"what_is_wanted_may_run"}),
    (wanted_beyond_the_plan, {"what_is_wanted_may_run"}),
    (nobody_awaits, {"what_is_under_way_is_awaited"}),
    (claimed_by_nobody, {"targets_and_claims_agree"}),
    (aimed_at_nothing, {"targets_and_claims_agree"}),
    (job_miscounted, {"what_jobs_hold_is_counted"}),
    (job_over_unknown_to_the_policy, {"a_job_that_is_over_is_over_for_all"}),
    (ended_everywhere, {"the_nodes_of_an_attempt_end_together"}),
    (never_confirmed, {"the_result_is_confirmed"}),
    (replaced_by_a_newer_one, set()),
    (replaced_by_an_older_one, {"the_result_is_confirmed"}),
    (of_another_job, {"the_result_is_confirmed"}),
    (better_kept(0.6), {*OVER_TOO_EARLY, "nothing_better_is_kept"}),
    (better_kept(0.5), OVER_TOO_EARLY),
    (better_kept(0.6, "unreadable"), OVER_TOO_EARLY),
    (better_kept(0.6, "no model"), OVER_TOO_EARLY),
    (published_without_a_command, {"one_model_is_published_at_a_time"}),
    (published_by_nobody, {"one_model_is_published_at_a_time"}),
    (published_though_the_store_gives_none, {"one_model_is_published_at_a_time"}),
    (asked_while_it_ends, {"what_is_wanted_may_run"}),
    (awaits_a_release, {"targets_and_claims_agree", "what_is_under_way_is_awaited"}),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_is_wrong_breaks_the_invariants_that_are_about_it(
    number: int, facts: MakeFacts, pytestconfig: pytest.Config
) -> None:
    breaks, broken = BROKEN[number]
    state = Pair(facts).run().state
    assert violations(state) == []
    breaks(state)
    lines = violations(state)
    assert {line.partition(":")[0] for line in lines} == broken
    shown = [f"{number} {line.partition('{')[0].rstrip()}" for line in lines]  # sets have no order
    kept = FILE.read_text().splitlines() if FILE.exists() else []
    if pytestconfig.getoption("rewrite"):
        kept = [line for line in kept if not line.startswith(f"{number} ")] + shown
        kept.sort(key=lambda line: int(line.partition(" ")[0]))
        FILE.write_text("".join(f"{line}\n" for line in kept))
    assert shown == [line for line in kept if line.startswith(f"{number} ")]
