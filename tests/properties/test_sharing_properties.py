"""Fair shares: ASHA's example, by hand, and what must hold for any jobs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.agent.gpu_shares import Claim, fair_shares, water_level
from tests.examples import few

MANY = settings(max_examples=few(200), deadline=None)
WEIGHTS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 7.0])


@st.composite
def cases(draw: st.DrawFn, *, steps: bool = True) -> tuple[int, list[Claim]]:
    """`steps`: jobs may need several GPUs for their smallest step."""
    claims = [
        Claim(
            f"j{i}",
            draw(st.integers(0, 12)),
            draw(WEIGHTS),
            draw(st.integers(1, 4)) if steps else 1,
        )
        for i in range(draw(st.integers(0, 6)))
    ]
    return draw(st.integers(0, 24)), claims


def test_the_paper_s_example() -> None:
    """ASHA, section 5.3: 32 GPUs; 8 configurations of 4 GPUs alone, then beside a demand of 64."""
    assert fair_shares(32, [Claim("one", 8 * 4)]) == {"one": 32}
    assert fair_shares(32, [Claim("one", 8 * 4), Claim("two", 64)]) == {"one": 16, "two": 16}


def test_by_weight_up_to_the_cap_and_the_rest_to_the_others() -> None:
    by_weight = [Claim("a", 99, 2.0), Claim("b", 99), Claim("c", 99)]
    assert fair_shares(8, by_weight) == {"a": 4, "b": 2, "c": 2}
    capped = [Claim("a", 1, 2.0), Claim("b", 99), Claim("c", 99)]
    assert fair_shares(8, capped) == {"a": 1, "b": 4, "c": 3}


def test_rounding_goes_to_the_largest_remainder_then_to_the_heavier_then_in_order() -> None:
    assert fair_shares(10, [Claim("a", 99), Claim("b", 99), Claim("c", 99)]) == {
        "a": 4,
        "b": 3,
        "c": 3,
    }
    assert fair_shares(5, [Claim("a", 99, 1.0), Claim("b", 99, 2.0)]) == {"a": 2, "b": 3}


def test_a_job_whose_step_does_not_fit_has_none_and_the_others_have_its_share() -> None:
    assert fair_shares(4, [Claim("a", 8, 1.0, 4), Claim("b", 8)]) == {"a": 0, "b": 4}
    assert fair_shares(6, [Claim("a", 8, 1.0, 4), Claim("b", 2)]) == {"a": 4, "b": 2}
    assert fair_shares(4, [Claim("a", 8, 1.0, 4), Claim("b", 8, 1.0, 4)]) == {"a": 4, "b": 0}


@MANY
@given(cases(), st.randoms())
def test_what_holds_for_any_jobs(case: tuple[int, list[Claim]], rng) -> None:
    gpus, claims = case
    shares = fair_shares(gpus, claims)
    left = gpus - sum(shares.values())
    assert shares.keys() == {claim.job for claim in claims}
    assert left >= 0
    for claim in claims:
        share = shares[claim.job]
        assert share == 0 or claim.least <= share <= claim.cap
        could_have_more = share < claim.cap and (share > 0 or left >= claim.least <= claim.cap)
        assert not (left and could_have_more), "work-conserving"
    assert shares == fair_shares(gpus, list(claims))


@MANY
@given(cases())
def test_of_jobs_that_differ_in_weight_alone_the_heavier_has_no_less(
    case: tuple[int, list[Claim]],
) -> None:
    gpus, claims = case
    shares = fair_shares(gpus, claims)
    for one in claims:
        for other in claims:
            if (one.cap, one.least) == (other.cap, other.least) and one.weight > other.weight:
                assert shares[one.job] >= shares[other.job]


@MANY
@given(cases(steps=False), st.integers(0, 5), st.sampled_from([1.1, 2.0, 5.0]))
def test_more_weight_is_never_a_smaller_share(
    case: tuple[int, list[Claim]], which: int, times: float
) -> None:
    gpus, claims = case
    if which < len(claims):
        heavier = list(claims)
        heavier[which] = replace(claims[which], weight=claims[which].weight * times)
        job = claims[which].job
        assert fair_shares(gpus, heavier)[job] >= fair_shares(gpus, claims)[job]


@MANY
@given(cases(steps=False))
def test_exact_shares_are_level_and_whole_ones_within_one_gpu_of_them(
    case: tuple[int, list[Claim]],
) -> None:
    gpus, claims = case
    exact, shares = water_level(gpus, claims), fair_shares(gpus, claims)
    assert sum(exact.values(), Fraction(0)) == min(gpus, sum(claim.cap for claim in claims))
    assert sum(shares.values()) == min(gpus, sum(claim.cap for claim in claims))
    open_ = [claim for claim in claims if exact[claim.job] < claim.cap]
    assert len({exact[claim.job] / Fraction(claim.weight) for claim in open_}) <= 1
    assert all(abs(shares[job] - share) < 1 for job, share in exact.items())
