"""Whatever goes wrong in a run, its explanation can be told: nothing raises, the stages cost what
the ledger says, every trial has its reason.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seerd.core.events import RunFacts
from seerd.core.lifecycle import TrialPhase
from seerd.core.step import DecidingAgain
from seerd.planner.policies import POLICIES
from seerd.telling.explanation.as_json import fates, moment_json, timeline_json, trial_json
from seerd.telling.explanation.pages import moment_page, timeline_page, trial_page
from seerd.telling.explanation.timeline import costs
from tests.conftest import small_facts
from tests.examples import few
from tests.explanation.timelines import explanations_of, printed, replayed, timeline_of
from tests.properties.test_core_properties import ALL_BUT_BOHB, faulty_world

MakeFacts = Callable[..., RunFacts]
ENDS = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@example(4588, "seer")
@settings(max_examples=few(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9), st.sampled_from(ALL_BUT_BOHB))
def test_every_run_can_be_told(seed: int, policy: str) -> None:
    assert policy in POLICIES
    world = faulty_world(seed, small_facts, [policy])
    state, timeline = timeline_of(world)
    beside = timeline_json(*reversed(replayed(world, DecidingAgain().follow)), "done")
    assert beside == timeline_json(timeline, state, "done"), (
        "deciding again beside it changes nothing"
    )
    told = costs(timeline, state, state.now)
    assert float(sum(part.billed for part in told)) == pytest.approx(
        state.ledger.spent_gpu_s(state.now), abs=1e-6
    )
    for one in (one for part in told for one in part.instances):
        assert one.billed >= 0
        assert one.starting <= one.held + 1e-6
        assert one.held <= float(one.billed) + 1e-6, "no trial holds what is not billed"
    assert len(explanations_of(timeline, "closing")) == 1 + sum(
        c.end and c.times > 1 for c in timeline.chapters
    )
    assert explanations_of(timeline, "over")
    for trial in state.trials.values():
        became, why = fates(timeline, state)[trial.id]
        assert why
        assert trial.phase not in ENDS or became == ENDS[trial.phase]
    for attempt in timeline.attempts.all:
        assert attempt.ended is not None
        assert attempt.ended_s is not None
        assert attempt.started.at_s <= attempt.ended_s <= state.now
    printed(timeline_page(timeline, state))
    timeline_json(timeline, state, "done")
    for trial in list(state.trials.values())[:5]:
        life = trial_json(trial, timeline, state)
        printed(trial_page(life))
    printed(moment_page(moment_json(state.now, timeline, state), state))
