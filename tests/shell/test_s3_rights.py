"""Whether a bucket can hold checkpoints or be read: each missing permission is named, and nothing
stays there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from seerd.stores.s3.store import Trouble, check_data, check_store
from tests.s3front import Fault, Front, Request, refuse


def store_troubles(address: str = "s3://bucket/seerd") -> list[Trouble]:
    return asyncio.run(check_store(address, None))


def data_troubles(source: str = "s3://bucket/data") -> list[Trouble]:
    return asyncio.run(check_data(source, None))


def client() -> Any:
    import boto3

    return boto3.client("s3")


def left() -> list[Any]:
    """What lies in the bucket, finished or not."""
    listed = client().list_objects_v2(Bucket="bucket").get("Contents", [])
    return listed + client().list_multipart_uploads(Bucket="bucket").get("Uploads", [])


def deny(s3: Front, where: Callable[[Request], bool]) -> None:
    s3.faults.append(Fault(where, refuse(403, "AccessDenied"), 99))


def allow(s3: Front) -> None:
    s3.faults.clear()


def test_a_store_where_all_is_allowed_has_no_troubles_and_nothing_stays(s3: Front) -> None:
    assert store_troubles() == []
    assert left() == []


@pytest.mark.parametrize(
    ("where", "actions"),
    [
        (lambda r: r.method == "HEAD", ["s3:ListBucket"]),
        (lambda r: r.method == "PUT", ["s3:PutObject"]),
        (lambda r: r.method == "POST", ["s3:PutObject"]),
        (lambda r: r.method == "GET" and "doctor" in r.path, ["s3:GetObject"]),
        (
            lambda r: r.method == "GET",
            ["s3:GetObject", "s3:ListBucket", "s3:ListBucketMultipartUploads"],
        ),
        (
            lambda r: r.method == "DELETE" and bool(r.query.get("uploadId")),
            [
                "s3:AbortMultipartUpload",
            ],
        ),
    ],
)
def test_each_missing_permission_is_named_once_and_nothing_stays(
    s3: Front, where: Callable[[Request], bool], actions: list[str]
) -> None:
    deny(s3, where)
    assert [trouble.action for trouble in store_troubles()] == actions
    allow(s3)
    assert left() == []


def test_what_may_not_be_deleted_is_named(s3: Front) -> None:
    deny(s3, lambda r: r.method == "DELETE" and not r.query.get("uploadId"))
    assert [trouble.action for trouble in store_troubles()] == ["s3:DeleteObject"]


def test_a_bucket_in_another_region_is_no_missing_permission_and_nothing_is_tried(
    s3: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    where = {"LocationConstraint": "eu-west-1"}
    client().create_bucket(Bucket="far", CreateBucketConfiguration=where)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (trouble,) = store_troubles("s3://far/x")
    assert "far is in eu-west-1, the run in us-east-1" in trouble.what
    assert trouble.action == ""
    assert not [request for request in s3.seen if "doctor" in request.path]


def test_data_is_there_and_may_be_read(s3: Front) -> None:
    assert "nothing at s3://bucket/data" in data_troubles()[0].what
    client().put_object(Bucket="bucket", Key="data2/x", Body=b"not below data/")
    assert "nothing at s3://bucket/data" in data_troubles()[0].what
    client().put_object(Bucket="bucket", Key="data/train.bin", Body=b"1")
    assert data_troubles() == []
    deny(s3, lambda r: r.method == "HEAD" and r.path.endswith("train.bin"))
    assert [trouble.action for trouble in data_troubles()] == ["s3:GetObject"]
    deny(s3, lambda r: r.method == "GET")
    assert [trouble.action for trouble in data_troubles()] == ["s3:ListBucket"]


def test_data_in_no_bucket_is_a_trouble(s3: Front) -> None:
    (trouble,) = data_troubles("s3://nowhere/data")
    assert "no such bucket" in trouble.what
