"""A run whose events a test makes by hand; the policy is asked for real, and answers before
anything else.

The one rule: what is returned is all that was decided, of the event and of the answers after it.
"""

from __future__ import annotations

from seerd.core.asking import Asking, outlined
from seerd.core.commands import AnyCommand
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent, PolicyAnswered, RunFacts, RunResumed
from seerd.core.plans import Order
from seerd.core.reconcile import reconcile
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, step, unfinished
from seerd.planner.model import View


def begun(facts: RunFacts) -> State:
    """Before the first event of a run that was planned."""
    return new_state(outlined(facts))


def decide(state: State, event: AnyEvent) -> list[AnyDecision]:
    """Step, and answer every question at once."""
    decided = step(state, event)
    while state.plan.question is not None:
        decided += step(state, answer(state))
    return decided


def handle(state: State, event: AnyEvent) -> list[AnyCommand]:
    """The commands of it; after a restart with those that were under way."""
    before = unfinished(state) if isinstance(event, RunResumed) else []
    commands = commands_of(decide(state, event))
    return [command for command in before if command.id in state.under_way] + commands


def answer(state: State) -> PolicyAnswered:
    """What the policy says to the question that is open."""
    plan = state.plan
    asking = Asking(state.facts.problem, plan.memory, Order(plan.order))
    found = asking.ask(View(state.now, state.facts.mode, state.trials))
    return PolicyAnswered(
        at=state.now, question=plan.question or "", plan=found.plan, memory=found.memory
    )


def reconciled_again(state: State) -> list[AnyDecision]:
    """What is asked for if all trials and instances are looked at once more: nothing may be."""
    assert not state.agenda.hold, "no plan is about to come, for which everything would wait"
    state.agenda.touched = dict.fromkeys(state.trials)
    state.agenda.idle = dict.fromkeys(state.fleet.instances)
    state.agenda.refit = True
    return reconciled(state)


def reconciled(state: State) -> list[AnyDecision]:
    """What is asked for now, written down."""
    asked: list[AnyDecision] = []
    for decision in reconcile(state):
        asked.append(decision)
        enact(state, decision)
    return asked
