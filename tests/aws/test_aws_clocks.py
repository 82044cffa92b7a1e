"""Whose the credentials are, and how far this machine's clock is ahead of AWS's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from seerd.aws.cloud import Cloud
from seerd.aws.identity import date_of, introduce
from tests.aws.front import REGION, Fault, front

MOMENT = datetime(2026, 11, 20, 8, 22, tzinfo=UTC)


@pytest.mark.parametrize("code", ["", "AccessDenied"])
def test_aws_s_answer_says_whose_they_are_and_what_time_it_is_a_refusal_only_the_time(
    moto: str, code: str
) -> None:
    async def run() -> None:
        async with front(moto) as there, Cloud(REGION) as cloud:
            there.fault = lambda action, params: Fault(code) if code else None
            who = await introduce(cloud)
            assert who.arn.startswith("arn:aws:") is not bool(code)
            assert (len(who.account) == 12) is not bool(code)
            assert (who.error is not None) is bool(code)
            assert who.ahead_s is not None
            assert abs(who.ahead_s) < 30

    asyncio.run(run())


def test_a_date_is_read_to_the_middle_of_its_second_or_there_is_none() -> None:
    dated = {"ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(MOMENT, usegmt=True)}}}
    assert date_of(dated) == MOMENT.timestamp() + 0.5
    assert date_of({}) is None
    assert date_of({"ResponseMetadata": {"HTTPHeaders": {"date": "soon"}}}) is None
