"""Launches that EC2 has to refuse: with an image, a zone and a bid that it cannot take. Each is the
launch of a run with one thing wrong; if EC2 takes it, the instance is ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.commands.canary.outcome import CheckOutcome

NO_IMAGE = "ami-00000000000000000"
TOO_LITTLE = "0.0001"  # USD for an hour
# what seerd has to take each refusal for
ABOUT = {
    "wrong image": frozenset({ErrorKind.REFUSED}),
    "wrong zone": frozenset({ErrorKind.REFUSED, ErrorKind.ELSEWHERE}),
    "wrong price": frozenset({ErrorKind.CAPACITY}),
}
# refusals whatever is asked for
UNRELATED = frozenset(
    {ErrorKind.THROTTLED, ErrorKind.UNCLEAR, ErrorKind.QUOTA, ErrorKind.CREDENTIALS}
)


async def look(cloud: Cloud, request: Mapping[str, Any]) -> list[CheckOutcome]:
    """Send a launch that EC2 has taken again, with one thing wrong each time."""
    outcomes = []
    for check in ABOUT:
        launch = wrong(check, request, cloud.region)
        try:
            answer = await cloud.ask("ec2", "run_instances", patience_s=20.0, **launch)
        except AwsError as error:
            outcomes.append(judged(check, error))
            continue
        await instances.end(cloud, [row["InstanceId"] for row in answer["Instances"]])
        text = "EC2 has taken it; the instance was ended"
        outcomes.append(CheckOutcome(check, "failed", text))
    return outcomes


def wrong(check: str, request: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Return the launch with one thing wrong, under a token of its own."""
    asked = dict(request) | {"ClientToken": f"seerd-canary-{secrets.token_hex(16)}"}
    if check == "wrong image":
        return asked | {"ImageId": NO_IMAGE}
    if check == "wrong zone":
        interface = {k: v for k, v in request["NetworkInterfaces"][0].items() if k != "SubnetId"}
        zone = {"AvailabilityZone": f"{region}-nowhere"}
        return asked | {"NetworkInterfaces": [interface], "Placement": zone}
    options = {"SpotInstanceType": "one-time", "MaxPrice": TOO_LITTLE}
    return asked | {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


def judged(check: str, error: AwsError) -> CheckOutcome:
    """Judge a refusal: whether seerd takes it for what it is."""
    refusal = None, error.code, error.status or None
    if error.kind in ABOUT[check]:
        return CheckOutcome(check, "passed", error.said, *refusal)
    if error.kind is ErrorKind.DENIED:
        said = f"EC2 looks at permissions first, and these do not permit it: {error.said}"
        return CheckOutcome(check, "unknown", said, *refusal)
    if error.kind in UNRELATED:
        return CheckOutcome(check, "unknown", str(error), *refusal)
    return CheckOutcome(
        check, "failed", f"seerd takes it for {error.kind.value!r}: {error.said}", *refusal
    )
