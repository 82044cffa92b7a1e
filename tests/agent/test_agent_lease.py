"""The lease: who has not been heard of for too long is let go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.lease import Lease

SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS)
def test_it_ends_when_nobody_renews_it(begins, for_s):
    lease = Lease(begins + for_s, 5.0)
    assert lease.ended(begins + for_s)
    assert not lease.ended(begins + for_s - 1.0)


@given(SECONDS, SECONDS, SECONDS)
def test_the_newest_word_counts_even_if_it_is_shorter(ends, now, for_s):
    lease = Lease(ends, 5.0)
    lease.renew(now, for_s, 7.0)
    assert (lease.ends_at, lease.grace_s) == (now + for_s, 7.0)
