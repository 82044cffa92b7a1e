"""The endpoint that clients see: every AWS service at one address, and the rig's own switches below
/rig/.

The one rule: a request is counted, authenticated and perhaps made to fail here, whatever it is for;
only then is it carried out. It and its answer are judged by AWS's models.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from bench.testbed.rig import aws, sigv4
from bench.testbed.rig.buckets import Buckets
from bench.testbed.rig.ec2 import Ec2
from bench.testbed.rig.faults import LOST, Faults, as_error
from bench.testbed.rig.prices import answer_quotas, get_products
from bench.testbed.rig.sessions import Sessions
from bench.testbed.rig.wire import (
    NOT_OF_S3,
    AwsError,
    Call,
    error_response,
    json_response,
    read_call,
)
from bench.testbed.service_models import Answer, Judge, Request, load

HOP_BY_HOP = {
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "expect",
    "keep-alive",
    "accept-encoding",
}
MAX_BODY = 1 << 30
ENCRYPTION = "x-amz-server-side-encryption"
ENCRYPTING = frozenset({"PutObject", "UploadPart", "GetObject", "HeadObject"})
"""Answers that say how the object is encrypted, which every object is
(docs.aws.amazon.com/AmazonS3/latest/userguide/default-encryption-faq.html).
"""


@dataclass(slots=True)
class Proxy:
    """The AWS of a rig. `buckets`: EC2's limits on how often it may be asked; None: there are
    none.
    """

    moto: aws.Moto
    ec2: Ec2
    keys: dict[str, str]
    image: str = ""
    buckets: Buckets | None = None
    faults: Faults = field(default_factory=Faults)
    calls: Counter[str] = field(default_factory=Counter)
    judge: Judge = field(default_factory=Judge)
    session: aiohttp.ClientSession | None = None
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.keys)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request that is not for the rig itself."""
        body = await request.read()
        asked = Request(request.method, request.raw_path, request.headers, body)
        self.judge.request(asked)
        response, lost = await self._answer(request, body)
        assert isinstance(response.body, bytes | None)
        self.judge.answer(asked, Answer(response.status, response.headers, response.body or b""))
        if lost and request.transport is not None:
            # Carried out, and the connection is gone before the client hears of it.
            request.transport.abort()
        return response

    async def _answer(self, request: web.Request, body: bytes) -> tuple[web.Response, bool]:
        """The answer, and whether it is lost on its way."""
        call = read_call(request, body)
        self.calls[f"{call.service}:{call.action}"] += 1
        try:
            seen = _seen(request, body)
            key = sigv4.check(seen, self.keys, call.service)
            self.sessions.check(call, key)
            if call.service == "s3" and call.action in {"PutObject", "UploadPart"}:
                sigv4.check_digests(seen)
            self._take(call)
            fault = self.faults.draw(call.service, call.action)
            if fault is not None and fault.code != LOST:
                raise as_error(fault, call.service, call.action)
            response = await self._dispatch(request, call, key)
        except AwsError as error:
            return error_response(call.service, error), False
        if call.service == "s3":
            for name in NOT_OF_S3:
                response.headers.popall(name, None)
            if call.action in ENCRYPTING and response.status < 300:
                response.headers.setdefault(ENCRYPTION, "AES256")
        return response, fault is not None

    def _take(self, call: Call) -> None:
        """Raises `AwsError` where the account has asked too often."""
        if self.buckets is None or call.service != "ec2":
            return
        if not self.buckets.take(call.action, time.monotonic()):
            raise AwsError("RequestLimitExceeded", "Request limit exceeded.")

    async def _dispatch(self, request: web.Request, call: Call, key: str) -> web.Response:
        if call.service == "sts" and (told := self.sessions.answer(call, key)) is not None:
            return told
        if call.service == "ec2":
            await asyncio.sleep(self.ec2.cloud.timing.answers_s(call.action))
            return await self.ec2.answer(call, lambda params: self._text(request, call, params))
        if call.service == "pricing" and call.action == "GetProducts":
            return get_products(call)
        if call.service == "servicequotas":
            return answer_quotas(call, self.ec2.limits.quota, self.ec2.limits.requests)
        if call.service == "ssm" and (found := self._image_parameter(call)) is not None:
            return found
        response = await self._pass_on(request, call.body)
        if call.action == "CreateAccessKey" and response.status == 200:
            assert isinstance(response.body, bytes)
            self.sessions.made_key(response.body.decode())
        return response

    def _image_parameter(self, call: Call) -> web.Response | None:
        if call.action != "GetParameter" or f'"{aws.IMAGE_PARAMETER}"'.encode() not in call.body:
            return None
        arn = f"arn:aws:ssm:{aws.REGION}::parameter{aws.IMAGE_PARAMETER}"
        value = {
            "Name": aws.IMAGE_PARAMETER,
            "Type": "String",
            "Value": self.image,
            "Version": 1,
            "ARN": arn,
            "DataType": "text",
        }
        return json_response({"Parameter": value})

    async def _text(
        self, request: web.Request, call: Call, params: dict[str, str] | None
    ) -> tuple[int, bytes]:
        body = call.body if params is None else urlencode(params).encode()
        response = await self._pass_on(request, body)
        assert isinstance(response.body, bytes)
        return response.status, response.body

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        """To moto, as it came, but for the address."""
        assert self.session is not None
        headers = CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in HOP_BY_HOP
        )
        headers["Host"] = request.headers.get("Host", "")
        url = f"http://127.0.0.1:{self.moto.port}{request.raw_path}"
        async with self.session.request(
            request.method,
            URL(url, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=["Content-Type", "User-Agent"],
        ) as reply:
            content = await reply.read()
            kept = CIMultiDict(
                (name, value)
                for name, value in reply.headers.items()
                if name.lower() not in HOP_BY_HOP | {"date", "server"}
            )
            if request.method == "HEAD" and "Content-Length" in reply.headers:
                kept["Content-Length"] = reply.headers["Content-Length"]
            return web.Response(status=reply.status, body=content, headers=kept)

    async def open(self) -> None:
        load("ec2", "s3")
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=600),
        )

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()
            await asyncio.sleep(0)


def _seen(request: web.Request, body: bytes) -> sigv4.Seen:
    path, _, query = request.raw_path.partition("?")
    return sigv4.Seen(
        request.method,
        path,
        query,
        {name.lower(): value for name, value in request.headers.items()},
        body,
    )
