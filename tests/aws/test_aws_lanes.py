"""Whose turn it is to call AWS: never more often than EC2's own buckets bear, and nobody waits
behind what is not their business.
"""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from bench.testbed.rig.buckets import Buckets
from seerd.aws.cloud import LIMITS, Bucket, CallLanes, Lane

EC2S = {"run_instances": "RunInstances", "describe_instances": "DescribeInstances"}


PAUSES = st.one_of(st.just(0.0), st.floats(0.0, 3.0))


@given(st.sampled_from(sorted(EC2S)), st.lists(PAUSES, min_size=1, max_size=200))
@example("run_instances", [0.0] * 100)
def test_ec2_has_a_token_for_every_call_that_had_one_here(action: str, pauses: list[float]) -> None:
    bucket, theirs, now = Bucket(*LIMITS[action]), Buckets(), 0.0
    for pause in pauses:
        now += pause
        now += bucket.wait_s(now)
        bucket.take(now)
        assert theirs.take(EC2S[action], now)


def test_nobody_waits_for_a_turn_that_is_not_wanted_any_more() -> None:
    async def scenario() -> None:
        lane, wanted = Lane((1.0, 2.0)), [True]
        assert await lane.turn()
        time = asyncio.get_running_loop().time
        began = time()
        turns = [asyncio.create_task(lane.turn(lambda: wanted[0])) for _ in range(50)]
        await asyncio.sleep(0.0)
        wanted[0] = False
        assert not any(await asyncio.gather(*turns))
        assert time() - began < 5.0, "50 turns take 25 s"
        assert await lane.turn(), "and no token was taken"
        assert time() - began < 5.0

    asyncio.run(scenario())


def test_a_repetition_goes_before_what_was_never_asked() -> None:
    async def scenario() -> None:
        lane, order = Lane((1.0, 4.0)), list[str]()
        assert await lane.turn()

        async def first(name: str) -> None:
            await lane.turn()
            order.append(name)

        async def again() -> None:
            await lane.again(1)
            order.append("again")

        await asyncio.gather(*(first(str(n)) for n in range(8)), again())
        assert order.index("again") < 4
        assert [one for one in order if one != "again"] == [str(n) for n in range(8)]

    asyncio.run(scenario())


def test_a_lane_that_is_full_holds_up_no_other() -> None:
    async def scenario() -> None:
        lanes, time = CallLanes(), asyncio.get_running_loop().time
        turns = [asyncio.create_task(lanes["run_instances"].turn()) for _ in range(20)]
        waiting = turns[-1]
        began = time()
        for action in ("terminate_instances", "describe_instances", "describe_subnets"):
            assert await lanes[action].turn()
        assert time() - began < 1.0
        assert not waiting.done()
        for turn in turns:
            turn.cancel()

    asyncio.run(scenario())
