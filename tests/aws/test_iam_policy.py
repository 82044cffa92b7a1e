"""The policy that `doctor` prints, and what pages and messages name as permissions, are what IAM
knows.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.aws.policy import Needs, policy
from tests.aws.iam_lint import exists, is_condition_key, lint

ROOT = Path(__file__).resolve().parents[2]
PLAIN = Needs(
    region="eu-west-1",
    account="123456789012",
    image="ami-0123456789abcdef0",
    subnets=("subnet-1",),
    groups=("sg-1",),
    key="mine",
    spot=False,
    store=("bucket", "p/q"),
    data=(("data", "x/"),),
)
SAID = re.compile(r"`([a-z0-9-]+:[A-Z][A-Za-z0-9]+)`|\"([a-z0-9-]+:[A-Z][A-Za-z0-9]+)\"")


@pytest.mark.parametrize(
    "needs",
    [
        PLAIN,
        replace(PLAIN, spot=True),
        replace(PLAIN, keep=True),
        replace(PLAIN, region="*", account="*"),
        replace(PLAIN, region="cn-north-1"),
        replace(PLAIN, region="us-gov-west-1", spot=True, data=()),
        replace(PLAIN, image="ssm:/aws/service/deeplearning/ami/x86_64/latest/ami-id"),
        replace(PLAIN, image="ssm:/mine/image", account="*"),
        replace(PLAIN, subnets=(), groups=(), key=None, store=("bucket", "")),
    ],
)
def test_the_policy_has_no_mistake(needs: Needs) -> None:
    assert lint(policy(needs)) == []


def set_(sid: str, part: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        next(one for one in document["Statement"] if one["Sid"] == sid)[part] = value

    return change


def without(sid: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["Statement"] = [one for one in document["Statement"] if one["Sid"] != sid]

    return change


INSTANCES = "arn:aws:ec2:eu-west-1:123456789012:instance/*"


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (set_("EndInstances", "Action", "ec2:TerminateInstance"), "no action ec2:TerminateInst"),
        (set_("EndInstances", "Action", "ecc:TerminateInstances"), "no action ecc:"),
        (set_("EndInstances", "Resource", INSTANCES.replace("instance/", "instances/")), "about"),
        (set_("EndInstances", "Resource", INSTANCES.replace("ec2", "s3")), "no action is about"),
        (set_("EndInstances", "Resource", INSTANCES.replace(":aws:", ":amazon:")), "about arn"),
        (set_("EndInstances", "Resource", INSTANCES.replace("123456789012", "me")), "about arn"),
        (set_("EndInstances", "Resource", "*"), "allowed for everything"),
        (set_("Look", "Resource", INSTANCES), "ec2:DescribeImages is about nothing in particular"),
        (set_("Bucket", "Resource", "arn:aws:s3:::bucket/p/*"), "ListBucket is about none of"),
        (
            set_("EndInstances", "Condition", {"StringLike": {"aws:ResourceTags/seerd:run": "*"}}),
            "has no condition key aws:ResourceTags/seerd:run",
        ),
        (
            set_("TagInTheLaunch", "Condition", {"StringEquals": {"ec2:CreatingAction": "x"}}),
            "has no condition key ec2:CreatingAction",
        ),
        (
            set_("EndInstances", "Condition", {"StringIs": {"aws:ResourceTag/a": "*"}}),
            "no operator StringIs",
        ),
        (without("LaunchFrom"), "ec2:RunInstances also needs one of: subnet"),
        (without("LaunchWhatIsTagged"), "ec2:RunInstances also needs one of: network-interface"),
        (set_("Look", "Sid", "EndInstances"), "EndInstances: twice"),
        (set_("Look", "Effect", "allow"), "allows nothing"),
        (set_("Look", "Conditions", {}), "no part of a statement is Conditions"),
        (lambda document: document.update(Version="2012-10-18"), "Version is not"),
    ],
)
def test_a_mistake_in_the_policy_is_found(
    change: Callable[[dict[str, Any]], None], mistake: str
) -> None:
    document = copy.deepcopy(policy(PLAIN))
    change(document)
    assert mistake in "\n".join(lint(document))


def said_in(path: Path) -> set[str]:
    found = {a or b for a, b in SAID.findall(path.read_text())}
    return {name for name in found if not name.startswith("seerd:")}


@pytest.mark.parametrize(
    "path",
    [
        path
        for pattern in ("docs/*.md", "README.md", "seerd/**/*.py")
        for path in sorted(ROOT.glob(pattern))
        if said_in(path)
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_permission_that_is_named_exists(path: Path) -> None:
    named = sorted(said_in(path))
    assert [one for one in named if not (exists(one) or is_condition_key(one))] == []


def test_it_is_small_enough_for_a_policy_of_its_own() -> None:
    """IAM counts no white space (docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html).
    It is too long to be put into a user, which the page may not advise.
    """
    widest = policy(replace(PLAIN, spot=True, image="ssm:/mine/image"))
    assert len(re.sub(r"\s", "", json.dumps(widest))) <= 6144
    assert "put-user-policy" not in (ROOT / "docs" / "aws.md").read_text()


def test_the_page_names_every_permission_of_the_policy() -> None:
    page = (ROOT / "docs" / "aws.md").read_text()
    wanted = policy(replace(PLAIN, spot=True, image="ssm:/mine/image"))
    actions = {action for one in wanted["Statement"] for action in one["Action"]}
    assert [action for action in sorted(actions) if f"`{action}`" not in page] == []
