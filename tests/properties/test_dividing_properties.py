"""However jobs share a run: whole steps, never more than a job can use or than there are, nothing
left that somebody could use; and what is remembered of it is read as it was written.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.gpu_shares import Claim, fair_shares
from seerd.planner.dividing import FLOOR, Dividing, Freeze, Prospect, divided
from seerd.planner.job_parts import JobTerms, ShareTable, read_table
from seerd.planner.model import Sharing

SHARINGS: list[Sharing] = ["fair", "greedy", "round-robin", "hybrid", "worst-first"]
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
AMOUNT = st.floats(0.0, 1e6)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[int, list[Claim], Dividing]:
    """GPUs, who may have how many, and what is known of each."""
    names = draw(NAMES)
    claims = [
        Claim(
            name,
            draw(st.integers(0, 20)),
            draw(st.sampled_from([0.25, 1.0, 2.0, 7.0])),
            draw(st.sampled_from([1, 1, 2, 4])),
        )
        for name in names
    ]
    results = st.none() | st.floats(0.0, 1.0)
    jobs = [
        Prospect(name, draw(results), draw(st.floats(0.0, 1.0)), draw(st.floats(1.0, 1e6)))
        for name in names
    ]
    by = Dividing(
        draw(st.sampled_from(SHARINGS)),
        {name: draw(AMOUNT) for name in names},
        draw(st.floats(0.0, 100.0)),
        draw(st.floats(0.0, 1e5)),
        jobs,
        Freeze(unchanged=draw(st.integers(0, 20))),
        draw(st.none() | st.sampled_from(names)),
    )
    return draw(st.integers(0, 24)), claims, by


@given(divisions())
def test_a_job_has_whole_steps_and_no_more_than_it_can_use(
    asked: tuple[int, list[Claim], Dividing],
) -> None:
    gpus, claims, by = asked
    given_ = divided(gpus, claims, by).given
    assert sum(given_.values()) <= gpus
    for claim in claims:
        had = given_[claim.job]
        assert had <= claim.cap
        assert had == 0 or had >= claim.least
        assert by.sharing == "fair" or had % claim.least == 0


@given(divisions())
def test_nothing_is_left_that_a_job_could_use(asked: tuple[int, list[Claim], Dividing]) -> None:
    gpus, claims, by = asked
    given_ = divided(gpus, claims, by).given
    left = gpus - sum(given_.values())
    for claim in claims:
        step = claim.least if not given_[claim.job] or by.sharing != "fair" else 1
        assert left < step or claim.cap - given_[claim.job] < step


@given(divisions())
def test_whatever_a_job_offers_it_keeps_a_part_of_its_fair_share(
    asked: tuple[int, list[Claim], Dividing],
) -> None:
    gpus, claims, by = asked
    given_ = divided(gpus, claims, replace(by, sharing="greedy")).given
    fair = fair_shares(gpus, claims)
    for claim in claims:
        assert given_[claim.job] >= int(fair[claim.job] * FLOOR / claim.least) * claim.least


@given(divisions())
def test_the_same_jobs_are_given_the_same(asked: tuple[int, list[Claim], Dividing]) -> None:
    assert divided(*asked) == divided(*asked)


@st.composite
def tables(draw: st.DrawFn) -> ShareTable:
    names = draw(NAMES)
    counts = st.integers(0, 1000)
    return ShareTable(
        gpus=draw(counts),
        extended=draw(counts),
        spent_gpu_s=draw(AMOUNT),
        divided_s=draw(AMOUNT),
        base={name: draw(AMOUNT) for name in names},
        terms={
            name: JobTerms(draw(counts), draw(AMOUNT), draw(AMOUNT), draw(AMOUNT), draw(counts))
            for name in names
        },
        caps=draw(st.dictionaries(st.sampled_from(names), counts)),
        done=draw(st.lists(st.sampled_from(names), unique=True)),
        signature=draw(st.lists(st.text())),
        freeze=Freeze(
            frozenset(draw(st.lists(st.sampled_from(names)))),
            draw(st.just(float("-inf")) | st.floats(-1e6, 1e6)),
            draw(counts),
        ),
        last=draw(st.none() | st.sampled_from(names)),
    )


@given(tables())
def test_what_is_remembered_is_read_as_it_was_written(table: ShareTable) -> None:
    values = json.loads(json.dumps(table.values()))
    read = read_table(values)
    assert read == table
    before = json.dumps(values)
    read.done.append("more")
    read.caps["more"] = 1
    assert json.dumps(values) == before, "a memory is never changed in place"
