"""A run that jobs share, explained: which job is over and why, what the person has asked for, and
trials beside those of their own job alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seerd.core.state import State
from seerd.planner.trial_ids import job_of, same_trial
from seerd.telling.explanation.as_json import moment_json, timeline_json, trial_json
from seerd.telling.explanation.pages import moment_page, timeline_page, trial_page
from seerd.telling.explanation.sentences import metric_of, sentence
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.plain import line_of
from tests.explanation.timelines import explanations_of, printed, replayed
from tests.groups import asked_world, group_world

REACHED = "a.t0001 has accuracy 0.9 after 6 reports, and 0.85 was wanted"
NO_JOB = "there is no such job that goes on"
Read = tuple[State, Timeline]


@pytest.fixture(scope="module")
def shared() -> Read:
    return replayed(group_world())


def sentences(read: Read, *kinds: str) -> list[str]:
    state, timeline = read
    return [
        sentence(one, metric_of(one, state.facts))
        for one in timeline.explanations
        if one.kind in kinds
    ]


def test_the_end_of_a_job_is_told_with_its_reason(shared: Read) -> None:
    assert sentences(shared, "job-over") == [
        f"job a is over: its target was reached: {REACHED}; others get its share",
        "job c is over: its own deadline is near; others get its share",
    ]
    page = printed(timeline_page(shared[1], shared[0]), 200)
    assert "shared: 3 jobs (fair), 23 trials" in page
    assert "the models: a in best/a, b in best/b, c in best/c" in page


def test_models_are_told_by_their_own_metric(shared: Read) -> None:
    told = sentences(shared, "chosen")
    models = {line.split(" after")[0]: line for line in told}
    assert models.keys() == {
        "the model: a.t0001, accuracy 0.9",
        "the model: b.t0001, loss 0.8",
        "the model: c.t0001, accuracy 0.9",
    }
    assert "next: b.t0002 with" in models["the model: b.t0001, loss 0.8"]


def test_trials_are_compared_with_those_of_their_job(shared: Read) -> None:
    judged = explanations_of(shared[1], "judged")
    assert {job_of(one.trial) for one in judged} == {"a", "b", "c"}
    assert all(job_of(one.cut) == job_of(one.trial) for one in judged if one.cut is not None)
    page = printed(timeline_page(shared[1], shared[0]), 200)
    assert re.search(r"b\.t0001 +complete +0\.8 +6", page)
    assert "a.t0001  complete       0.9        6" in page


def test_a_trials_life_has_the_metric_of_its_job(shared: Read) -> None:
    state, timeline = shared
    told = trial_json(state.trials["b.t0001"], timeline, state)
    assert (told["job"], told["metric"]) == ("b", {"name": "loss", "mode": "min"})
    assert (told["handed_back"], told["last_metric"]) == (True, 0.8)
    assert told["attempts"][-1]["best"]["metric"] == 0.8
    assert set(told["other_metrics"]) == {"accuracy"}
    assert "loss 3 to 0.8" in printed(trial_page(told), 200)
    assert trial_json(state.trials["c.t0001"], timeline, state)["handed_back"]
    assert not trial_json(state.trials["c.t0002"], timeline, state)["handed_back"]


def test_a_moment_has_the_best_of_each_job() -> None:
    state, timeline = replayed(group_world(until_s=50.0))
    told = moment_json(50.0, timeline, state)
    assert {row["job"]: row["gpus"] for row in told["jobs"]} == {"a": 2, "b": 1, "c": 1}
    page = printed(moment_page(told, state), 200)
    assert "best so far of a: a.t0001, accuracy 0.7" in page
    assert "best so far of b: b.t0001, loss 5" in page


def test_what_the_person_asks_about_jobs_is_told_and_has_a_line() -> None:
    world = asked_world()
    told = sentences(replayed(world), "job-weighed", "job-added", "denied", "job-over")
    assert told[:3] == [
        "job b has the weight 3 from now on",
        f"what was asked for cannot be: {NO_JOB}",
        "job d of ops shares the run from now on, weight 0.5: accuracy by asha",
    ]
    assert "job b is over: the person asked for it; others get its share" in told
    lines = [line_of(event, world.state, decided) for event, decided in world.journal]
    assert {f"   20.1s  {text}" for text in told[:4]} <= set(lines)


def test_every_key_is_documented(shared: Read) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    for state, timeline in (shared, replayed(asked_world())):
        told = timeline_json(timeline, state, "done")
        json.dumps(told)
        for chapter in told["chapters"]:
            for beat in chapter["beats"]:
                assert {key for key in beat if f"`{key}`" not in documented} == set()


@pytest.mark.parametrize("said", ["a.t0003", "a.t3", "a.3"])
def test_a_trial_of_a_job_is_found_with_or_without_its_zeros(said: str) -> None:
    assert same_trial("a.t0003", said)
    assert not same_trial("b.t0003", said)
    assert not same_trial("t0003", said)
    assert not same_trial("a.t0003", "t0003")
