"""What events are in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from seerd.core.codec import decode_event, encode_event
from seerd.core.events import AnyEvent, ExtendAsked, JobAdded, JobFacts, RunFacts, RunStarted
from seerd.planner.model import PlannedJob

MakeFacts = Callable[..., RunFacts]


def events_of(facts: RunFacts, parts: int) -> list[AnyEvent]:
    """All events that say how many parts a GPU has, with a hyperparameter that is called so."""
    problem = replace(facts.problem, parts=parts, added=((1, {"parts": 1}),))
    job = PlannedJob("a", problem, "max", "accuracy")
    of_job = JobFacts(id="a", metric="accuracy", mode="max", patterns={"parts": "(1)"})
    shared = replace(problem, jobs=(job,))
    cluster = replace(facts.cluster, parts=parts)
    facts = msgspec.structs.replace(facts, problem=shared, cluster=cluster, jobs=(of_job,))
    return [
        RunStarted(at=0.0, facts=facts),
        ExtendAsked(at=1.0, request="r", problem=shared),
        JobAdded(at=2.0, request="q", job=job, facts=of_job),
    ]


def without_parts(body: Any) -> Any:
    """Leave out the parts of all problems and clusters."""
    if isinstance(body, list):
        return [without_parts(each) for each in body]
    if not isinstance(body, dict):
        return body
    is_of_gpus = "gpus_per_instance" in body
    return {k: without_parts(v) for k, v in body.items() if not (is_of_gpus and k == "parts")}


@pytest.mark.parametrize("parts", [1, 4])
def test_parts_are_recorded_where_gpus_have_some(facts: MakeFacts, parts: int) -> None:
    for event in events_of(facts(), parts):
        plain, recorded = msgspec.json.encode(event), encode_event(event)
        body = json.loads(plain)
        assert json.loads(recorded) == (without_parts(body) if parts == 1 else body)
        assert (recorded == plain) is (parts > 1)
        assert decode_event(recorded) == decode_event(plain) == event
