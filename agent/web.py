"""HTTP to presigned URLs: small bodies from memory, large ones from and to files, in pieces. Errors
and logs show no more of such a URL than its host. Nothing waits longer than `STALL_S` for the other
side, and `Wires.cut` ends what is under way.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.client
import os
import re
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence, TypeVar, Union
from urllib.parse import urlsplit

from seerd.agent.threads import parallel

CONNECT_S = 10.0
STALL_S = 20.0
BLOCK = 1 << 18
PARTIAL_CONTENT = 206
PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
"""Seconds between tries, growing as S3 asks for
(docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html).
"""
MOST_OF_A_REFUSAL = 1 << 14
TOO_SHORT = 416
"""S3's status for a range behind the end of a file; ours, too, for a file that ends too early."""
TOO_LARGE = 413
"""Our status for bytes that the store takes in parts only."""
CALLED_OFF = 499
"""Our status for work that was called off, which is not tried again."""
AGAIN_CODES = ("RequestTimeout", "SlowDown", "InternalError", "BadDigest", "OperationAborted")
OLD_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed")
OLD = b"Request has expired"
CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")
Result = TypeVar("Result")
RANGE = 8 << 20
DOWNLOAD_THREADS = 4


class WebError(Exception):
    """An exchange failed. `status`: the answer's, 0 if there was none. `code`: S3's own word for
    the reason. `expired`: the URL or its signer's credentials are too old.
    """

    def __init__(self, why: str, status: int = 0, code: str = "", *, expired: bool = False) -> None:
        super().__init__(why)
        self.status = status
        self.code = code
        self.expired = expired

    @property
    def again(self) -> bool:
        """Whether the same may work a moment later."""
        return self.status in (0, 408, 429) or self.status >= 500 or self.code in AGAIN_CODES


@dataclass(frozen=True)
class Piece:
    """Part of an open file."""

    descriptor: int
    start: int  # offset
    size: int  # bytes

    def blocks(self) -> Iterator[bytes]:
        """Yield at most `BLOCK` bytes at once. Raises `WebError` if the file has become shorter."""
        at, end = self.start, self.start + self.size
        while at < end:
            block = os.pread(self.descriptor, min(BLOCK, end - at), at)
            if not block:
                raise WebError("the file has become shorter while it was read", TOO_SHORT)
            at += len(block)
            yield block


Body = Union[bytes, Piece]


def content_md5(body: Body) -> str:
    """Return the MD5 in base64 with which S3 compares the bytes; it need not be signed."""
    digest = hashlib.md5(usedforsecurity=False)
    for block in _blocks(body):
        digest.update(block)
    return base64.b64encode(digest.digest()).decode()


class Wires:
    """The connections of one piece of work, which may have several threads."""

    def __init__(self, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._pauses_s = pauses_s
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut = threading.Event()

    def cut(self) -> None:
        """End all that is under way, and let nothing begin any more."""
        self._cut.set()
        with self._lock:
            for wire in self._open:
                with contextlib.suppress(OSError):
                    # Below TLS, which another thread is using.
                    socket.socket.shutdown(wire, socket.SHUT_RDWR)

    @property
    def is_cut(self) -> bool:
        """Whether the work was called off."""
        return self._cut.is_set()

    def insist(self, work: Callable[[], Result]) -> Result:
        """Do the work, and again after each pause if that may help. Raises `WebError`."""
        for pause_s in self._pauses_s:
            try:
                return work()
            except WebError as error:
                if not error.again:
                    raise
            if self._cut.wait(pause_s):
                break
        return work()

    def put(self, url: str, body: Body, md5: Optional[str] = None) -> str:
        """Put these bytes; return their ETag. Raises `WebError`, or `OSError` for the file."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-MD5": md5 or content_md5(body),
        }
        with self._exchange("PUT", url, headers, body) as response:
            return response.headers.get("ETag", "")

    def small(
        self, method: str, url: str, body: Optional[bytes] = None, most: int = MOST_OF_A_REFUSAL
    ) -> bytes:
        """Return the body of an answer with at most `most` bytes. Raises `WebError`."""
        headers = {} if body is None else {"Content-Type": "application/xml"}
        with self._exchange(method, url, headers, body) as response:
            with _as_web_error(method, url):
                answer = response.read(most + 1)
            if len(answer) > most:
                why = f"{_named(method, url)}: the answer has more than {most} bytes"
                raise WebError(why, response.status)
            return answer

    def get(self, url: str, start: int, size: int, write: Callable[[bytes], None]) -> None:
        """Hand `size` bytes from `start` to `write`. Raises `WebError`, and as `write` does."""
        headers, named = {"Range": f"bytes={start}-{start + size - 1}"}, _named("GET", url)
        with self._exchange("GET", url, headers, None) as response:
            if response.status != PARTIAL_CONTENT and start > 0:
                raise WebError(f"{named}: it does not give a part of the file", response.status)
            if response.length is not None and response.length < size:
                raise WebError(f"{named}: the file is shorter than it should be", TOO_SHORT)
            left = size
            while left:
                with _as_web_error("GET", url):
                    block = response.read(min(BLOCK, left))
                if not block:
                    raise WebError(f"{named}: the answer ends {left} bytes too early")
                left -= len(block)
                write(block)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, url: str, headers: dict[str, str], body: Optional[Body]
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _connection(url)
        try:
            with _as_web_error(method, url):
                connection.connect()
                with self._lock:
                    if self.is_cut:
                        raise OSError("called off")
                    self._open.add(connection.sock)
                connection.sock.settimeout(STALL_S)
            response = self._send(connection, method, url, headers, body)
            if response.status >= 300:
                text = b""
                with contextlib.suppress(WebError), _as_web_error(method, url):
                    text = response.read(MOST_OF_A_REFUSAL)
                raise refusal(_named(method, url), response.status, text)
            yield response
        except WebError:
            if self.is_cut:
                raise WebError("the transfer was called off", CALLED_OFF) from None
            raise
        finally:
            with self._lock:
                self._open.discard(connection.sock)
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Optional[Body],
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        blocks = None if body is None else _blocks(body)
        if body is not None:
            size = body.size if isinstance(body, Piece) else len(body)
            headers = {**headers, "Content-Length": str(size)}
        with _as_web_error(method, url):
            # A store that refuses before all was sent says why, if that can still be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, blocks, headers)
            return connection.getresponse()


def refusal(what: str, status: int, body: bytes) -> WebError:
    """Make an error of S3's answer. Of its text only the code is used, since the rest may repeat
    the signature; and of AccessDenied the message, which names what is not permitted.
    """
    match = CODE.search(body)
    code = match.group(1).decode() if match else ""
    words = MESSAGE.search(body) if code == "AccessDenied" else None
    detail = f": {words.group(1).decode(errors='replace')}" if words else ""
    # What is missing is refused as AccessDenied too, where the signer may not list the bucket.
    expired = code in OLD_CODES or OLD in body or (status == 403 and code != "AccessDenied")
    why = f"{what}: refused with status {status}{f' ({code}{detail})' if code else ''}"
    return WebError(why, status, code, expired=expired)


def _connection(url: str) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not (host and host.isprintable()) or scheme not in ("http", "https"):
        raise WebError("this is no address of a store", 400)
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=_tls())
    return http.client.HTTPConnection(host, port, timeout=CONNECT_S)


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _blocks(body: Body) -> Iterator[bytes]:
    return body.blocks() if isinstance(body, Piece) else iter((body,))


def _named(method: str, url: str) -> str:
    return f"{method} at {urlsplit(url).hostname}"


@contextlib.contextmanager
def _as_web_error(method: str, url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WebError(f"{_named(method, url)}: {_why(error)}") from None


def _why(error: Exception) -> str:
    """Describe an error without what an invalid URL or header would show of itself."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return type(error).__name__


def download(wires: Wires, url: str, size: int, part: Path) -> None:
    """Download `size` bytes into the file `part`, and flush it. Raises `WebError`, `OSError`."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        parallel(
            lambda place: _fetch_range(wires, url, *place, descriptor),
            [(start, min(RANGE, size - start)) for start in range(0, size, RANGE)],
            DOWNLOAD_THREADS,
        )
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fetch_range(wires: Wires, url: str, start: int, size: int, descriptor: int) -> None:
    def once() -> None:
        at = start

        def write(block: bytes) -> None:
            nonlocal at
            rest = memoryview(block)
            while rest:
                written = os.pwrite(descriptor, rest, at)
                rest, at = rest[written:], at + written

        wires.get(url, start, size, write)

    wires.insist(once)
