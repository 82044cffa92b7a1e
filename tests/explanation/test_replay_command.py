"""`seerd replay` as people use it: on journals of simulated runs, whole and damaged."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import RenderableType

from seerd.commands.replay import Moment, explain, moment_of
from seerd.errors import ImpossibleEventError, JournalError, UsageError
from seerd.shell.journal import Journal
from seerd.version import VERSION
from tests.commands import run_command
from tests.explanation.timelines import MakeFacts, printed, write_run
from tests.scenarios.test_scenarios import SCENARIOS
from tests.tampered import without_sums

RUN = "small-20261122-000000-aaaa"


def seerd(home: Path, *args: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SEERD_HOME": str(home), "COLUMNS": str(columns)}
    return run_command(args, home, environment)


@pytest.fixture
def home(tmp_path: Path, facts: MakeFacts) -> Path:
    """A run on two rented instances, of which one is taken away."""
    world = SCENARIOS["spot_notice"](facts)
    world.run()
    write_run(tmp_path, RUN, world)
    without_sums(tmp_path / RUN / "journal.db")
    return tmp_path


class Replayed(NamedTuple):
    told: dict  # for scripts
    page: RenderableType  # for people


def told(home: Path, trial: str | None = None, at: str | None = None) -> Replayed:
    with Journal.open(home / RUN / "journal.db", read_only=True) as journal:
        return Replayed(*explain(journal, trial, moment_of(at) if at else None, alive=False))


def change(home: Path, statement: str) -> None:
    with sqlite3.connect(home / RUN / "journal.db") as raw:
        raw.execute(statement)
    raw.close()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_command_tells_the_run_and_nothing_is_wider_than_the_terminal(
    home: Path, columns: int
) -> None:
    done = seerd(home, "replay", "last", columns=columns)
    assert done.returncode == 0, done.stderr
    text = re.sub(r"\s+", " ", done.stdout)
    assert "stage 1 of 2, 0.1s to 3m20s: 2 trials x 2 GPUs and 5 trials x 1 GPU" in text
    moved = "t0003, t0004, t0005, t0006 must save and go on elsewhere"
    assert f"the cloud takes m2.1 away at 3m20s; {moved}" in text
    assert (
        "the model: t0005, accuracy 0.600576 after 44 reports: the best of 7 with a confirmed "
        "checkpoint" in text
    )
    assert text.rstrip().endswith("replayed 240 events: the same 45 commands came out")
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


def test_json_says_the_same_and_its_stages_add_up(home: Path) -> None:
    done = seerd(home, "replay", RUN[:6], "--json")
    timeline = json.loads(done.stdout)
    assert (timeline["events"], timeline["commands"], timeline["same"]) == (240, 45, True)
    assert timeline["difference"] is None
    assert [chapter["stage"] for chapter in timeline["chapters"]] == [1, 2, None]
    assert sum(chapter["gpu_min"] for chapter in timeline["chapters"]) == pytest.approx(
        timeline["gpu_min"], abs=0.001
    )
    for chapter in timeline["chapters"]:
        parts = sum(one["gpu_min"] for one in chapter["instances"])
        assert parts == pytest.approx(chapter["gpu_min"], abs=0.001)


def test_every_key_is_documented(home: Path) -> None:
    documented = (Path(__file__).parent.parent.parent / "docs" / "json.md").read_text()
    for value in (told(home).told, told(home, trial="t5").told, told(home, at="100s").told):
        for key in _keys({**value, "config": None, "best": None, "best_report": None}):
            assert f"`{key}`" in documented, key


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    return (
        {key for inner in value for key in _keys(inner)}
        if isinstance(value, list | tuple)
        else set()
    )


def test_a_trial_is_found_with_or_without_its_zeros(home: Path) -> None:
    life = told(home, trial="t5").told
    assert (life["trial"], life["fate"], life["handed_back"]) == ("t0005", "survived", True)
    where = [attempt["on"][0]["instance"] for attempt in life["attempts"]]
    assert where == ["m2.1", "m2.2", "m2.2"]
    assert [attempt["after_reports"] for attempt in life["attempts"]] == [0, 2, 7]
    page = printed(told(home, trial="t0003").page)
    assert "3rd of 5" in page
    with pytest.raises(UsageError, match="there are t0001 to t0007"):
        told(home, trial="t8")


def test_a_moment_tells_what_ran_and_what_comes_first(home: Path) -> None:
    moment = told(home, at="1m30s").told
    assert (moment["at_s"], moment["stage"], moment["phase"]) == (90.0, 1, "running")
    assert {one["trial"] for one in moment["running"]} == {
        "t0001",
        "t0002",
        "t0003",
        "t0004",
        "t0005",
        "t0006",
    }
    assert moment["waiting"] == [{"trial": "t0007", "gpus": 1}]
    assert [one["kind"] for one in moment["under_way"]] == ["set-timer", "launch"]
    assert moment["next"][0] == {"what": "plan", "at_s": 200.0}
    # Three instances of four GPUs since the start, of which one was given back at 80.6 s; a fourth
    # was asked for at 80 s, and counts for a minute at once.
    spent = 2 * 4 * 90 + 4 * (80.6 - 0.05) + 4 * 60
    assert moment["spent_gpu_min"] == pytest.approx(spent / 60, abs=0.02)
    assert moment["events"] == 240, "the whole journal was replayed"
    page = re.sub(r"\s+", " ", printed(told(home, at="1m30s").page))
    assert "the stage is over, the policy is asked (comes first)" in page
    assert "waiting for GPUs: t0007 (1)" in page


def test_a_moment_may_be_an_event_and_a_trial_can_be_told_until_then(home: Path) -> None:
    assert told(home, at="@45").told["at_s"] == 80.0
    assert {explanation["kind"] for explanation in told(home, at="@45").told["decided"]} == {
        "stopped",
        "asked",
    }
    assert told(home, trial="t3", at="100s").told["fate"] == "running"
    for wrong in ("70", "@x", "soon"):
        with pytest.raises(UsageError, match="--at"):
            moment_of(wrong)
    with pytest.raises(UsageError, match="events 1 to 240"):
        told(home, at="@241")
    with pytest.raises(UsageError, match="nothing had happened yet"):
        told(home, at="0.01s")
    assert moment_of("1h") == Moment(at_s=3600.0)


def test_other_decisions_are_told_once_beside_the_story_that_was_recorded(home: Path) -> None:
    """As if a version with other rules had written it: trials saved where this one kills them."""
    _replace(home, "decisions", 128, '"checkpoint":false', '"checkpoint":true')
    moment = told(home, at="10s").told
    assert (moment["same"], moment["difference"]["event"]) == (False, 128)
    assert moment["difference"]["recorded"]["checkpoint"] is True
    assert moment["difference"]["now"]["checkpoint"] is False
    done = seerd(home, "replay", "last")
    assert done.returncode == 0, done.stderr
    text = re.sub(r"\s+", " ", done.stdout)
    assert "replayed 240 events; after event 128 something else would be decided now" in text
    assert text.count("would be decided") == 1
    recorded, now = text.split(" recorded: ")[1].split(" now: ")
    assert recorded.startswith("StopTrial(")
    assert "checkpoint=True" in recorded
    assert "checkpoint=False" in now
    assert f"of seerd {VERSION} too: of another commit, or it was changed since." in text
    life = told(home, trial="t3").told
    assert [
        explanation["saves"] for explanation in life["beats"] if explanation["kind"] == "stopped"
    ][-1] is True


def test_another_answer_of_the_policy_is_told_with_its_question(home: Path) -> None:
    _replace(home, "event", 128, '"ask_at_s":600.0', '"ask_at_s":500.0')
    difference = told(home).told["difference"]
    assert difference["event"] == 127, "that event asked"
    asked = [difference[answer]["plan"]["ask_at_s"] for answer in ("recorded", "now")]
    assert asked == [500.0, 600.0]


def _replace(home: Path, column: str, seq: int, old: str, new: str) -> None:
    value = f"CAST(replace({column}, '{old}', '{new}') AS BLOB)"
    change(home, f"UPDATE events SET {column} = {value} WHERE seq = {seq}")


def test_a_damaged_journal_is_told_with_the_event(home: Path) -> None:
    change(
        home, 'UPDATE events SET event = CAST(\'{"kind": "stop-asked"}\' AS BLOB) WHERE seq = 100'
    )
    with pytest.raises(JournalError, match="This is event 100; the 99 before it can be read"):
        told(home)


def test_a_missing_event_is_told(home: Path) -> None:
    change(home, "DELETE FROM events WHERE seq = 60")
    with pytest.raises(JournalError, match="event 60 is missing"):
        told(home)


def test_an_event_that_the_core_cannot_handle_is_told(home: Path) -> None:
    _replace(home, "event", 3, '"command":"2.0"', '"command":"2.3"')
    with pytest.raises(ImpossibleEventError, match=r"event 3 \(InstanceReady at 30.050s\)"):
        told(home)


def test_another_version_is_told(home: Path) -> None:
    change(home, "UPDATE meta SET value = '3' WHERE key = 'format'")
    done = seerd(home, "replay", "last")
    assert done.returncode == 1
    assert "has format 3, written by seerd" in done.stderr


def test_a_run_that_goes_on_can_be_told(tmp_path: Path, facts: MakeFacts) -> None:
    world = SCENARIOS["plain"](facts)
    world.begin()
    while world.now < 15.0:
        world.turn()
    write_run(tmp_path, RUN, world)
    timeline = told(tmp_path).told
    assert timeline["status"] == "stopped"
    assert [chapter["stage"] for chapter in timeline["chapters"]] == [1]
    assert "not over" in printed(told(tmp_path).page)
    assert told(tmp_path, trial="t1").told["fate"] == "running"


def test_help_teaches(home: Path) -> None:
    done = seerd(home, "replay", "--help", columns=100)
    text = re.sub(r"\s+", " ", done.stdout)
    for part in ("stage by stage", "`--trial t3`", "`--at 12m`", "@57", "why it was stopped"):
        assert part in text


def test_the_example_in_the_document_is_what_is_printed(home: Path) -> None:
    document = (Path(__file__).parent.parent.parent / "docs" / "replay.md").read_text()
    for page in (told(home).page, told(home, trial="t3").page, told(home, at="90s").page):
        shown = "\n".join(line.rstrip() for line in printed(page, width=100).splitlines())
        assert shown in document, f"docs/replay.md shows something else than\n{shown}"
