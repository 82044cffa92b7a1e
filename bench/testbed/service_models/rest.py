"""REST with XML, as S3 has it: the address says which operation is meant, and what it is told is in
the path, the query, headers and the body.

The one rule: what the model names is judged, and what begins with x-amz- and is not named is wrong;
other headers are HTTP's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape

from bench.testbed.service_models import shapes
from bench.testbed.service_models.messages import Answer, Request

OF_EVERY_REQUEST = frozenset(
    {
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-trailer",
        "x-amz-user-agent",
    }
)
"""Headers that belong to no operation
(docs.aws.amazon.com/AmazonS3/latest/API/RESTCommonRequestHeaders.html).
"""

OF_SIGNATURES = frozenset({"x-id", "AWSAccessKeyId", "Signature", "Expires"})
"""Parameters that belong to no operation either, beside X-Amz-...: which SDK has signed, and
signatures of version 2, which whoever checks signatures may refuse.
"""

OF_EVERY_ANSWER = frozenset({"x-amz-request-id", "x-amz-id-2", "x-amz-bucket-region"})


def operation_at(service: ServiceModel, request: Request) -> OperationModel:
    """Several operations have one address: the one that is meant says most of what is there, and of
    two that say as much it is the newer.
    """
    query = request.query()
    path = request.url.partition("?")[0].strip("/")
    depth = min(2, len(path.split("/", 1))) if path else 0
    fits = [
        (said, name)
        for name, said in _addresses(service).items()
        if (said.method, said.depth) == (request.method, depth) and said.is_that_of(request, query)
    ]
    if not fits:
        raise LookupError(
            f"{service.service_name} has no operation {request.method} {request.url[:200]}"
        )
    deprecated = {name: service.operation_model(name).deprecated for _, name in fits}
    _, name = max(fits, key=lambda fit: (fit[0].weight, not deprecated[fit[1]]))
    return service.operation_model(name)


@dataclass(frozen=True, slots=True)
class _Address:
    """What makes a request one for this operation. `depth`: how many of bucket and key it names."""

    method: str
    depth: int
    fixed: Mapping[str, str]
    query: frozenset[str]
    headers: frozenset[str]

    @property
    def weight(self) -> int:
        return len(self.fixed) + len(self.query) + len(self.headers)

    def is_that_of(self, request: Request, query: Mapping[str, str]) -> bool:
        """Whether it is, of those with this method and depth."""
        return (
            all(query.get(name) == text for name, text in self.fixed.items())
            and self.query <= query.keys()
            and all(request.header(name) for name in self.headers)
        )


@functools.cache
def _addresses(service: ServiceModel) -> dict[str, _Address]:
    return {name: _address(service.operation_model(name)) for name in service.operation_names}


def _address(operation: OperationModel) -> _Address:
    path, _, fixed = operation.http["requestUri"].partition("?")
    needed = {
        place: frozenset(
            name.lower() if place == "header" else name
            for name, member in _members(operation.input_shape, place).items()
            if member in _required(operation.input_shape)
        )
        for place in ("querystring", "header")
    }
    literal = dict(parse_qsl(fixed, keep_blank_values=True))
    # Which SDK has sent it: nobody needs that.
    literal.pop("x-id", None)
    depth = 0 if path == "/" else path.strip("/").count("/") + 1
    return _Address(
        operation.http["method"], depth, literal, needed["querystring"], needed["header"]
    )


def _required(shape: StructureShape | None) -> list[Shape]:
    return [] if shape is None else [shape.members[name] for name in shape.required_members]


def _members(shape: StructureShape | None, place: str) -> dict[str, Shape]:
    """The members that are said in this place, by their names there."""
    members = {} if shape is None else shape.members
    return {
        str(member.serialization.get("name", name)): member
        for name, member in members.items()
        if member.serialization.get("location", "body") == place
    }


def wrong_request(operation: OperationModel, request: Request) -> list[str]:
    shape = operation.input_shape
    fixed = _addresses(operation.service_model)[operation.name].fixed
    query = {
        name: text
        for name, text in request.query().items()
        if name not in {*fixed, *OF_SIGNATURES} and not name.startswith("X-Amz-")
    }
    return [
        *_said(_members(shape, "querystring"), query, "parameter", shapes.in_text),
        *_headers(shape, request.headers, OF_EVERY_REQUEST, _checksums(operation)),
        *_body(operation, shape, request.body),
    ]


def wrong_answer(operation: OperationModel, answer: Answer) -> list[str]:
    shape = operation.output_shape
    body = b"" if operation.http["method"] == "HEAD" else answer.body
    if body and not _payload(shape) and shapes.tag(ET.fromstring(body)) == "Error":
        # S3 may find only after it has begun to answer that it cannot.
        return []
    return [
        *_headers(shape, answer.headers, OF_EVERY_ANSWER, ()),
        *_body(operation, shape, body),
    ]


def _checksums(operation: OperationModel) -> tuple[str, ...]:
    """Where clients may add a checksum, its header is named after the algorithm."""
    return ("x-amz-checksum-",) if operation.http_checksum else ()


def _headers(
    shape: StructureShape | None,
    headers: Mapping[str, str],
    common: frozenset[str],
    also: tuple[str, ...],
) -> list[str]:
    members = {name.lower(): one for name, one in _members(shape, "header").items()}
    open_ended = (*also, *(name.lower() for name in _members(shape, "headers")))
    lower = {name.lower(): text for name, text in headers.items()}
    given = {
        name: text
        for name, text in lower.items()
        if name in members
        or (name.startswith("x-amz") and name not in common and not name.startswith(open_ended))
    }
    return _said(members, given, "header", shapes.in_header)


def _said(
    members: Mapping[str, Shape],
    given: Mapping[str, str],
    kind: str,
    judge: Callable[[Shape, str, str], list[str]],
) -> list[str]:
    wrong = []
    for name, text in given.items():
        if (member := members.get(name)) is None:
            wrong.append(f"there is no {kind} {name}")
        elif not isinstance(member, ListShape | MapShape):
            wrong += judge(member, text, name)
    return wrong


def _payload(shape: StructureShape | None) -> Shape | None:
    """The member that is the whole body."""
    name = None if shape is None else shape.serialization.get("payload")
    return None if name is None or shape is None else shape.members[name]


def _body(operation: OperationModel, shape: StructureShape | None, body: bytes) -> list[str]:
    payload = _payload(shape)
    if payload is not None and not isinstance(payload, StructureShape):
        return []
    inside = payload if payload is not None else shape
    members = _members(shape, "body")
    if not body:
        needed = [one for one in _required(shape) if one in members.values()]
        return [f"{operation.name} lacks its body"] if needed else []
    if inside is None or not members:
        return [f"{operation.name} has no body there, and this is one: {body[:200]!r}"]
    elsewhere = frozenset(
        str(one.serialization.get("name", name))
        for name, one in inside.members.items()
        if one.serialization.get("location")
    )
    return shapes.in_xml(inside, ET.fromstring(body), inside.name, elsewhere)
