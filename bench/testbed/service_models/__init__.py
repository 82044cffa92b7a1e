"""Whether what goes over the wire is what AWS's own models say: botocore's descriptions of each
operation, the ones that its clients are made of.

The one rule: it judges and changes nothing. A stand-in for AWS hands over each request and each
answer as they are on the wire, and fails whoever made a wrong one; a refusal alone would look like
one of AWS's.

Protocols: https://smithy.io/2.0/aws/protocols/index.html
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import botocore.session
from botocore.awsrequest import HeadersDict
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape
from botocore.parsers import ResponseParserError, create_parser

from bench.testbed.service_models import rest, shapes
from bench.testbed.service_models.messages import Answer, Request

__all__ = ["Answer", "Judge", "Request", "load", "operation_of", "wrong_answer", "wrong_request"]

_SCOPE = re.compile(r"(?:Credential=|^)[^/=]+/\d{8}/[^/]+/([^/]+)/aws4_request")
_MODELS = {"servicequotas": "service-quotas"}
"""Signing names that are not those of the models."""

_OF_EVERY_QUERY = frozenset({"Action", "Version"})
_BESIDE_THE_OUTPUT = frozenset({"requestId", "return"})
"""What EC2 answers besides; an operation without an output says `return`."""

_MOST = 20
"""So many lines say enough about a test that is wrong throughout."""


@dataclass(slots=True)
class Judge:
    """All that was wrong so far."""

    wrong: list[str] = field(default_factory=list)

    def request(self, request: Request) -> None:
        """Judge a request."""
        self._add(wrong_request(request))

    def answer(self, request: Request, answer: Answer) -> None:
        """Judge the answer to a request."""
        self._add(wrong_answer(request, answer))

    def _add(self, lines: list[str]) -> None:
        self.wrong += [line for line in lines if line not in self.wrong][: _MOST - len(self.wrong)]


def wrong_request(request: Request) -> list[str]:
    """What is wrong with a request: it is for no operation, or has other parameters than that."""
    try:
        operation = operation_of(request)
    except LookupError as error:
        return [str(error.args[0])]
    try:
        found = _REQUESTS[_protocol(operation)](operation, request)
    except ET.ParseError as error:
        found = [f"its body cannot be read: {error}"]
    return _named(operation, "request", found)


def wrong_answer(request: Request, answer: Answer) -> list[str]:
    """What is wrong with the answer to a request: clients could not read it, or would not see all
    of it.
    """
    try:
        operation = operation_of(request)
    except LookupError:
        return []
    try:
        if answer.status >= 300:
            found = _wrong_error(request, answer, _parsed(operation, answer))
        elif not (found := _ANSWERS[_protocol(operation)](operation, answer)):
            _parsed(operation, answer)
    except (ResponseParserError, ET.ParseError, ValueError, KeyError) as error:
        found = [f"no client can read it: {error!r}"[:300]]
    return _named(operation, f"answer with status {answer.status}", found)


def operation_of(request: Request) -> OperationModel:
    """The operation that a request is for. Raises LookupError with a text that says why not."""
    service = _model(_service_of(request))
    if service.resolved_protocol == "rest-xml":
        return rest.operation_at(service, request)
    name = request.params().get("Action") or request.header("x-amz-target").rpartition(".")[2]
    if name not in service.operation_names:
        raise LookupError(f"{service.service_name} has no operation {name!r}")
    return service.operation_model(name)


def load(*services: str) -> None:
    """Read these models now: EC2's takes a quarter of a second, which the first call would wait."""
    for service in services:
        _model(service)


@functools.cache
def _session() -> Any:
    return botocore.session.Session()


@functools.cache
def _model(service: str) -> ServiceModel:
    try:
        return _session().get_service_model(_MODELS.get(service, service))
    except botocore.session.UnknownServiceError:
        raise LookupError(f"there is no service {service!r}") from None


def _protocol(operation: OperationModel) -> str:
    return str(operation.service_model.resolved_protocol)


def _service_of(request: Request) -> str:
    """By the scope of the signature; without one it is for S3, which serves anybody."""
    scope = _SCOPE.search(request.header("authorization")) or _SCOPE.search(
        request.query().get("X-Amz-Credential", "")
    )
    return scope[1] if scope else "s3"


def _named(operation: OperationModel, what: str, found: list[str]) -> list[str]:
    service = operation.service_model.service_name
    return [f"{service}:{operation.name}: {what}: {line}" for line in found]


def _parsed(operation: OperationModel, answer: Answer) -> dict[str, Any]:
    parts = {
        "status_code": answer.status,
        "headers": HeadersDict(answer.headers),
        # A stream is handed to whoever asked, and not read by the parser.
        "body": b"" if operation.has_streaming_output and answer.status < 300 else answer.body,
    }
    parsed: dict[str, Any] = create_parser(_protocol(operation)).parse(
        parts, operation.output_shape
    )
    return parsed


def _wrong_error(request: Request, answer: Answer, parsed: dict[str, Any]) -> list[str]:
    """A refusal must have a code, or clients take it for a failure of the network. Only the answer
    to HEAD has no body to say it in.
    """
    if request.method == "HEAD" or answer.status == 304:
        return []
    code = str(parsed.get("Error", {}).get("Code", ""))
    return [] if code and not code.isdigit() else [f"no error code in {answer.body[:200]!r}"]


def _ec2_name(name: str, shape: Shape) -> str:
    said = shape.serialization
    plain = str(said.get("name", name))
    return str(said.get("queryName") or plain[:1].upper() + plain[1:])


def _query_name(name: str, shape: Shape) -> str:
    return str(shape.serialization.get("name", name))


def _query_request(operation: OperationModel, request: Request) -> list[str]:
    params = request.params()
    version = operation.service_model.api_version
    wrong = [] if params.get("Version") == version else [f"Version is not {version}"]
    given = {name: text for name, text in params.items() if name not in _OF_EVERY_QUERY}
    shape = operation.input_shape
    if shape is None:
        return wrong + [f"{operation.name} has no parameter {name}" for name in given]
    if _protocol(operation) == "ec2":
        return wrong + shapes.in_query(shape, given, _ec2_name)
    return wrong + shapes.in_query(shape, given, _query_name, mark="member")


def _ec2_answer(operation: OperationModel, answer: Answer) -> list[str]:
    root = ET.fromstring(answer.body)
    lacks = [] if root.find("{*}requestId") is not None else ["it lacks requestId"]
    return lacks + _output(operation, root, but=_BESIDE_THE_OUTPUT)


def _query_answer(operation: OperationModel, answer: Answer) -> list[str]:
    root = ET.fromstring(answer.body)
    shape = operation.output_shape
    if shape is None:
        return []
    wrapper = shape.serialization.get("resultWrapper", f"{operation.name}Result")
    result = root.find(f"{{*}}{wrapper}")
    return [f"it lacks {wrapper}"] if result is None else _output(operation, result)


def _output(
    operation: OperationModel, node: ET.Element, but: frozenset[str] = frozenset()
) -> list[str]:
    if operation.output_shape is not None:
        return shapes.in_xml(operation.output_shape, node, operation.output_shape.name, but)
    unknown = [shapes.tag(one) for one in node if shapes.tag(one) not in but]
    return [f"{operation.name} has no output, and this has {unknown}"] if unknown else []


def _json_request(operation: OperationModel, request: Request) -> list[str]:
    said = operation.service_model.metadata
    target = f"{said['targetPrefix']}.{operation.name}"
    wrong = [] if request.header("x-amz-target") == target else [f"its target is not {target}"]
    kind = f"application/x-amz-json-{said['jsonVersion']}"
    if not request.header("content-type").startswith(kind):
        wrong.append(f"its content type is not {kind}")
    return wrong + _in_json(operation.input_shape, request.body)


def _json_answer(operation: OperationModel, answer: Answer) -> list[str]:
    return _in_json(operation.output_shape, answer.body)


def _in_json(shape: StructureShape | None, body: bytes) -> list[str]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return [f"{body[:200]!r} is no JSON"]
    if shape is None:
        return [f"{value!r} where there is nothing to say"] if value else []
    return shapes.in_json(shape, value, shape.name)


_REQUESTS: dict[str, Callable[[OperationModel, Request], list[str]]] = {
    "ec2": _query_request,
    "query": _query_request,
    "json": _json_request,
    "rest-xml": rest.wrong_request,
}
_ANSWERS: dict[str, Callable[[OperationModel, Answer], list[str]]] = {
    "ec2": _ec2_answer,
    "query": _query_answer,
    "json": _json_answer,
    "rest-xml": rest.wrong_answer,
}
