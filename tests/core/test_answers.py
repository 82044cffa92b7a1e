"""What a policy answers: taken if it can be the plan, declined with a sentence if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace as changed
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.testbed.invariants import violations
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.commands import (
    AskPolicy,
    Command,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    ModelPublished,
    PolicyAnswered,
    PolicyFailed,
    RunFacts,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import close_at, shortest_s
from seerd.core.plans import New, PlanChange, Put
from seerd.core.rules import RULES
from seerd.core.state import State, Trial, new_state
from seerd.core.step import follow, step, unfinished
from seerd.core.verdicts import Adopted, Closing, Declined
from seerd.planner.model import Allocation
from seerd.planner.space import Config
from seerd.telling.complaints import notes_of
from tests.by_hand import begun
from tests.conftest import small_facts
from tests.examples import few
from tests.properties.test_core_properties import recorded

MakeFacts = Callable[..., RunFacts]
LR: Config = {"lr": 0.5}
STAYS = -1
FIRST = PlanChange(
    new=(New("a", LR), New("b", LR), New("c", LR), New("out", LR)),
    put=(Put("a", 2, 0, None, 0), Put("b", 1, 0, None, 1), Put("c", 1, 0, 2, 2)),
    ask_at_s=20.0,
)
"""Three trials that run, one that does not: it has no place in the order."""


class Run:
    """A run on one instance, whose policy says what a test makes it say; after each event the
    invariants hold.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.state: State = begun(facts)
        self.journal: list[tuple[AnyEvent, list[AnyDecision]]] = []
        self.at = 0.0
        self.tell(RunStarted(at=0.0, facts=self.state.facts))

    def tell(self, event: AnyEvent) -> list[AnyDecision]:
        decided = step(self.state, event)
        self.journal.append((event, decided))
        assert violations(self.state) == []
        return decided

    @property
    def question(self) -> str:
        """The one that is open."""
        assert self.state.plan.question is not None
        return self.state.plan.question

    def answer(self, plan: PlanChange, **memory: Any) -> list[AnyDecision]:
        said = {"question": self.question, "plan": plan, "memory": memory}
        return self.tell(PolicyAnswered(at=self.at, **said))

    def fail(self) -> list[AnyDecision]:
        return self.tell(PolicyFailed(at=self.at, question=self.question, why="it was killed"))

    def wake(self) -> list[AnyDecision]:
        """The timer fires when it is due."""
        assert self.state.clock.timer is not None
        self.at = max(self.at, self.state.clock.timer.due)
        return self.tell(TimerFired(at=self.at, command=self.state.clock.timer.id))

    def come(self) -> list[AnyDecision]:
        """The instance is there."""
        (launch,) = (c for c in self.state.under_way.values() if isinstance(c, Launch))
        common = {"command": launch.id, "instance": "i", "gpus": launch.gpus}
        return self.tell(InstanceReady(at=self.at, running_since=self.at, **common))

    def fact(self, kind: type, name: str, /, **fields: Any) -> list[AnyDecision]:
        """The agent says this of a trial's present attempt."""
        seen, trial = self.state.fleet.instances["i"].seen, self.state.trials[name]
        common = {"at": self.at, "happened": self.at, "instance": "i", "fact": seen + 1}
        own = {"trial": name, "attempt": trial.attempt}
        return self.tell(kind(**common | own | fields))

    def train(self, name: str, reports: int = 1) -> list[AnyDecision]:
        """It reports, for the first time since it was started."""
        self.fact(TrialStarted, name, pid=7)
        self.fact(TrialTraining, name, reports=0)
        decided: list[AnyDecision] = []
        for epoch in range(1, reports + 1):
            decided += self.fact(TrialReported, name, reports=epoch, metric=0.5, unit_s=0.1)
        return decided

    def save(self, name: str) -> None:
        made = {"name": "000001", "reports": 1, "metric": 0.5, "sha256": "0" * 64, "size": 1}
        self.fact(TrialCheckpointed, name, **made, save_s=0.1)

    def exit(self, name: str, cause: str = "asked") -> list[AnyDecision]:
        return self.fact(TrialExited, name, cause=cause, code=0)

    def trial(self, name: str) -> Trial:
        return self.state.trials[name]

    def read(self) -> State:
        """As the journal gives it back, from the disk and without a rule."""
        state = new_state(self.state.facts, None)  # type: ignore[arg-type]
        for event, decided in self.journal:
            again = decode_decisions(encode_decisions(decided))
            follow(state, decode_event(encode_event(event)), again)
        return state


@pytest.fixture
def run(facts: MakeFacts) -> Run:
    """Its first plan is in force, its trials run, and the next question is open, at 20 s."""
    made = Run(facts())
    made.answer(FIRST, seen=1)
    made.come()
    for name in ("a", "b", "c"):
        made.train(name)
    assert of(AskPolicy, made.wake()) == [AskPolicy(id=made.question, why="clock")]
    assert made.at == 20.0
    return made


def of(kind: type, decided: list[AnyDecision]) -> list[Any]:
    return [one for one in decided if isinstance(one, kind)]


def plan_of(state: State) -> tuple[object, ...]:
    """What stands until another plan is adopted."""
    plan = state.plan
    return tuple(plan.order), dict(plan.wanted), plan.last, dict(plan.memory), sorted(state.trials)


# ---------------------------------------------------------------- mistakes

ANOTHER = "it changes another plan than the present one"
MISTAKES = [
    (PlanChange(new=(New("a", LR),)), "it asks for a as a new trial, and there is one"),
    (
        PlanChange(new=(New("d", LR), New("d", LR))),
        "it asks for d as a new trial, and there is one",
    ),
    (PlanChange(gone=("d",)), "it names d, and there is no such trial"),
    (PlanChange(eliminated=("d",)), "it names d, and there is no such trial"),
    (PlanChange(put=(Put("d", 1, 0, None, 0),)), "it names d, and there is no such trial"),
    (PlanChange(new=(New("d", {"lr": float("nan")}),)), "it wants to try lr = nan with d"),
    (PlanChange(put=(Put("a", 0, 0, None, STAYS),)), "it gives a 0 GPUs"),
    (PlanChange(put=(Put("a", -2, 0, None, STAYS),)), "it gives a -2 GPUs"),
    (
        PlanChange(put=(Put("a", 12, 0, None, STAYS),)),
        "it gives a 12 GPUs, and a trial that is larger than an instance takes whole ones of 8",
    ),
    (
        PlanChange(put=(Put("a", 2, 0, 0, STAYS),)),
        "it wants to be asked when a has made 0 reports",
    ),
    (PlanChange(gone=("a", "a")), ANOTHER),
    (PlanChange(gone=("a",), put=(Put("a", 1, 0, None, STAYS),)), ANOTHER),
    (PlanChange(gone=("out",)), ANOTHER),
    (PlanChange(put=(Put("out", 1, 0, None, STAYS),)), ANOTHER),
    (PlanChange(put=(Put("out", 1, 0, None, 4),)), ANOTHER),
    (PlanChange(put=(Put("out", 1, 0, None, -2),)), ANOTHER),
    (PlanChange(put=(Put("a", 1, 0, None, 3),)), ANOTHER),
    (PlanChange(put=(Put("b", 1, 0, None, 1), Put("a", 1, 0, None, 0))), ANOTHER),
    (PlanChange(put=(Put("b", 1, 0, None, 1), Put("a", 1, 0, None, 1))), ANOTHER),
    (
        PlanChange(ask_at_s=20.0),
        "it wants to be asked again at 20s, and it was asked at 20s",
    ),
    (
        PlanChange(ask_at_s=float("nan")),
        "it wants to be asked again at nans, and it was asked at 20s",
    ),
    (
        PlanChange(ask_at_s=float("inf"), done=True),
        "it wants to be asked again at infs, and it was asked at 20s",
    ),
    (PlanChange(stage=-1), "it speaks of stage 0 of 2"),
    (PlanChange(stage=2), "it speaks of stage 3 of 2"),
]


@pytest.mark.parametrize(("change", "why"), MISTAKES)
def test_a_mistake_is_declined_with_a_sentence_and_the_last_plan_stands(
    run: Run,
    change: PlanChange,
    why: str,
) -> None:
    before, phases = plan_of(run.state), [trial.phase for trial in run.state.trials.values()]
    asked = run.question
    (declined,) = of(Declined, decided := run.answer(change, seen=2))
    again_s = 20.0 + RULES.ask_again_s
    assert declined == Declined(question=asked, why=why, failures=1, again_s=again_s)
    assert decided[0] is declined
    assert plan_of(run.state) == before
    assert [trial.phase for trial in run.state.trials.values()] == phases
    assert not of(StopTrial, decided)
    said = f"the policy gave no plan that can be used: {why}; the last one stands"
    assert notes_of(run.state) == [said]


def test_a_question_that_another_daemon_asks_again_is_of_the_moment_at_which_it_is(
    run: Run,
) -> None:
    """Its view is of that moment, so no answer may want to be asked before."""
    run.tell(RunResumed(at=30.0, alive=("i",)))
    (declined,) = of(Declined, run.answer(PlanChange(ask_at_s=30.0)))
    assert declined.why == "it wants to be asked again at 30s, and it was asked at 30s"


GOOD = [
    PlanChange(),
    PlanChange(ask_at_s=20.5, stage=1),
    PlanChange(ask_at_s=3.0, done=True),
    PlanChange(put=(Put("out", 1, 0, None, 3),)),
    PlanChange(put=(Put("a", 8, 0, 1, 2),)),
    PlanChange(gone=("a", "b", "c"), put=(Put("out", 16, 0, None, 0),)),
    PlanChange(
        new=(New("d", {"lr": 1, "kind": "x", "yes": True}),),
        put=(Put("d", 8, 0, None, 0),),
    ),
]


@pytest.mark.parametrize("change", GOOD)
def test_what_is_no_mistake_is_the_plan(run: Run, change: PlanChange) -> None:
    """Each lies beside a mistake."""
    asked = run.question
    decided = run.answer(change)
    assert decided[0] == Adopted(question=asked)
    assert run.state.plan.last == change
    assert notes_of(run.state) == []


TOO_MANY = [
    (PlanChange(put=(Put("a", 1, 0, None, STAYS), Put("b", 2, 0, None, STAYS))), []),
    (PlanChange(gone=("b", "c"), put=(Put("a", 4, 0, None, STAYS),)), []),
    (
        PlanChange(put=(Put("b", 5, 0, None, STAYS),)),
        ["it gives b 5 GPUs, and there may be 4"],
    ),
    (
        PlanChange(put=(Put("b", 2, 0, None, STAYS),)),
        ["it gives its trials 5 GPUs together, and there may be 4"],
    ),
]
"""Where the plan before gives its trials four together."""


@pytest.mark.parametrize(("change", "why"), TOO_MANY)
def test_trials_get_no_more_gpus_than_there_may_be(
    facts: MakeFacts, change: PlanChange, why: list[str]
) -> None:
    """Neither one of them nor all together, beside those that the answer leaves as they were."""
    run = Run(facts(max_gpus=4))
    run.answer(FIRST)
    run.come()
    run.wake()
    assert [one.why for one in of(Declined, run.answer(replace(change, ask_at_s=30.0)))] == why
    run.wake()
    one_more = PlanChange(new=(New("d", LR),), put=(Put("d", 1, 0, None, 0),))
    assert [one.why for one in of(Declined, run.answer(one_more))] == [
        "it gives its trials 5 GPUs together, and there may be 4"
    ]


def test_the_first_answer_may_be_a_mistake_too(facts: MakeFacts) -> None:
    run = Run(facts())
    run.answer(PlanChange(gone=("a",)))
    assert of(AskPolicy, run.wake()) == [AskPolicy(id=run.question, why="again")]
    run.answer(FIRST)
    assert sorted(run.state.plan.wanted) == ["a", "b", "c"]


# ---------------------------------------------------------------- again, and again


def test_after_a_failure_it_is_asked_again_by_the_timer_and_not_before(run: Run) -> None:
    assert not of(AskPolicy, run.fail())
    assert run.state.clock.timer is not None
    assert run.state.clock.timer.due == run.at + RULES.ask_again_s
    run.at += RULES.ask_again_s / 2
    assert not of(AskPolicy, run.exit("b", "finished")), "what happens meanwhile does not hasten it"
    asked = run.wake()
    assert run.at == 20.0 + RULES.ask_again_s
    assert next(type(one) for one in of(Command, asked)) is AskPolicy
    assert run.state.plan.question == run.state.plan.asked


def test_the_person_is_told_once_of_failures_in_a_row(run: Run) -> None:
    run.fail()
    run.wake()
    run.fail()
    assert len(notes_of(run.state)) == 1
    run.wake()
    run.answer(PlanChange(ask_at_s=30.0))
    run.wake()
    run.fail()
    assert len(notes_of(run.state)) == 2


def test_an_answer_between_failures_begins_the_count_anew(run: Run) -> None:
    for _ in range(3):
        for _ in range(RULES.max_failures - 1):
            run.fail()
            run.wake()
        run.answer(PlanChange(ask_at_s=run.at + 2.0))
        assert run.state.plan.failures == 0
        run.wake()
    assert run.state.phase is RunPhase.RUNNING


def test_three_failures_in_a_row_end_the_run_with_the_best_model(run: Run) -> None:
    run.save("a")
    for _ in range(RULES.max_failures - 1):
        assert not of(Closing, run.fail())
        run.wake()
    (closing,) = of(Closing, decided := run.fail())
    assert (closing.status, closing.why) == ("failed", "policy")
    assert {stop.trial for stop in of(StopTrial, decided)} == {"a", "b", "c"}
    last = [one for name in ("a", "b", "c") for one in run.exit(name)]
    (publish,) = of(Publish, last)
    assert publish.trial == "a"
    run.tell(ModelPublished(at=run.at, command=publish.id, path="best"))
    (end,) = of(Terminate, last)
    over = run.tell(InstanceTerminated(at=run.at, command=end.id, instance="i"))
    assert [one.status for one in of(Finish, over)] == ["failed"]
    assert run.state.result.published is not None
    assert (run.state.end.status, run.state.end.why) == ("failed", "policy")


# ---------------------------------------------------------------- too late


def unchanged(run: Run, event: AnyEvent) -> bool:
    """Whether it leaves everything but the clock and the count of events as it was."""
    before, timer = deepcopy(recorded(run.state)), run.state.clock.timer
    assert run.tell(event) == []
    return recorded(run.state) == before | {"clock": changed(run.state.clock, timer=timer)}


WILD = PlanChange(gone=("a", "b", "c"), eliminated=("out",), note="too late")


def test_an_answer_to_an_old_question_changes_nothing(run: Run) -> None:
    old = run.question
    run.answer(PlanChange(ask_at_s=30.0))
    assert unchanged(run, PolicyAnswered(at=21.0, question=old, plan=WILD, memory={"x": 1}))
    run.wake()
    assert run.question != old
    assert unchanged(run, PolicyAnswered(at=31.0, question=old, plan=WILD, memory={"x": 1}))
    assert unchanged(run, PolicyFailed(at=32.0, question=old, why="too late"))
    assert of(Adopted, run.answer(PlanChange())), "the open one still has its answer"


def test_an_answer_while_the_run_closes_changes_nothing(run: Run) -> None:
    asked = run.question
    run.tell(StopAsked(at=21.0))
    assert run.state.phase is RunPhase.CLOSING
    assert asked not in run.state.under_way
    assert unchanged(run, PolicyAnswered(at=21.1, question=asked, plan=WILD))
    assert unchanged(run, PolicyFailed(at=21.2, question=asked, why="too late"))


def test_an_open_question_does_not_delay_the_end(run: Run) -> None:
    assert of(Closing, run.wake())
    assert run.state.plan.question is None
    assert run.at == pytest.approx(close_at(run.state))
    assert run.state.phase is RunPhase.CLOSING


def test_an_answer_past_the_limit_does_not_delay_the_end(run: Run) -> None:
    """The timer that is set for the limit is due, whatever the answer wants."""
    run.at = close_at(run.state) + 0.5
    run.answer(PlanChange(ask_at_s=run.at + 9.0))
    now = run.at
    assert of(Closing, run.wake())
    assert run.at == now


def test_a_trial_that_is_over_is_asked_for_by_no_plan_after_the_end(run: Run) -> None:
    run.tell(StopAsked(at=21.0))
    assert (run.state.plan.wanted, list(run.state.plan.order)) == ({}, [])
    assert all(trial.gpus == 0 for trial in run.state.trials.values())


# ---------------------------------------------------------------- what has become untrue


def quiet(facts: RunFacts) -> Run:
    """It does not want to be asked when a trial ends; a question is open, of a report of `c`."""
    run = Run(facts)
    run.answer(replace(FIRST, ask_on_end=False))
    run.come()
    run.fact(TrialStarted, "a", pid=6)
    (asked,) = of(AskPolicy, run.train("c", 2))
    assert asked == AskPolicy(id=run.question, why="reports", trial="c")
    return run


@pytest.mark.parametrize(("reports", "phase"), [(1, TrialPhase.FINISHED), (0, TrialPhase.FAILED)])
def test_what_became_untrue_meanwhile_is_dropped_and_asked_again(
    facts: MakeFacts, reports: int, phase: TrialPhase
) -> None:
    run = quiet(facts())
    run.fact(TrialTraining, "a", reports=0)
    for _ in range(reports):
        run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=0.1)
    run.exit("a", "finished")
    assert run.trial("a").phase is phase
    asked = run.question
    change = PlanChange(put=(Put("a", 4, 0, None, STAYS), Put("out", 1, 0, None, 1)))
    decided = run.answer(change, seen=2)
    assert decided[0] == Adopted(question=asked, dropped=("a",))
    assert of(AskPolicy, decided) == [AskPolicy(id=run.question, why="untrue")]
    assert run.state.plan.memory == {"seen": 2}
    assert sorted(run.state.plan.wanted) == ["b", "c", "out"]
    assert (run.trial("a").gpus, run.trial("a").target) == (0, None)
    assert not of(Declined, decided)


def test_what_an_answer_leaves_as_it_was_needs_no_second_one(facts: MakeFacts) -> None:
    """The trial that has ended is not in it: nothing in it is untrue."""
    run = quiet(facts())
    run.exit("a", "finished")
    asked = run.question
    decided = run.answer(PlanChange(ask_on_end=False))
    assert decided[0] == Adopted(question=asked)
    assert not of(AskPolicy, decided)
    assert sorted(run.state.plan.wanted) == ["b", "c"]


@pytest.mark.parametrize("named", [False, True])
def test_who_is_eliminated_is_wanted_no_more_and_may_keep_its_place(run: Run, named: bool) -> None:
    """Other policies may say both; whoever is out gets no GPU, and keeps none from others."""
    put = (Put("b", 1, 0, None, STAYS),) if named else ()
    (stop,) = of(StopTrial, run.answer(PlanChange(put=put, eliminated=("b",), stage=1)))
    assert (stop.trial, stop.why, stop.checkpoint) == ("b", "out", False)
    assert sorted(run.state.plan.wanted) == ["a", "c"]
    assert (run.trial("b").gpus, run.trial("b").target) == (0, None)
    run.exit("b")
    assert run.trial("b").phase is TrialPhase.ELIMINATED
    assert run.state.aims.sizes.total() == 2


@pytest.mark.parametrize(("name", "gone"), [("b", True), ("b", False), ("out", True)])
def test_who_is_out_comes_back_by_no_later_plan(run: Run, name: str, gone: bool) -> None:
    """Whether its attempt has ended by then, or is ending, or it never had one."""
    run.answer(PlanChange(eliminated=(name,), gone=("b",), stage=1, ask_at_s=30.0))
    if gone:
        run.exit("b")
    run.wake()
    asked = run.question
    decided = run.answer(PlanChange(put=(Put(name, 1, 0, None, 2),), ask_at_s=40.0))
    assert decided[0] == Adopted(question=asked, dropped=(name,))
    assert not of(StartTrial, decided)
    assert (run.trial(name).gpus, run.trial(name).status) == (0, "eliminated")
    assert name not in run.state.plan.wanted


def test_what_the_policy_forgets_is_not_given_back_to_it(run: Run) -> None:
    run.answer(PlanChange(ask_at_s=30.0), more=[1])
    assert run.state.plan.memory == {"seen": 1, "more": [1]}
    run.wake()
    run.answer(PlanChange(ask_at_s=40.0), seen=None)
    assert run.state.plan.memory == {"more": [1]}


def test_what_was_declined_is_read_without_a_rule(run: Run) -> None:
    run.fail()
    assert recorded(run.read()) == recorded(run.state)


# ---------------------------------------------------------------- one question at a time


def test_what_happens_while_a_question_is_open_makes_one_more(run: Run) -> None:
    asked = run.question
    told = run.fact(TrialReported, "c", reports=2, metric=0.5, unit_s=0.1)
    told += run.exit("a", "finished") + run.exit("b", "finished")
    assert not of(AskPolicy, told)
    assert run.question == asked
    decided = run.answer(PlanChange(ask_at_s=30.0))
    assert len(of(AskPolicy, decided)) == 1
    assert not of(AskPolicy, run.answer(PlanChange(ask_at_s=30.0)))
    assert run.state.plan.question is None


def test_while_a_question_is_open_nothing_new_is_begun_and_room_waits_for_the_answer(
    run: Run,
) -> None:
    """What has just become free may be wanted otherwise."""
    run.answer(PlanChange(put=(Put("out", 8, 0, None, 3),), ask_at_s=30.0))
    run.wake()
    freed = run.exit("a", "finished") + run.exit("b", "finished") + run.exit("c", "finished")
    assert not [command for command in of(Command, freed) if not isinstance(command, SetTimer)]
    decided = run.answer(PlanChange(put=(Put("out", 4, 0, None, STAYS),), ask_at_s=40.0))
    assert [(len(start.gpus), start.trial) for start in of(StartTrial, decided)] == [(4, "out")]


def test_an_instance_may_come_while_a_resumed_run_waits_for_its_policy(facts: MakeFacts) -> None:
    """It has been asked for by the daemon before, and has another name by the time of the
    answer.
    """
    run = Run(facts(billing="rented", gpus=4, budget_gpu_s=2000.0))
    run.answer(PlanChange(new=(New("a", LR),), put=(Put("a", 4, 0, None, 0),), ask_at_s=20.0))
    run.wake()
    run.tell(RunResumed(at=run.at, alive=()))
    asked = run.question
    assert not of(Command, run.come())
    assert run.question == asked
    (start,) = of(StartTrial, run.answer(PlanChange(ask_at_s=30.0)))
    assert start.trial == "a"
    run.wake()
    assert of(StopTrial, run.answer(PlanChange(gone=("a",), ask_at_s=40.0)))
    assert [end.instance for end in of(Terminate, run.exit("a"))] == ["i"]


def test_an_instance_that_came_and_is_not_wanted_any_more_is_given_back(facts: MakeFacts) -> None:
    """The same, and the answer wants nothing."""
    run = Run(facts(billing="rented", gpus=4, budget_gpu_s=2000.0))
    run.answer(PlanChange(new=(New("a", LR),), put=(Put("a", 4, 0, None, 0),), ask_at_s=20.0))
    run.wake()
    run.tell(RunResumed(at=run.at, alive=()))
    run.come()
    ends = of(Terminate, run.answer(PlanChange(gone=("a",), ask_at_s=30.0)))
    assert [end.instance for end in ends] == ["i"]


def test_what_is_lost_while_a_question_is_open_is_replaced_by_the_last_plan(
    facts: MakeFacts,
) -> None:
    """Whatever the answer will be: most of it is wanted by then, too."""
    run = Run(facts(billing="rented", gpus=4, budget_gpu_s=2000.0))
    run.answer(PlanChange(new=(New("a", LR),), put=(Put("a", 4, 0, None, 0),), ask_at_s=20.0))
    run.come()
    run.wake()
    asked = run.question
    lost = run.tell(InstanceLost(at=21.0, instance="i", why="power failure"))
    assert [launch.why for launch in of(Launch, lost)] == ["replacement"]
    assert run.question == asked


def test_a_moment_that_is_past_sets_no_timer_while_the_question_is_open(run: Run) -> None:
    """Or it would fire for ever, and be asked for ever."""
    state = run.state
    assert state.plan.last.ask_at_s == run.at
    assert state.clock.timer is not None
    assert state.clock.timer.due == pytest.approx(close_at(state))
    run.answer(PlanChange(ask_at_s=30.0))
    assert state.clock.timer is not None
    assert state.clock.timer.due == 30.0


def test_an_answer_that_comes_later_than_it_wanted_to_be_asked_again_is_followed_by_a_question(
    run: Run,
) -> None:
    """Or a slow policy would never be asked by the clock any more."""
    run.at = 25.0
    assert not of(AskPolicy, run.answer(PlanChange(ask_at_s=22.0)))
    assert of(AskPolicy, run.wake()) == [AskPolicy(id=run.question, why="clock")]
    assert run.at == 25.0


def test_a_run_ends_at_once_when_nothing_trains_and_nothing_can_be_started_any_more(
    run: Run,
) -> None:
    """It does not wait for its deadline in silence."""
    run.answer(PlanChange(ask_at_s=1e6))
    for name in ("a", "b", "c"):
        run.exit(name, "finished")
    while run.state.plan.question is not None:
        run.answer(PlanChange(ask_at_s=1e6))
    assert run.state.phase is RunPhase.RUNNING
    decided = run.wake()
    assert run.at == pytest.approx(close_at(run.state) - shortest_s(run.state))
    assert run.at < close_at(run.state)
    assert len(of(Closing, decided)) == 1


def test_a_run_in_which_a_trial_trains_goes_on_until_it_must_close(run: Run) -> None:
    run.answer(PlanChange(ask_at_s=1e6))
    assert not of(Closing, run.wake()) or run.at == pytest.approx(close_at(run.state))
    assert run.at == pytest.approx(close_at(run.state))


# ---------------------------------------------------------------- what is under way


def test_of_two_stops_of_an_attempt_the_second_is_under_way(run: Run) -> None:
    first = of(StopTrial, run.tell(StopAsked(at=21.0)))
    second = of(StopTrial, run.tell(StopAsked(at=21.5, hard=True)))
    assert [stop.trial for stop in first] == [stop.trial for stop in second] == ["a", "b", "c"]
    assert not any(stop.checkpoint for stop in second)
    assert of(StopTrial, unfinished(run.state)) == second


def test_of_two_timers_the_second_is_under_way(run: Run) -> None:
    run.answer(PlanChange(ask_at_s=30.0))
    assert [timer.due for timer in of(SetTimer, unfinished(run.state))] == [30.0]


def test_a_launch_that_was_called_off_is_under_way_no_more(facts: MakeFacts) -> None:
    run = Run(facts(billing="rented", gpus=4, budget_gpu_s=2000.0))
    run.answer(PlanChange(new=(New("a", LR),), put=(Put("a", 4, 0, None, 0),), ask_at_s=20.0))
    (launch,) = of(Launch, unfinished(run.state))
    (end,) = of(Terminate, run.tell(StopAsked(at=1.0)))
    assert end.instance == launch.id
    assert [one for one in unfinished(run.state) if not isinstance(one, SetTimer)] == [end]


def test_a_daemon_that_takes_up_a_run_moves_nothing(run: Run) -> None:
    """Whoever runs where it should goes on there, beside GPUs that are free."""
    run.answer(PlanChange(ask_at_s=30.0))
    run.exit("b", "finished")
    run.answer(PlanChange(ask_at_s=30.0))
    run.state = run.read()
    run.state.rules = RULES
    decided = run.tell(RunResumed(at=25.0, alive=("i",)))
    assert not of(StopTrial, decided)
    assert not of(StartTrial, decided)
    assert {name for name, trial in run.state.trials.items() if trial.held} == {"a", "c"}


# ---------------------------------------------------------------- whatever it says

NAMES = st.sampled_from(["a", "b", "c", "out", "d", "e"])
NUMBERS = st.sampled_from([1, 1, 2, 4, 8, 16]) | st.integers(-1, 20)
PUTS = st.builds(Put, NAMES, NUMBERS, st.just(0), st.none() | st.integers(0, 4), st.integers(-2, 5))
MOMENTS = st.none() | st.floats() | st.floats(0, 70)
CHANGES = st.builds(
    PlanChange,
    gone=st.lists(NAMES, max_size=2).map(tuple),
    put=st.lists(PUTS, max_size=3).map(tuple),
    new=st.lists(NAMES.map(lambda name: New(name, LR)), max_size=1).map(tuple),
    eliminated=st.lists(NAMES, max_size=1).map(tuple),
    stage=st.integers(-1, 2) | st.just(0),
    ask_at_s=MOMENTS,
    hold_gpus=st.integers(-9, 99),
    ask_on_end=st.booleans(),
    done=st.sampled_from([False] * 5 + [True]),
    note=st.sampled_from(["", "so"]),
)
LIKELY = st.builds(
    lambda names, gpus: (names, gpus),
    st.lists(NAMES, unique=True, max_size=4),
    st.sampled_from([1, 2, 4, 8]),
)
"""Who shall run: made into a change of the present plan."""
HAPPENS = st.sampled_from(["wake", "come", "train", "finish", "crash", "fail"])
MOVES = st.lists(CHANGES | LIKELY | HAPPENS, min_size=1, max_size=14)


def towards(state: State, names: list[str], gpus: int) -> PlanChange:
    """The change that makes these the plan."""
    put = tuple(Put(name, gpus, 0, None, place) for place, name in enumerate(names))
    gone = tuple(one.trial for one in state.plan.order if one.trial not in names)
    new = tuple(New(name, LR) for name in names if name not in state.trials)
    return PlanChange(gone=gone, put=put, new=new)


def answered(run: Run, change: PlanChange) -> None:
    """Adopted or declined, before anything else."""
    before, asked = plan_of(run.state), run.question
    verdict = run.answer(change)[0]
    assert isinstance(verdict, Adopted | Declined)
    assert verdict.question == asked
    if isinstance(verdict, Declined) and run.state.phase is RunPhase.RUNNING:
        assert plan_of(run.state) == before
    if isinstance(verdict, Adopted) and run.state.phase is RunPhase.RUNNING:
        wanted = {one.trial: one for one in run.state.plan.order}
        assert run.state.plan.wanted.items() <= wanted.items()
        assert all(run.trial(name).status == "live" for name in run.state.plan.wanted)


def happen(run: Run, what: str) -> None:
    """If it can."""
    running = [t.id for t in run.state.trials.values() if t.held is not None]
    if what == "come" and any(isinstance(c, Launch) for c in run.state.under_way.values()):
        if "i" not in run.state.fleet.instances:
            run.come()
    elif what == "wake" and run.state.clock.timer is not None:
        run.wake()
    elif what == "fail" and run.state.plan.question is not None:
        run.fail()
    elif what == "train" and running:
        run.train(running[0], 3)
    elif what in ("finish", "crash") and running:
        run.exit(running[-1], {"finish": "finished", "crash": "crashed"}[what])


@given(MOVES)
@settings(max_examples=few(100), deadline=None)
def test_whatever_it_answers_the_run_goes_on_and_can_be_read(
    moves: list[PlanChange | tuple[list[str], int] | str],
) -> None:
    run = Run(small_facts())
    for move in moves:
        if isinstance(move, str):
            happen(run, move)
        elif run.state.plan.question is not None:
            change = towards(run.state, *move) if isinstance(move, tuple) else move
            answered(run, change)
    assert recorded(run.read()) == recorded(run.state)


@given(st.lists(LIKELY, min_size=1, max_size=8), st.booleans())
@settings(max_examples=few(60), deadline=None)
def test_a_change_towards_a_plan_is_that_plan(
    plans: list[tuple[list[str], int]],
    come: bool,
) -> None:
    """Other than `whatever it answers`, all of these are adopted."""
    run = Run(small_facts())
    for number, (names, gpus) in enumerate(plans):
        change = towards(run.state, names, gpus)
        answered(run, replace(change, ask_at_s=run.at + 1.0))
        assert list(run.state.plan.order) == [Allocation(name, gpus, 0, None) for name in names]
        if number == 0 and come and names:
            run.come()
        run.wake()
    assert recorded(run.read()) == recorded(run.state)


# ---------------------------------------------------------------- shortly before the end


def shortly_before_the_end(run: Run) -> None:
    run.at = close_at(run.state) - shortest_s(run.state) / 2


def test_nobody_is_stopped_for_a_trial_that_may_not_be_started_any_more(facts: MakeFacts) -> None:
    run = quiet(facts())
    shortly_before_the_end(run)
    change = PlanChange(
        gone=("a", "c"), new=(New("d", {"lr": 0.1}),), put=(Put("d", 4, 0, None, 0),)
    )
    assert not of(StopTrial, run.answer(change))
    assert run.trial("a").held
    assert run.trial("c").held
    run.at = close_at(run.state)
    stops = of(StopTrial, run.wake())
    assert {(stop.trial, stop.why) for stop in stops} >= {("a", "closing"), ("c", "closing")}


def test_a_run_ends_at_once_when_nothing_runs_and_nothing_may_be_started_any_more(
    facts: MakeFacts,
) -> None:
    run = quiet(facts())
    run.answer(PlanChange(ask_on_end=False))
    shortly_before_the_end(run)
    names = [trial.id for trial in run.state.trials.values() if trial.held]
    for name in names:
        assert run.state.phase is RunPhase.RUNNING
        decided = run.exit(name)
    assert [one.why for one in of(Closing, decided)] == ["late"]
