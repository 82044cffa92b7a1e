"""What fuzz tests share: how hard they try, and input that is nearly right.

The one rule: quick by default, so that every test run has them; `SEERD_FUZZ` says how many times as
long (`make fuzz`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

HARDER = int(os.environ.get("SEERD_FUZZ", "1"))
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e"
"""What a terminal would obey: a new title, a clear screen, colours, going back, writing to the
left.
"""
NASTY_TEXTS = (
    *(
        "",
        " ",
        ".",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "-rf",
        "nul\0",
        "two\nlines",
        ESCAPES,
        "%s%n{0}",
    ),
    *(
        "x" * 300,
        "\ud800",
        "\udcff",
        "[/bold]",
        "[red",
        ":smile:",
        "\u0663",
        "9" * 400,
        "t0001",
        "0001-000001",
    ),
)
NASTY_NUMBERS = (
    *(0, -0.0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63) - 1, 10**18, 10**300, 10**400),
    *(5e-324, 1e-300, 1e18, 1.7e308, -1.7e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS = st.sampled_from(NASTY_TEXTS) | st.text(max_size=12)
NUMBERS = st.sampled_from(NASTY_NUMBERS) | st.integers(-9, 99) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TOKENS = (
    *(
        b"\0",
        b"\xff",
        b"\x1b[2J",
        b"\n",
        b'"',
        b"[" * 2000,
        b"{" * 500,
        b"-1",
        b"1e999",
        b"NaN",
        b"null",
        b"9" * 5000,
    ),
    *(b"\\ud800", b"../", b"true", b"[]", b"{}", b"=", b","),
)


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """So many examples in a quick run."""
    return settings(
        max_examples=examples * HARDER,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Something good with a few bytes turned, cut, repeated or replaced: what gets past the first
    check and fails at a later one.
    """
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        upto = min(len(data), at + draw(st.sampled_from([0, 1, 1, 4, 40, 4000])))
        data[at:upto] = draw(
            st.sampled_from([b"", *TOKENS])
            | st.binary(max_size=4)
            | st.just(bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[at : at + 1]))
            | st.just(bytes(data[at:upto]) * 2)
        )
    return bytes(data)


def junk(*seeds: bytes) -> st.SearchStrategy[bytes]:
    """Anything at all, and what is nearly right."""
    return mutated(seeds) | st.binary(max_size=200)
