"""A store that takes no checkpoints: the user hears of it again and again, the run ends in order,
and the best model that only a machine has is fetched before that machine is given back.
"""

from __future__ import annotations

from typing import Any

import pytest

from seerd.core.commands import Publish, Terminate
from seerd.core.events import (
    Checkpoint,
    CheckpointFetched,
    RunResumed,
    StopAsked,
    TrialComplained,
    TrialReported,
)
from seerd.core.lifecycle import RunPhase
from seerd.core.verdicts import Closing, Warned
from seerd.telling.diagnosis import diagnose
from seerd.telling.plain import line_of
from seerd.telling.run_json import exit_code
from tests.core.test_alike import run_of
from tests.core.test_answers import Run, of
from tests.properties.test_core_properties import recorded

WHY = "PUT at bucket: timed out; a gateway endpoint costs nothing"


def training(deadline_s: float = 1200.0) -> Run:
    run = run_of("a", "b", deadline_s=deadline_s, budget_gpu_s=8 * deadline_s, billing="rented")
    for name, metric in (("a", 0.5), ("b", 0.4)):
        report(run, name, metric)
    return run


def report(run: Run, name: str, metric: float) -> None:
    reports = run.trial(name).reports + 1
    run.fact(TrialReported, name, reports=reports, metric=metric, unit_s=0.1)


def fails(run: Run, at: float, name: str = "a", what: str = "store-silent") -> list[Any]:
    run.at = at
    return run.fact(TrialComplained, name, what=what, why=WHY)


def fetched(run: Run, name: str, metric: float) -> list[Any]:
    saved = Checkpoint(
        trial=name, attempt=1, name="0001-999999", reports=1, metric=metric, sha256="f" * 64, size=9
    )
    return run.tell(CheckpointFetched(at=run.at, instance="i", checkpoint=saved))


def test_it_is_said_at_once_and_again_in_growing_intervals_and_ends_the_run() -> None:
    run = training(deadline_s=9000.0)
    warned, at = [], 100.0
    while run.state.phase is RunPhase.RUNNING:
        decided = fails(run, at, "ab"[int(at) % 40 == 0])
        warned += [(at, one.detail) for one in of(Warned, decided)]
        at += 20.0
    assert [moment for moment, _ in warned] == [100, 160, 220, 340, 580, 880]
    assert warned[0][1] == (
        f"no checkpoint can be stored (a on i: {WHY}); the run ends in 15 min unless one is stored "
        "by then"
    )
    assert "ends in 2 min" in warned[-1][1]
    (closing,) = of(Closing, decided)
    assert run.at == 1000
    assert (closing.status, closing.why) == ("failed", "store")
    assert closing.detail.startswith("no checkpoint could be stored for 15 min (b on i: PUT at")
    assert recorded(run.read()) == recorded(run.state)


def test_one_that_is_stored_ends_it_and_only_what_fails_now_begins_it_anew() -> None:
    run = training()
    fails(run, 50.0)
    run.at = 160.0
    run.save("b")
    assert of(Closing, fails(run, 171.0)) == []
    assert of(Closing, fails(run, 290.0)) == []
    assert of(Closing, fails(run, 291.0)) != []


def test_a_run_that_is_taken_up_waits_as_long_again() -> None:
    run = training()
    fails(run, 50.0)
    run.tell(RunResumed(at=400.0, alive=("i",)))
    assert of(Closing, fails(run, 410.0)) == []
    assert of(Closing, fails(run, 531.0)) != []


def test_a_short_run_has_a_minute() -> None:
    run = training(deadline_s=300.0)
    fails(run, 50.0)
    assert of(Closing, fails(run, 109.0)) == []
    assert of(Closing, fails(run, 110.0)) != []


@pytest.mark.parametrize("what", ["left", "quiet", "not-stored"])
def test_what_says_nothing_of_the_store_ends_nothing(what: str) -> None:
    run = training()
    for at in (50.0, 500.0):
        assert of(Closing, fails(run, at, what=what)) == []
        assert run.state.signs.outage is None


def ended(run: Run) -> list[Terminate]:
    """What is given back once the run is stopped and all have ended."""
    run.tell(StopAsked(at=run.at))
    exits = [*run.exit("a", "asked"), *run.exit("b", "asked")]
    return of(Terminate, exits)


def test_the_better_models_that_only_a_machine_has_are_fetched_before_it_goes() -> None:
    run = training()
    report(run, "b", 0.3)
    fails(run, 50.0, "a", "left")
    fails(run, 51.0, "b", "store-refused")
    (terminate,) = ended(run)
    assert terminate.left == (("a", 1), ("b", 1))
    (publish,) = of(Publish, fetched(run, "a", 0.5))
    assert recorded(run.read()) == recorded(run.state)
    assert (publish.trial, publish.checkpoint) == ("a", "0001-999999")


def test_nothing_is_fetched_that_is_stored_or_no_better_than_what_is() -> None:
    run = training()
    fails(run, 50.0, "a")
    fails(run, 51.0, "b")
    run.at = 60.0
    run.save("a")
    (terminate,) = ended(run)
    assert terminate.left == ()


def test_without_a_model_the_cause_is_the_store() -> None:
    run = training()
    decided = [*fails(run, 50.0), *fails(run, 171.0)]
    text = "; ".join(one.detail for one in of(Warned, decided))
    assert WHY in text
    event, closing = run.journal[-1]
    shown = line_of(event, run.state, closing) or ""
    assert f"no checkpoint could be stored for 2 min (a on i: {WHY})" in shown
    ended(run)
    assert exit_code(run.state) == 4
    run.state.end.phase = RunPhase.OVER
    assert diagnose(run.state).cause == "no-checkpoint"
    assert f"no checkpoint could be stored: a on i: {WHY}" in diagnose(run.state).text
