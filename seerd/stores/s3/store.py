"""S3 as the checkpoint store: only the daemon has credentials, agents get presigned URLs, each for
one method on one object (or one part of it), and for a time. Objects are `PREFIX/RUN/TRIAL/NAME.pt`
and, written last by the agent, `PREFIX/RUN/TRIAL/NAME.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from seerd.agent.manifest import LARGEST_MANIFEST, Manifest
from seerd.agent.protocol import MAX_LINE, Ask, Download, Grant, Parts, Slot
from seerd.agent.wire import encode
from seerd.clock import wall
from seerd.errors import CloudError, SeerdError, StoreError
from seerd.stores.base import Trouble, slot_name, stored
from seerd.stores.s3.address import Address
from seerd.stores.s3.client import SAYS, Clients, insist, plain

SLOTS = 3
LONGEST_S = 7 * 86400
"""The longest life of a presigned URL, seconds
(docs.aws.amazon.com/AmazonS3/latest/userguide/using-presigned-url.html).
"""
# how long URLs work after the run's end, seconds: a last checkpoint may be late, and clocks differ
MARGIN_S = 600.0
MOST_PARTS = 200
SMALLEST_PART = 16 << 20
LARGEST_PART = 5 << 30
"""S3 permits 10,000 parts of 5 MiB to 5 GiB; here fewer, since all their URLs must fit into one
line for the agent.
"""
BLOCK = 1 << 20
PLACE = re.compile(r"(\d+)-(\d+)\.(pt|json)")


class S3Store:
    """Checkpoints of a run below `s3://bucket/prefix`: see `base.DataStore`. Credentials, profile,
    endpoint and, unless given, the region are the environment's, as for any AWS tool. URLs work
    until `MARGIN_S` after `expires` (seconds since 1970), but no longer than `LONGEST_S`.
    """

    def __init__(self, address: str, run: str, expires: float, region: str | None = None) -> None:
        self._at = Address.parse(address)
        self._run = run
        self._expires = expires
        self._region = region
        self._clients = Clients(region)

    @property
    def address(self) -> str:
        return ""

    def prolong(self, expires: float) -> None:
        self._expires = expires

    async def open(self) -> None:
        """Check the bucket's region and write and delete an empty object. Raises `StoreError` for
        the bucket, `CloudError` for credentials and permissions.
        """
        with plain(f"{self._at} cannot be the store of checkpoints", CloudError):
            client = await self._client()
            here = client.meta.region_name
            region = (await client.head_bucket(Bucket=self._at.bucket)).get("BucketRegion") or here
            if region != here:
                raise StoreError(
                    f"the bucket {self._at.bucket} is in {region}, the run in {here}; every "
                    "checkpoint would cross regions, which costs time and money. Name a bucket in "
                    f"{here} as the store."
                )
            key = self._at.key(self._run, f".writable-{secrets.token_hex(4)}")
            await client.put_object(Bucket=self._at.bucket, Key=key, Body=b"")
            await client.delete_object(Bucket=self._at.bucket, Key=key)

    async def time(self) -> float | None:
        """Return the time in S3's answers."""
        from seerd.aws.identity import date_of

        with contextlib.suppress(SeerdError), plain(f"{self._at} does not answer"):
            client = await self._client()
            return date_of(await client.head_bucket(Bucket=self._at.bucket))
        return None

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        with plain(f"checkpoints of {trial} cannot be granted"):
            names = [slot_name(attempt, number) for number in range(first, first + SLOTS)]
            puts = [await self._slot("put_object", trial, name) for name in names]
            gets = [await self._slot("get_object", trial, name) for name in checkpoints]
            return Grant(trial, attempt, puts, gets)

    async def parts(self, ask: Ask) -> Parts:
        """Begin a multipart upload. If that is impossible, the result has no `urls`."""
        nothing = Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")
        # Whole MiB, and so many that `MOST_PARTS` parts are enough.
        part_size = max(SMALLEST_PART, math.ceil(ask.size / MOST_PARTS / (1 << 20)) << 20)
        if part_size > LARGEST_PART:
            return nothing
        with contextlib.suppress(StoreError), plain("a multipart upload cannot begin"):
            client = await self._client()
            where = {"Bucket": self._at.bucket, "Key": self._key(ask.trial, ask.name, "pt")}
            where["UploadId"] = (await client.create_multipart_upload(**where))["UploadId"]
            urls = [
                await self._signed(client, "upload_part", **where, PartNumber=number)
                for number in range(1, math.ceil(ask.size / part_size) + 1)
            ]
            complete = await self._signed(client, "complete_multipart_upload", **where)
            abort = await self._signed(client, "abort_multipart_upload", **where)
            parts = Parts(ask.trial, ask.attempt, ask.name, part_size, urls, complete, abort)
            return parts if len(encode(parts)) < MAX_LINE // 2 else nothing
        return nothing

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Delete checkpoints that are older than the newest of `names` and not among them (with no
        names: all), and their unfinished uploads. Newer ones may be on their way just now.
        """
        newest = max((_number(name) for name in names), default=(math.inf, math.inf))
        with plain(f"old checkpoints of {trial} cannot be removed"):
            client = await self._client()
            where = {"Bucket": self._at.bucket, "Prefix": self._at.key(self._run, trial) + "/"}
            keys = [row["Key"] async for row in _objects(client, **where)]
            old = [key for key in keys if _is_older(key, newest, names)]
            for at in range(0, len(old), 1000):
                await self._delete(client, sorted(old[at : at + 1000]))
            async for page in client.get_paginator("list_multipart_uploads").paginate(**where):
                for upload in page.get("Uploads", []):
                    if _is_older(upload["Key"], newest, names):
                        await _abort(client, self._at.bucket, upload["Key"], upload["UploadId"])

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        with plain(f"newer checkpoints of {trial} cannot be listed"):
            client = await self._client()
            where = {
                "Bucket": self._at.bucket,
                "Prefix": self._at.key(self._run, trial, f"{attempt:04d}-"),
            }
            keys = [row["Key"] async for row in _objects(client, **where)]
            names = [_name(key) for key in keys if key.endswith(".json")]
            later = sorted((name for name in names if _number(name) > _number(newest)), key=_number)
            manifests = [await self._manifest(client, trial, name) for name in later]
            return [manifest for manifest in manifests if manifest is not None]

    async def downloads(self, source: str, to: str) -> list[Download]:
        address = Address.parse(source)
        with plain(f"the data at {source} cannot be listed"):
            client = await self._clients.near(address.bucket)
            items = []
            async for row in _objects(client, Bucket=address.bucket, Prefix=address.prefix):
                if (path := address.path_of(row["Key"], to)) is not None:
                    where = {"Bucket": address.bucket, "Key": row["Key"]}
                    url = await self._signed(client, "get_object", **where)
                    items.append(Download(url, path, row["Size"]))
        if not items:
            raise StoreError(f"there is no data at {source}: no object has a name that begins so")
        return items

    async def set_aside(self, known: Container[str]) -> dict[str, float]:
        """Do nothing: names are of one attempt, and its number is not used again."""
        return {}

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        part = to.with_name(f".{to.name}.part")
        await asyncio.to_thread(to.parent.mkdir, parents=True, exist_ok=True)
        what = f"checkpoint {name} of {trial} cannot be fetched from {self._at}"
        with plain(what):
            found = await insist(lambda: self._download(self._key(trial, name, "pt"), part))
        if found != sha256:
            await asyncio.to_thread(part.unlink)
            raise StoreError(
                f"{what}: it is damaged, its SHA-256 is {found}, {sha256} was confirmed",
                damaged=True,
            )
        await asyncio.to_thread(part.replace, to)

    async def manifest(self, trial: str, name: str) -> Manifest:
        what = f"the manifest of checkpoint {name} of {trial} cannot be read from {self._at}"
        with plain(what):
            manifest = await self._manifest(await self._client(), trial, name)
        if manifest is None:
            raise StoreError(f"{what}: it is damaged", damaged=True)
        return manifest

    def place(self, trial: str, name: str) -> str:
        return f"s3://{self._at.bucket}/{self._key(trial, name, 'pt')}"

    async def close(self) -> None:
        await self._clients.close()

    async def _client(self) -> Any:
        return await self._clients.of(self._region)

    async def _manifest(self, client: Any, trial: str, name: str) -> Manifest | None:
        answer = await client.get_object(Bucket=self._at.bucket, Key=self._key(trial, name, "json"))
        async with answer["Body"]:
            return stored(name, await answer["Body"].read(LARGEST_MANIFEST + 1))

    def _key(self, trial: str, name: str, suffix: str) -> str:
        return self._at.key(self._run, trial, f"{name}.{suffix}")

    async def _slot(self, operation: str, trial: str, name: str) -> Slot:
        client, bucket = await self._client(), self._at.bucket
        keys = [self._key(trial, name, suffix) for suffix in ("pt", "json")]
        urls = [await self._signed(client, operation, Bucket=bucket, Key=key) for key in keys]
        return Slot(name, *urls)

    async def _signed(self, client: Any, operation: str, **params: Any) -> str:
        now = min(wall(), time.time())  # signatures go by the wall clock
        lifetime_s = int(min(LONGEST_S, max(MARGIN_S, self._expires + MARGIN_S - now)))
        await asyncio.sleep(0)  # hundreds of signatures, a millisecond each, must not block
        url: str = await client.generate_presigned_url(
            operation, Params=params, ExpiresIn=lifetime_s
        )
        return url

    async def _delete(self, client: Any, keys: list[str]) -> None:
        """Delete these objects, all manifests before the first checkpoint."""
        for suffix in (".json", ".pt"):
            objects = [{"Key": key} for key in keys if key.endswith(suffix)]
            if objects:
                gone = await client.delete_objects(
                    Bucket=self._at.bucket, Delete={"Objects": objects, "Quiet": True}
                )
                for error in gone.get("Errors", []):
                    raise StoreError(f"{error.get('Key')} cannot be removed: {error.get('Code')}")

    async def _download(self, key: str, part: Path) -> str:
        """Download an object into this file, flush it to the disk and return its SHA-256."""
        client = await self._client()
        answer = await client.get_object(Bucket=self._at.bucket, Key=key)
        digest = hashlib.sha256()
        file: BinaryIO = await asyncio.to_thread(part.open, "wb")
        with contextlib.closing(file):
            async with answer["Body"]:
                while block := await answer["Body"].read(BLOCK):
                    await asyncio.to_thread(_write, file, digest, block)
            await asyncio.to_thread(file.flush)
            await asyncio.to_thread(os.fsync, file.fileno())
        return digest.hexdigest()


def _number(name: str) -> tuple[float, float]:
    """Return attempt and number in a checkpoint's name. Other names count as older than any."""
    attempt, _, number = name.partition("-")
    return (int(attempt), int(number)) if attempt.isdecimal() and number.isdecimal() else (0, 0)


def _name(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]


def _is_older(key: str, newest: tuple[float, float], kept: Sequence[str]) -> bool:
    """Return whether this is a file of one of the run's checkpoints that is not needed any more."""
    file = key.rpartition("/")[2]
    name = _name(key)
    return PLACE.fullmatch(file) is not None and name not in kept and _number(name) < newest


async def _objects(client: Any, **where: str) -> AsyncIterator[dict[str, Any]]:
    async for page in client.get_paginator("list_objects_v2").paginate(**where):
        for row in page.get("Contents", []):
            yield row


async def _abort(client: Any, bucket: str, key: str, upload: str) -> None:
    from botocore.exceptions import ClientError

    try:
        await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchUpload":
            raise


def _write(file: BinaryIO, digest: Any, block: bytes) -> None:
    digest.update(block)
    file.write(block)


class _Probe:
    """Does everything once that a run will do, with an empty object below the prefix; one refusal
    does not stop the other checks.
    """

    def __init__(self, client: Any, at: Address) -> None:
        self.client = client
        self.key = at.key(f".seerd-doctor-{secrets.token_hex(4)}")
        self.where = {"Bucket": at.bucket, "Key": self.key}
        self.troubles: list[Trouble] = []

    async def ask(self, action: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call and return its answer; None, with a trouble recorded, if it was refused."""
        try:
            with plain(action, CloudError):
                return await call()
        except CloudError as error:
            self.troubles.append(Trouble(str(error), action, str(error).partition(SAYS)[2]))
        except StoreError as error:
            self.troubles.append(Trouble(str(error)))
        return None


async def check_store(address: str, region: str | None) -> list[Trouble]:
    """Return what prevents checkpoints there. Raises `CloudError` without credentials."""
    at, clients = Address.parse(address), Clients(region)
    try:
        with plain(f"{at} cannot be the store of checkpoints", CloudError):
            client = await clients.of(region)
        probe = _Probe(client, at)
        await _region(probe, at)
        if any(not trouble.action for trouble in probe.troubles):
            return probe.troubles
        try:
            await _one_object(probe)
            await _listings(probe, at)
            await _multipart(probe)
        finally:  # on Ctrl-C, too: the object would stay
            await probe.ask("s3:DeleteObject", lambda: client.delete_object(**probe.where))
        return probe.troubles
    finally:
        await clients.close()


async def check_data(source: str, region: str | None) -> list[Trouble]:
    """Return what prevents reading the data at `s3://bucket/prefix`; empty if all is well."""
    at, clients = Address.parse(source), Clients(region)
    try:
        with plain(f"{at} cannot be read", CloudError):
            client = await clients.near(at.bucket)
        probe = _Probe(client, at)
        page = await probe.ask(
            "s3:ListBucket", lambda: client.list_objects_v2(Bucket=at.bucket, Prefix=at.prefix)
        )
        if page is None:
            return probe.troubles
        keys = [row["Key"] for row in page.get("Contents", ()) if at.path_of(row["Key"], "")]
        if not keys:  # many that only begin alike may come before
            return [] if page.get("IsTruncated") else [Trouble(f"there is nothing at {at}")]
        await probe.ask("s3:GetObject", lambda: client.head_object(Bucket=at.bucket, Key=keys[0]))
    except SeerdError as error:
        action = "s3:ListBucket" if isinstance(error, CloudError) else ""
        return [Trouble(str(error), action, str(error).partition(SAYS)[2])]
    else:
        return probe.troubles
    finally:
        await clients.close()


async def _region(probe: _Probe, at: Address) -> None:
    about = await probe.ask("s3:ListBucket", lambda: probe.client.head_bucket(Bucket=at.bucket))
    here = probe.client.meta.region_name
    region = about.get("BucketRegion") or here if about else here
    if region != here:
        why = f"the bucket {at.bucket} is in {region}, the run in {here}"
        probe.troubles.append(Trouble(f"{why}: every checkpoint would cross regions"))


async def _one_object(probe: _Probe) -> None:
    put = await probe.ask("s3:PutObject", lambda: probe.client.put_object(**probe.where, Body=b""))
    if put is None:
        return
    got = await probe.ask("s3:GetObject", lambda: probe.client.get_object(**probe.where))
    if got is not None:
        async with got["Body"] as body:
            await body.read()


async def _listings(probe: _Probe, at: Address) -> None:
    where = {"Bucket": at.bucket, "Prefix": probe.key}
    if "s3:ListBucket" not in {trouble.action for trouble in probe.troubles}:
        await probe.ask("s3:ListBucket", lambda: probe.client.list_objects_v2(**where))
    await probe.ask(
        "s3:ListBucketMultipartUploads", lambda: probe.client.list_multipart_uploads(**where)
    )


async def _multipart(probe: _Probe) -> None:
    if "s3:PutObject" in {trouble.action for trouble in probe.troubles}:
        return
    begun = await probe.ask(
        "s3:PutObject", lambda: probe.client.create_multipart_upload(**probe.where)
    )
    if begun is None:
        return
    upload = begun["UploadId"]
    aborted = await probe.ask(
        "s3:AbortMultipartUpload",
        lambda: probe.client.abort_multipart_upload(**probe.where, UploadId=upload),
    )
    if aborted is None:
        with contextlib.suppress(Exception):  # an open upload would stay and cost
            part = await probe.client.upload_part(
                **probe.where, UploadId=upload, PartNumber=1, Body=b""
            )
            parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
            await probe.client.complete_multipart_upload(
                **probe.where, UploadId=upload, MultipartUpload=parts
            )
