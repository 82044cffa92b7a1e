"""Search spaces: draws stay inside, integers stay integers, steps, conditions and constraints are
kept.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seerd.planner import space as of_space
from seerd.planner.parameter import FARTHEST, Parameter, ends
from seerd.planner.space import Condition, NoConfigurationError, Space, never_met
from seerd.spec import values as of_spec
from tests.fuzz.kit import fuzzed
from tests.planner.spaces import MIXED, SGD, normals, ranges, spaces


@given(st.integers(0, 2**32), st.floats(1e-6, 1.0), st.floats(1.5, 1e6), st.booleans())
def test_ranges_stay_inside(seed: int, low: float, factor: float, log: bool) -> None:
    parameter = Parameter("x", low=low, high=low * factor, log=log)
    assert low <= parameter.sample(random.Random(seed)) <= low * factor  # type: ignore[operator]


@given(st.integers(0, 2**32), st.integers(-20, 20), st.integers(1, 40), st.integers(1, 9))
def test_integers_stay_on_their_grid(seed: int, low: int, span: int, step: int) -> None:
    parameter = Parameter("x", low=low, high=low + span, step=min(step, span), integer=True)
    value = parameter.sample(random.Random(seed))
    assert type(value) is int
    assert low <= value <= low + span
    assert (value - low) % min(step, span) == 0


def test_log_ranges_are_uniform_in_the_exponent() -> None:
    rng = random.Random(0)
    parameter = Parameter("lr", low=1e-4, high=1.0, log=True)
    draws = [math.log10(float(parameter.sample(rng))) for _ in range(4000)]
    assert sum(draws) / len(draws) == pytest.approx(-2.0, abs=0.1)


def test_one_draw_per_parameter_in_the_order_of_the_spec() -> None:
    space = Space((Parameter("a", choices=(1, 2, 3)), Parameter("b", low=0, high=1)))
    rng, again = random.Random(5), random.Random(5)
    assert list(space.sample(rng)) == ["a", "b"]
    assert space.sample(rng) != space.sample(random.Random(5))
    assert space.sample(again) == space.sample(random.Random(5))


def test_defaults_are_the_first_choice_and_the_middle() -> None:
    space = Space(
        (
            Parameter("a", choices=("x", "y")),
            Parameter("b", low=1e-4, high=1.0, log=True),
            Parameter("c", low=2, high=8, step=2, integer=True),
        )
    )
    assert space.defaults() == {"a": "x", "b": pytest.approx(1e-2), "c": 6}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 2, "high": 1}, "smaller"),
        ({"low": 0, "high": 1, "log": True}, "greater than 0"),
        ({"low": 0, "high": 1, "step": 2}, "fit"),
        ({"low": -1e308, "high": 1e308, "step": 1}, "smaller"),
        ({"low": 0, "high": 1, "mean": 0, "std": 0}, "std = 0 must be greater than 0"),
        ({"low": 1, "high": 2, "mean": 1, "std": 1, "log": True}, "greater than 1"),
        ({"low": 1, "high": 2, "mean": 0, "std": 2, "log": True}, "mean = 0 must be greater"),
        ({"low": 0, "high": 1, "mean": math.nan, "std": 1}, "finite"),
        ({"low": 9, "high": 10, "mean": 0, "std": 1}, "millionth"),
    ],
)
def test_senseless_ranges_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Parameter("x", **fields)


@given(ranges() | normals(), st.integers(0, 2**32))
def test_draws_keep_bounds_and_steps(parameter: Parameter, seed: int) -> None:
    value = parameter.sample(random.Random(seed))
    assert parameter.low <= value <= parameter.high  # type: ignore[operator]
    assert parameter.may_be(value)
    assert type(value) is (int if parameter.integer else float)
    if parameter.stepped:
        step = parameter.step or 1.0
        places = (float(value) - parameter.low) / step
        assert abs(places - round(places)) < 1e-6 + 1e-9 * abs(parameter.low) / step


@given(ranges() | normals(), st.floats(0, 1))
def test_a_value_is_found_again_by_its_share(parameter: Parameter, share: float) -> None:
    value = parameter.at(share)
    assert 0 <= parameter.share(value) <= 1
    again = parameter.at(parameter.share(value))
    if parameter.stepped:
        assert again == value
    else:
        assert again == pytest.approx(value, rel=1e-6, abs=1e-6 * (parameter.high - parameter.low))


@given(ranges() | normals())
def test_the_default_is_a_value(parameter: Parameter) -> None:
    assert parameter.may_be(parameter.default())


@given(spaces(), st.integers(0, 2**32))
def test_exactly_the_active_parameters_are_there(space: Space, seed: int) -> None:
    rng = random.Random(seed)
    for config in (space.defaults(), *(space.sample(rng) for _ in range(5))):
        seen: dict = {}
        for parameter in space.parameters:
            holds = [c.parameter in seen and seen[c.parameter] in c.values for c in parameter.when]
            if parameter.name in config:
                seen[parameter.name] = config[parameter.name]
                assert all(holds)
                assert parameter.may_be(config[parameter.name])
            elif parameter.when:
                assert not all(c.holds(seen) for c in parameter.when)
            else:
                pytest.fail(f"{parameter.name} has no condition")


@given(st.integers(0, 2**32))
def test_every_draw_meets_the_constraints(seed: int) -> None:
    config = MIXED.sample(random.Random(seed))
    assert config["layers"] * config["width"] <= 512
    assert config["lr"] / (1 - config.get("momentum", 0)) <= 2
    assert ("momentum" in config) == (config["optimizer"] == "sgd")
    assert ("damp" in config) == (config.get("nesterov") is False)
    assert config["epochs"] == 90


@given(st.integers(0, 2**32))
def test_a_condition_changes_nothing_else_in_the_sequence(seed: int) -> None:
    """One draw per parameter, active or not: what is drawn for the others stays the same."""
    momentum = Parameter("momentum", low=0.8, high=0.99)
    rest = Parameter("optimizer", choices=("sgd", "adam")), Parameter("lr", low=0.0, high=1.0)
    free = Space((rest[0], momentum, rest[1])).sample(random.Random(seed))
    when = Parameter("momentum", low=0.8, high=0.99, when=(SGD,))
    bound = Space((rest[0], when, rest[1])).sample(random.Random(seed))
    assert bound == {k: v for k, v in free.items() if k != "momentum" or "momentum" in bound}


@pytest.mark.parametrize("log", [False, True])
def test_the_ends_of_a_grid_are_as_likely_as_its_middle(log: bool) -> None:
    parameter = Parameter("x", low=4, high=8, step=2, integer=True, log=log)
    rng = random.Random(1)
    drawn = Counter(parameter.sample(rng) for _ in range(9000))
    share = [math.log(5 / 3), math.log(7 / 5), math.log(9 / 7)] if log else [1, 1, 1]
    assert [drawn[n] / 9000 for n in (4, 6, 8)] == pytest.approx(
        [part / sum(share) for part in share], abs=0.02
    )


def test_a_normal_has_its_mean_and_deviation_and_is_cut_off() -> None:
    rng = random.Random(2)
    low, high = ends(3.0, 0.5, None, log=False)
    parameter = Parameter("x", low=low, high=high, mean=3.0, std=0.5)
    drawn = [float(parameter.sample(rng)) for _ in range(4000)]
    assert (fmean(drawn), pstdev(drawn)) == pytest.approx((3.0, 0.5), abs=0.03)
    assert (low, high) == (3.0 - FARTHEST * 0.5, 3.0 + FARTHEST * 0.5)
    cut = Parameter("x", low=2.9, high=3.2, mean=3.0, std=0.5)
    drawn = [float(cut.sample(rng)) for _ in range(4000)]
    assert 2.9 <= min(drawn) < 2.91
    assert 3.19 < max(drawn) <= 3.2


def test_two_in_three_of_a_log_normal_are_within_its_factor() -> None:
    rng = random.Random(3)
    low, high = ends(1e-4, 3.0, None, log=True)
    parameter = Parameter("x", low=low, high=high, mean=1e-4, std=3.0, log=True)
    drawn = [float(parameter.sample(rng)) for _ in range(4000)]
    assert fmean(value < 1e-4 for value in drawn) == pytest.approx(0.5, abs=0.03)
    assert fmean(1e-4 / 3 < value < 3e-4 for value in drawn) == pytest.approx(0.683, abs=0.03)
    assert parameter.default() == 1e-4


def test_quantised_values_are_as_a_person_writes_them() -> None:
    parameter = Parameter("x", low=0.0, high=0.5, step=0.05)
    assert parameter.values(20) == tuple(round(0.05 * n, 2) for n in range(11))
    low, high = ends(0.3, 0.1, 0.1, log=False)
    assert 0.3 in Parameter("x", low=low, high=high, step=0.1, mean=0.3, std=0.1).values(20)


def test_numbers_and_booleans_are_different_values() -> None:
    parameter = Parameter("x", choices=(1, True, 0, False))
    assert [parameter.place(value) for value in (1, True, 0, False)] == [0, 1, 2, 3]
    assert not Condition("x", (1,)).holds({"x": True})
    with pytest.raises(ValueError, match="no choice"):
        parameter.place("1")


def test_a_grid_has_each_combination_that_is_allowed_once() -> None:
    space = Space(
        (
            Parameter("optimizer", choices=("sgd", "adam")),
            Parameter("momentum", low=0.8, high=0.9, when=(SGD,)),
            Parameter("layers", low=1, high=3, integer=True),
        ),
        constraints=("layers < 3", "momentum < 0.85 or layers == 1"),
    )
    momenta = space.parameters[1].values(5)
    sgd = [{"optimizer": "sgd", "momentum": m, "layers": n} for m in momenta for n in (1, 2)]
    adam = [{"optimizer": "adam", "layers": n} for n in (1, 2)]
    allowed = [c for c in sgd if c["momentum"] < 0.85 or c["layers"] == 1]
    assert list(space.grid(5, 100)) == [*allowed, *adam]
    assert len(list(space.grid(5, 3))) == 2, "of the first three combinations"


def test_the_default_meets_the_constraints() -> None:
    parameters = (Parameter("a", low=0.0, high=1.0), Parameter("b", low=0.0, high=1.0))
    assert Space(parameters, constraints=("a <= b",)).defaults() == {"a": 0.5, "b": 0.5}
    other = Space(parameters, constraints=("a < b",))
    assert other.allows(other.defaults())
    assert other.defaults() == other.defaults()


def test_what_is_never_met_is_told_with_how_seldom_each_was() -> None:
    one = Parameter("a", low=0.0, high=1.0)
    assert never_met(Space((one,), constraints=("a < 0.01",))) == ""
    told = never_met(Space((one,), constraints=("a < 0.5", "a > 2")))
    assert "of 10,000 configurations drawn from the space none met all" in told
    assert "'a > 2' by 0" in told
    seldom = never_met(Space((one,), constraints=("a < 0.0003",)))
    assert 0 < int(seldom.split("the space ")[1].split()[0]) < of_space.MET
    assert never_met(Space((one,), constraints=("a < 'x'",))).startswith("\"a < 'x'\" cannot be")


def test_no_draw_goes_on_for_ever() -> None:
    never = Space((Parameter("a", low=0.0, high=1.0),), constraints=("a > 2",))
    with pytest.raises(NoConfigurationError, match="a > 2"):
        never.sample(random.Random(0), most_tries=100)


def test_a_grid_of_thousands_of_parameters_is_no_deeper_than_others() -> None:
    when = (Condition("p0", (1,)),)
    several = [Parameter(f"p{n}", choices=(1, 2), when=when if n % 2 else ()) for n in range(3000)]
    first, second = Space(tuple(several)).grid(5, 2)
    assert len(first) == 3000
    assert (first["p2999"], second["p2999"]) == (1, 2)
    others = {name: value for name, value in first.items() if name != "p2999"}
    assert others.items() <= second.items()


ODD = st.sampled_from(
    [
        *(
            5e-324,
            1e-320,
            1e-300,
            1e-17,
            0.1,
            1,
            7,
            2**53,
            2**63,
            10**400,
            1e308,
            1.7e308,
            -1,
            0,
            -1e308,
        )
    ]
)
NUMBERS = ODD | st.floats(allow_nan=False, allow_infinity=False) | st.integers()


@fuzzed(400)
@given(
    st.fixed_dictionaries({"low": NUMBERS, "high": NUMBERS}, optional={"step": NUMBERS})
    | st.fixed_dictionaries(
        {"mean": NUMBERS, "std": NUMBERS},
        optional={"low": NUMBERS, "high": NUMBERS, "step": NUMBERS},
    ),
    st.booleans(),
    st.floats(0, 1),
)
@example(table={"low": -(2**53), "high": 7}, log=False, share=0.0)
def test_a_range_is_refused_in_words_or_gives_values(
    table: dict[str, float], log: bool, share: float
) -> None:
    try:
        made = of_spec.parameter("lr", {**table, "log": log})
    except ValueError as error:
        assert "cannot convert" not in str(error)
        assert "math domain" not in str(error)
        return
    drawn = [made.at(share), made.default(), made.sample(random.Random(0)), *made.values(5)]
    for value in drawn:
        assert made.low <= value <= made.high
        assert 0 <= made.share(value) <= 1
