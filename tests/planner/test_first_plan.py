"""Every policy's first plan, however late it is asked for: a cloud that does not answer may hold a
run up beyond its first stage.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.planner.memory import Memory
from seerd.planner.model import Limits, PolicyParams, Problem, View
from seerd.planner.policies import POLICIES
from seerd.planner.policy import plan_of
from seerd.planner.space import Parameter, Space

DEADLINE_S = 60.0
SPACE = Space((Parameter("lr", low=0.1, high=0.9),))


@pytest.mark.parametrize("name", POLICIES)
@given(at_s=st.floats(0.0, 1.5 * DEADLINE_S))
def test_it_wants_only_trials_that_are_new_and_not_out(name: str, at_s: float) -> None:
    params = PolicyParams(
        name=name, eta=2, nu=2, p_max=2, t_min_s=5.0, seed=3, min_reports=1, max_reports=8
    )
    made = Problem(Limits(DEADLINE_S, 600.0, 8), SPACE, params)
    plan, _ = plan_of(made, Memory(), View(at_s, "max", {}))
    new = [trial.id for trial in plan.new]
    wanted = [allocation.trial for allocation in plan.allocations]
    assert len(set(new)) == len(new)
    assert set(wanted) <= set(new) - set(plan.eliminated)
    assert set(plan.eliminated) <= set(new)
    assert wanted or plan.done or plan.ask_at_s is not None
    if at_s == 0.0:
        assert wanted
