"""Credentials that end and are renewed while a process goes on, on the rig, and what is said of those
that will end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.rig import Rig, guest
from seerd.aws import credentials as module
from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.credentials import Lifetime
from seerd.aws.errors import AwsError, ErrorKind
from seerd.backends.ec2.asking import outlasts
from seerd.stores.s3.store import S3Store

REGION = "us-east-1"
NOW = 1_800_000_000.0


class Keys:
    """A file with the credentials of a session of STS, as `aws` writes it."""

    def __init__(self, rig: Rig, file: Path) -> None:
        self._rig = rig
        self._sts = guest.client(rig, "sts")
        self._file = file
        self.key = ""

    def log_in(self, **more: str) -> str:
        """Write the credentials of a new session there; return its access key."""
        made = self._sts.get_session_token()["Credentials"]
        lines = {
            "aws_access_key_id": made["AccessKeyId"],
            "aws_secret_access_key": made["SecretAccessKey"],
            "aws_session_token": made["SessionToken"],
        } | more
        text = "".join(f"{name} = {value}\n" for name, value in lines.items())
        self._file.write_text(f"[default]\n{text}")
        self.key = made["AccessKeyId"]
        return self.key

    def end(self) -> None:
        """Have the session that is in the file end."""
        self._rig.end_session(self.key)


@pytest.fixture
def keys(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in rig.env.items():
        if "ACCESS_KEY" not in name:
            monkeypatch.setenv(name, value)
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    return Keys(rig, file)


async def found(cloud: Cloud) -> list[Any]:
    return list(await instances.find(cloud, []))


def test_a_call_that_is_refused_is_made_again_with_what_is_in_the_file_now(
    keys: Keys, rig: Rig
) -> None:
    async def run() -> None:
        keys.log_in()
        async with Cloud(REGION) as cloud:
            assert await found(cloud) == []
            keys.end()
            with pytest.raises(AwsError) as over:
                await found(cloud)
            assert over.value.kind is ErrorKind.CREDENTIALS
            assert "a run that goes on takes the new ones" in str(over.value)
            keys.log_in()
            assert await found(cloud) == []

    asyncio.run(run())


def test_urls_are_signed_with_the_credentials_that_are_in_the_file_now(
    keys: Keys, rig: Rig
) -> None:
    """Nothing is refused here: a signature needs no answer of AWS."""

    async def signed(store: S3Store) -> str:
        grant = await store.presign("t1", 1, 1, [])
        assert grant is not None
        return grant.puts[0].data_url

    async def run() -> None:
        first = keys.log_in()
        store = S3Store(f"s3://{rig.bucket}/runs", "r1", NOW * 2, REGION)
        await store.open()
        assert first in await signed(store)
        second = keys.log_in()
        url = await signed(store)
        assert second in url
        assert first not in url
        keys.end()
        keys.log_in()
        await store.open()
        await store.close()

    asyncio.run(run())


def test_a_role_of_credentials_in_a_file_is_taken_anew(
    keys: Keys, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that prints credentials stands for a role: botocore runs it once, since what it
    prints names no end.
    """
    program = tmp_path / "print-keys"
    (tmp_path / ".aws" / "config").write_text(f"[default]\ncredential_process = {program}\n")
    program.write_text("#!/bin/sh\ncat $HOME/printed\n")
    program.chmod(0o755)

    def write() -> str:
        made = guest.client(rig, "sts").get_session_token()["Credentials"]
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
        printed = {"Version": 1} | {name: made[name] for name in names}
        (tmp_path / "printed").write_text(json.dumps(printed))
        return str(made["AccessKeyId"])

    async def run() -> None:
        first = write()
        async with Cloud(REGION) as cloud:
            assert await found(cloud) == []
            rig.end_session(first)
            write()
            assert await found(cloud) == []

    asyncio.run(run())


def test_a_file_that_cannot_be_read_leaves_the_credentials_as_they_are(
    keys: Keys, rig: Rig, tmp_path: Path
) -> None:
    async def run() -> None:
        keys.log_in()
        async with Cloud(REGION) as cloud:
            assert await found(cloud) == []
            (tmp_path / ".aws" / "credentials").write_text("half of a [")
            assert await found(cloud) == []

    asyncio.run(run())


def test_the_end_of_credentials_is_read_where_those_who_make_them_write_it(
    keys: Keys, rig: Rig, tmp_path: Path
) -> None:
    async def lifetime() -> Lifetime:
        async with Cloud(REGION) as cloud:
            return await cloud.lifetime()

    end = datetime(2026, 12, 1, 10, tzinfo=UTC)
    keys.log_in()
    assert asyncio.run(lifetime()) == Lifetime("shared-credentials-file", None, temporary=True)
    for name, text in {
        "aws_expiration": "2026-12-01T10:00:00Z",
        "x_security_token_expires": "2026-12-01T11:00:00+01:00",
        "expiration": "2026-12-01 10:00:00+00:00",
    }.items():
        keys.log_in(**{name: text})
        assert asyncio.run(lifetime()).ends_at == end.timestamp()


def test_a_login_with_single_sign_on_ends_unless_it_renews_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    file = cache / f"{hashlib.sha1(b'my-sso').hexdigest()}.json"
    assert module._sso_end({"sso_session": "my-sso"}) is None
    token = {"accessToken": "x", "expiresAt": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    file.write_text(json.dumps(token))
    assert module._sso_end({"sso_session": "my-sso"}) == end.timestamp()
    file.write_text(json.dumps(token | {"refreshToken": "y"}))
    assert module._sso_end({"sso_session": "my-sso"}) is None


@pytest.mark.parametrize(
    ("lifetime", "ends", "warned"),
    [
        (Lifetime("env", None), "", False),
        (Lifetime("env", None, temporary=True), "are temporary, do not say when they end", True),
        (Lifetime("env", NOW + 1200, temporary=True), "end in 20m", True),
        (Lifetime("shared-credentials-file", NOW + 9000, temporary=True), "end in 2h30m", False),
        (Lifetime("shared-credentials-file", NOW - 5, temporary=True), "end in 0s", True),
        (Lifetime("assume-role", NOW + 1200, temporary=True), "", False),
        (Lifetime("sso", NOW + 1200, temporary=True), "end in 20m", True),
        (Lifetime("sso", None, temporary=True), "", False),
    ],
)
def test_who_is_warned_of_the_end_of_credentials(
    lifetime: Lifetime, ends: str, warned: bool
) -> None:
    found, todo = outlasts(lifetime, 3600.0, NOW)
    assert found.startswith(ends)
    assert bool(found) is bool(ends)
    assert ("log in again first" in todo) is warned
