"""moto's EC2 behind a front that makes it as strict, as slow and as unreliable as AWS.

The one rule: moto alone says what exists (`Front.truth`); the front only delays, refuses and loses.
Launches are idempotent by ClientToken
(docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html), a new instance is pending at
first, and perhaps not listed yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree as ET

import aiohttp
import boto3
from aiohttp import web

from bench.testbed.rig.buckets import Buckets
from bench.testbed.rig.wire import AwsError, error_response, read_call
from bench.testbed.service_models import Answer, Judge, Request

ROOT = Path(__file__).parents[2]
IN = "{*}"
REGION = "us-east-1"
MOTO = """
from bench.testbed.rig.aws import one_at_a_time, read_models_once
from moto.server import main
one_at_a_time()
read_models_once()
main()
"""

Params = dict[str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one call. `done`: it is carried out all the same; `code`: what is
    answered, "" if nothing is.
    """

    code: str
    done: bool = False


def fine(action: str, params: Params) -> Fault | None:
    """Nothing goes wrong."""
    return None


@dataclass(slots=True)
class Front:
    """The endpoint that clients see. `fault` judges each call, after the account's `buckets`, if
    it has any; `calls` are those that came, `launched` when each instance was.
    """

    moto: str
    fault: Callable[[str, Params], Fault | None] = fine
    buckets: Buckets | None = None
    pending_s: float = 0.0
    address_s: float = 0.0
    hidden_s: float = 0.0
    calls: list[tuple[str, Params]] = field(default_factory=list)
    launched: dict[str, float] = field(default_factory=dict)
    answers: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    url: str = ""
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    judge: Judge = field(default_factory=Judge)
    http: aiohttp.ClientSession | None = None

    def count(self) -> Counter[str]:
        """How often each action was asked for."""
        return Counter(action for action, _ in self.calls)

    def truth(self) -> list[dict[str, Any]]:
        """All instances that moto has ever made, as moto tells of them."""
        pages = self.client("ec2").get_paginator("describe_instances").paginate()
        return [
            instance
            for page in pages
            for group in page["Reservations"]
            for instance in group["Instances"]
        ]

    def alive(self) -> set[str]:
        """Those that would be billed, or could be again."""
        return {row["InstanceId"] for row in self.truth() if row["State"]["Name"] != "terminated"}

    def client(self, service: str) -> Any:
        """A client that goes past the front."""
        return past(service, self.moto)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One call, judged with its answer by AWS's models."""
        body = await request.read()
        asked = Request(request.method, request.raw_path, request.headers, body)
        self.judge.request(asked)
        answer = await self._answered(request, body)
        if answer is None:
            if request.transport is not None:
                request.transport.close()
            return web.Response()
        assert isinstance(answer.body, bytes)
        self.judge.answer(asked, Answer(answer.status, answer.headers, answer.body))
        return answer

    async def _answered(self, request: web.Request, body: bytes) -> web.Response | None:
        """The answer; None if there is none."""
        params = dict(parse_qsl(body.decode(errors="replace")))
        action = (
            params.get("Action")
            or request.headers.get("X-Amz-Target", "").rpartition(".")[2]
            or request.path
        )
        self.calls.append((action, params))
        if self.buckets is not None and not self.buckets.take(action, time.monotonic()):
            return _refused(request, body, Fault("RequestLimitExceeded"))
        fault = self.fault(action, params)
        if fault is not None and not fault.done:
            return _refused(request, body, fault)
        answer = await self._carry_out(request, action, params, body)
        return answer if fault is None else _refused(request, body, fault)

    async def _carry_out(
        self, request: web.Request, action: str, params: Params, body: bytes
    ) -> web.Response:
        if action != "RunInstances":
            return await self._pass(request, action, body)
        token = params["ClientToken"]
        async with self.locks.setdefault(token, asyncio.Lock()):
            if token not in self.answers:
                answer = await self._pass(request, action, body)
                if answer.status == 200:
                    found = ET.fromstring(answer.body).find(f".//{IN}instanceId")
                    assert found is not None
                    assert found.text
                    self.launched[found.text] = time.time()
                    self.answers[token] = found.text, self._unaddressed(answer.body)
                    return web.Response(body=self.answers[token][1], content_type="text/xml")
                return answer
        instance, before = self.answers[token]
        if instance not in await asyncio.to_thread(self.alive):
            return _refused(request, body, Fault("IdempotentInstanceTerminated"))
        return web.Response(body=before, content_type="text/xml")

    async def _pass(self, request: web.Request, action: str, body: bytes) -> web.Response:
        assert self.http is not None
        headers = {
            k: v
            for k, v in request.headers.items()
            if k.lower() not in {"content-length", "accept-encoding", "transfer-encoding"}
        }
        body = self._by_id(body)
        async with self.http.request(
            request.method, f"{self.moto}{request.path_qs}", data=body, headers=headers
        ) as answer:
            content = await answer.read()
            if action == "DescribeInstances" and answer.status == 200:
                content = self._aged(content)
            return web.Response(
                status=answer.status, body=content, content_type=answer.content_type
            )

    def _by_id(self, body: bytes) -> bytes:
        """The same question, where it is for instances of certain launches: moto has no such
        filter.
        """
        params = dict(parse_qsl(body.decode(errors="replace")))
        asked = [key for key, name in params.items() if name == "client-token"]
        if not asked:
            return body
        values = f"{asked[0].removesuffix('.Name')}.Value."
        tokens = [value for key, value in params.items() if key.startswith(values)]
        found = [self.answers[token][0] for token in tokens if token in self.answers]
        kept = {key: value for key, value in params.items() if not key.startswith(values)}
        kept[asked[0]] = "instance-id"
        ids = {f"{values}{n}": name for n, name in enumerate(found or ["i-none"], 1)}
        return urlencode(kept | ids).encode()

    def _aged(self, content: bytes) -> bytes:
        """Instances are not listed at first, pending for a while, and then without addresses for
        `address_s`.
        """
        root = ET.fromstring(content)
        groups = root.find(f"{IN}reservationSet")
        assert groups is not None
        for group in list(groups):
            for item in group.findall(f"{IN}instancesSet/{IN}item"):
                age = time.time() - self.launched.get(item.findtext(f"{IN}instanceId") or "", 0.0)
                name, code = (
                    item.find(f"{IN}instanceState/{IN}name"),
                    item.find(f"{IN}instanceState/{IN}code"),
                )
                assert name is not None
                assert code is not None
                if age < self.pending_s and name.text == "running":
                    name.text, code.text = "pending", "0"
                if age < self.pending_s + self.address_s:
                    without_addresses(item)
                if age < self.hidden_s:
                    groups.remove(group)
        return ET.tostring(root, xml_declaration=True, encoding="utf-8")

    def _unaddressed(self, content: bytes) -> bytes:
        """The answer to a launch, which shows an address only if they are never late."""
        if not self.address_s:
            return content
        root = ET.fromstring(content)
        for item in root.findall(f"{IN}instancesSet/{IN}item"):
            without_addresses(item)
        return ET.tostring(root, xml_declaration=True, encoding="utf-8")


@functools.cache
def past(service: str, moto: str) -> Any:
    """A client of moto itself; making one takes a good part of a second."""
    return boto3.client(
        service,
        endpoint_url=moto,
        region_name=REGION,
        aws_access_key_id="t",
        aws_secret_access_key="t",
    )


def without_addresses(item: ET.Element) -> None:
    """Take the addresses of an instance out of what is told of it."""
    for tag in ("privateIpAddress", "ipAddress"):
        for found in item.findall(f"{IN}{tag}"):
            item.remove(found)


def _refused(request: web.Request, body: bytes, fault: Fault) -> web.Response | None:
    """A refusal in the form of the service that was asked; None for no answer at all."""
    if not fault.code:
        return None
    service = read_call(request, body).service
    return error_response(service, AwsError(fault.code, "told by the front"))


@contextlib.asynccontextmanager
async def front(moto: str) -> AsyncIterator[Front]:
    """A front before this moto, in the running loop."""
    made = Front(moto)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    async with aiohttp.ClientSession() as made.http:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        os.environ["AWS_ENDPOINT_URL"] = made.url
        try:
            yield made
        finally:
            await runner.cleanup()
    assert not made.judge.wrong, "\n".join(["not as AWS's models have it:", *made.judge.wrong])


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """moto's server as a process of its own: its state is global, and the rig changes moto for its
    own.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 60
        while not _listens(port):
            assert time.monotonic() < end, "moto's server does not start"
            assert process.poll() is None, "moto's server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
