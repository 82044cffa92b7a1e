"""Notices that the cloud takes the instance away: a real agent beside a metadata service of our
own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from seerd.agent import spot
from seerd.agent.protocol import Noticed, Reported
from seerd.agent.spot import ACTION, ENDPOINT, MAINTENANCE, REBALANCE, TOKENS, Metadata, Notice

TAKEN = b'{"action": "terminate", "time": "2026-11-20T08:22:00Z"}'
TAKEN_BY = 1795162920.0
NO_MAINTENANCE = Notice("maintenance")
SAVES_WHEN_ASKED = """
import json, os, time
folder = os.environ["SEERD_DIR"]
with open(os.path.join(folder, "out.jsonl"), "a") as out:
    out.write(json.dumps({"kind": "report", "epoch": 1, "metrics": {"accuracy": 0.5}}) + "\\n")
while not os.path.exists(os.path.join(folder, "stop")):
    time.sleep(0.01)
"""
TELLS_WHAT_IT_IS_ASKED = (
    SAVES_WHEN_ASKED
    + """
    if os.path.exists(os.path.join(folder, "save")):
        os.remove(os.path.join(folder, "save"))
        with open(os.path.join(folder, "out.jsonl"), "a") as out:
            out.write(json.dumps({"kind": "report", "epoch": 2, "metrics": {"accuracy": 0.5}}) + "\\n")
"""
)


class Service(ThreadingHTTPServer):
    """A metadata service of version 2 with these `pages`; `asked`: how often for the action,
    `tokens`: how many it gave.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, bytes] = {}
        self.tokens = 0
        self.ttl: str | None = None
        self.asked = threading.Semaphore(0)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        self.server.ttl = ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        good = self.path == TOKENS and ttl is not None
        self.server.tokens += good
        self._say(200 if good else 400, f"token-{self.server.tokens}".encode())

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        known = self.headers.get("X-aws-ec2-metadata-token") == f"token-{self.server.tokens}"
        self._say(404 if page is None else 200, page or b"") if known else self._say(401, b"")
        if self.path == ACTION:
            self.server.asked.release()

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def watched(rig, service):
    rig.options = ("--slots", "--spot")
    rig.env = {ENDPOINT: service.url}
    return rig


def test_what_the_service_says_becomes_notices(service):
    metadata = Metadata(service.url)
    assert metadata.look() == [NO_MAINTENANCE]
    service.pages[REBALANCE] = b'{"noticeTime": "2026-11-20T08:00:00Z"}'
    assert metadata.look() == [Notice("rebalance"), NO_MAINTENANCE]
    service.pages[ACTION] = TAKEN
    notices = [Notice("interruption", TAKEN_BY), Notice("rebalance"), NO_MAINTENANCE]
    assert metadata.look() == notices
    assert service.tokens == 1


def scheduled(
    state: object, begins: object, code: str = "system-reboot", words: str = "scheduled reboot"
) -> dict[str, object]:
    """An event as the service has it."""
    about = {"NotBefore": begins, "Code": code, "Description": words, "State": state}
    return about | {"EventId": "instance-event-1"}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], [NO_MAINTENANCE]),
        ([scheduled("completed", "20 Nov 2026 08:22:00 GMT")], [NO_MAINTENANCE]),
        ([scheduled("canceled", "20 Nov 2026 08:22:00 GMT")], [NO_MAINTENANCE]),
        (
            [scheduled("active", "20 Nov 2026 08:22:00 GMT", words="[Canceled] scheduled reboot")],
            [NO_MAINTENANCE],
        ),
        ([scheduled("active", "soon"), scheduled("active", 3), 7], []),
        ({"State": "active"}, []),  # it does not say when
        (
            [
                scheduled("active", "21 Nov 2026 08:22:00 GMT"),
                scheduled("active", "20 Nov 2026 08:22:00 GMT", "instance-retirement"),
                scheduled("canceled", "19 Nov 2026 08:22:00 GMT"),
            ],
            [Notice("maintenance", TAKEN_BY)],
        ),
    ],
)
def test_the_first_active_event_is_a_notice(service, events, found):
    service.pages[MAINTENANCE] = json.dumps(events).encode()
    assert Metadata(service.url).look() == found


def test_each_kind_of_notice_is_told_once_until_nobody_listens(service, monkeypatch):
    monkeypatch.setenv(ENDPOINT, service.url)
    told: list[Notice] = []

    def tell(notice: Notice) -> None:
        told.append(notice)
        if notice.what == "rebalance":
            raise RuntimeError("nobody listens any more")

    service.pages[ACTION] = TAKEN
    spot.watch(tell, every_s=0.01)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "spot"]
    assert thread.daemon
    for _ in range(4):
        assert service.asked.acquire(timeout=30)
    service.pages[REBALANCE] = b'{"noticeTime": "2026-11-20T08:00:00Z"}'
    thread.join(30)
    assert not thread.is_alive()
    assert told == [Notice("interruption", TAKEN_BY), NO_MAINTENANCE, Notice("rebalance")]


@pytest.mark.parametrize(("token_s", "tokens"), [(21600, 1), (60, 6), (90, 1)])
def test_a_token_is_used_until_shortly_before_its_end(service, token_s, tokens):
    metadata = Metadata(service.url, token_s)
    for _ in range(2):
        metadata.look()
    assert service.tokens == tokens
    assert service.ttl == str(token_s)


def test_an_answer_that_is_too_long_is_none(service):
    pad = b" " * ((1 << 16) - len(TAKEN))
    service.pages[ACTION] = TAKEN + pad
    assert Metadata(service.url).look() == [Notice("interruption", TAKEN_BY), NO_MAINTENANCE]
    service.pages[ACTION] = pad + b" " + TAKEN
    assert Metadata(service.url).look() == [NO_MAINTENANCE]


def test_a_token_that_is_not_good_any_more_is_replaced(service):
    metadata = Metadata(service.url)
    service.pages[ACTION] = TAKEN
    assert metadata.look()
    service.tokens += 1
    assert metadata.look() == [NO_MAINTENANCE]
    assert metadata.look() == [Notice("interruption", TAKEN_BY), NO_MAINTENANCE]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"action": "hibernate"}', [Notice("interruption")]),
        (b'{"action": "stop", "time": "soon"}', [Notice("interruption")]),
        (b'{"action": "stop", "time": 17}', [Notice("interruption")]),
        (b'{"action": 3}', []),
        (b"<html>log in to the hotel</html>", []),
        (b"[" * 70_000, []),
        (b"\xff\xfe", []),
        (b"null", []),
    ],
)
def test_rubbish_is_no_notice(service, body, found):
    service.pages[ACTION] = body
    service.pages[REBALANCE] = b"{}"
    assert Metadata(service.url).look() == [*found, NO_MAINTENANCE]


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[" * 70_000, b"\xff\xfe"])
def test_what_cannot_be_read_cancels_no_maintenance(service, body):
    service.pages[MAINTENANCE] = body
    assert Metadata(service.url).look() == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://", "nonsense"])
def test_where_there_is_no_service_there_is_no_notice(url):
    assert Metadata(url).look() == []


def test_a_notice_is_told_once_also_by_the_next_agent(watched, service):
    watched.launch()
    client = watched.connect()
    service.pages[ACTION] = TAKEN
    service.pages[REBALANCE] = json.dumps({"noticeTime": "2026-11-20T08:00:00Z"}).encode()
    rebalance = client.until(Noticed, lambda fact: fact.what == "rebalance")
    taken = client.until(Noticed, lambda fact: fact.what == "interruption")
    assert (taken.by, rebalance.by) == (pytest.approx(TAKEN_BY, abs=0.1), None)
    watched.lose_agent()
    watched.launch()
    again = watched.connect()
    again.until(Noticed, lambda fact: fact.seq == 2)
    while service.asked.acquire(blocking=False):
        pass
    for _ in range(2):
        assert service.asked.acquire(timeout=60)
    assert watched.client().hello(2).last == 2


def test_maintenance_is_taken_back_and_moved_also_for_the_next_agent(watched, service):
    def schedule(*events: object) -> None:
        service.pages[MAINTENANCE] = json.dumps(events).encode()

    schedule(scheduled("active", "20 Nov 2026 08:22:00 GMT"))
    watched.launch()
    client = watched.connect()
    assert client.until(Noticed).by == pytest.approx(TAKEN_BY, abs=0.1)
    schedule(scheduled("active", "20 Nov 2026 09:22:00 GMT"))
    moved = client.until(Noticed, lambda fact: fact.seq == 2)
    assert moved.by == pytest.approx(TAKEN_BY + 3600.0, abs=0.1)
    watched.lose_agent()
    schedule()
    watched.launch()
    client = watched.connect(2)
    assert client.until(Noticed).by is None
    schedule(scheduled("active", "20 Nov 2026 08:22:00 GMT"))
    again = client.until(Noticed, lambda fact: fact.seq == 4)
    assert again.by == pytest.approx(TAKEN_BY, abs=0.1)


def test_trials_of_a_doomed_instance_that_no_daemon_cares_for_save_and_leave(watched, service):
    client = watched.ready(watched.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    service.pages[ACTION] = TAKEN
    seen = client.until(Noticed).seq
    client.close()
    assert watched.processes[0].wait(60) == 0
    service.pages.clear()
    watched.launch()
    assert watched.connect(seen).exit_of().cause == "lease"


def test_when_the_cloud_announces_anything_trials_save_at_once_and_go_on(watched, service):
    client = watched.ready(watched.job(TELLS_WHAT_IT_IS_ASKED))
    client.start()
    client.until(Reported, lambda fact: fact.epoch == 1)
    service.pages[REBALANCE] = b'{"noticeTime": "2026-11-20T08:00:00Z"}'
    client.until(Reported, lambda fact: fact.epoch == 2)


def test_an_instance_whose_service_is_silent_lives(watched, service):
    service.shutdown()
    client = watched.ready(watched.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    client.stop(grace_s=60)
    assert client.exit_of().cause == "asked"
