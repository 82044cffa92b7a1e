"""The rig's S3 lets in who has signed, for what was signed, and as long as was signed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time
import urllib.error
import urllib.request
from typing import Any

import boto3
import pytest
from aiobotocore.session import AioSession
from botocore.config import Config

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import Keys, client, launch


def send(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, body, {name.replace("_", "-"): value for name, value in headers.items()}, method=method
    )
    if body is not None:
        request.add_header("Content-Type", "application/octet-stream")
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def url(rig: Rig, action: str, key: str = "a key/with+signs", life_s: int = 60, **more: Any) -> str:
    asked = {"Bucket": rig.bucket, "Key": key} | more
    return str(client(rig, "s3").generate_presigned_url(action, Params=asked, ExpiresIn=life_s))


def md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()


def test_a_presigned_url_is_good_for_its_object_and_its_verb(rig: Rig) -> None:
    assert send("PUT", url(rig, "put_object"), b"hello")[0] == 200
    assert send("GET", url(rig, "get_object")) == (200, b"hello")
    assert send("GET", url(rig, "get_object"), Range="bytes=1-2") == (206, b"el")
    assert (
        client(rig, "s3").get_object(Bucket=rig.bucket, Key="a key/with+signs")["Body"].read()
        == b"hello"
    )
    assert send("GET", url(rig, "put_object"))[0] == 403
    assert send("GET", url(rig, "get_object").replace("a%20key", "another"))[0] == 403
    assert send("GET", url(rig, "get_object", "nothing"))[0] == 404


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("X-Amz-Expires=60", "X-Amz-Expires=6000"),
        ("X-Amz-Signature=", "X-Amz-Signature=0"),
        ("X-Amz-Signature=", "X-Amz-Sign="),
        ("AKIARIG", "AKIANOT"),
    ],
)
def test_a_changed_url_is_refused(rig: Rig, before: str, after: str) -> None:
    client(rig, "s3").put_object(Bucket=rig.bucket, Key="k", Body=b"v")
    good = url(rig, "get_object", "k")
    assert send("GET", good)[0] == 200
    assert before in good
    assert send("GET", good.replace(before, after))[0] == 403
    assert send("GET", good.partition("?")[0])[0] == 403


def test_a_signature_of_version_2_is_no_longer_taken(rig: Rig) -> None:
    found = rig.env
    old = boto3.client(
        "s3",
        endpoint_url=rig.endpoint,
        region_name="us-east-1",
        aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
        config=Config(signature_version="s3"),
    )
    assert (
        send(
            "GET",
            old.generate_presigned_url("get_object", Params={"Bucket": rig.bucket, "Key": "k"}),
        )[0]
        == 400
    )


def test_a_url_expires(rig: Rig) -> None:
    client(rig, "s3").put_object(Bucket=rig.bucket, Key="k", Body=b"v")
    short = url(rig, "get_object", "k", life_s=1)
    end = time.monotonic() + 10
    while (found := send("GET", short))[0] == 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert found[0] == 403
    assert b"Request has expired" in found[1]


def test_digests_are_checked_and_what_was_signed_must_be_sent(rig: Rig) -> None:
    body = os.urandom(1000)
    signed = url(rig, "put_object", "k", ContentMD5=md5(body))
    assert send("PUT", signed, body)[0] == 403
    assert send("PUT", signed, b"other", Content_MD5=md5(b"other"))[0] == 403
    assert send("PUT", signed, b"other", Content_MD5=md5(body))[0] == 400
    assert send("PUT", signed, body, Content_MD5=md5(body), x_amz_tagging="a=b")[0] == 403
    assert send("PUT", signed, body, Content_MD5=md5(body))[0] == 200


def test_multipart_by_urls(rig: Rig) -> None:
    s3 = client(rig, "s3")
    upload = s3.create_multipart_upload(Bucket=rig.bucket, Key="big")["UploadId"]
    parts = [os.urandom(5 << 20), b"end"]
    for number, part in enumerate(parts, 1):
        assert (
            send("PUT", url(rig, "upload_part", "big", UploadId=upload, PartNumber=number), part)[0]
            == 200
        )
    listed = s3.list_parts(Bucket=rig.bucket, Key="big", UploadId=upload)["Parts"]
    named = [{"PartNumber": one["PartNumber"], "ETag": one["ETag"]} for one in listed]
    s3.complete_multipart_upload(
        Bucket=rig.bucket, Key="big", UploadId=upload, MultipartUpload={"Parts": named}
    )
    assert send("GET", url(rig, "get_object", "big")) == (200, b"".join(parts))


def test_an_instance_reaches_its_objects_by_url_alone(rig: Rig) -> None:
    keys = Keys()
    (name,) = launch(rig, UserData=keys.script)
    put, get = url(rig, "put_object"), url(rig, "get_object")

    async def visit() -> tuple[str, str]:
        async with await keys.connect(rig.account()[name].address) as ssh:
            sent = await ssh.run(
                f"echo -n hello | curl -s -o /dev/null -w '%{{http_code}}' -H 'Content-Type: "
                f"application/octet-stream' -T - '{put}'"
            )
            return str(sent.stdout), str((await ssh.run(f"curl -s '{get}'")).stdout)

    assert asyncio.run(visit()) == ("200", "hello")


def test_an_asynchronous_client_sends_and_receives(rig: Rig) -> None:
    found = rig.env

    async def exchange() -> bytes:
        session, at = AioSession(), {"region_name": "us-east-1", "endpoint_url": rig.endpoint}
        session.set_credentials(found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"])
        async with session.create_client("s3", **at) as s3:
            body = os.urandom(3 << 20)
            await s3.put_object(Bucket=rig.bucket, Key="k", Body=body)
            reply = await s3.get_object(Bucket=rig.bucket, Key="k", Range="bytes=0-9")
            async with reply["Body"] as stream:
                assert await stream.read() == body[:10]
        async with session.create_client("ec2", **at) as ec2:
            return (await ec2.describe_subnets())["Subnets"][0]["SubnetId"]

    assert asyncio.run(exchange()) in rig.subnets.values()


def test_listing_and_conditions_and_head(rig: Rig) -> None:
    s3 = client(rig, "s3")
    s3.put_object(Bucket=rig.bucket, Key="a/1", Body=b"one", IfNoneMatch="*")
    with pytest.raises(s3.exceptions.ClientError) as caught:
        s3.put_object(Bucket=rig.bucket, Key="a/1", Body=b"two", IfNoneMatch="*")
    assert caught.value.response["Error"]["Code"] == "PreconditionFailed"
    assert s3.head_object(Bucket=rig.bucket, Key="a/1")["ContentLength"] == 3
    assert [
        one["Key"] for one in s3.list_objects_v2(Bucket=rig.bucket, Prefix="a/")["Contents"]
    ] == ["a/1"]
    s3.delete_objects(Bucket=rig.bucket, Delete={"Objects": [{"Key": "a/1"}]})
    assert s3.list_objects_v2(Bucket=rig.bucket)["KeyCount"] == 0
