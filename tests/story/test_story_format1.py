"""Journals of format 1, told with what they say: nothing is invented where they say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seerd.core.state import State, new_state
from seerd.story.costs import costs
from seerd.story.pages import moment_page, story_page, trial_page
from seerd.story.timeline import Timeline
from seerd.story.told import fate_of, moment_json, story_json, trial_json
from tests.journals.reading import rows_of
from tests.story.retold import beats_of, printed

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
    state, story = read(path)
    assert not beats_of(story, "planned")
    assert not beats_of(story, "judged")
    assert {beat.why for beat in beats_of(story, "stopped")} <= KNOWN
    for kind in ("started", "asked", "given-back"):
        assert {beat.why for beat in beats_of(story, kind)} <= {"unknown"}
    assert all(beat.needed is None for beat in beats_of(story, "asked"))
    assert all(chapter.stage is None for chapter in story.chapters)
    assert len(beats_of(story, "closing")) == sum(chapter.end for chapter in story.chapters)
    json.dumps(story_json(story, state, "done"))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_every_page_can_be_read(path: Path) -> None:
    state, story = read(path)
    told = sum(part.billed for part in costs(story, state, state.now))
    assert float(told) == pytest.approx(state.ledger.spent_gpu_s(state.now))
    pages = [story_page(story, state), moment_page(moment_json(state.now, story, state), state)]
    for trial in state.trials.values():
        assert fate_of(trial, story, state)[1]
        pages.append(trial_page(trial_json(trial, story, state), story, state))
    for page in map(printed, pages):
        assert "None" not in page
        assert "unknown" not in page
