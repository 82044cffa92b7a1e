"""A presigned URL is a secret: whatever goes wrong, no error has more of it than its host."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator

import pytest

from seerd.agent.web import WebError, Wires, refusal

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
