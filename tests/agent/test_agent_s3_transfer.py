"""Checkpoints to and from S3 by grants alone: whole or not at all, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from seerd.agent import web
from seerd.agent.manifest import CheckpointError
from seerd.agent.presigned_urls import PresignedUrls, PresignedUrlsByAttempt
from seerd.agent.protocol import Ask, Grant, Parts, Slot
from seerd.agent.remote_store import RemoteStore
from seerd.agent.transfer import NotNowError
from seerd.stores.s3.store import S3Store
from tests.s3front import cut_answer, damage, damage_answer, drop, hold, refuse

NAME = "000004-00000040"
MIB = 1 << 20


def daemon(work: Callable[[S3Store], Awaitable[Any]]) -> Any:
    """What the daemon's store answers."""

    async def run() -> Any:
        store = S3Store("s3://bucket/seerd", "r1", time.time() + 3600)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def grant(attempt: int = 1, first: int = 1, checkpoints: tuple[str, ...] = ()) -> Grant:
    return daemon(lambda store: store.presign("t1", attempt, first, checkpoints))


class Agent:
    """One attempt's view of the store; the daemon answers what it asks, if it is there."""

    def __init__(
        self, *checkpoints: str, attempt: int = 1, there: bool = True, parts_s: float = 10.0
    ) -> None:
        self.there = there
        self.asked: list[Ask] = []
        self.urls = PresignedUrls("t1", attempt, self.ask, parts_s)
        self.urls.take(grant(attempt, 1, checkpoints))
        self.store = RemoteStore(self.urls, web.Wires(pauses_s=(0.01,) * 6))

    def ask(self, question: Ask) -> bool:
        self.asked.append(question)
        if self.there and question.size:
            threading.Thread(
                target=lambda: self.urls.take(daemon(lambda store: store.parts(question)))
            ).start()
        return self.there


def save(folder: Path, name: str = NAME, data: bytes = b"weights", **other: Any) -> bytes:
    """A checkpoint as the training side writes it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.pt").write_bytes(data)
    manifest = {"version": 1, "name": name, "epoch": 4, "metrics": {"accuracy": 0.9}}
    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **other}
    (folder / f"{name}.json").write_text(json.dumps(manifest))
    return data


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def said(caplog: pytest.LogCaptureFixture) -> str:
    """What the agent's log would have."""
    return " ".join(record.getMessage() for record in caplog.records if record.name == "agent")


def objects() -> list[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])
    return [found["Key"].rpartition("/")[2] for found in listed]


def body(name: str) -> bytes:
    return boto3.client("s3").get_object(Bucket="bucket", Key=f"seerd/r1/t1/{name}")["Body"].read()


# ---------------------------------------------------------------- put


def test_the_manifest_is_put_last_and_has_the_trials_own_name(s3, tmp_path):
    data = save(tmp_path)
    name, manifest = Agent().store.put(tmp_path, NAME)
    assert (name, manifest.name, manifest.size) == ("0001-000001", NAME, 7)
    assert [request.path.rpartition(".")[2] for request in s3.agents("PUT")] == ["pt", "json"]
    assert body(f"{name}.pt") == data
    assert json.loads(body(f"{name}.json")) == json.loads((tmp_path / f"{NAME}.json").read_text())


def test_each_place_is_used_once_and_one_is_kept_back_until_the_last_call(s3, tmp_path):
    agent = Agent()
    for number in (1, 2):
        save(tmp_path, f"00000{number}-1")
        assert agent.store.put(tmp_path, f"00000{number}-1")[0] == f"0001-00000{number}"
    assert not agent.store.ready()
    agent.store.last_call()
    assert agent.store.ready()
    assert agent.store.put(tmp_path, "000002-1")[0] == "0001-000003"
    assert not agent.store.ready()
    with pytest.raises(NotNowError):
        agent.store.put(tmp_path, "000002-1")
    agent.urls.take(grant(first=4))
    assert agent.store.put(tmp_path, "000002-1")[0] == "0001-000004"


@pytest.mark.parametrize(
    "act", [drop, refuse(503, "SlowDown"), refuse(500), refuse(400, "RequestTimeout"), damage]
)
@pytest.mark.parametrize("where", ["PUT .pt", "PUT .json"])
def test_what_breaks_for_a_moment_is_done_again(s3, tmp_path, where, act):
    data = save(tmp_path)
    s3.fail(where, act, times=2)
    name, _ = Agent().store.put(tmp_path, NAME)
    assert body(f"{name}.pt") == data
    assert len(s3.agents("PUT", where.partition(" ")[2])) == 3


@pytest.mark.parametrize("act", [drop, damage, refuse(503)])
def test_bytes_that_do_not_arrive_have_no_manifest(s3, tmp_path, act, caplog):
    save(tmp_path)
    s3.fail("PUT .pt", act, times=99)
    with pytest.raises(CheckpointError, match=NAME) as caught:
        Agent().store.put(tmp_path, NAME)
    assert objects() == []
    assert s3.agents("PUT", ".json") == []
    for secret in ("X-Amz", "never-shown", "?"):
        assert secret not in str(caught.value) + said(caplog)


def test_a_place_that_failed_is_used_again_only_when_no_other_is_left(s3, tmp_path):
    agent = Agent()
    save(tmp_path)
    s3.fail("PUT .pt", refuse(503), times=7)
    with pytest.raises(CheckpointError):
        agent.store.put(tmp_path, NAME)
    assert agent.store.put(tmp_path, NAME)[0] == "0001-000002"
    agent.urls.take(grant(first=3))
    for _ in range(3):
        s3.fail("PUT .pt", refuse(503), times=7)
        agent.store.last_call()
        with pytest.raises(CheckpointError):
            agent.store.put(tmp_path, NAME)
    assert agent.store.put(tmp_path, NAME)[0] == "0001-000003"


@pytest.mark.parametrize(
    "other", [{"size": 8}, {"sha256": "0" * 64}, {"name": "else"}, {"epoch": "1"}]
)
def test_a_checkpoint_that_is_not_what_its_manifest_says_is_not_put(s3, tmp_path, other):
    save(tmp_path, **other)
    with pytest.raises(CheckpointError):
        Agent().store.put(tmp_path, NAME)
    assert s3.agents("PUT") == []


def test_nothing_that_could_block_is_put(s3, tmp_path):
    save(tmp_path)
    (tmp_path / f"{NAME}.pt").unlink()
    os.mkfifo(tmp_path / f"{NAME}.pt")
    with pytest.raises(CheckpointError):
        Agent().store.put(tmp_path, NAME)


def test_a_checkpoint_that_the_trial_removes_meanwhile_still_arrives(s3, tmp_path):
    data = save(tmp_path)

    def remove(_: Any, __: Any) -> bool:
        (tmp_path / f"{NAME}.pt").unlink()
        (tmp_path / f"{NAME}.json").unlink()
        return True

    def remove_and_drop(handler: Any, request: Any) -> bool:
        return remove(handler, request) and drop(handler, request)

    s3.fail("PUT .pt", remove_and_drop)
    name, _ = Agent().store.put(tmp_path, NAME)
    assert body(f"{name}.pt") == data
    assert f"{name}.json" in objects()


def test_a_url_that_has_expired_waits_for_a_fresh_grant(s3, tmp_path):
    save(tmp_path)
    agent = Agent()
    s3.ahead_s = 10_000
    with pytest.raises(NotNowError):
        agent.store.put(tmp_path, NAME)
    assert not agent.store.ready()
    assert [(ask.name, ask.size) for ask in agent.asked] == [("0001-000001", 0)]
    s3.ahead_s = 0
    agent.urls.take(grant())
    assert agent.store.ready()
    agent.store.put(tmp_path, NAME)


def test_what_is_cut_ends_at_once_and_nothing_begins_after_it(s3, tmp_path):
    save(tmp_path)
    agent, going, never = Agent(), threading.Event(), threading.Event()

    def held(handler: Any, request: Any) -> bool:
        going.set()
        return hold(never)(handler, request)

    s3.fail("PUT .pt", held)
    threading.Thread(target=lambda: going.wait(60) and agent.store.cut()).start()
    with pytest.raises(CheckpointError, match="called off"):
        agent.store.put(tmp_path, NAME)
    never.set()
    assert not agent.store.ready()
    with pytest.raises(NotNowError):
        agent.store.put(tmp_path, NAME)
    assert len(s3.agents("PUT")) == 1


# ---------------------------------------------------------------- in parts


@pytest.fixture
def large(tmp_path: Path) -> bytes:
    return save(tmp_path, data=os.urandom(MIB) * 40)


def test_a_large_checkpoint_goes_in_parts_side_by_side(s3, tmp_path, large):
    s3.fail("PUT .pt", drop, times=2)
    agent = Agent()
    name, _ = agent.store.put(tmp_path, NAME)
    assert [(ask.name, ask.size) for ask in agent.asked] == [(name, 40 * MIB)]
    assert {request.query.get("partNumber") for request in s3.agents("PUT", ".pt")} == {
        "1",
        "2",
        "3",
    }
    assert hashlib.sha256(body(f"{name}.pt")).digest() == hashlib.sha256(large).digest()


@pytest.mark.parametrize("broken", ["PUT .pt", "POST .pt"])
def test_parts_that_fail_are_given_up_and_it_goes_in_one_piece(s3, tmp_path, large, broken):
    in_parts = [0]

    def refuse_parts(handler: Any, request: Any) -> bool:
        in_parts[0] += 1
        return "uploadId" in request.query and refuse(403, "AccessDenied")(handler, request)

    s3.fail(broken, refuse_parts, times=99)
    name, _ = Agent().store.put(tmp_path, NAME)
    assert in_parts[0] > 0
    assert len(s3.agents("DELETE")) == 1
    assert "Uploads" not in boto3.client("s3").list_multipart_uploads(Bucket="bucket")
    assert hashlib.sha256(body(f"{name}.pt")).digest() == hashlib.sha256(large).digest()


def test_an_answer_of_success_that_holds_an_error_is_an_error(s3, tmp_path, large):
    def ok_but(handler: Any, _: Any) -> bool:
        handler.refuse(200, "InternalError")
        return True

    s3.fail("POST .pt", ok_but, times=2)
    Agent().store.put(tmp_path, NAME)
    assert len(s3.agents("POST")) == 3


@pytest.mark.parametrize("there", [True, False])
def test_without_an_answer_it_goes_in_one_piece(s3, tmp_path, large, there):
    agent = Agent(there=there, parts_s=0.05)
    agent.urls._say = lambda _: there
    agent.store.put(tmp_path, NAME)
    assert [request.query.get("partNumber") for request in s3.agents("PUT", ".pt")] == [None]


def test_an_answer_to_another_question_is_none(s3):
    agent = Agent()
    slot = agent.urls.place()
    assert slot is not None
    other = Parts("t1", 1, "0001-000009", 1, ["x"], "", "")
    agent.urls._say = lambda _: (agent.urls.take(other), False)[1]
    assert agent.urls.parts(slot, 40 * MIB) is None


# ---------------------------------------------------------------- fetch


def stored(folder: Path, *saves: tuple[str, bytes]) -> list[str]:
    """These checkpoints of attempt 1 are in the store; their names there, newest first."""
    agent = Agent()
    agent.store.last_call()
    put = []
    for name, data in saves:
        save(folder, name, data)
        put.append(agent.store.put(folder, name)[0])
    return put[::-1]


def test_a_fetched_checkpoint_has_its_own_name_again(s3, tmp_path):
    there = stored(tmp_path / "a", ("000001-1", b"old"), ("000002-2", b"new"))
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "b", there) == "000002-2"
    assert names(tmp_path / "b") == ["000002-2.json", "000002-2.pt"]
    assert (tmp_path / "b" / "000002-2.pt").read_bytes() == b"new"


def test_a_local_copy_spares_the_download_and_others_are_removed(s3, tmp_path):
    there = stored(tmp_path / "a", ("000001-1", b"old"), ("000002-2", b"new"))
    s3.seen.clear()
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "a", there) == "000002-2"
    assert s3.agents("GET", ".pt") == []
    assert names(tmp_path / "a") == ["000002-2.json", "000002-2.pt"]


def test_a_local_file_of_this_name_from_another_attempt_is_replaced(s3, tmp_path):
    there = stored(tmp_path / "a", ("000002-2", b"confirmed"))
    save(tmp_path / "a", "000002-2", b"never confirmed")
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "a", there) == "000002-2"
    assert (tmp_path / "a" / "000002-2.pt").read_bytes() == b"confirmed"


@pytest.mark.parametrize("act", [drop, cut_answer, refuse(503)])
@pytest.mark.parametrize("where", ["GET .json", "GET .pt"])
def test_what_breaks_off_for_a_moment_is_fetched_again(s3, tmp_path, where, act):
    there = stored(tmp_path / "a", ("000002-2", b"new" * 1000))
    s3.fail(where, act, times=2)
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "b", there) == "000002-2"
    assert (tmp_path / "b" / "000002-2.pt").read_bytes() == b"new" * 1000


def remove(*keys: str) -> None:
    for key in keys:
        boto3.client("s3").delete_object(Bucket="bucket", Key=f"seerd/r1/t1/{key}")


def replace(key: str, data: bytes) -> None:
    boto3.client("s3").put_object(Bucket="bucket", Key=f"seerd/r1/t1/{key}", Body=data)


@pytest.mark.parametrize(
    "harm",
    [
        lambda name: remove(f"{name}.json"),
        lambda name: remove(f"{name}.pt"),
        lambda name: replace(f"{name}.pt", b"nex"),
        lambda name: replace(f"{name}.pt", b"ne"),
        lambda name: replace(f"{name}.json", b"{}"),
        lambda name: replace(f"{name}.json", b"x" * 70_000),
        lambda name: replace(
            f"{name}.json",
            json.dumps(
                {"name": "../up", "epoch": 1, "metrics": {}, "sha256": "", "size": 1}
            ).encode(),
        ),
        lambda name: replace(
            f"{name}.json",
            json.dumps({"name": "a", "epoch": 1, "metrics": {}, "sha256": "", "size": -1}).encode(),
        ),
    ],
)
def test_a_damaged_or_missing_newest_falls_back_to_the_one_before(s3, tmp_path, harm):
    there = stored(tmp_path / "a", ("000001-1", b"old"), ("000002-2", b"new"))
    harm(there[0])
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "b", there) == "000001-1"
    assert names(tmp_path / "b") == ["000001-1.json", "000001-1.pt"]


def test_damage_on_the_way_is_seen(s3, tmp_path):
    there = stored(tmp_path / "a", ("000001-1", b"old"), ("000002-2", b"new"))
    s3.fail("GET .pt", damage_answer)
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "b", there) == "000001-1"


def test_a_store_that_cannot_be_reached_is_not_an_empty_one(s3, tmp_path, caplog):
    there = stored(tmp_path / "a", ("000002-2", b"new"))
    s3.fail("GET .json", drop, times=99)
    with pytest.raises(OSError, match="0001-000001") as caught:
        Agent(*there, attempt=2).store.fetch(tmp_path / "b", there)
    assert "X-Amz" not in str(caught.value) + said(caplog)


def test_checkpoints_that_are_all_gone_are_none(s3, tmp_path):
    there = stored(tmp_path / "a", ("000002-2", b"new"))
    remove(f"{there[0]}.json")
    assert Agent(*there, attempt=2).store.fetch(tmp_path / "a", there) is None
    assert names(tmp_path / "a") == []


def test_an_expired_url_waits_for_a_fresh_grant(s3, tmp_path):
    there = stored(tmp_path / "a", ("000002-2", b"new"))
    agent = Agent(*there, attempt=2)
    s3.ahead_s = 10_000

    def renew() -> None:
        while not s3.agents("GET"):
            time.sleep(0.005)
        s3.ahead_s = 0
        agent.urls.take(grant(2, 1, tuple(there)))

    threading.Thread(target=renew).start()
    assert agent.store.fetch(tmp_path / "b", there) == "000002-2"


def test_a_large_checkpoint_is_fetched_in_ranges(s3, tmp_path, large):
    agent = Agent()
    name, _ = agent.store.put(tmp_path, NAME)
    s3.fail("GET .pt", cut_answer, times=2)
    assert Agent(name, attempt=2).store.fetch(tmp_path / "b", [name]) == NAME
    assert (tmp_path / "b" / f"{NAME}.pt").read_bytes() == large
    assert len(s3.agents("GET", ".pt")) == 5 + 2


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/y?secret",
        "http://",
        "http://[bad?secret",
        "https://x:port/secret",
        "http://h/a b\r\nsecret",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_it(url):
    with pytest.raises(web.WebError) as caught:
        web.Wires().small("GET", url)
    assert "secret" not in str(caught.value)


def test_grants_are_never_written_or_logged(s3, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "agent")
    save(tmp_path / "a")
    agent = Agent()
    s3.ahead_s = 10_000
    with pytest.raises(NotNowError):
        agent.store.put(tmp_path / "a", NAME)
    assert "has expired" not in said(caplog)
    assert "X-Amz" not in said(caplog)
    assert not any(b"X-Amz" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_grant_is_forgotten_when_a_later_attempt_ends():
    urls = PresignedUrlsByAttempt(lambda _: True)
    first = urls.of("t1", 1)
    urls.take(Grant("t1", 2, [Slot("a", "http://x", "http://x")], []))
    urls.forget("t1", 2)
    assert urls.of("t1", 1) is not first
    assert urls.of("t1", 2).place() is None
