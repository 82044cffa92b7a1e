"""Numbers are read whole from what a script prints, whatever the pattern."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.patterns import NumberPattern

PATTERNS = ("{number}", "([0-9.]+)", r"(\d+\.?\d*)", "([-+.0-9eE]+)", r"(\S+)", "(.+?)(?: |$)")
"""What stands for the number in patterns that people write."""
FORMATS = ("{!r}", "{:.4f}", "{:g}", "{:e}", "{:+.3E}", "{:.17g}")


@given(
    st.floats(),
    st.sampled_from(FORMATS),
    st.sampled_from(PATTERNS),
    st.sampled_from(["loss {}", "epoch 3: loss {} (best 0.5)", "1/10, loss {}"]),
)
def test_every_float_is_read_as_it_was_printed(
    number: float, form: str, place: str, line: str
) -> None:
    text = form.format(number)
    found = NumberPattern(f"loss {place}").read(line.format(text))
    assert found is not None
    assert found[1] == ""
    assert str(found[0]) == str(float(text))


@pytest.mark.parametrize(
    ("pattern", "line", "number"),
    [
        ("acc {number}", "acc 93.1%", 93.1),
        ("acc {number}%", "acc 93.1%", 93.1),
        ("acc .*{number}", "acc is 0.93", 0.93),
        ("acc .*([0-9.]+)", "acc is -1e-05", -1e-5),
        ("acc-{number}", "acc-0.93.pt", 0.93),
        ("(?i)Loss: ([0-9.]+)", "loss: NaN", math.nan),
        ("loss[=: ]+([0-9.]+)", "loss = -Infinity", -math.inf),
        ("loss ([0-9.]+)", "loss nan, val_loss 0.5", math.nan),
        ("(train|val) loss ([0-9.]+)", "val loss inf", math.inf),
        ("acc ([0-9]+(?:[.][0-9]+)?),", "acc 5e-3, 7", 5e-3),
        ("acc (?P<value>[0-9.]+)", "acc -0.5", -0.5),
        (r"acc (\S+)", "acc 0.93,", 0.93),
        ("top1 {number}|acc {number}", "acc 0.5", 0.5),
        (r"'loss': '?([-+.0-9eE]+)", "{'loss': 'nan', 'step': 3}", math.nan),
        ("^[0-9]+,([0-9.]+),", "3,125,0.5", 125.0),
        ("[(]acc ([0-9.]+)[)]", "(acc nan)", math.nan),
        ("loss {number}", "loss \u22120.5", -0.5),
        (r"loss (\S+)", "loss -nan(ind)", math.nan),
        ("loss {number}", "loss 0.3.", 0.3),
        # cruijff_kit#448, shinken#1136, autokeras#1758
        (r"[0-9]+[|]Loss: ([0-9.]+)", "12|340|Loss: 6.05e-06", 6.05e-6),
        (r"offset-[0-9.]+=([0-9.-]+)", "offset-192.168.0.1=-7.2e-05;1", -7.2e-5),
        ("val_loss: ([0-9.]+)", "8/8 - 0s - loss: nan - val_loss: nan", math.nan),
    ],
)
def test_the_whole_number_counts(pattern: str, line: str, number: float) -> None:
    found = NumberPattern(pattern).read(line)
    assert found is not None
    assert str(found[0]) == str(number)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("loss {number}", "loss function"),
        ("loss ([0-9.]+)", "loss info 3"),
        ("loss {number}", "loss nanny 3"),
        (r"acc (\d+\.\d+)", "acc 93/100"),  # the group is for another kind of line
        (r"acc (\S+)", "acc 1.2.3"),
        (r"acc (\S+)", "acc 93/100"),
    ],
)
def test_what_is_no_number_is_none(pattern: str, line: str) -> None:
    assert NumberPattern(pattern).read(line) is None


@pytest.mark.parametrize(
    ("line", "longer"),
    [
        ("acc 0,93", "0,93"),
        ("acc 1,234.5", "1,234"),
        ("acc 1'234", "1'234"),
        ("acc 1.5k", "1.5k"),
        ("acc 0x10", "0x10"),
        ("acc 1d-5", "1d-5"),
        ("acc 1.#INF", "1.#INF"),
        ("acc 1\u202f234.5", "1\u202f234"),
        ("acc 5s, 0.5/1.0", ""),
        ("acc 0.5,0.7", ""),
        ("acc 0.5. Done", ""),
        ("acc 5, 7", ""),
    ],
)
@pytest.mark.parametrize("place", ["{number}", "([0-9.]+)"])
def test_a_number_that_may_be_a_part_of_one_is_told(place: str, line: str, longer: str) -> None:
    found = NumberPattern(f"acc {place}").read(line)
    assert found is not None
    assert found[1] == longer
