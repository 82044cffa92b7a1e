"""What a policy answers is what the journal gives back, and what it remembers is what it is asked
with.
"""

from __future__ import annotations

import pytest

from bench.testbed.policy_world import problem
from seerd.core.asking import Asking, PlanFunction, why
from seerd.core.plans import New, Order, PlanChange, Put
from seerd.planner.memory import Json, Memory
from seerd.planner.model import Allocation, NewTrial, Plan, Problem, View

VIEW = View(0.0, "max", {})


def remembering(changes: dict[str, Json], seen: list[Memory]) -> PlanFunction:
    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        seen.append(memory)
        return Plan(), memory.after(changes)

    return plan


def asking(plan: PlanFunction, order: Order | None = None) -> Asking:
    return Asking(problem(), {}, Order() if order is None else order, plan=plan)


def test_plans_follow_each_other() -> None:
    plans = [
        Plan(
            (Allocation("t1", 1), Allocation("t2", 1)), new=(NewTrial("t1", {}), NewTrial("t2", {}))
        ),
        Plan((Allocation("t1", 1), Allocation("t2", 1))),
        Plan((Allocation("t2", 2),)),
    ]
    order = Order()
    one = asking(lambda problem, memory, view: (plans.pop(0), memory), order)
    put = (Put("t1", 1, 0, None, 0), Put("t2", 1, 0, None, 1))
    assert one.ask(VIEW).plan == PlanChange(put=put, new=(New("t1", {}), New("t2", {})))
    assert one.ask(VIEW).plan == PlanChange()
    assert one.ask(VIEW).plan == PlanChange(gone=("t1",), put=(Put("t2", 2, 0, None, -1),))
    assert tuple(order) == (Allocation("t2", 2),)


def test_a_memory_that_is_given_back_as_it_was_has_no_changes() -> None:
    memories = [Memory({"a": 1}, {"a": 1})]
    one = asking(lambda problem, memory, view: (Plan(), memories.pop() if memories else memory))
    assert one.ask(VIEW).memory == {"a": 1}
    assert one.ask(VIEW).memory == {}


def test_what_is_set_to_nothing_is_forgotten() -> None:
    seen: list[Memory] = []
    one = Asking(problem(), {"a": 1, "b": 2}, Order(), plan=remembering({"a": None}, seen))
    assert one.ask(VIEW).memory == {"a": None}
    one.ask(VIEW)
    assert [memory.values for memory in seen] == [{"a": 1, "b": 2}, {"b": 2}]


def test_a_plan_with_a_trial_twice_is_no_answer() -> None:
    plan = Plan((Allocation("t1", 1), Allocation("t1", 1)))
    order = Order([Allocation("t0", 1)])
    one = asking(lambda problem, memory, view: (plan, memory.after({"a": 1})), order)
    with pytest.raises(ValueError, match="trial twice"):
        one.ask(VIEW)
    assert tuple(order) == (Allocation("t0", 1),)


def test_why_says_where_and_is_not_endless() -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("x" * 10_000)
    told = why(caught.value)
    assert "core/test_asking.py, line " in told
    assert len(told) < 2100
    assert why(ValueError("never raised")) == "ValueError: never raised"
