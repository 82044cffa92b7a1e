"""Journals of format 1, told with what they say: nothing is invented where they say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seerd.core.state import State, new_state
from seerd.explanation.as_json import fates, moment_json, timeline_json, trial_json
from seerd.explanation.costs import costs
from seerd.explanation.pages import moment_page, timeline_page, trial_page
from seerd.explanation.timeline import Timeline
from tests.explanation.timelines import explanations_of, printed
from tests.journals.reading import rows_of

JOURNALS = sorted((Path(__file__).parent.parent / "journals" / "format1").glob("*.jsonl"))
KNOWN = {"unknown", "hung", "out"}
"""Why an attempt was asked to end: what format 1 shows beside the orders themselves."""


def read(path: Path) -> tuple[State, Timeline]:
    entries = rows_of(path)
    state, timeline = new_state(entries[0][0].facts), Timeline()  # type: ignore[union-attr]
    for event, decided in entries:
        timeline.read(state, event, decided)
    return state, timeline


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_what_is_unknown_is_told_as_unknown(path: Path) -> None:
    state, timeline = read(path)
    assert not explanations_of(timeline, "planned")
    assert not explanations_of(timeline, "judged")
    assert {explanation.why for explanation in explanations_of(timeline, "stopped")} <= KNOWN
    for kind in ("started", "asked", "given-back"):
        assert {explanation.why for explanation in explanations_of(timeline, kind)} <= {"unknown"}
    assert all(explanation.needed is None for explanation in explanations_of(timeline, "asked"))
    assert all(chapter.stage is None for chapter in timeline.chapters)
    assert len(explanations_of(timeline, "closing")) == sum(
        chapter.end for chapter in timeline.chapters
    )
    json.dumps(timeline_json(timeline, state, "done"))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_every_page_can_be_read(path: Path) -> None:
    state, timeline = read(path)
    told = sum(part.billed for part in costs(timeline, state, state.now))
    assert float(told) == pytest.approx(state.ledger.spent_gpu_s(state.now))
    pages = [
        timeline_page(timeline, state),
        moment_page(moment_json(state.now, timeline, state), state),
    ]
    for trial in state.trials.values():
        assert fates(timeline, state)[trial.id][1]
        pages.append(trial_page(trial_json(trial, timeline, state)))
    for page in map(printed, pages):
        assert "None" not in page
        assert "unknown" not in page
