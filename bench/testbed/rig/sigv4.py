"""AWS's signature, version 4, looked at from the other side: requests and presigned URLs that are
not what was signed stay outside.

The one rule: nothing is taken from the request but what the signature covers.
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from bench.testbed.rig.wire import AwsError

LONGEST_S = 7 * 24 * 3600
SKEW_S = 15 * 60
NO_MATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your key and signing method."
)
DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came in. `path` and `query` are still percent-encoded; header names are lower
    case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request says of its signature."""

    key: str
    scope: str
    stamp: str
    signed: list[str]
    signature: str


def check(seen: Seen, keys: Mapping[str, str], service: str) -> str:
    """The id of the key that signed this request. Raises AwsError unless it is one of these (id ->
    secret), and in time.
    """
    if service == "s3" and "AWSAccessKeyId=" in seen.query:
        # Version 2, which boto3 still makes in us-east-1 unless it is told "s3v4"; buckets made
        # since June 2020 refuse it.
        raise AwsError(
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use "
            "AWS4-HMAC-SHA256.",
        )
    presigned = "X-Amz-Signature=" in seen.query
    claim = _from_query(seen) if presigned else _from_header(seen)
    if claim.key not in keys:
        raise AwsError(*_unknown_key(service))
    if presigned:
        _check_life(_arguments(seen.query), claim)
        _check_headers(seen, claim)
        payload = seen.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    else:
        _check_clock(claim, service)
        payload = seen.headers.get("x-amz-content-sha256") or hashlib.sha256(seen.body).hexdigest()
    if re.fullmatch(r"[0-9a-f]{64}", payload) and hashlib.sha256(seen.body).hexdigest() != payload:
        raise AwsError(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    expected = _sign(keys[claim.key], claim, _canonical(seen, claim, payload, service))
    if not hmac.compare_digest(expected, claim.signature):
        raise AwsError("SignatureDoesNotMatch", NO_MATCH)
    return claim.key


def _unknown_key(service: str) -> tuple[str, str]:
    if service == "s3":
        return (
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
        )
    if service == "ec2":
        return "AuthFailure", "AWS was not able to validate the provided access credentials"
    return "UnrecognizedClientException", "The security token included in the request is invalid."


def _from_query(seen: Seen) -> Claim:
    given = _arguments(seen.query)
    try:
        key, _, scope = given["X-Amz-Credential"].partition("/")
        return Claim(
            key,
            scope,
            given["X-Amz-Date"],
            given["X-Amz-SignedHeaders"].split(";"),
            given["X-Amz-Signature"],
        )
    except KeyError as missing:
        raise AwsError(
            "AuthorizationQueryParametersError", f"Query-string authentication needs {missing}"
        ) from missing


def _from_header(seen: Seen) -> Claim:
    given = seen.headers.get("authorization", "")
    match = re.fullmatch(
        r"AWS4-HMAC-SHA256 "
        r"Credential=([^/]+)/([^,]+),\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})",
        given,
    )
    if match is None:
        raise AwsError("AccessDenied", "Access Denied")
    return Claim(
        match[1], match[2], seen.headers.get("x-amz-date", ""), match[3].split(";"), match[4]
    )


def _check_life(given: Mapping[str, str], claim: Claim) -> None:
    life = given.get("X-Amz-Expires", "")
    if not life.isdigit() or not 1 <= int(life) <= LONGEST_S:
        raise AwsError(
            "AuthorizationQueryParametersError", "X-Amz-Expires must be between 1 second and a week"
        )
    if _age(claim) > int(life):
        raise AwsError("AccessDenied", "Request has expired")
    if "host" not in claim.signed:
        raise AwsError("SignatureDoesNotMatch", NO_MATCH)


def _check_headers(seen: Seen, claim: Claim) -> None:
    if any(name.startswith("x-amz-") and name not in claim.signed for name in seen.headers):
        raise AwsError(
            "AccessDenied", "There were headers present in the request which were not signed"
        )


def _check_clock(claim: Claim, service: str) -> None:
    if abs(_age(claim)) > SKEW_S:
        code = "RequestTimeTooSkewed" if service == "s3" else "RequestExpired"
        raise AwsError(
            code, "The difference between the request time and the current time is too large."
        )


def _age(claim: Claim) -> float:
    try:
        return (
            datetime.now(UTC) - datetime.strptime(claim.stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        ).total_seconds()
    except ValueError as error:
        raise AwsError("AccessDenied", "The request has no date") from error


def _arguments(query: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {unquote(name): unquote(value) for name, _, value in pairs}


def _canonical(seen: Seen, claim: Claim, payload: str, service: str) -> str:
    pairs = sorted(
        (_encoded(name), _encoded(value))
        for name, value in _pairs(seen.query)
        if name != "X-Amz-Signature"
    )
    for name in claim.signed:
        if name not in seen.headers:
            raise AwsError(
                "AccessDenied", "There were headers present in the request which were not signed"
            )
    headers = "".join(f"{name}:{' '.join(seen.headers[name].split())}\n" for name in claim.signed)
    path = seen.path if service == "s3" else quote(seen.path, safe="/-_.~")
    return "\n".join(
        [
            seen.method,
            path or "/",
            "&".join(f"{name}={value}" for name, value in pairs),
            headers,
            ";".join(claim.signed),
            payload,
        ]
    )


def _pairs(query: str) -> list[tuple[str, str]]:
    return [
        (unquote(name), unquote(value))
        for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)
    ]


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~")


def _sign(secret: str, claim: Claim, canonical: str) -> str:
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            claim.stamp,
            claim.scope,
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = b"AWS4" + secret.encode()
    for part in claim.scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_digests(seen: Seen) -> None:
    """S3's BadDigest:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
    """
    for name, compute in DIGESTS.items():
        given = seen.headers.get(name)
        if given is not None and base64.b64encode(compute(seen.body)).decode() != given:
            raise AwsError(
                "BadDigest", f"The {name} you specified did not match the calculated checksum."
            )
