"""Reports, saves, crashes, obstacles and ends in any order: the best saved model is handed back,
and who is given up, or which run ends early, follows from what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.events import TrialCheckpointed, TrialExited, TrialReported, TrialStarted
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.metrics import incumbent
from seerd.core.plans import New, PlanChange, Put
from seerd.core.verdicts import Closing
from seerd.planner.model import MetricConstraint
from tests.conftest import small_facts
from tests.core.test_answers import Run, of
from tests.examples import few

NAMES = ("a", "b", "c")
SMALL = MetricConstraint("latency", "<", 1.0)
METRIC = st.one_of(st.none(), st.sampled_from([0.1, 0.5, 0.9]))
OBSTACLES = ("address", "device", "lock", "network")


def actions(*kinds: str) -> st.SearchStrategy[tuple[str, str, float | None, float]]:
    """What happens, to which trial, with which metric and latency."""
    return st.tuples(
        st.sampled_from(kinds), st.sampled_from(NAMES), METRIC, st.sampled_from([0.5, 2.0])
    )


@dataclass
class Eventful:
    """A run of three trials, to which anything happens; `saved` has what counts of each save."""

    mode: str = "max"
    run: Run = field(init=False)
    saved: list[float] = field(default_factory=list)
    saves: int = 0

    def __post_init__(self) -> None:
        facts = small_facts(mode=self.mode, deadline_s=3600.0, budget_gpu_s=40000.0)
        self.run = Run(msgspec.structs.replace(facts, constraints=(SMALL,)))
        new = tuple(New(name, {"lr": 0.2 + 0.3 * n}) for n, name in enumerate(NAMES))
        put = tuple(Put(name, 1, 0, None, n) for n, name in enumerate(NAMES))
        self.run.answer(PlanChange(new=new, put=put))
        self.run.come()

    def do(self, kind: str, name: str, metric: float | None, latency: float) -> list[Any]:
        """Let it happen, if it can; the policy asks for nothing more."""
        run = self.run
        if run.state.phase is not RunPhase.RUNNING:
            return []
        if kind == "wake":
            return run.wake() if run.state.clock.timer is not None else []
        trial = run.trial(name)
        if trial.start_command is not None:
            run.fact(TrialStarted, name, pid=7)
        if trial.held is None:
            return []
        decided = self._tell(kind, name, metric, latency)
        if run.state.plan.question is not None:
            decided += run.answer(PlanChange())
        return decided

    def _tell(self, kind: str, name: str, metric: float | None, latency: float) -> list[Any]:
        run, trial = self.run, self.run.trial(name)
        if kind == "report":
            others, reports = {"latency": latency}, trial.reports + 1
            return run.fact(
                TrialReported, name, reports=reports, metric=metric, others=others, unit_s=0.1
            )
        if kind == "save":
            return self._save(name)
        if kind == "finish":
            return run.exit(name, "finished")
        tail = ("ValueError: no",)
        obstacle = kind if kind in OBSTACLES else None
        ended = {"cause": "crashed", "code": 1, "rank": 0, "tail": tail, "obstacle": obstacle}
        return run.fact(TrialExited, name, **ended)

    def _save(self, name: str) -> list[Any]:
        trial, self.saves = self.run.trial(name), self.saves + 1
        reported = trial.others.get(trial.reports, {}).get("accuracy", trial.metric)
        if trial.metric is not None:
            self.saved.append(trial.metric)
        made = {"name": f"{self.saves:06d}", "sha256": "0" * 64, "size": 1, "save_s": 0.1}
        return self.run.fact(
            TrialCheckpointed, name, reports=trial.reports, metric=reported, **made
        )


ANYTHING = st.lists(
    actions("report", "report", "save", "crash", "finish", "wake", *OBSTACLES), max_size=50
)


@settings(max_examples=few(150), deadline=None)
@given(ANYTHING, st.sampled_from(["max", "min"]))
def test_the_best_saved_model_is_handed_back_whatever_became_of_its_trial(
    happens: list[tuple[str, str, float | None, float]], mode: str
) -> None:
    world = Eventful(mode)
    for action in happens:
        world.do(*action)
        found = incumbent(world.run.state)
        best = (max if mode == "max" else min)(world.saved, default=None)
        assert (None if found is None else found.metric) == best
        if found is not None:
            held = [t for t in world.run.state.trials.values() if t.phase is not TrialPhase.FAILED]
            alike = [t for t in held if any(one.metric == best for one in t.checkpoints)]
            assert not alike or world.run.trial(found.trial) in alike


@settings(max_examples=few(150), deadline=None)
@given(ANYTHING)
def test_who_has_come_further_since_its_last_crash_is_not_given_up(
    happens: list[tuple[str, str, float | None, float]],
) -> None:
    world, crashed = Eventful(), dict.fromkeys(NAMES, -1)
    for kind, name, *rest in happens:
        trial = world.run.trial(name)
        further = trial.reports > crashed[name] and trial.phase is not TrialPhase.FAILED
        world.do(kind, name, *rest)
        if kind == "crash":
            assert trial.phase is not TrialPhase.FAILED or not further
            crashed[name] = max(crashed[name], trial.reports)


@settings(max_examples=few(150), deadline=None)
@given(st.lists(actions("report", "save", "wake", *OBSTACLES), max_size=60))
def test_what_is_in_the_way_uses_up_no_trial_that_has_reported(
    happens: list[tuple[str, str, float | None, float]],
) -> None:
    """A trial alone that is always stopped, while others report, is the exception."""
    world = Eventful()
    for action in happens:
        alone = [t for t in world.run.state.trials.values() if t.phase is not TrialPhase.FAILED]
        world.do(*action)
        assert len([t for t in alone if t.phase is TrialPhase.FAILED]) <= 1
    for trial in world.run.state.trials.values():
        blocked = world.run.state.rules.max_blocks + world.run.state.rules.max_crashes
        assert trial.phase is not TrialPhase.FAILED or len(trial.blocked_s) > blocked


@settings(max_examples=few(40), deadline=None)
@given(st.sampled_from(OBSTACLES), st.permutations(NAMES))
def test_a_run_in_whose_way_something_always_is_ends_in_words(why: str, order: list[str]) -> None:
    world, said = Eventful(), []
    for _ in range(200):
        for name in order:
            said += of(Closing, world.do(why, name, None, 0.5))
        said += of(Closing, world.do("wake", "a", None, 0.5))
        if said:
            break
    assert [one.why for one in said] == ["alike"]
    assert said[0].detail.startswith("something was always in the way of the trials: ended with")
    assert world.run.at <= 3600 / 10 + 120
    assert not any(trial.crashes for trial in world.run.state.trials.values())


@pytest.mark.parametrize("proof", [True, False])
@given(order=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
@settings(max_examples=20, deadline=None)
def test_a_job_ends_early_if_and_only_if_nothing_shows_that_its_script_works(
    proof: bool, order: list[str]
) -> None:
    world = Eventful()
    if proof:
        world.do("report", order[0], 0.5, 0.5)
        world.do("save", order[0], None, 0.5)
    for _ in range(3):
        for name in (*order, *NAMES):
            world.do("crash", name, None, 0.5)
    assert (world.run.state.end.why == "alike") is not proof
