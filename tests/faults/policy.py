"""The policy beside the daemon: the real ones, asked by somebody who is late, mute, mad or dead.

The one rule: a question is what was so when it was noted, and nothing of the run is shared with
whoever answers; it lives and dies with its coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from seerd.core.asking import Answer, Asking, PlanFunction
from seerd.core.plans import Order, PlanChange
from seerd.errors import PolicyError
from seerd.planner.memory import Memory
from seerd.planner.model import Plan, Problem, Report, TrialStatus, View
from seerd.planner.space import Config
from tests.faults.nonsense import Question, nonsense
from tests.faults.training import Shared
from tests.faults.versions import Version, planning

LIMIT_S = 10.0
"""As that of `seerd.shell.policy.PolicyProcess`."""
LATE, SILENT, RAISES, DIES = "policy late", "policy silent", "policy raises", "policy dies"
TALKS_NONSENSE = "policy talks nonsense"
FAULTS = (LATE, SILENT, RAISES, DIES, TALKS_NONSENSE)
GREEDY = "policy greedy"
BROKEN = "policy broken"
"""For a while no answer is of any use."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial as it was: a `seerd.planner.model.TrialView`."""

    id: str
    config: Config
    status: TrialStatus
    history: tuple[Report, ...]
    failing: bool = False

    @property
    def reports(self) -> int:
        """How many times it had reported."""
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        """That of its last report."""
        return self.history[-1].metric if self.history else None


@dataclass(slots=True)
class Said:
    """What the policies of a run have said, all of them together.

    meant     the configurations of trials that they have asked for, by name
    nonsense  answers that must not become the plan
    """

    meant: dict[str, list[Config]] = field(default_factory=dict)
    nonsense: list[PlanChange] = field(default_factory=list)

    def means(self, plan: PlanChange) -> None:
        """This is one that may become the plan."""
        for new in plan.new:
            self.meant.setdefault(new.trial, []).append(new.config)

    def is_nonsense(self, plan: PlanChange) -> bool:
        """Whether it is one of those."""
        return any(plan is one for one in self.nonsense)


@dataclass(frozen=True, slots=True)
class Noted:
    """A question, with everything that whoever answers it may know."""

    view: View
    memory: dict[str, Any]
    order: Order


class VirtualAsker:
    """A `PolicyProcess` whose answers take virtual time."""

    def __init__(
        self,
        problem: Problem,
        version: Version,
        stages: Callable[[], int],
        shared: Shared,
        said: Said,
    ) -> None:
        self._problem = problem
        self._plan = self._perhaps_greedy(planning(version, shared.chance.injected))
        self._stages = stages
        self._shared = shared
        self._said = said
        self._noted: Noted | None = None
        self._asking: Asking | None = None

    def start(self) -> None:
        """It is there at once."""

    def note(
        self,
        question: str,
        view: View,
        memory: Mapping[str, Any],
        order: Order,
    ) -> None:
        """A copy of all of it."""
        trials = {
            one.id: Seen(one.id, one.config, one.status, tuple(one.history), one.failing)
            for one in view.trials.values()
        }
        self._noted = Noted(replace(view, trials=trials), dict(memory), Order(order))

    async def answer(self) -> Answer:
        """After a while, if at all."""
        noted = self._noted
        assert noted is not None
        chance = self._shared.chance
        fault = self._fault()
        thinks_s = chance.lasts("policy thinks", 0.01, 0.1)
        if fault == LATE:
            thinks_s = chance.dice("policy is late").uniform(0.1, 9.0)
        await asyncio.sleep(LIMIT_S if fault == SILENT else thinks_s)
        if noted is not self._noted:
            raise PolicyError("the policy was given up while it was answering")
        if fault in (SILENT, DIES):
            self._asking = None
            raise PolicyError(f"the policy gave no answer: {fault}")
        if fault == RAISES:
            raise PolicyError("the policy has failed: ZeroDivisionError: division by zero")
        if fault == TALKS_NONSENSE:
            return self._nonsense(noted)
        return self._sense(noted)

    def forget(self) -> None:
        """The last answer is not the plan."""
        self._asking = None

    def change(self, problem: Problem) -> None:
        """If it is another problem, nobody waits for an answer any more."""
        if problem is self._problem:
            return
        self._problem = problem
        self._asking = self._noted = None

    async def close(self) -> None:
        """Nothing of it is left."""

    def _fault(self) -> str | None:
        chance = self._shared.chance
        if chance.during(BROKEN, self._shared.timeline.now):
            return chance.dice(BROKEN).choice(FAULTS[1:])
        return next((fault for fault in FAULTS if chance.hits(fault)), None)

    def _sense(self, noted: Noted) -> Answer:
        """What the real one says."""
        answer = self._ask(noted)
        self._said.means(answer.plan)
        return answer

    def _nonsense(self, noted: Noted) -> Answer:
        """What the real one says, with a mistake in it, and remembered as if it were the plan."""
        sense = self._ask(noted)
        question = Question(noted.view, noted.order, self._problem, self._stages())
        dice = self._shared.chance.dice("nonsense")
        kind, spoiled = nonsense(dice, question, sense)
        self._shared.chance.injected[f"nonsense: {kind}"] += 1
        self._said.nonsense.append(spoiled.plan)
        return spoiled

    def _ask(self, noted: Noted) -> Answer:
        if self._asking is None:
            self._asking = Asking(self._problem, noted.memory, Order(noted.order), plan=self._plan)
        else:
            self._look_in_step(self._asking, noted)
        try:
            return self._asking.ask(noted.view)
        except Exception as error:
            self._shared.wrong.append(f"the policy has raised {error!r}")
            raise PolicyError(f"the policy has failed: {error!r}") from error

    def _perhaps_greedy(self, plan: PlanFunction) -> PlanFunction:
        """Sometimes one trial is to have all the GPUs that there may be, and more instances are to
        be kept than may be there.
        """

        def perhaps_greedy(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
            wanted, after = plan(problem, memory, view)
            if not self._shared.chance.hits(GREEDY):
                return wanted, after
            return greedy(wanted, problem), after

        return perhaps_greedy

    def _look_in_step(self, asking: Asking, noted: Noted) -> None:
        """What whoever answers remembers is what the run remembers."""
        if asking._memory.values != noted.memory:
            self._shared.wrong.append("the policy remembers something else than the run")
        if list(asking._order) != list(noted.order):
            self._shared.wrong.append("the policy goes by another plan than the run")


def greedy(plan: Plan, problem: Problem) -> Plan:
    """The first takes it all."""
    size, most = problem.gpus_per_instance, problem.limits.max_gpus or problem.gpus_per_instance
    all_gpus = most if most <= size else most // size * size
    allocations = tuple(one._replace(gpus=all_gpus) for one in plan.allocations[:1])
    return replace(plan, allocations=allocations, hold_gpus=100 * most)
