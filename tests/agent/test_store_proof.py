"""An instance proves that it can use the checkpoint store: one byte goes there and comes back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from seerd.agent.health import UnhealthyError
from seerd.agent.protocol import StoreProof
from seerd.agent.store_proof import prove
from seerd.agent.web import Wires

AT_ONCE = Wires(())
DENIED = b"<Error><Code>AccessDenied</Code><Message>an explicit deny in a VPC endpoint policy</Message></Error>"
OLD = b"<Error><Code>ExpiredToken</Code></Error>"


class Bucket(BaseHTTPRequestHandler):
    """Keeps one object; `refusal` answers everything, `changed` comes back instead."""

    refusal = changed = b""
    kept = b""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.refusal:
            type(self).kept = body
        self._answer()

    def do_GET(self) -> None:
        self._answer(self.changed or self.kept)

    def _answer(self, body: bytes = b"") -> None:
        self.send_response(403 if self.refusal else 200)
        self.send_header("Content-Length", str(len(self.refusal or body)))
        self.end_headers()
        self.wfile.write(self.refusal or body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def proof() -> Iterator[StoreProof]:
    Bucket.refusal = Bucket.changed = Bucket.kept = b""
    with HTTPServer(("127.0.0.1", 0), Bucket) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/bucket/key?X-Amz-Signature=0123"
        yield StoreProof(url, url)
        server.shutdown()
        thread.join()


def test_a_byte_goes_there_and_comes_back(proof: StoreProof) -> None:
    prove(proof, AT_ONCE)
    assert len(Bucket.kept) == 1


@pytest.mark.parametrize(
    ("refusal", "cause", "says"),
    [
        (DENIED, "store-refused", "an explicit deny in a VPC endpoint policy"),
        (OLD, "", "ExpiredToken"),
    ],
)
def test_a_refusal_is_told_in_the_store_s_own_words(
    proof: StoreProof, refusal: bytes, cause: str, says: str
) -> None:
    Bucket.refusal = refusal
    with pytest.raises(UnhealthyError, match=says) as raised:
        prove(proof, AT_ONCE)
    assert raised.value.cause == cause
    assert "X-Amz" not in str(raised.value)


def test_another_byte_is_no_proof(proof: StoreProof) -> None:
    Bucket.changed = b"2"
    with pytest.raises(UnhealthyError, match="another byte") as raised:
        prove(proof, AT_ONCE)
    assert raised.value.cause == "store-refused"


def test_no_answer_is_another_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://127.0.0.1:{port}/bucket/key"
    with pytest.raises(UnhealthyError, match="cannot use the checkpoint store") as raised:
        prove(StoreProof(url, url), AT_ONCE)
    assert raised.value.cause == "store"
