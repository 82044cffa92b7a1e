"""S3 for tests: moto's server, and in front of it what moto leaves out, and what goes wrong.

The one rule: what S3 refuses is refused here: presigned URLs with a wrong signature, method, or
past their time, and bodies that are not those of their `Content-MD5`. Faults are set from outside;
nothing of ours knows of them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from bench.testbed.rig.wire import NOT_OF_S3
from bench.testbed.service_models import Answer, Judge
from bench.testbed.service_models import Request as Asked

SECRET = "secret-of-the-coordinator"
REGION = "us-east-1"


@dataclass
class Request:
    """What came; `presigned`: by an agent."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes

    @property
    def presigned(self) -> bool:
        return "X-Amz-Signature" in self.query


@dataclass
class Fault:
    """What is done to requests that are so, `times` times: `act` gets the handler and the request;
    whether it has answered.
    """

    where: Callable[[Request], bool]
    act: Callable[[Any, Request], bool]
    times: int = 1


@dataclass
class Front:
    """The server at `url`. `ahead_s`: how far its clock is ahead."""

    moto: int
    ahead_s: float = 0.0
    seen: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    judge: Judge = field(default_factory=Judge)
    url: str = ""

    def fail(self, where: str, act: Callable[[Any, Request], bool], times: int = 1) -> None:
        """Do this to agents' requests `METHOD suffix-of-path`."""
        method, _, suffix = where.partition(" ")
        self.faults.append(
            Fault(
                lambda r: r.presigned and r.method == method and r.path.endswith(suffix), act, times
            )
        )

    def fault_for(self, request: Request) -> Fault | None:
        with self.lock:
            self.seen.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.where(request):
                    fault.times -= 1
                    return fault
        return None

    def agents(self, method: str, suffix: str = "") -> list[Request]:
        """What agents asked for."""
        return [
            r for r in self.seen if r.presigned and r.method == method and r.path.endswith(suffix)
        ]


def refuse(status: int, code: str = "Refused", text: str = "") -> Callable[[Any, Request], bool]:
    """Answer so."""

    def act(handler: Any, _: Request) -> bool:
        handler.refuse(status, code, text)
        return True

    return act


def drop(handler: Any, _: Request) -> bool:
    """The connection breaks, as when a machine disappears."""
    handler.drop()
    return True


def damage(_: Any, request: Request) -> bool:
    """A bit falls over on the way."""
    request.body = bytes([request.body[0] ^ 1]) + request.body[1:]
    return False


def damage_answer(handler: Any, _: Request) -> bool:
    """A bit falls over on the way back."""
    handler.change = lambda body: bytes([body[0] ^ 1]) + body[1:]
    return False


def cut_answer(handler: Any, _: Request) -> bool:
    """The answer breaks off."""
    handler.cut = True
    return False


def hold(event: threading.Event) -> Callable[[Any, Request], bool]:
    """Wait with the answer."""

    def act(_: Any, __: Request) -> bool:
        assert event.wait(60)
        return False

    return act


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    front: Front

    def setup(self) -> None:
        super().setup()
        self.change: Callable[[bytes], bytes] | None = None
        self.cut = False

    def serve(self) -> None:
        parts = urlsplit(self.path)
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            self._body(),
        )
        self.change, self.cut = None, False
        self.asked = Asked(self.command, self.path, dict(self.headers), request.body)
        self.front.judge.request(self.asked)
        fault = self.front.fault_for(request)
        if fault is not None and fault.act(self, request):
            return
        if request.presigned and (why := self._why_not(request)):
            self.refuse(403, *why)
        elif not self._arrived(request):
            self.refuse(
                400, "BadDigest", "The Content-MD5 you specified did not match what we received."
            )
        else:
            self._forward(request)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

    def refuse(self, status: int, code: str, text: str = "") -> None:
        body = f"<Error><Code>{code}</Code><Message>{text}</Message><Signature>never-shown</Signature></Error>".encode()
        self._answer(status, {"Content-Type": "application/xml"}, body)

    def drop(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _arrived(self, request: Request) -> bool:
        md5 = self.headers.get("Content-MD5")
        return md5 is None or base64.b64decode(md5) == hashlib.md5(request.body).digest()

    def _why_not(self, request: Request) -> tuple[str, str] | None:
        query = dict(request.query)
        signed = (
            datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        )
        if time.time() + self.front.ahead_s > signed + int(query["X-Amz-Expires"]):
            return "AccessDenied", "Request has expired"
        if (
            signature(request.method, request.path, query, self.headers["Host"])
            != query["X-Amz-Signature"]
        ):
            return "SignatureDoesNotMatch", ""
        return None

    def _forward(self, request: Request) -> None:
        backend = http.client.HTTPConnection("127.0.0.1", self.front.moto, timeout=60)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower()
            not in ("host", "transfer-encoding", "content-length", "content-md5", "connection")
        }
        backend.request(
            request.method, self.path, request.body, {**headers, "Host": self.headers["Host"]}
        )
        answer = backend.getresponse()
        body = answer.read()
        kept = {k: v for k, v in answer.getheaders() if k.lower() not in NOT_OF_S3}
        self._answer(answer.status, kept, body)
        backend.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.front.judge.answer(self.asked, Answer(status, headers, body))
        body = self.change(body) if self.change is not None else body
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = (
            headers.get("Content-Length", str(len(body)))
            if self.command == "HEAD"
            else str(len(body))
        )
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.cut else body)
        if self.cut:
            self.drop()


def signature(method: str, path: str, query: dict[str, str], host: str) -> str:
    """Of a presigned URL with SigV4
    (docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html); only the host may be
    signed.
    """
    rest = {name: value for name, value in query.items() if name != "X-Amz-Signature"}
    listed = "&".join(
        f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(rest.items())
    )
    canonical = "\n".join([method, path, listed, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"])
    day, region, service, end = query["X-Amz-Credential"].split("/")[1:]
    scope = f"{day}/{region}/{service}/{end}"
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            query["X-Amz-Date"],
            scope,
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{SECRET}".encode()
    for part in (day, region, service, end):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    """moto's server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def s3(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """S3 as far as this process is concerned, with the bucket `bucket` in it."""
    front = Front(moto_port)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"front": front}))
    server.daemon_threads = True
    front.url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": front.url,
        "AWS_ACCESS_KEY_ID": "AKIDCOORDINATOR",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    _post(moto_port, "POST", "/moto-api/reset")
    _post(moto_port, "PUT", "/bucket")
    yield front
    server.shutdown()
    server.server_close()
    thread.join()
    if front.judge.wrong:
        pytest.fail("not as AWS's models have it:\n" + "\n".join(front.judge.wrong), pytrace=False)


def _post(port: int, method: str, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}"})
    connection.getresponse().read()
    connection.close()
