"""Requests and errors in the shapes of AWS's protocols: the query protocol of EC2, XML of S3, JSON
of the others.

The one rule: an error looks as AWS sends it, status, code and message, for clients decide by them.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from aiohttp import web

JSON_TYPE = "application/x-amz-json-1.1"
STATUS = {
    "AccessDenied": 403,
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
}
"""HTTP statuses other than 400:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

NOT_OF_S3 = frozenset({"x-amzn-requestid", "x-amz-sdk-checksum-algorithm", "x-amz-content-sha256"})
"""Headers in moto's answers that S3 does not send."""


class AwsError(Exception):
    """What AWS refuses."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or STATUS.get(code, 400)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: which service and action, and the parameters of the query protocol."""

    service: str
    action: str
    params: dict[str, str]
    body: bytes

    def listed(self, name: str) -> list[str]:
        """The values of `Name.1`, `Name.2`, ..."""
        found = [
            (int(key[len(name) + 1 :]), value)
            for key, value in self.params.items()
            if re.fullmatch(re.escape(name) + r"\.\d+", key)
        ]
        return [value for _, value in sorted(found)]

    def number(self, name: str) -> int:
        """Raises AwsError if it is missing or no number."""
        text = self.params.get(name)
        if text is None:
            raise AwsError("MissingParameter", f"The request must contain the parameter {name}")
        if not text.isdigit() or int(text) < 1:
            raise AwsError(
                "InvalidParameterValue",
                f"Value ({text}) for parameter {name} is invalid. Must be greater than 0",
            )
        return int(text)


def read_call(request: web.Request, body: bytes) -> Call:
    """Which service a request is for, by the scope of its credentials, and what it asks."""
    service = _service(request)
    if service == "s3":
        return Call("s3", _s3_action(request), dict(request.query), body)
    target = request.headers.get("X-Amz-Target", "")
    if target:
        return Call(service, target.rpartition(".")[2], {}, body)
    params = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True)) or dict(
        request.query
    )
    return Call(service, params.get("Action", ""), params, body)


def _service(request: web.Request) -> str:
    scope = re.search(
        r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", request.headers.get("Authorization", "")
    )
    return scope.group(1) if scope else "s3"


def _s3_action(request: web.Request) -> str:
    key = request.path.strip("/").partition("/")[2]
    query = request.query
    if not key:
        if "uploads" in query:
            return "ListMultipartUploads"
        return {
            "PUT": "CreateBucket",
            "GET": "ListObjects",
            "HEAD": "HeadBucket",
            "DELETE": "DeleteBucket",
            "POST": "DeleteObjects",
        }[request.method]
    if "uploadId" in query:
        return {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
            "GET": "ListParts",
        }[request.method]
    if "uploads" in query:
        return "CreateMultipartUpload"
    return {
        "PUT": "PutObject",
        "GET": "GetObject",
        "HEAD": "HeadObject",
        "DELETE": "DeleteObject",
        "POST": "PostObject",
    }[request.method]


def error_response(service: str, error: AwsError) -> web.Response:
    """The error as this service's clients read it."""
    code, message, request_id = escape(error.code), escape(error.message), str(uuid.uuid4())
    if service == "ec2":
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors>'
            f"<Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
        return web.Response(status=error.status, text=text, content_type="text/xml")
    if service == "s3":
        text = (
            '<?xml version="1.0" '
            f'encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
            f"<RequestId>{request_id}</RequestId></Error>"
        )
        return web.Response(
            status=error.status,
            text=text,
            content_type="application/xml",
            headers={"x-amz-request-id": request_id},
        )
    if service in {"sts", "iam"}:
        text = (
            '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return web.Response(status=error.status, text=text, content_type="text/xml")
    return json_response({"__type": error.code, "message": error.message}, error.status)


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(value).encode(),
        headers={"Content-Type": JSON_TYPE, "x-amzn-RequestId": str(uuid.uuid4())},
    )


def ec2_response(action: str, inside: str) -> web.Response:
    """An answer of the EC2 query API around this XML."""
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response '
        'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>{uuid.uuid4()}</requestId>{inside}</{action}Response>"
    )
    return web.Response(text=text, content_type="text/xml")
