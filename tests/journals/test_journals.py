"""Journals of earlier versions must be readable for ever, and give what they gave when they were
made.

A new folder is made when a format is released (`python -m tests.journals.make`); its files are
never changed. What the version that made them said of each is beside it, in NAME.expected.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, follow
from seerd.planner.policies import POLICIES
from seerd.telling.complaints import notes_of
from tests.journals.reading import rows_of

FOLDER = Path(__file__).parent
FORMATS = {
    path.name: sorted(path.glob("*.jsonl"))
    for path in sorted(FOLDER.glob("format*"))
    if path.is_dir()
}
JOURNALS = [path for paths in FORMATS.values() for path in paths]


def read(rows: list[tuple[AnyEvent, list[AnyDecision]]]) -> State:
    """Reading asks for no rule, whatever version made the journal."""
    state = new_state(rows[0][0].facts, None)  # type: ignore[union-attr, arg-type]
    for event, decided in rows:
        follow(state, event, decided)
    return state


def expected(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_name(f"{path.stem}.expected.json").read_text())
    return found


def a_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_money_is_what_it_was(path: Path) -> None:
    rows, told = rows_of(path), expected(path)
    state, spent = new_state(rows[0][0].facts, None), []  # type: ignore[union-attr, arg-type]
    for event, decided in rows:
        follow(state, event, decided)
        spent.append(state.ledger.spent_gpu_s(state.now))
    assert spent[-1] == told["spent_gpu_s"]
    assert spent == told.get("spent_gpu_s_after_each_event", spent)
    assert [charge_of(c) for c in state.ledger.closed] == told["charges"]["closed"]
    assert [charge_of(c) for c in state.ledger.open.values()] == told["charges"]["open"]


def charge_of(charge: Any) -> list[Any]:
    return [
        charge.what,
        charge.instance,
        charge.gpus,
        charge.since_s,
        charge.until_s,
        charge.minimum_s,
    ]


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_attempts_reports_and_checkpoints_are_what_they_were(path: Path) -> None:
    state, told = read(rows_of(path)), expected(path)
    assert {trial.id for trial in state.trials.values() if trial.attempt} == {
        t["id"] for t in told["trials"]
    }
    for was in told["trials"]:
        trial = state.trials[was["id"]]
        assert dict(trial.config) == was["config"]
        assert (trial.seed, trial.attempt, trial.crashes, trial.losses) == (
            was["seed"],
            was["attempt"],
            was["crashes"],
            was["losses"],
        )
        assert [[r.at_s, r.reports, r.metric] for r in trial.history] == was["history"]
        kept = [[c.name, c.reports, c.metric, c.sha256, c.size] for c in trial.checkpoints]
        assert kept == was["checkpoints"]
        assert (str(trial.phase), trial.why) == (was["phase"], was["why"])


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_the_result_and_the_end_are_what_they_were(path: Path) -> None:
    state, told = read(rows_of(path)), expected(path)
    best = state.result.published
    found = best and {
        "trial": best.incumbent.trial,
        "checkpoint": best.incumbent.checkpoint.name,
        "metric": best.incumbent.metric,
        "path": best.path,
    }
    assert found == told["published"]
    assert (str(state.phase), state.end.status, state.now) == (
        told["phase"],
        told["ending"],
        told["now"],
    )
    assert notes_of(state) == told["notes"]


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_command_ids_are_what_they_were(path: Path) -> None:
    rows, told = rows_of(path), expected(path)
    for (_, decided), was in zip(rows, told["commands"], strict=True):
        assert [[one.id, one.__struct_config__.tag] for one in commands_of(decided)] == was
    assert list(read(rows).under_way) == told["under_way"]


def test_there_is_a_journal_of_every_policy_and_of_every_way_to_end() -> None:
    for paths in FORMATS.values():
        told = [expected(path) for path in paths]
        assert {one["policy"] for one in told} >= {*POLICIES, "profile", "jobs"}
        assert {one["ending"] for one in told} >= {
            "done",
            "deadline",
            "budget",
            "interrupted",
            "failed",
            None,
        }
        assert {one["phase"] for one in told} == {RunPhase.RUNNING.value, RunPhase.OVER.value}
