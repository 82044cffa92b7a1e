"""Where it went is what was billed: the parts of a report add up to the ledger, on every journal that
is kept and on runs in which much goes wrong.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.testbed import checked_world as simulated
from seerd.core.events import TrialStarted, TrialTraining
from seerd.core.state import State, new_state
from seerd.export.rows import trials
from seerd.planner.model import BillingKind
from seerd.telling.explanation.explanations import held_gpu_s
from seerd.telling.explanation.timeline import RunHistory, Timeline, costs
from seerd.telling.page import tables
from tests.conftest import small_facts
from tests.explanation.timelines import timeline_of
from tests.journals.reading import rows_of
from tests.journals.test_journals import JOURNALS, a_name
from tests.properties.test_core_properties import faulty_world
from tests.test_report import world


def _adds_up(timeline: Timeline, state: State) -> None:
    spent = state.ledger.spent_gpu_s(state.now)
    parts = tables.shares(timeline, state)
    assert sum(parts.values()) == pytest.approx(spent, abs=1e-6)
    assert all(gpu_s >= -1e-6 for gpu_s in parts.values())
    if not state.facts.cluster.per_instance:
        held = held_gpu_s(timeline.attempts.all, state.now)
        assert held == pytest.approx(spent, abs=1e-6), "an attempt has what it is charged"


def test_an_attempt_is_not_charged_before_its_processes_exist() -> None:
    """On machines that take long to start processes, so that the order is earlier than the charge."""
    played = world("held")
    trained = {
        (event.trial, event.attempt): event.happened
        for event, _ in played.journal
        if isinstance(event, TrialTraining)
    }
    state, timeline = new_state(played.facts), Timeline()
    for event, decided in played.journal:
        if isinstance(event, TrialStarted):
            later_s = trained.get((event.trial, event.attempt), event.happened)
            late = msgspec.structs.replace(event, happened=(event.happened + later_s) / 2)
            timeline.read(state, late, decided)
            continue
        timeline.read(state, event, decided)
    first = timeline.attempts.all[0]
    assert first.held[0].since_s > first.started.at_s
    _adds_up(timeline, state)
    spent = state.ledger.spent_gpu_s(state.now)
    assert sum(float(one.billed) for one in costs(timeline, state, state.now)) == pytest.approx(
        spent
    )
    table = trials(RunHistory(timeline, state, 0.0)).columns()["gpu_s"]
    assert sum(table) == pytest.approx(spent)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_parts_add_up_on_kept_journals(path: Path) -> None:
    rows = rows_of(path)
    state, timeline = new_state(rows[0][0].facts), Timeline()  # type: ignore[union-attr]
    for event, decided in rows:
        timeline.read(state, event, decided)
    _adds_up(timeline, state)


@pytest.mark.parametrize("billing", ["held", "rented"])
def test_parts_add_up_at_every_moment_of_a_run(billing: BillingKind) -> None:
    played: simulated.World = world(billing)
    state, timeline = new_state(played.facts), Timeline()
    for place, (event, decided) in enumerate(played.journal):
        timeline.read(state, event, decided)
        if place % 20 == 0:
            _adds_up(timeline, state)


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_where_much_goes_wrong(seed: int) -> None:
    state, timeline = timeline_of(faulty_world(seed, small_facts, ["asha", "seer"]))
    _adds_up(timeline, state)
