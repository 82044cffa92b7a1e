"""A presigned URL is a secret: whatever goes wrong, no error has more of it than its host."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from seerd.agent import web
from seerd.agent.web import CALLED_OFF, WebError, Wires, refusal

SIGNED = "/bucket/key?X-Amz-Signature=0123abcd"
ANSWERS = {
    "nothing": b"",
    "no HTTP": b"hello " + SIGNED.encode() + b"\r\n\r\n",
    "a refusal that repeats it": (
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 120\r\n\r\n<Code>SignatureDoesNotMatch</Code>"
        b"<Message>not " + SIGNED.encode() + b"</Message>" + b" " * 60
    ),
    "another place": f"HTTP/1.1 302 Found\r\nLocation: {SIGNED}\r\n\r\n".encode(),
    "less than it says": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    "a wrong length": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\nzz",
}


@pytest.fixture(params=ANSWERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One that leads to a server with an answer of no use."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            wire, _ = server.accept()
            with wire:
                wire.recv(1 << 16)
                wire.sendall(ANSWERS[request.param])

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}{SIGNED}"
        thread.join()


def shown(error: WebError) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_an_answer_of_no_use_shows_no_url(url: str) -> None:
    with pytest.raises(WebError, match=r"127\.0\.0\.1") as raised:
        Wires().get(url, 0, 9, lambda block: None)
    assert "X-Amz" not in shown(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        *("http://127.0.0.1:1{}", "http://[::1{}", "http://127.0.0.1:x{}", "ftp://host{}", "{}"),
        *("http://127.0.0.1:1{}\n", "http://127.0.0.1:1{} \r\nX: y", "http://.{}", "http://a\0b{}"),
    ],
)
def test_a_url_of_no_use_shows_nothing_of_itself(wrong: str) -> None:
    with pytest.raises(WebError) as raised:
        Wires().small("GET", wrong.format(SIGNED))
    assert "X-Amz" not in shown(raised.value)


def test_only_a_permission_is_named_by_the_store_s_own_words() -> None:
    told = b"<Code>%s</Code><Message>no kms:Decrypt</Message>"
    assert "kms:Decrypt" in str(refusal("GET at host", 403, told % b"AccessDenied"))
    assert "kms:Decrypt" not in str(refusal("GET at host", 400, told % b"InvalidRequest"))


@pytest.mark.parametrize(
    ("status", "code", "again"),
    [
        *((0, "", True), (408, "", True), (429, "", True), (500, "", True), (503, "", True)),
        *((400, "RequestTimeout", True), (400, "", False), (403, "", False), (404, "", False)),
        *((409, "OperationAborted", True), (499, "", False), (412, "PreconditionFailed", False)),
    ],
)
def test_what_may_pass_is_tried_again(status: int, code: str, again: bool) -> None:
    def fail() -> None:
        tries.append(status)
        raise WebError("no", status, code)

    tries: list[int] = []
    with pytest.raises(WebError):
        Wires(pauses_s=(0.001, 0.002)).insist(fail)
    assert len(tries) == (3 if again else 1)


def test_work_that_was_called_off_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        tries.append(0)
        wires.cut()
        raise WebError("no answer")

    tries: list[int] = []
    wires = Wires()
    with pytest.raises(WebError):
        wires.insist(fail)
    assert len(tries) == 2  # the last one, at once, says that it is called off
    assert not WebError("called off", CALLED_OFF).again


@pytest.mark.parametrize(
    ("status", "told", "expired"),
    [
        (403, b"<Code>ExpiredToken</Code>", True),
        (403, b"<Code>AccessDenied</Code><Message>Request has expired</Message>", True),
        (403, b"<Code>AccessDenied</Code>", False),
        (403, b"", True),
        (404, b"<Code>NoSuchKey</Code>", False),
        (400, b"<Code>TokenRefreshRequired</Code>", True),
    ],
)
def test_another_url_may_help_where_this_one_is_too_old(
    status: int, told: bytes, expired: bool
) -> None:
    assert refusal("GET at host", status, told).expired is expired


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Make a URL whose server gives this answer once."""
    threads = []

    def url(answer: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            wire, _ = server.accept()
            with server, wire:
                wire.recv(1 << 16)
                wire.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/key"

    yield url
    for thread in threads:
        thread.join()


def body(text: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def test_a_small_answer_may_have_so_many_bytes(answering: Callable[[bytes], str]) -> None:
    assert Wires().small("GET", answering(body(b"12345")), most=5) == b"12345"
    with pytest.raises(WebError, match="more than 4 bytes"):
        Wires().small("GET", answering(body(b"12345")), most=4)


def test_a_part_is_a_part_and_a_whole_file_serves_only_from_its_start(
    answering: Callable[[bytes], str],
) -> None:
    blocks: list[bytes] = []
    Wires().get(answering(body(b"abc", "206 Partial Content")), 5, 3, blocks.append)
    Wires().get(answering(body(b"whole")), 0, 2, blocks.append)
    assert b"".join(blocks) == b"abcwh"
    with pytest.raises(WebError, match="does not give a part"):
        Wires().get(answering(body(b"whole")), 1, 2, blocks.append)
    with pytest.raises(WebError, match="shorter") as raised:
        Wires().get(answering(body(b"ab", "206 Partial Content")), 5, 3, blocks.append)
    assert raised.value.status == web.TOO_SHORT
