"""A request or an answer that AWS's models do not know fails the test in which it is made."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

import pytest

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import client
from bench.testbed.service_models import Answer, Request, operation_of, wrong_answer, wrong_request
from tests.aws.front import Front, front

SCOPE = "AWS4-HMAC-SHA256 Credential=AKIA/20261124/us-east-1/{}/aws4_request, Signature=0"
LAUNCH = {"MinCount": "1", "MaxCount": "1", "InstanceType": "p3.8xlarge", "ClientToken": "t"}
S3_ERROR = b"<Error><Code>NoSuchKey</Code><Message>m</Message></Error>"
EC2_ERROR = b"<Response><Errors><Error><Code>Unsupported</Code><Message>m</Message></Error></Errors><RequestID>0</RequestID></Response>"


def ec2(action: str, **params: str) -> Request:
    body = urlencode({"Action": action, "Version": "2016-11-15"} | params)
    return Request("POST", "/", {"Authorization": SCOPE.format("ec2")}, body.encode())


def s3(method: str, url: str, body: bytes = b"", **headers: str) -> Request:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Request(method, url, {"Authorization": SCOPE.format("s3")} | named, body)


def ssm(asked: Any, target: str = "AmazonSSM.GetParameter") -> Request:
    headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"}
    body = json.dumps(asked).encode()
    return Request("POST", "/", {"Authorization": SCOPE.format("ssm")} | headers, body)


def xml(action: str, inside: str, request: str = "<requestId>r</requestId>") -> Answer:
    text = f'<{action}Response xmlns="urn:x">{request}{inside}</{action}Response>'
    return Answer(200, {}, text.encode())


@pytest.mark.parametrize(
    "request_",
    [
        ec2("RunInstances", **LAUNCH, **{"TagSpecification.1.Tag.1.Key": "k"}),
        ec2("RunInstances", **LAUNCH, **{"BlockDeviceMapping.1.Ebs.VolumeSize": "100"}),
        ec2("DescribeInstances", **{"Filter.1.Name": "tag:a", "Filter.1.Value.1": "b"}),
        s3("GET", "/b?list-type=2&prefix=p%2F"),
        s3("PUT", "/b/k%2Fl?partNumber=1&uploadId=u", b"x", Content_MD5="XrY7u+Ae7tCTyyK7j1rNww=="),
        s3("PUT", "/b/k", b"x", x_amz_meta_sha256="0", x_amz_date="20261124T000000Z"),
        s3("GET", "/b/k?X-Amz-Signature=0&response-content-type=text%2Fplain", Range="bytes=0-1"),
        ssm({"Name": "/a", "WithDecryption": True}),
    ],
)
def test_what_the_models_know_is_right(request_: Request) -> None:
    assert wrong_request(request_) == []


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        (ec2("RunInstance", **LAUNCH), "ec2 has no operation 'RunInstance'"),
        (ec2("RunInstances", **LAUNCH, ImageID="ami-1"), "has no member ImageID"),
        (ec2("RunInstances", MinCount="1"), "lacks MaxCount"),
        (ec2("RunInstances", **LAUNCH | {"MaxCount": "two"}), "MaxCount: 'two' is no integer"),
        (ec2("RunInstances", **LAUNCH, DryRun="yes"), "DryRun: 'yes' is no boolean"),
        (ec2("RunInstances", **LAUNCH, **{"SecurityGroupId.0": "sg"}), "do not count from 1"),
        (ec2("RunInstances", **LAUNCH, Placement="a"), "Placement: 'a' is no structure"),
        (
            ec2("RunInstances", **LAUNCH, **{"TagSpecification.1.ResourceType": "instances"}),
            "TagSpecification.1.ResourceType: 'instances' is no ResourceType",
        ),
        (
            ec2("RunInstances", **LAUNCH, **{"BlockDeviceMapping.1.Ebs.Size": "1"}),
            "BlockDeviceMapping.1.Ebs: EbsBlockDevice has no member Size",
        ),
        (ec2("DescribeInstances", Version="2014-01-01"), "Version is not 2016-11-15"),
        (ec2("DescribeSpotPriceHistory", StartTime="yesterday"), "is no timestamp"),
        (s3("PATCH", "/b/k"), "no operation PATCH"),
        (s3("GET", "/b?list-type=2&max_keys=1"), "there is no parameter max_keys"),
        (s3("GET", "/b?list-type=2&max-keys=all"), "max-keys: 'all' is no integer"),
        (s3("PUT", "/b/k", b"x", x_amz_storage="ONEZONE_IA"), "no header x-amz-storage"),
        (s3("PUT", "/b/k", b"x", x_amz_storage_class="CHEAP"), "'CHEAP' is no StorageClass"),
        (s3("DELETE", "/b/k", b"<Delete/>"), "has no body"),
        (s3("POST", "/b?delete", b"<Delete><Key>k</Key></Delete>"), "Delete has no member Key"),
        (s3("POST", "/b?delete", b"<Delete"), "cannot be read"),
        (ssm({"Names": ["/a"]}), "has no member Names"),
        (ssm({}), "lacks Name"),
        (ssm({"Name": 7}), "Name: 7 is no string"),
        (ssm({"Name": "/a", "WithDecryption": "true"}), "'true' is no boolean"),
        (ssm({"Name": "/a"}, "SSM.GetParameter"), "target is not AmazonSSM.GetParameter"),
        (Request("POST", "/", {"Authorization": SCOPE.format("ec3")}, b""), "no service 'ec3'"),
    ],
)
def test_a_wrong_request_is_told(request_: Request, wrong: str) -> None:
    assert wrong in "\n".join(wrong_request(request_))


@pytest.mark.parametrize(
    ("method", "url", "operation"),
    [
        ("GET", "/b", "ListObjects"),
        ("GET", "/b?list-type=2", "ListObjectsV2"),
        ("GET", "/b?uploads", "ListMultipartUploads"),
        ("HEAD", "/b", "HeadBucket"),
        ("GET", "/b/a/b/c", "GetObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        ("DELETE", "/b/k", "DeleteObject"),
    ],
)
def test_an_address_says_which_operation_is_meant(method: str, url: str, operation: str) -> None:
    assert operation_of(s3(method, url)).name == operation


INSTANCE = (
    "<reservationSet><item><instancesSet><item>{}</item></instancesSet></item></reservationSet>"
)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (ec2("DescribeInstances"), xml("DescribeInstances", "<reservationSet/>")),
        (ec2("DeleteVolume", VolumeId="v"), xml("DeleteVolume", "<return>true</return>")),
        (ec2("DescribeInstances"), Answer(400, {}, EC2_ERROR)),
        (s3("GET", "/b/k"), Answer(200, {"ETag": '"0"', "x-amz-request-id": "r"}, b"\xff")),
        (s3("GET", "/b/k"), Answer(404, {}, S3_ERROR)),
        (s3("HEAD", "/b/k"), Answer(404, {}, b"")),
        (ssm({"Name": "/a"}), Answer(400, {}, b'{"__type": "ParameterNotFound"}')),
        (ssm({"Name": "/a"}), Answer(200, {}, b'{"Parameter": {"Value": "ami-1"}}')),
    ],
)
def test_what_clients_can_read_is_right(request_: Request, answer: Answer) -> None:
    assert wrong_answer(request_, answer) == []


@pytest.mark.parametrize(
    ("request_", "answer", "wrong"),
    [
        (ec2("DescribeInstances"), xml("X", "<reservations/>"), "has no member reservations"),
        (ec2("DescribeInstances"), xml("X", "<reservationSet/>", ""), "lacks requestId"),
        (
            ec2("DescribeInstances"),
            xml("X", INSTANCE.format("<instanceID>i-1</instanceID>")),
            "reservationSet[0].instancesSet[0]: Instance has no member instanceID",
        ),
        (
            ec2("DescribeInstances"),
            xml("X", INSTANCE.format("<launchTime>now</launchTime>")),
            "launchTime: 'now' is no timestamp",
        ),
        (
            ec2("DescribeInstances"),
            xml("X", INSTANCE.format("<instanceState><name>shuting-down</name></instanceState>")),
            "'shuting-down' is no InstanceStateName",
        ),
        (ec2("DeleteVolume", VolumeId="v"), xml("X", "<volume/>"), "has no output"),
        (ec2("DescribeInstances"), Answer(200, {}, b"<html>"), "no client can read it"),
        (ec2("DescribeInstances"), Answer(503, {}, b"<html/>"), "no error code"),
        (ec2("DescribeInstances"), Answer(404, {}, S3_ERROR), "no error code"),
        (ssm({"Name": "/a"}), Answer(400, {}, EC2_ERROR), "no error code"),
        (ssm({"Name": "/a"}), Answer(200, {}, b'{"Value": "ami-1"}'), "has no member Value"),
        (ssm({"Name": "/a"}), Answer(200, {}, b'{"Parameter": {"Version": "1"}}'), "is no long"),
        (s3("GET", "/b/k"), Answer(200, {"x-amz-mode": "a"}, b""), "no header x-amz-mode"),
        (s3("GET", "/b/k"), Answer(200, {"Last-Modified": "2026-11-24"}, b""), "is no timestamp"),
        (
            s3("GET", "/b?list-type=2"),
            Answer(200, {}, b"<R><Contents><Size>big</Size></Contents></R>"),
            "Contents.Size: 'big' is no long",
        ),
    ],
)
def test_a_wrong_answer_is_told(request_: Request, answer: Answer, wrong: str) -> None:
    assert wrong in "\n".join(wrong_answer(request_, answer))


def post(url: str, body: bytes) -> None:
    headers = {"Authorization": SCOPE.format("ec2")}
    request = urllib.request.Request(url, body, headers, method="POST")
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request).close()


def through_the_front(moto: str, scenario: Callable[[Front], Any]) -> None:
    async def run() -> None:
        async with front(moto) as there:
            await asyncio.to_thread(scenario, there)

    asyncio.run(run())


def test_the_front_fails_a_test_with_a_wrong_request(moto: str) -> None:
    body = ec2("DescribeInstances", Instance="i-1", InstanceId="i-1").body
    with pytest.raises(AssertionError, match="no member Instance"):
        through_the_front(moto, lambda there: post(there.url, body))


class Liar(BaseHTTPRequestHandler):
    """In the place of moto: whatever it is asked, it answers with reservations of its own."""

    def do_POST(self) -> None:
        body = xml("DescribeImages", "<reservations/>").body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_front_fails_a_test_with_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")  # the front sets it, and nobody else would reset it
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        body = ec2("DescribeImages").body
        with pytest.raises(AssertionError, match="no member reservations"):
            through_the_front(
                f"http://127.0.0.1:{server.server_port}", lambda there: post(there.url, body)
            )
        server.shutdown()


def test_what_is_wrong_is_a_trouble_of_the_rig(rig: Rig) -> None:
    client(rig, "ec2").describe_instances()
    assert rig.troubles() == []
    post(rig.endpoint, ec2("DescribeInstances", Instance="i-1").body)
    assert any("has no member Instance" in line for line in rig.troubles())
    rig.reset()
    assert rig.troubles() == []
