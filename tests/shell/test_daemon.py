"""The daemon's order: nothing is done, acknowledged or shown before it is in the journal; after a
crash, what was found comes first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seerd.agent.protocol import Exited, Renew, Start, Started, Stop
from seerd.backends.base import Span
from seerd.core.commands import Launch
from seerd.core.events import (
    PolicyAnswered,
    PolicyFailed,
    Remarked,
    RunFacts,
    RunResumed,
    StopAsked,
)
from seerd.errors import AbandonedError, JournalError, RunRemovedError
from seerd.shell.collecting import Collector
from seerd.shell.daemon import Daemon
from seerd.shell.journal import Journal
from seerd.shell.timings import DaemonTimings
from tests.shell.place import Place, play

MakeFacts = Callable[..., RunFacts]


def test_what_could_not_be_committed_is_neither_done_nor_shown(
    facts: MakeFacts, tmp_path: Path
) -> None:
    async def scenario(place: Place) -> None:
        place.refuse("run-started")
        with pytest.raises(JournalError, match="disk full"):
            await place.run()
        assert place.provider.asked == []
        assert place.shown == []
        assert place.events() == []

    play(facts(), tmp_path, scenario)


def test_a_fact_is_acknowledged_once_it_is_in_the_journal(facts: MakeFacts, tmp_path: Path) -> None:
    """The daemon dies of a full disk while an agent tells it something; the next one hears it
    again.
    """

    async def scenario(place: Place) -> None:
        place.refuse("trial-started")
        with pytest.raises(JournalError, match="disk full"):
            await place.run()
        started = [fact.seq for fact in place.agent.facts if isinstance(fact, Started)]
        assert place.agent.acknowledged < min(started)
        place.mend()
        await place.run(lambda daemon: place.agent.acknowledged >= max(started))
        assert [type(event).__name__ for event in place.events()].count("TrialStarted") == len(
            started
        )

    play(facts(), tmp_path, scenario)


def test_long_uploads_are_told_as_they_go_on(facts: MakeFacts, tmp_path: Path) -> None:
    said = iter(["", "1 of 3 MB so far", "2 of 3 MB so far"])

    async def scenario(place: Place) -> None:
        place.timings = DaemonTimings(remark_s=0.01)
        place.provider.gate.clear()
        place.uploads = lambda: next(said, "")
        told: list[str] = []

        def both_told(daemon: Daemon) -> bool:
            told[:] = [one.text for one in place.shown if isinstance(one, Remarked)]
            return len(told) == 2

        await place.run(both_told)
        assert told == ["1 of 3 MB so far", "2 of 3 MB so far"]

    play(facts(), tmp_path, scenario)


def test_a_run_is_taken_up_with_what_is_found(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        await place.run(
            lambda daemon: bool(daemon.state.fleet.holding) and place.agent.acknowledged > 2
        )
        before = len(place.events())
        await place.run(lambda daemon: len(place.events()) > before)
        found = place.events()[before]
        assert isinstance(found, RunResumed)
        assert found.alive == ("i-1",)
        assert place.provider.adopted == [(["i-1"], [])]
        assert len(place.provider.asked) == 1

    play(facts(), tmp_path, scenario)


def test_a_launch_under_way_is_named_to_the_provider_and_asked_for_again(
    facts: MakeFacts, tmp_path: Path
) -> None:
    """Under the id that it had: what it has brought meanwhile is its own, and none is ended."""

    async def scenario(place: Place) -> None:
        place.provider.gate.clear()
        await place.run(lambda daemon: bool(place.provider.asked))
        (token,) = place.provider.asked
        place.provider.gate.set()
        await place.run(lambda daemon: bool(daemon.state.fleet.holding))
        assert place.provider.adopted == [([], [token])]
        assert place.provider.asked == [token, token]

    play(facts(), tmp_path, scenario)


def test_orders_without_an_outcome_are_said_again_under_their_ids(
    facts: MakeFacts, tmp_path: Path
) -> None:
    async def scenario(place: Place) -> None:
        place.refuse("trial-started")
        with pytest.raises(JournalError):
            await place.run()
        first = {order.id for order in place.agent.of(Start)}
        place.agent.heard.clear()
        with pytest.raises(JournalError):
            await place.run()
        assert first
        assert {order.id for order in place.agent.of(Start)} == first

    play(facts(), tmp_path, scenario)


def test_what_is_given_twice_is_carried_out_once(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.provider.gate.clear()

        def repeated(daemon: object) -> bool:
            if place.provider.asked:
                daemon._dispatch.carry_out([Launch(id=place.provider.asked[0], gpus=8, why="plan")])  # type: ignore[attr-defined]
            return bool(place.provider.asked)

        await place.run(repeated)
        await asyncio.sleep(0)
        assert len(place.provider.asked) == 1

    play(facts(), tmp_path, scenario)


def test_an_agent_that_is_to_start_trials_has_a_fresh_lease(
    facts: MakeFacts, tmp_path: Path
) -> None:
    async def scenario(place: Place) -> None:
        await place.run(lambda daemon: bool(place.agent.of(Start)))
        said = place.agent.heard
        first = next(index for index, message in enumerate(said) if isinstance(message, Start))
        assert sum(isinstance(message, Renew) for message in said[:first]) >= 2, (
            "of the conversation, and for the start"
        )

    play(facts(), tmp_path, scenario)


def test_an_agent_that_is_to_stop_trials_has_a_fresh_lease(
    facts: MakeFacts, tmp_path: Path
) -> None:
    """Or it may let go by itself while they save: until a run closes, leases do not last longer."""

    async def scenario(place: Place) -> None:
        before: list[int] = []

        def stop_once(daemon: Daemon) -> bool:
            agent = place.agent
            quiet = len(agent.of(Start)) == 6 and agent.acknowledged == len(agent.facts)
            if quiet and not before:
                before.append(len(agent.heard))
                daemon.core.emit(StopAsked(at=daemon.clock.now()))
            return False

        await place.run(stop_once)
        said = place.agent.heard[before[0] :]
        first = next(index for index, message in enumerate(said) if isinstance(message, Stop))
        assert any(isinstance(message, Renew) for message in said[:first])

    play(facts(), tmp_path, scenario)


def test_a_lease_counts_from_now_and_not_from_the_last_event(
    facts: MakeFacts, tmp_path: Path
) -> None:
    """Agents that nobody tells anything must be gone by the deadline all the same."""

    async def scenario(place: Place) -> None:
        def much_later(daemon: Daemon) -> bool:
            if not daemon.state.fleet.holding:
                return False
            assert daemon.core.lease()[0] > 0.0
            daemon.clock.origin -= 2 * daemon.state.facts.problem.limits.deadline_s
            assert daemon.core.lease()[0] == 0.0
            return True

        await place.run(much_later)

    play(facts(), tmp_path, scenario)


def test_no_event_goes_back_in_time(facts: MakeFacts, tmp_path: Path) -> None:
    """One that was late has the time of the one before it."""

    async def scenario(place: Place) -> None:
        def told(daemon: Daemon) -> bool:
            if daemon.state.clock.seq > 3 and not daemon.state.result.notes:
                daemon.core.emit(Remarked(at=0.0, text="late"))
            return "late" in daemon.state.result.notes

        await place.run(told)
        times = [event.at for event in place.events()]
        assert times == sorted(times)

    play(facts(), tmp_path, scenario)


def test_the_newest_two_checkpoints_of_a_trial_are_kept(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.timings = DaemonTimings(keep_s=0.05)
        await place.run(
            lambda daemon: (
                len({trial for trial, names in place.store.kept if "000003" in names}) == 6
            )
        )
        assert {tuple(names) for _, names in place.store.kept if "000003" in names} == {
            ("000003", "000002")
        }

    play(facts(), tmp_path, scenario, saves=3)


def test_a_policy_whose_answer_was_declined_remembers_nothing_of_it(
    facts: MakeFacts, tmp_path: Path
) -> None:
    """Neither in the state nor in its own process, which goes on."""

    async def scenario(place: Place) -> None:
        place.policy = "tests.shell.policies:mistaken"
        await place.run(lambda daemon: len(daemon.state.result.notes) > 1)
        declined, adopted = (event for event in place.events() if isinstance(event, PolicyAnswered))
        assert declined.plan.put[0].trial == "nobody"
        assert (adopted.plan.gone, adopted.plan.put, adopted.plan.note) == ((), (), "remembers {}")

    play(facts(), tmp_path, scenario)


def test_an_answer_that_no_journal_can_keep_is_none(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.policy = "tests.shell.policies:no_json"
        await place.run(lambda daemon: bool(daemon.state.result.notes))
        (failed,) = (event for event in place.events() if isinstance(event, PolicyFailed))
        assert failed.why == "the policy's answer has values that are not JSON, such as NaN"

    play(facts(), tmp_path, scenario)


def test_the_policy_sees_the_run_as_it_was_when_it_was_asked(
    facts: MakeFacts, tmp_path: Path
) -> None:
    """Whatever is heard with the same breath: here more reports than the one that it waits for."""

    async def scenario(place: Place) -> None:
        place.policy = "tests.shell.policies:watching"
        await place.run(lambda daemon: len(daemon.state.result.notes) > 2)
        told = [event.plan.note for event in place.events() if isinstance(event, PolicyAnswered)]
        assert told[:3] == ["reports: []", "reports: [1]", "reports: [3]"]

    play(facts(), tmp_path, scenario, saves=3)


@pytest.mark.parametrize(
    ("ahead_s", "later_s", "told"),
    [
        (500.0, 500.0, "behind"),
        (59.0, 59.0, ""),
        (-500.0, 0.0, "ahead of"),
        (-59.0, 0.0, ""),
        (None, 0.0, ""),
    ],
)
def test_a_run_that_is_taken_up_after_a_boot_goes_by_the_clock_that_is_furthest_ahead(
    facts: MakeFacts, tmp_path: Path, ahead_s: float | None, later_s: float, told: str
) -> None:
    async def scenario(place: Place) -> None:
        await place.run(lambda daemon: bool(daemon.state.fleet.holding))
        before = len(place.events())
        origin = origin_of(place)
        object.__setattr__(place.store, "ahead_s", ahead_s)
        place.steady = False
        await place.run(lambda daemon: len(place.events()) > before + bool(told))
        resumed = place.events()[before]
        assert isinstance(resumed, RunResumed)
        assert later_s <= resumed.at < later_s + 25.0
        assert origin - origin_of(place) == pytest.approx(later_s, abs=0.5)
        remarks = [event.text for event in place.shown if isinstance(event, Remarked)]
        text = (
            f"this machine's clock is 8m20s {told} the store's: the run goes by the later, since "
            "so much time may have passed; set the clock (timedatectl)"
        )
        assert remarks == [text] * bool(told)

    play(facts(deadline_s=3600.0), tmp_path, scenario)


def origin_of(place: Place) -> float:
    """When the run began, as its journal says."""
    with Journal.open(place.journal, read_only=True) as journal:
        return journal.origin


def test_a_run_whose_folder_was_removed_ends_at_once(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        def removed(daemon: Daemon) -> bool:
            if place.agent.of(Start):
                place.journal.unlink(missing_ok=True)
            return False

        with pytest.raises(RunRemovedError, match="small"):
            await place.run(removed)
        stops = [event for event in place.shown if isinstance(event, StopAsked)]
        assert [stop.hard for stop in stops] == [True]

    play(facts(), tmp_path, scenario)


def test_the_third_stop_leaves_everything_as_it_is(facts: MakeFacts, tmp_path: Path) -> None:
    """The first is in order, the second at once; signals ask for them."""

    async def scenario(place: Place) -> None:
        async def endless(name: str, spare_s: float = 0.0) -> Span:
            await asyncio.Event().wait()
            raise AssertionError

        place.provider.gate.clear()
        place.provider.terminate = endless  # type: ignore[method-assign]
        sent = 0

        def interrupted(daemon: Daemon) -> bool:
            nonlocal sent
            taken = sum(isinstance(event, StopAsked) for event in place.shown)
            if place.provider.asked and taken == sent < 3:
                sent += 1
                os.kill(os.getpid(), signal.SIGINT)
            return False

        with pytest.raises(AbandonedError):
            await place.run(interrupted)
        stops = [event.hard for event in place.shown if isinstance(event, StopAsked)]
        assert stops == [False, True]
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler

    play(facts(), tmp_path, scenario)


def test_logs_are_brought_when_an_attempt_has_ended(facts: MakeFacts, tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        looks: list[str] = []
        ended: list[Start] = []

        async def source(instance: str, after: float) -> None:
            looks.append(instance)

        def one_has_ended(daemon: Daemon) -> bool:
            agent = place.agent
            starts = agent.of(Start)
            if len(starts) == 6 and agent.acknowledged == len(agent.facts) and not ended:
                assert looks == []
                ended.append(starts[0])
                attempt = starts[0].trial, starts[0].attempt
                agent._tell(agent.writers[-1], Exited, time.time(), *attempt, "asked", 0)
            return bool(looks)

        place.collector = Collector(source, tmp_path / "logs")
        await place.run(one_has_ended)
        assert looks == ["i-1"]

    play(facts(), tmp_path, scenario)
