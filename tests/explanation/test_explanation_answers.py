"""What the policy answered: adopted in part, declined, with a note; told as it was recorded."""

from __future__ import annotations

import msgspec
import pytest

from seerd.core.asking import Asking, outlined
from seerd.core.commands import Launch
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    InstanceReady,
    PolicyAnswered,
    PolicyFailed,
    RunFacts,
    RunStarted,
    TimerFired,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from seerd.core.plans import New, Order, PlanChange, Put
from seerd.core.state import State, new_state
from seerd.core.step import AskingAgain, DecidingAgain, follow, step
from seerd.planner.memory import Memory
from seerd.planner.model import Allocation, NewTrial, Plan, Problem, View
from seerd.telling.explanation.pages import lines_of, timeline_page
from seerd.telling.explanation.sentences import sentence
from seerd.telling.explanation.timeline import Timeline
from tests.explanation.timelines import MakeFacts, explanations_of, printed

FIRST = PlanChange(
    put=(Put("t0001", 1, 0, None, 0), Put("t0002", 1, 0, None, 1)),
    new=(New("t0001", {"lr": 0.5}), New("t0002", {"lr": 0.4})),
    ask_at_s=20.0,
    ask_on_end=False,
    note="two to begin with",
)
WRONG = PlanChange(put=(Put("t0001", 0, 0, None, 0),))


class Daemon:
    """Steps by hand, with the journal that they leave."""

    def __init__(self, facts: RunFacts) -> None:
        self.state = new_state(facts)
        self.journal: list[tuple[AnyEvent, list[AnyDecision]]] = []
        self.facts = 0
        self.tell(RunStarted(at=0.1, facts=facts))

    def tell(self, event: AnyEvent) -> None:
        self.journal.append((event, step(self.state, event)))

    def fact(self, kind: type[AnyEvent], at: float, **what: object) -> None:
        self.facts += 1
        seen = {"instance": "m", "fact": self.facts, "happened": at, "attempt": 1}
        self.tell(kind(at=at, **seen, **what))  # type: ignore[arg-type]

    def answer(self, at: float, plan: PlanChange) -> None:
        self.tell(PolicyAnswered(at=at, question=self.question, plan=plan))

    @property
    def question(self) -> str:
        assert self.state.plan.question is not None
        return self.state.plan.question

    def fire(self, at: float) -> None:
        assert self.state.clock.timer is not None
        self.tell(TimerFired(at=at, command=self.state.clock.timer.id))

    def train(self) -> None:
        """Both trials run, until they must be compared."""
        self.answer(0.5, FIRST)
        launch = next(one.id for one in self.state.under_way.values() if isinstance(one, Launch))
        self.tell(InstanceReady(at=1.0, command=launch, instance="m", gpus=8, running_since=0.6))
        for pid, trial in enumerate(("t0001", "t0002"), 1):
            self.fact(TrialStarted, 1.1, trial=trial, pid=pid)
            self.fact(TrialReported, 5.0, trial=trial, reports=1, metric=0.5, unit_s=1.0)
        self.fire(20.0)

    def end(self, trial: str, at: float) -> None:
        """Its script ends by itself."""
        self.fact(TrialExited, at, trial=trial, cause="finished", code=0)


@pytest.fixture
def daemon(facts: MakeFacts) -> Daemon:
    return Daemon(outlined(facts()))


def told(daemon: Daemon) -> tuple[State, Timeline]:
    state, timeline = new_state(daemon.state.facts), Timeline()
    for event, decided in daemon.journal:
        timeline.read(state, event, decided)
    return state, timeline


def test_a_plan_is_told_with_its_note_and_why_it_was_asked_for(daemon: Daemon) -> None:
    daemon.train()
    daemon.answer(20.1, PlanChange(ask_at_s=40.0))
    _, timeline = told(daemon)
    first, second = explanations_of(timeline, "planned")
    assert (first.because, first.note, first.new) == ("began", "two to begin with", 2)
    assert sentence(first, "m").endswith("2 new configurations; two to begin with")
    assert (second.because, second.trial, second.dropped) == ("clock", None, ())


def test_trials_that_had_ended_before_the_answer_came_are_told(daemon: Daemon) -> None:
    daemon.train()
    daemon.end("t0001", 20.05)
    daemon.answer(20.1, PlanChange(put=(Put("t0001", 2, 0, None, 0),), ask_at_s=40.0))
    _, timeline = told(daemon)
    late = explanations_of(timeline, "planned")[-1]
    assert late.dropped == ("t0001",)
    assert "t0001 had ended meanwhile, left out" in sentence(late, "m")
    lines = [text for _, text in lines_of([late], lambda one: "m")]
    assert lines == [sentence(late, "m")], "other plans are told by what followed from them"
    daemon.answer(20.2, PlanChange(ask_at_s=40.0))
    assert explanations_of(told(daemon)[1], "planned")[-1].because == "untrue"


def test_an_answer_that_was_of_no_use_is_told_with_its_mistake(daemon: Daemon) -> None:
    daemon.train()
    daemon.answer(20.1, WRONG)
    daemon.fire(21.2)
    daemon.tell(PolicyFailed(at=21.3, question=daemon.question, why="KeyError: 'lr'"))
    state, timeline = told(daemon)
    first, second = explanations_of(timeline, "declined")
    assert (first.detail, first.failures, first.stands) == ("it gives t0001 0 GPUs", 1, True)
    assert (second.failures, second.again_s) == (2, pytest.approx(22.3))
    page = " ".join(printed(timeline_page(timeline, state)).split())
    said = "the policy gave no plan that can be used: it gives t0001 0 GPUs; the last plan stands"
    assert said in page
    assert "(2nd time in a row): KeyError: 'lr'" in page
    assert not explanations_of(timeline, "ended"), "whoever was wanted still is"


def test_before_the_first_plan_there_is_none_that_stands(daemon: Daemon) -> None:
    daemon.answer(0.5, WRONG)
    state, timeline = told(daemon)
    (declined,) = explanations_of(timeline, "declined")
    assert not declined.stands
    assert "there is no plan yet" in sentence(declined, "m")
    assert [(chapter.stage, chapter.end) for chapter in timeline.chapters] == [(None, False)]
    assert "the run, 0.1s to 0.5s" in printed(timeline_page(timeline, state))
    daemon.fire(1.6)
    daemon.answer(1.7, FIRST)
    (chapter,) = told(daemon)[1].chapters
    assert (chapter.stage, chapter.start_s) == (0, 0.1)
    assert sum(group.trials for group in chapter.groups) == 2


def test_reasons_are_those_that_were_recorded_whatever_the_rules_are_now(daemon: Daemon) -> None:
    daemon.train()
    daemon.answer(20.1, WRONG)
    event, (declined, *others) = daemon.journal[-1]
    other = msgspec.structs.replace(declined, why="as ever", failures=7, again_s=99.0)
    daemon.journal[-1] = event, [other, *others]
    (explanation,) = explanations_of(told(daemon)[1], "declined")
    assert (explanation.detail, explanation.failures, explanation.again_s) == ("as ever", 7, 99.0)


# ------------------------------------------------------------ asking again


def counting(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """As many trials as it has been asked; it wants to be asked every second."""
    asked = int(memory.values.get("asked", 0)) + 1  # type: ignore[arg-type]
    names = tuple(f"t{number:04d}" for number in range(1, asked + 1))
    plan = Plan(
        tuple(Allocation(name, 1) for name in names),
        new=(NewTrial(names[-1], {"lr": 0.5}),),
        ask_at_s=view.now_s + 1,
    )
    return plan, memory.after({"asked": asked})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often what the policy is asked with was made, by how many trials its plan had then."""
    from seerd.core import asking, step

    orders: list[int] = []

    class Noting(asking.Asking):
        def __init__(self, problem: Problem, memory: dict, order: list) -> None:
            orders.append(len(order))
            super().__init__(problem, memory, order, plan=counting)  # type: ignore[arg-type]

    monkeypatch.setattr(step, "Asking", Noting)
    return orders


def asked_often(facts: RunFacts, times: int) -> Daemon:
    """A run of the policy above."""
    daemon, asking = Daemon(outlined(facts)), Asking(facts.problem, {}, Order(), plan=counting)
    for second in range(1, times + 1):
        answer = asking.ask(View(daemon.state.now, facts.mode, daemon.state.trials))
        question = daemon.question
        event = PolicyAnswered(at=float(second), question=question, plan=answer.plan)
        daemon.tell(msgspec.structs.replace(event, memory=answer.memory))
        daemon.fire(daemon.state.clock.timer.due)  # type: ignore[union-attr]
    return daemon


def test_what_the_policy_is_asked_with_is_kept_for_as_long_as_it_answers_the_same(
    facts: MakeFacts, made: list[int]
) -> None:
    daemon = asked_often(facts(), 5)
    state, again = new_state(daemon.state.facts), DecidingAgain()
    for event, decided in daemon.journal:
        again.follow(state, event, decided)
    assert again.difference is None
    assert made == [0]


def test_it_is_made_anew_of_what_was_recorded_after_an_answer_that_was_declined(
    facts: MakeFacts, made: list[int]
) -> None:
    daemon = asked_often(facts(), 3)
    daemon.tell(PolicyFailed(at=daemon.state.now, question=daemon.question, why="none"))
    daemon.fire(daemon.state.now + 2)
    state, asking = new_state(daemon.state.facts), AskingAgain()
    for event, decided in daemon.journal:
        assert asking.compare(event) is None
        follow(state, event, decided)
        asking.ask(state, event, decided)
    assert made == [0, 3]
