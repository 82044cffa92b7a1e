"""The daemon's side of checkpoints in S3: what is granted, kept, fetched, and what is said when it
cannot be.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from seerd.agent.protocol import MAX_LINE, Ask
from seerd.agent.wire import encode
from seerd.errors import CloudError, StoreError
from seerd.stores.base import slot_name
from seerd.stores.s3.store import LONGEST_S, TRIES, S3Store
from tests.s3front import Front, cut_answer, damage_answer, refuse


def in_store(
    work: Callable[[S3Store], Awaitable[Any]], address: str = "s3://bucket/seerd", **other: Any
) -> Any:
    """What comes of this with an open store."""

    async def run() -> Any:
        async with opened(address, **other) as store:
            return await work(store)

    return asyncio.run(run())


@asynccontextmanager
async def opened(
    address: str = "s3://bucket/seerd", run: str = "r1", expires_in_s: float = 3600
) -> AsyncIterator[S3Store]:
    store = S3Store(address, run, time.time() + expires_in_s)
    try:
        yield store
    finally:
        await store.close()


def ask(method: str, url: str, body: bytes | None = None) -> tuple[int, bytes]:
    """An agent's request."""
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/octet-stream"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def lifetime(url: str) -> int:
    return int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0])


def put(grant: Any, data: bytes = b"weights", place: int = 0) -> str:
    """A checkpoint as an agent leaves it; its name."""
    slot = grant.puts[place]
    assert ask("PUT", slot.data_url, data)[0] == 200
    assert ask("PUT", slot.manifest_url, b"{}")[0] == 200
    return slot.name


def objects(s3: Front) -> list[str]:
    import boto3

    return [
        o["Key"] for o in boto3.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])
    ]


def test_a_store_that_can_be_written_opens_and_leaves_nothing_behind(s3):
    in_store(lambda store: store.open())
    assert objects(s3) == []


def test_a_grant_names_the_next_places_in_order(s3):
    grant = in_store(lambda store: store.presign("t1", 2, 7, ["0001-000003"]))
    assert [slot.name for slot in grant.puts] == ["0002-000007", "0002-000008", "0002-000009"]
    assert [slot.name for slot in grant.gets] == ["0001-000003"]
    put(grant)
    assert objects(s3) == ["seerd/r1/t1/0002-000007.json", "seerd/r1/t1/0002-000007.pt"]


def test_a_url_is_good_for_one_method_on_one_object(s3):
    slot = in_store(lambda store: store.presign("t1", 1, 1, [])).puts[0]
    assert ask("PUT", slot.data_url, b"weights")[0] == 200
    assert ask("GET", slot.data_url)[0] == 403
    assert ask("DELETE", slot.data_url)[0] == 403
    assert ask("PUT", slot.data_url.replace("000001.pt", "000002.pt"), b"")[0] == 403
    assert ask("PUT", slot.data_url.replace("/t1/", "/t2/"), b"")[0] == 403
    known = in_store(lambda store: store.presign("t1", 2, 1, [slot.name])).gets[0]
    assert ask("GET", known.data_url) == (200, b"weights")
    assert ask("PUT", known.data_url, b"other weights")[0] == 403
    assert ask("DELETE", known.manifest_url)[0] == 403


def test_a_url_expires_after_the_run(s3):
    slot = in_store(lambda store: store.presign("t1", 1, 1, [])).puts[0]
    assert 3600 < lifetime(slot.data_url) <= 3600 + 600
    s3.ahead_s = 3600 + 601
    status, answer = ask("PUT", slot.data_url, b"weights")
    assert (status, b"Request has expired" in answer) == (403, True)


@pytest.mark.parametrize(("left_s", "at_most_s"), [(30 * 86400, LONGEST_S), (-500, 600)])
def test_urls_live_no_longer_than_s3_allows_and_never_end_at_once(s3, left_s, at_most_s):
    slot = in_store(lambda store: store.presign("t1", 1, 1, []), expires_in_s=left_s).puts[0]
    assert lifetime(slot.data_url) == at_most_s


def test_parts_become_one_object(s3):
    size = (16 << 20) + 5
    parts = in_store(lambda store: store.parts(Ask("t1", 1, "0001-000001", size)))
    assert (parts.part_size, len(parts.urls)) == (16 << 20, 2)
    assert (parts.trial, parts.attempt, parts.name) == ("t1", 1, "0001-000001")
    assert ask("PUT", parts.urls[0], b"a" * (16 << 20))[0] == 200
    assert ask("DELETE", parts.abort_url)[0] == 204
    assert objects(s3) == []


@pytest.mark.parametrize("size", [32 << 20, 5 << 30, 999 << 30])
def test_the_parts_of_any_size_fit_into_a_line(s3, size, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "x" * 1200)
    parts = in_store(lambda store: store.parts(Ask("t1", 1, "0001-000001", size)))
    assert len(encode(parts)) < MAX_LINE // 2
    assert 2 <= len(parts.urls) <= 200
    assert (len(parts.urls) - 1) * parts.part_size < size <= len(parts.urls) * parts.part_size


@pytest.mark.parametrize("name", ["gone", "bucket"])
def test_parts_that_cannot_be_had_are_no_error(s3, name):
    size = 1 << 50 if name == "bucket" else 40 << 20
    parts = in_store(lambda store: store.parts(Ask("t1", 1, "0001-000001", size)), f"s3://{name}/x")
    assert parts.urls == []


def test_only_what_is_needed_is_kept_and_what_may_be_on_its_way_is_left_alone(s3):
    async def work(store: S3Store) -> None:
        for attempt in (1, 2):
            grant = await store.presign("t1", attempt, 9, [])
            for place in range(3):
                await asyncio.to_thread(put, grant, place=place)
        other = await store.presign("t10", 1, 1, [])
        await asyncio.to_thread(put, other)
        await store.parts(Ask("t1", 1, slot_name(1, 4), 40 << 20))
        await store.parts(Ask("t1", 2, slot_name(2, 12), 40 << 20))
        await store.keep("t1", [slot_name(2, 10), slot_name(1, 11)])

    in_store(work)
    left = {slot_name(2, 10), slot_name(2, 11), slot_name(1, 11)}
    assert {
        key.rpartition("/")[2].rpartition(".")[0] for key in objects(s3) if "/t1/" in key
    } == left
    assert "seerd/r1/t10/0001-000001.json" in objects(s3)
    import boto3

    uploads = boto3.client("s3").list_multipart_uploads(Bucket="bucket")["Uploads"]
    assert [upload["Key"] for upload in uploads] == ["seerd/r1/t1/0002-000012.pt"]


def test_manifests_are_removed_before_bytes(s3):
    async def work(store: S3Store) -> None:
        grant = await store.presign("t1", 1, 1, [])
        await asyncio.to_thread(put, grant)
        s3.seen.clear()
        await store.keep("t1", [])

    in_store(work)
    deletes = [
        request.body
        for request in s3.seen
        if request.method == "POST" and "delete" in request.query
    ]
    assert [b".json" in body for body in deletes] == [True, False]
    assert objects(s3) == []


def test_what_is_not_a_checkpoint_is_never_removed(s3):
    import boto3

    boto3.client("s3").put_object(Bucket="bucket", Key="seerd/r1/t1/README.json", Body=b"mine")
    in_store(lambda store: store.keep("t1", []))
    assert objects(s3) == ["seerd/r1/t1/README.json"]


def test_a_fetched_checkpoint_is_whole_or_not_there(s3, tmp_path):
    data = b"weights" * 1000
    good = hashlib.sha256(data).hexdigest()

    async def work(store: S3Store) -> None:
        name = await asyncio.to_thread(put, await store.presign("t1", 1, 1, []), data)
        await store.fetch("t1", name, good, tmp_path / "best" / "checkpoint.pt")
        with pytest.raises(StoreError, match="damaged"):
            await store.fetch("t1", name, "0" * 64, tmp_path / "other.pt")
        with pytest.raises(StoreError, match="no such object"):
            await store.fetch("t1", "0009-000009", good, tmp_path / "other.pt")

    in_store(work)
    assert (tmp_path / "best" / "checkpoint.pt").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def daemon_gets(s3: Front, act: Any, times: int = 1) -> None:
    from tests.s3front import Fault

    s3.faults.append(Fault(lambda r: r.method == "GET" and r.path.endswith(".pt"), act, times))


def test_an_answer_that_breaks_off_is_asked_for_again_and_damage_is_seen(s3, tmp_path):
    data = b"weights" * 100_000
    good = hashlib.sha256(data).hexdigest()

    async def work(store: S3Store) -> None:
        name = await asyncio.to_thread(put, await store.presign("t1", 1, 1, []), data)
        daemon_gets(s3, cut_answer, times=TRIES)
        with pytest.raises(StoreError, match="no answer came") as cut:
            await store.fetch("t1", name, good, tmp_path / "a.pt")
        assert not cut.value.damaged
        daemon_gets(s3, cut_answer)
        await store.fetch("t1", name, good, tmp_path / "a.pt")
        daemon_gets(s3, damage_answer)
        with pytest.raises(StoreError, match="damaged"):
            await store.fetch("t1", name, good, tmp_path / "b.pt")

    in_store(work)
    assert (tmp_path / "a.pt").read_bytes() == data


def test_data_is_listed_below_its_prefix_and_can_be_got_without_credentials(s3):
    import boto3

    client = boto3.client("s3")
    for key in ("data/a.bin", "data/deep/b.bin", "data/", "data2/c.bin"):
        client.put_object(Bucket="bucket", Key=key, Body=key.encode())
    items = in_store(lambda store: store.downloads("s3://bucket/data", "cache"))
    assert sorted((item.to, item.size) for item in items) == [
        ("cache/a.bin", 10),
        ("cache/deep/b.bin", 15),
    ]
    assert ask("GET", items[0].url)[1] == b"data/a.bin"
    one = in_store(lambda store: store.downloads("s3://bucket/data/a.bin", "cache"))
    assert [item.to for item in one] == ["cache/a.bin"]
    with pytest.raises(StoreError, match="no data at s3://bucket/none"):
        in_store(lambda store: store.downloads("s3://bucket/none", "cache"))


@pytest.mark.parametrize("key", ["data/../up.bin", "data//x.bin"])
def test_a_key_that_would_lead_elsewhere_is_refused(s3, key):
    import boto3

    boto3.client("s3").put_object(Bucket="bucket", Key=key, Body=b"x")
    with pytest.raises(StoreError, match="its name is no path"):
        in_store(lambda store: store.downloads("s3://bucket/data", "cache"))


def test_a_bucket_that_is_not_there_is_named(s3):
    with pytest.raises(StoreError, match=r"s3://nowhere/x cannot be the store.*no such bucket"):
        in_store(lambda store: store.open(), "s3://nowhere/x")


def deny(s3: Front, method: str, code: str) -> None:
    from tests.s3front import Fault

    s3.faults.append(Fault(lambda r: r.method == method, refuse(403, code), 99))


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        ("PUT", "AccessDenied", "s3:PutObject"),
        ("HEAD", "", "s3:ListBucket"),
        ("PUT", "InvalidAccessKeyId", "does not know these credentials"),
        ("PUT", "ExpiredToken", "log in again"),
    ],
)
def test_what_the_cloud_refuses_is_said_in_plain_words(s3, method, code, text):
    deny(s3, method, code)
    with pytest.raises(CloudError, match=text) as caught:
        in_store(lambda store: store.open())
    assert "never-shown" not in str(caught.value)


def test_without_credentials_it_says_so(s3, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(CloudError, match="no AWS credentials"):
        in_store(lambda store: store.open())


def test_a_bucket_in_another_region_is_refused_with_where_it_is(s3, monkeypatch):
    import boto3

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    where = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3").create_bucket(Bucket="far", CreateBucketConfiguration=where)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(StoreError, match="far is in eu-west-1, the run in us-east-1"):
        in_store(lambda store: store.open(), "s3://far/x")


@pytest.mark.parametrize("address", ["bucket/x", "s3://", "https://bucket/x", "s3:bucket"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(StoreError, match="no address in S3"):
        S3Store(address, "r1", 0.0)


def test_no_server_is_an_error_and_no_hang(s3, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="cannot be fetched"):
        in_store(lambda store: store.fetch("t1", "0001-000001", "0", tmp_path / "x"))
