"""Each invariant is broken where a state is wrong in just that, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from seerd.core.events import RunFacts
from seerd.core.invariants import EPSILON_S, violations
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.placement import Slots
from seerd.core.state import State
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
    state.clock.heard_at = state.clock.now + 0.001


def before_the_run(state: State) -> None:
    state.clock.heard_at = -0.001


def a_number_below_zero(state: State) -> None:
    state.clock.given = -1


def the_first_moment(state: State) -> None:
    state.clock.heard_at, state.clock.given = 0.0, 0


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
]


@pytest.mark.parametrize(("breaks", "broken"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_wrong_breaks_the_invariants_that_are_about_it(
    breaks: Callable[[State], None], broken: set[str], facts: MakeFacts
) -> None:
    state = Pair(facts).run().state
    assert violations(state) == []
    breaks(state)
    assert {line.partition(":")[0] for line in violations(state)} == broken
