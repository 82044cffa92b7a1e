"""The lease: who has not been heard of for too long is let go."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.orders import Here
from seerd.agent.protocol import Alive, Renew, Stop
from seerd.agent.serve import Agent, Lease
from seerd.agent.talk import Talk
from seerd.agent.wire import encode

SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS)
def test_it_ends_when_nobody_renews_it(begins, for_s):
    lease = Lease(begins + for_s, 5.0)
    assert lease.ended(begins + for_s)
    assert not lease.ended(begins + for_s - 1.0)


@given(SECONDS, SECONDS, SECONDS)
def test_the_newest_word_counts_even_if_it_is_shorter(ends, now, for_s):
    lease = Lease(ends, 5.0)
    lease.renew(now, Renew(for_s, 7.0, 3.0))
    assert (lease.ends_at, lease.grace_s, lease.last_s) == (now + for_s, 7.0, 3.0)


@given(SECONDS, SECONDS, SECONDS)
def test_a_renewal_that_arrives_late_lasts_no_longer(sent, late_s, for_s):
    lease = Lease(sent, 5.0)
    lease.renew(sent + late_s, Renew(for_s, 7.0, 3.0, at=sent))
    assert lease.ends_at == sent + for_s
    lease.renew(sent - 1.0, Renew(for_s, 7.0, 3.0, at=sent))
    assert lease.ends_at == sent - 1.0 + for_s


@given(SECONDS, st.floats(0, 300), SECONDS)
def test_an_order_to_stop_that_arrives_late_gives_no_new_grace_period(asked, grace_s, late_s):
    stop = Stop("1", "t1", 1, checkpoint=True, grace_s=grace_s, at=asked)
    assert stop.kill_at(asked + late_s) == asked + grace_s
    assert replace(stop, at=None).kill_at(asked + late_s) == asked + late_s + grace_s
    assert replace(stop, checkpoint=False).kill_at(asked) < asked


@given(SECONDS, st.floats(0, 300), st.floats(0, 300), st.floats(-100, 1000))
def test_who_looks_late_has_less_time_left(ends, grace_s, last_s, late_s):
    lease = Lease(ends, grace_s, last_s)
    now = ends + late_s
    left_s, all_s = lease.left_s(now, grace_s), lease.left_s(now, grace_s + last_s)
    assert 0.0 <= left_s <= grace_s
    assert left_s <= all_s <= grace_s + last_s
    if late_s > 0:
        assert left_s == 0.0 or now + left_s <= ends + grace_s + 1e-6
        assert all_s == 0.0 or now + all_s <= ends + grace_s + last_s + 1e-6
    else:
        assert (left_s, all_s) == (
            pytest.approx(grace_s, abs=1e-6),
            pytest.approx(grace_s + last_s, abs=1e-6),
        )


def test_only_the_newest_connection_renews_it(tmp_path):
    """What an older one had sent may still be read when the newer one is there: it is not the
    daemon's word any more.
    """
    here = Here("r1", 1, cuda=False, folder=tmp_path, library=tmp_path)
    lease = Lease(100.0, 5.0)
    agent = Agent(here, lease)
    said = io.BytesIO(), io.BytesIO()
    older, newer = (Talk(None, writer, here, agent._journal) for writer in said)
    agent._talk, newer._is_welcome = newer, True
    agent._obey(older, Renew(for_s=999.0, grace_s=7.0))
    assert lease == Lease(100.0, 5.0)
    agent._obey(newer, Renew(for_s=999.0, grace_s=7.0))
    assert lease.grace_s == 7.0
    assert [writer.getvalue() for writer in said] == [b"", encode(Alive())]
    agent._journal.close()
