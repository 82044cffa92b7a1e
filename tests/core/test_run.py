"""Whole runs through the pure core, in a simulated world: each test is one promise."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.codec import encode_decisions
from seerd.core.commands import Finish, Publish, StartTrial, Status, StopTrial
from seerd.core.events import (
    Checkpoint,
    InstanceLost,
    ModelPublished,
    PublishFailed,
    RunFacts,
    RunResumed,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.core.lifecycle import TrialPhase
from seerd.core.progress import confirm
from seerd.core.rules import RULES
from seerd.core.state import Incumbent, State, Trial
from seerd.core.verdicts import Closing
from seerd.planner.profile import NONE
from seerd.planner.space import Config
from seerd.sim.behaviour import exactly
from seerd.telling.complaints import notes_of
from tests.by_hand import handle, reconciled, reconciled_again

MakeFacts = Callable[..., RunFacts]


def curve(config: Config, epoch: int) -> float | None:
    """The higher `lr`, the better, from the first report on."""
    return float(config["lr"]) * (1 - 0.5**epoch)


PLAIN = Behaviour(metric=curve)


def best_lr(state: State) -> float:
    return max(float(t.config["lr"]) for t in state.trials.values())


def test_a_run_ends_within_its_limits_with_the_best_model(facts: MakeFacts) -> None:
    state = World(facts(), PLAIN).run()
    assert state.end.status == "done"
    assert state.now <= 60.0
    assert state.ledger.spent_gpu_s(state.now) <= 320.0
    assert state.result.published is not None
    winner = state.trials[state.result.published.incumbent.trial]
    assert winner.config["lr"] == best_lr(state)
    assert state.result.published.incumbent.checkpoint.reports == winner.reports


def test_brackets_eliminate_inside_and_the_best_get_more_gpus(facts: MakeFacts) -> None:
    state = World(facts(), PLAIN).run()
    phases = [t.phase for t in state.trials.values()]
    assert phases.count(TrialPhase.ELIMINATED) == 3
    survivors = [t for t in state.trials.values() if t.phase is not TrialPhase.ELIMINATED]
    assert sorted(t.id for t in survivors if t.bracket == 1) == [
        max(survivors, key=lambda t: t.config["lr"]).id
    ]


def test_an_unmoved_trial_is_not_touched_at_a_stage_boundary(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    state = world.run()
    kept = [
        t for t in state.trials.values() if t.phase is not TrialPhase.ELIMINATED and t.attempt == 1
    ]
    assert kept
    for trial in kept:
        stops = [
            c
            for _, commands in world.journal
            for c in commands
            if isinstance(c, StopTrial) and c.trial == trial.id
        ]
        assert len(stops) == 1
        assert stops[0].checkpoint


def test_a_moved_trial_goes_on_from_where_it_saved(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    state = world.run()
    moved = [t for t in state.trials.values() if t.attempt == 2]
    assert moved
    for trial in moved:
        events = [e for e, _ in world.journal if getattr(e, "trial", None) == trial.id]
        last = max(e.reports for e in events if isinstance(e, TrialReported) and e.attempt == 1)
        again = [e.reports for e in events if isinstance(e, TrialTraining) and e.attempt == 2]
        assert again == [last]


@pytest.mark.parametrize(("mode", "target"), [("max", 0.6), ("min", 0.25)])
def test_a_confirmed_checkpoint_that_reaches_the_target_ends_the_run_in_order(
    facts: MakeFacts, mode: str, target: float
) -> None:
    """Reports reach it long before they are saved; they alone do not count."""
    world = World(facts(mode=mode, target=target), PLAIN)
    state = world.run()
    sign = 1 if mode == "max" else -1
    reached, said = (
        next(
            event.at
            for event, _ in world.journal
            if isinstance(event, kind)
            and event.metric is not None
            and sign * event.metric >= sign * target
        )
        for kind in (TrialCheckpointed, TrialReported)
    )
    closed = [e.at for e, decided in world.journal if any(isinstance(d, Closing) for d in decided)]
    assert closed == [reached]
    assert said < reached or mode == "min"
    assert (state.end.status, state.end.why) == ("target", "target")
    assert state.now < 40.0 < state.facts.problem.limits.deadline_s
    assert any(note.startswith("the target was reached: t") for note in notes_of(state))
    assert state.result.published is not None
    assert sign * state.result.published.incumbent.metric >= sign * target
    stops = [d for _, decided in world.journal for d in decided if isinstance(d, StopTrial)]
    assert all(stop.checkpoint for stop in stops if stop.why == "closing")


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_checkpoint_is_kept_beside_the_newest_two_and_handed_back(
    facts: MakeFacts, mode: str
) -> None:
    """Trials are best at their first report, and get worse from then on."""
    sign = 1 if mode == "max" else -1
    world = World(
        facts(mode=mode), Behaviour(metric=lambda config, n: sign * float(config["lr"]) / n)
    )
    state = world.run()
    best = max(sign * e.metric for e, _ in world.journal if isinstance(e, TrialReported))
    assert state.result.published is not None
    told = state.result.published.incumbent
    assert (told.checkpoint.reports, told.metric) == (1, sign * best)
    assert state.trials[told.trial].reports > 10
    for trial in state.trials.values():
        reports = [checkpoint.reports for checkpoint in trial.checkpoints]
        assert len(reports) <= 3
        assert reports[-1] == 1
    again = [d for _, decided in world.journal for d in decided if isinstance(d, StartTrial)]
    for start in (start for start in again if start.attempt > 1):
        assert list(start.checkpoints) == sorted(start.checkpoints, reverse=True), "the newest"


LUCKY = {8: 0.9}
"""A report that is far better than those beside it."""


def lucky(config: Config, report: int) -> float:
    """Rises slowly to lr, but for one lucky report in the middle."""
    return LUCKY.get(report, float(config["lr"]) * report / (report + 20.0))


def test_with_smooth_a_lucky_report_neither_wins_nor_reaches_the_target(facts: MakeFacts) -> None:
    def handed_back(smooth: int) -> tuple[State, Incumbent]:
        behaviour = Behaviour(metric=lucky, saves_every_s=0.0)
        state = World(facts(target=0.8, smooth=smooth), behaviour).run()
        assert state.result.published is not None
        return state, state.result.published.incumbent

    state, best = handed_back(1)
    assert (best.checkpoint.reports, best.metric, state.end.status) == (8, 0.9, "target")
    state, best = handed_back(5)
    config, last = state.trials[best.trial].config, best.checkpoint.reports
    assert last > 12
    assert state.end.status != "target"
    assert best.metric == pytest.approx(sum(lucky(config, last - n) for n in range(5)) / 5)
    assert state.trials[best.trial].history[7].metric == 0.9, "reports stay as they were made"


def test_a_run_that_was_interrupted_at_its_target_is_over_when_it_goes_on(
    facts: MakeFacts,
) -> None:
    """What was saved while it was ending is good enough."""
    world = World(facts(target=0.5), Behaviour(metric=curve, saves_every_s=1000.0))
    world.at(11.0, world.interrupt)
    assert world.run().end.status == "interrupted"
    world.resume()
    state = world.run_on()
    assert state.end.status == "target"
    assert not any(trial.attempt > 1 for trial in state.trials.values())


def test_the_budget_ends_a_run_before_it_is_exceeded(facts: MakeFacts) -> None:
    slow_to_stop = Behaviour(metric=curve, stop=exactly(100.0))
    state = World(facts(budget_gpu_s=320.0), slow_to_stop).run()
    assert state.ledger.spent_gpu_s(state.now) <= 320.0
    assert state.result.published is not None
    state = World(facts(usd_per_gpu_h=3600.0, cost_usd=100.0), slow_to_stop).run()
    assert state.end.status == "budget"
    assert 80.0 < state.ledger.spent_gpu_s(state.now) <= 100.0


def test_money_is_a_budget_too(facts: MakeFacts) -> None:
    state = World(facts(usd_per_gpu_h=3600.0, cost_usd=100.0), PLAIN).run()
    assert state.end.status == "budget"
    assert state.ledger.usd(state.ledger.spent_gpu_s(state.now)) <= 100.0


def test_rented_instances_are_given_back_when_a_stage_needs_fewer(facts: MakeFacts) -> None:
    state = World(
        facts(billing="rented", gpus=4, deadline_s=300.0, budget_gpu_s=1600.0, t_min_s=75.0), PLAIN
    ).run()
    ends = sorted(i.ended_at or 0.0 for i in state.fleet.instances.values())
    assert len(ends) >= 2
    assert ends[0] < 110.0 < 250.0 < ends[-1]
    assert state.ledger.spent_gpu_s(state.now) <= 1600.0


def test_a_crashed_trial_is_restarted_from_its_checkpoint_and_then_fails(facts: MakeFacts) -> None:
    world = World(
        facts(),
        Behaviour(
            metric=curve, crashes=lambda trial, attempt, epoch: trial == "t0001" and epoch == 3
        ),
    )
    state = world.run()
    failed = state.trials["t0001"]
    assert failed.phase is TrialPhase.FAILED
    assert failed.attempt == 2
    assert "exit status 1" in failed.why
    assert failed.tail == ("last line",)
    starts = [
        c
        for _, commands in world.journal
        for c in commands
        if isinstance(c, StartTrial) and c.trial == "t0001"
    ]
    assert [bool(c.checkpoints) for c in starts] == [False, True]


def test_a_trial_that_comes_further_between_its_crashes_is_not_given_up(facts: MakeFacts) -> None:
    """Its script dies after every third report, and saves each of them."""
    world = World(
        facts(),
        Behaviour(
            metric=curve,
            unit_s=lambda *_: 0.3,
            crashes=lambda trial, attempt, epoch: trial == "t0001" and epoch == 3 * attempt + 1,
            saves_every_s=0.0,
        ),
    )
    trial = world.run().trials["t0001"]
    assert trial.phase is not TrialPhase.FAILED
    assert trial.crashes > RULES.max_crashes + 1
    assert trial.in_vain == 1
    assert trial.reports > 3 * RULES.max_crashes


def test_a_trial_that_crashes_all_the_time_is_given_up_however_far_it_comes(
    facts: MakeFacts,
) -> None:
    world = World(
        facts(deadline_s=600.0, budget_gpu_s=3200.0),
        Behaviour(
            metric=curve,
            unit_s=lambda *_: 0.2,
            start=NONE,
            crashes=lambda trial, attempt, epoch: trial == "t0001" and epoch == attempt + 1,
            saves_every_s=0.0,
        ),
    )
    trial = world.run().trials["t0001"]
    assert trial.phase is TrialPhase.FAILED
    assert trial.crashes == RULES.max_burst + 1
    assert (trial.in_vain, trial.reports) == (1, RULES.max_burst + 1)


def test_a_trial_that_takes_machine_after_machine_down_fails_in_the_end(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.begin()
    for losses in range(1, RULES.max_losses + 2):
        while not world.state.trials or (held := world.state.trials["t0001"].held) is None:
            world.turn()
        world.fleet.lose(held[0].node)
        assert world.state.trials["t0001"].losses == losses
    assert world.state.trials["t0001"].phase is TrialPhase.FAILED
    assert "power failure" in world.state.trials["t0001"].why


def again(facts: MakeFacts) -> World:
    """A run whose t0001 has crashed before its fourth report, and trains again from its first, on
    the same instance.
    """
    crashes = lambda trial, attempt, epoch: (trial, attempt, epoch) == ("t0001", 1, 4)  # noqa: E731
    world = World(facts(), Behaviour(metric=curve, crashes=crashes))
    world.begin()
    while not world.state.trials or not (
        world.state.trials["t0001"].attempt == 2 and world.state.trials["t0001"].training_s
    ):
        world.turn()
    return world


def test_reports_that_were_lost_with_an_attempt_do_not_count(facts: MakeFacts) -> None:
    world = again(facts)
    trial = world.state.trials["t0001"]
    assert [
        e.reports for e, _ in world.journal if isinstance(e, TrialReported) and e.trial == "t0001"
    ] == [1, 2, 3]
    assert [report.reports for report in trial.history] == [1]
    tell(world, TrialReported, reports=2, metric=0.2, unit_s=1.0)
    tell(world, TrialReported, reports=3, metric=0.3, unit_s=1.0)
    tell(world, TrialReported, reports=2, metric=0.4, unit_s=1.0)
    assert [(report.reports, report.metric) for report in trial.history][1:] == [(2, 0.4)], (
        "the later word counts"
    )


def test_an_old_attempt_has_nothing_to_say(facts: MakeFacts) -> None:
    world = again(facts)
    trial = world.state.trials["t0001"]
    before = trial.held, list(trial.history), trial.checkpoints
    tell(world, TrialReported, attempt=1, reports=9, metric=0.9, unit_s=1.0)
    tell(
        world,
        TrialCheckpointed,
        attempt=1,
        name="9",
        reports=9,
        metric=0.9,
        sha256="0" * 64,
        size=1,
        save_s=1.0,
    )
    tell(world, TrialTraining, attempt=1, reports=0)
    tell(world, TrialExited, attempt=1, cause="crashed", code=1)
    assert (trial.held, trial.history, trial.checkpoints) == before
    assert trial.crashes == 1


def test_a_fact_that_is_told_again_counts_once(facts: MakeFacts) -> None:
    world = again(facts)
    trial = world.state.trials["t0001"]
    known = [
        e
        for e, _ in world.journal
        if isinstance(e, TrialTraining) and (e.trial, e.attempt) == ("t0001", 2)
    ]
    tell(world, TrialReported, reports=2, metric=0.2, unit_s=1.0)
    handle(world.state, known[-1])
    assert [report.reports for report in trial.history] == [1, 2]


def tell(world: World, kind: type, attempt: int | None = None, **fields: object) -> None:
    """The agent of t0001's instance says so, of its present attempt or an earlier one."""
    trial = world.state.trials["t0001"]
    assert trial.held is not None
    instance = world.state.fleet.instances[trial.held[0].node]
    common = {
        "at": world.now,
        "happened": world.now,
        "instance": instance.id,
        "fact": instance.seen + 1,
        "trial": "t0001",
    }
    handle(world.state, kind(**common, attempt=attempt or trial.attempt, **fields))


def test_when_every_trial_crashes_the_run_ends_early_without_a_model(facts: MakeFacts) -> None:
    state = World(
        facts(), Behaviour(metric=curve, crashes=lambda trial, attempt, epoch: True)
    ).run()
    assert state.end.status == "failed"
    assert state.result.published is None
    assert state.now < 20.0


def test_nan_never_wins(facts: MakeFacts) -> None:
    def diverges(config: Config, epoch: int) -> float | None:
        return None if config["lr"] > 0.5 else curve(config, epoch)

    state = World(facts(), Behaviour(metric=diverges)).run()
    assert state.result.published is not None
    winner = state.trials[state.result.published.incumbent.trial]
    assert winner.config["lr"] <= 0.5


def test_trials_that_end_by_themselves_count(facts: MakeFacts) -> None:
    state = World(facts(), Behaviour(metric=curve, most_reports=5)).run()
    assert {t.phase for t in state.trials.values()} == {TrialPhase.FINISHED}
    assert state.result.published is not None
    assert state.end.status == "done"
    assert state.now < 20.0


def test_trials_of_a_lost_instance_run_again_from_their_checkpoints(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.at(12.0, lambda: world.fleet.lose(next(iter(world.fleet.machines))))
    state = world.run()
    assert state.result.published is not None
    assert len(world.fleet.machines) == 2
    assert all(t.losses == 1 for t in state.trials.values())


def test_an_interrupted_run_saves_and_is_over(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.at(10.0, world.interrupt)
    state = world.run()
    assert state.end.status == "interrupted"
    assert state.now < 12.0
    assert state.result.published is not None
    exits = [e for e, _ in world.journal if isinstance(e, TrialExited)]
    assert {e.cause for e in exits} == {"asked"}
    assert all(t.checkpoints[0].reports == t.reports for t in state.trials.values())


def test_an_interrupted_run_can_be_resumed(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.at(10.0, world.interrupt)
    world.run()
    world.resume()
    assert world.state.plan.wanted, "at once, not only when the next stage begins"
    state = world.run_on()
    assert state.end.status == "done"
    assert state.result.published is not None
    assert best_lr(state) == state.trials[state.result.published.incumbent.trial].config["lr"]


def test_a_second_interrupt_kills(facts: MakeFacts) -> None:
    world = World(facts(), Behaviour(metric=curve, stop=exactly(50.0)))
    world.at(10.0, world.interrupt)
    world.at(10.5, lambda: world.interrupt(hard=True))
    state = world.run()
    assert state.now < 11.5


def test_agents_that_do_not_answer_cannot_hold_up_the_end(facts: MakeFacts) -> None:
    world = World(facts(), Behaviour(metric=curve, deaf=True))
    world.at(10.0, world.interrupt)
    state = world.run()
    assert state.now < 25.0
    assert state.result.published is not None
    assert not state.ledger.open


def test_reconciling_twice_asks_for_nothing_new(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.begin()
    while not world.state.finished:
        world.turn()
        before = encode_decisions(list(world.state.under_way.values()))
        if not world.state.finished:
            assert reconciled_again(world.state) == []
            assert encode_decisions(list(world.state.under_way.values())) == before


def test_gpus_are_given_on_once_the_attempt_that_had_them_has_left(facts: MakeFacts) -> None:
    """An eliminated trial is killed, and another one that is to have its GPUs waits for its end."""
    world = World(facts(), PLAIN)
    world.begin()
    while not world.state.fleet.holding:
        world.turn()
    state = world.state
    old = state.trials["t0001"]
    assert old.held is not None
    old.out = True
    new = state.trials["new"] = Trial("new", old.config, 0, target=old.held)
    for slots in old.held:
        state.fleet.instances[slots.node].claims.update(dict.fromkeys(slots.gpus, new.id))
    state.agenda.touched = dict.fromkeys([new.id, old.id])
    assert [type(command) for command in reconciled(state)] == [StopTrial]
    left = old.held
    tell(world, TrialExited, cause="asked", code=None)
    assert new.held == left


def test_the_same_facts_give_the_same_run(facts: MakeFacts) -> None:
    first, second = World(facts(), PLAIN), World(facts(), PLAIN)
    first.run()
    second.run()
    assert first.journal == second.journal


@pytest.mark.parametrize("down_s", [0.5, 15.0])
def test_a_daemon_killed_at_any_moment_is_resumed_without_loss(
    facts: MakeFacts, down_s: float
) -> None:
    undisturbed = World(facts(), PLAIN)
    configs = [t.config for t in undisturbed.run().trials.values()]
    for seq in range(1 + (down_s > 1.0), len(undisturbed.journal), 3):
        world = World(facts(), PLAIN, kill_after=frozenset({seq}))
        world.down_s = down_s
        state = world.run()
        assert state.result.published is not None, seq
        assert [t.config for t in state.trials.values()] == configs
        assert len(world.fleet.started) == len(set(world.fleet.started)), seq
        assert state.ledger.spent_gpu_s(state.now) <= 320.0


def saved(world: World, name: str, epoch: int, attempt: int = 1) -> Checkpoint:
    """A checkpoint of t0001 that its agent never told of."""
    return Checkpoint(
        trial="t0001",
        attempt=attempt,
        name=name,
        reports=epoch,
        metric=0.4,
        sha256="0" * 64,
        size=1,
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_a_trial_goes_on_from_what_was_saved_unheard(facts: MakeFacts, resumed: bool) -> None:
    """By an agent whose instance was lost, or ended itself while there was no daemon."""
    world = World(facts(), PLAIN)
    world.begin()
    while not world.state.trials.get("t0001") or world.state.trials["t0001"].reports < 2:
        world.turn()
    trial, now = world.state.trials["t0001"], world.now
    assert trial.held is not None
    known = [checkpoint.name for checkpoint in trial.checkpoints]
    unheard = (
        saved(world, "000050-00000007", 50, attempt=7),
        saved(world, "000060-00000001", 60),
        saved(world, "000070-00000001", 70),
    )
    lost = InstanceLost(at=now, instance=trial.held[0].node, why="power failure", saved=unheard)
    handle(world.state, RunResumed(at=now, alive=(), saved=unheard) if resumed else lost)
    assert [checkpoint.name for checkpoint in trial.checkpoints] == [
        "000070-00000001",
        "000060-00000001",
    ], f"not {known}, not of attempt 7"
    assert (trial.reports, trial.metric) == (70, 0.4)
    assert trial.phase is TrialPhase.WAITING

    instance = world.state.fleet.instances[lost.instance]
    for epoch in (3, 71, 3):
        late = {
            "at": now,
            "happened": now,
            "instance": instance.id,
            "fact": instance.seen + 1,
            "trial": "t0001",
        }
        handle(world.state, TrialReported(**late, attempt=1, reports=epoch, metric=0.3, unit_s=1.0))
    confirm(world.state, trial, saved(world, "000065-00000001", 65))
    names = [checkpoint.name for checkpoint in trial.checkpoints]
    assert names == [f"0000{epoch}-00000001" for epoch in (70, 65, 60)], "by age, however told"
    epochs = [report.reports for report in trial.history]
    assert epochs == [1, 2, 3, 60, 70], (
        "what its own journal tells later fills the holes, and adds nothing"
    )


def test_a_store_that_does_not_give_the_best_model_is_asked_again_when_the_run_is_resumed(
    facts: MakeFacts,
) -> None:
    """Another model would be a worse one: only damage makes the next best the result."""
    world = World(facts(), PLAIN)
    world.begin()
    state, commands = world.state, []
    while not (asked := [c for c in commands if isinstance(c, Publish)]):
        world.turn()
        commands = [c for c in state.under_way.values() if isinstance(c, Publish)]
    failed = PublishFailed(at=world.now, command=asked[0].id, why="busy", damaged=False)
    assert [c for c in handle(state, failed) if isinstance(c, Publish)] == []
    while not state.finished:
        world.turn()
    assert state.result.published is None
    assert any("is in the store: busy" in note for note in notes_of(state))
    (again,) = [
        c for c in handle(state, RunResumed(at=world.now, alive=())) if isinstance(c, Publish)
    ]
    assert again.checkpoint == asked[0].checkpoint
    last = handle(state, ModelPublished(at=world.now, command=again.id, path="best"))
    assert [type(c) for c in last] == [Finish]
    assert state.result.published is not None


@pytest.mark.parametrize("status", ["done", "interrupted"])
def test_a_better_model_that_the_store_has_taken_since_the_end_replaces_the_one_handed_back(
    facts: MakeFacts, status: Status
) -> None:
    world = World(facts(), PLAIN)
    state = world.run()
    first, state.end.status = state.result.published, status
    assert first is not None
    checkpoint = msgspec.structs.replace(
        first.incumbent.checkpoint, name="late", metric=first.incumbent.metric + 1
    )
    resumed = RunResumed(at=world.now, alive=(), stored=(checkpoint,))
    (asked,) = [command for command in handle(state, resumed) if isinstance(command, Publish)]
    assert asked.checkpoint == "late"
    last = handle(state, ModelPublished(at=world.now, command=asked.id, path="best"))
    assert [type(command) for command in last] == [Finish]
    assert state.result.published is not None
    assert state.result.published.incumbent.checkpoint == checkpoint
    assert state.end.status == status


def test_a_damaged_best_model_leaves_the_next_best(facts: MakeFacts) -> None:
    world = World(facts(), PLAIN)
    world.begin()
    state = world.state
    while not (asked := [c for c in state.under_way.values() if isinstance(c, Publish)]):
        world.turn()
    failed = PublishFailed(at=world.now, command=asked[0].id, why="damaged", damaged=True)
    (other,) = [c for c in handle(state, failed) if isinstance(c, Publish)]
    assert (other.trial, other.checkpoint) != (asked[0].trial, asked[0].checkpoint)
    assert other.metric <= asked[0].metric
