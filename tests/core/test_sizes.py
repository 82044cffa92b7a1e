"""Runs whose instances come in several sizes: a launch asks for at most so many GPUs, and the rest
is asked for once the cloud has answered with fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from seerd.core.commands import AnyCommand, Launch, StartTrial, StopTrial, Terminate
from seerd.core.events import (
    InstanceAwaited,
    InstanceReady,
    LaunchRefused,
    TrialExited,
    TrialStarted,
)
from seerd.core.state import LIVE, Trial
from seerd.planner.model import ClusterFacts
from seerd.telling.run_json import ledger
from tests.core.test_provisioning import Cloud, MakeFacts

DEAREST = 1.0  # USD for a GPU and hour, with which the run was planned
PLENTY = {"budget_gpu_s": 100_000.0, "cost_usd": 100.0}


class SeveralSizes(Cloud):
    """A run of twelve trials of one GPU that prefers instances of four."""

    def answer(self, launch: Launch, at: float, gpus: int) -> list[Launch]:
        """EC2 answers with an instance of so many GPUs; return what is asked for then."""
        name, usd = f"c{launch.id}", 0.5 * gpus
        event = InstanceAwaited(
            at=at, command=launch.id, instance=name, what="launched", usd_per_h=usd, gpus=gpus
        )
        return self.launches(self.tell(event))

    def ready(self, launch: str, at: float, gpus: int) -> list[AnyCommand]:
        """This launch's instance is ready, and its trials start."""
        event = InstanceReady(
            at=at, command=launch, instance=f"i{launch}", gpus=gpus, running_since=at
        )
        commands = self.tell(event)
        for start in commands:
            if isinstance(start, StartTrial):
                of = {"trial": start.trial, "attempt": start.attempt, "pid": 1}
                self.fact(TrialStarted, start.instance, at, **of)
        return commands

    def answer_all(self, launches: Sequence[Launch], at: float, gpus: int) -> dict[str, int]:
        """EC2 answers these and all that follow with instances of so many GPUs."""
        came, left = dict[str, int](), list(launches)
        while left:
            launch = left.pop()
            came[launch.id] = gpus
            left += self.answer(launch, at, gpus)
        return came

    def finish(self, trial: Trial) -> list[AnyCommand]:
        """A trial ends by itself; return what is decided about the others."""
        of = {"trial": trial.id, "attempt": trial.attempt, "cause": "finished", "code": 0}
        commands = self.fact(TrialExited, where(trial), 70.0, **of)
        return [one for one in commands if isinstance(one, StopTrial | Terminate)]

    @property
    def live_gpus(self) -> int:
        return sum(i.gpus for i in self.state.fleet.instances.values() if i.phase in LIVE)

    @property
    def busy_gpus(self) -> int:
        return sum(len(instance.busy) for instance in self.state.fleet.instances.values())


def run_of(
    facts: MakeFacts, *others: int, preferred: int = 4, **limits: float | None
) -> SeveralSizes:
    cluster = {
        "usd_per_gpu_h": DEAREST,
        "gpus_per_instance": preferred,
        "other_sizes": others,
    }
    return SeveralSizes(facts, cluster, **{**PLENTY, **limits})


def where(trial: Trial) -> str:
    """The instance of a trial."""
    assert trial.held is not None
    return trial.held[0].node


def sizes(launches: Sequence[Launch]) -> list[int]:
    return [launch.gpus for launch in launches]


def test_what_comes_smaller_is_asked_for_again_until_all_trials_have_room(facts: MakeFacts) -> None:
    run = run_of(facts, 1)
    assert sizes(run.open) == [4, 4, 4]
    first, *others = run.open
    assert run.answer(first, 1.0, 4) == []
    (more,) = run.answer(others[0], 1.0, 1)
    assert more.gpus == 4, "three GPUs are missing, and the preferred type may be there again"
    came = run.answer_all([more, others[1]], 2.0, 1)
    assert run.live_gpus == 12, "never more than the trials need"
    for launch in (others[0].id, *came):
        run.ready(launch, 5.0, 1)
    run.ready(first.id, 6.0, 4)
    assert run.busy_gpus == 12


def test_each_gpu_is_charged_as_its_own_instance_costs(facts: MakeFacts) -> None:
    run = run_of(facts, 1)
    first, second, _ = run.open
    run.answer(first, 1.0, 1)
    run.answer(second, 1.0, 4)
    run.ready(first.id, 20.0, 1)
    run.ready(second.id, 20.0, 4)
    rows = {row["what"]: row for row in ledger(run.state, 3620.0)["charges"]}
    assert rows[f"i{first.id}"]["usd"] == pytest.approx(0.5)
    assert rows[f"i{second.id}"]["usd"] == pytest.approx(2.0)
    assert rows[f"i{first.id}"]["gpu_min"] == pytest.approx(60.0)


def test_until_ec2_has_answered_the_most_that_may_come_is_set_aside(facts: MakeFacts) -> None:
    run = run_of(facts, 1, max_gpus=12)
    before = run.state.ledger.spent_gpu_s(0.0)
    assert before == pytest.approx(12 * 60.0)
    run.answer(run.open[0], 1.0, 1)
    spent = run.state.ledger.spent_gpu_s(1.0)
    unanswered = sum(i.gpus for i in run.state.fleet.instances.values() if i.awaited is None)
    assert spent == pytest.approx((1 + unanswered) * 60.0)


def test_a_larger_instance_than_needed_is_asked_for_only_by_a_run_that_has_none(
    facts: MakeFacts,
) -> None:
    run = run_of(facts, 8, preferred=1)
    assert sizes(run.open) == [8, 1, 1, 1, 1], "twelve are missing"
    first, *rest = run.open
    for launch in rest:
        run.answer(launch, 1.0, 1)
    assert run.answer(first, 1.0, 8) == []
    other = run_of(facts, 16, preferred=1)
    assert sizes(other.open) == [1] * 12
    for launch in other.open:
        event = LaunchRefused(at=1.0, command=launch.id, why="no capacity", retry=True)
        other.tell(event)
    again = other.launches(other.wake())
    assert sizes(again) == [16]
    assert other.answer(again[0], 90.0, 16) == []
    alone = run_of(facts, 16, preferred=1, max_gpus=15)
    assert sizes(alone.open) == [1] * 12
    for launch in alone.open:
        alone.tell(LaunchRefused(at=1.0, command=launch.id, why="no capacity", retry=True))
    assert set(sizes(alone.launches(alone.wake()))) == {1}, "no more GPUs than the user allows"


def test_where_the_limits_allow_no_large_instance_small_ones_are_asked_for(
    facts: MakeFacts,
) -> None:
    run = run_of(facts, 1, max_gpus=6)
    assert sizes(run.open) == [4, 1, 1]
    poor = run_of(facts, 1, budget_gpu_s=200.0, cost_usd=None)
    assert set(sizes(poor.open)) == {1}


def test_what_no_trial_needs_any_more_is_given_back(facts: MakeFacts) -> None:
    run = run_of(facts, 1)
    first, *others = run.open
    run.answer(first, 1.0, 4)
    for launch, gpus in {first.id: 4, **run.answer_all(others, 1.0, 1)}.items():
        run.ready(launch, 5.0, gpus)
    four, trials = f"i{first.id}", list(run.state.trials.values())
    assert run.busy_gpus == 12
    on_four = [trial for trial in trials if where(trial) == four]
    on_others = [trial for trial in trials if where(trial) != four]
    stops = [stop for trial in (*on_four[1:], on_others[-1]) for stop in run.finish(trial)]
    while stops:
        stop = stops.pop()
        commands = run.exit(stop, 71.0) if isinstance(stop, StopTrial) else []
        stops += [one for one in commands if isinstance(one, StopTrial)]
    assert (run.live_gpus, len(run.state.plan.wanted)) == (8, 8)


@pytest.mark.parametrize(
    ("others", "wanted", "fitting"),
    [((1,), 7, 4), ((1,), 3, 3), ((1,), 8, 8), ((2,), 3, 2), ((8,), 6, 4), ((), 7, 7)],
)
def test_a_trial_has_as_many_gpus_as_any_type_can_give(
    others: tuple[int, ...], wanted: int, fitting: int
) -> None:
    cluster = replace(ClusterFacts("rented", 4), other_sizes=others)
    assert cluster.fitting(wanted) == fitting
