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
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from aiohttp import ClientError as BrokenHttpError
from botocore import exceptions as boto

from seerd.agent.manifest import LARGEST_MANIFEST, Manifest, by_number
from seerd.agent.protocol import MAX_LINE, Ask, Download, Grant, Parts, Slot
from seerd.agent.wire import encode
from seerd.aws.cloud import Cloud
from seerd.aws.errors import NOT_PERMITTED, AwsError, ErrorKind, explained
from seerd.aws.identity import date_of
from seerd.clock import wall
from seerd.errors import CloudError, SeerdError, StoreError
from seerd.stores.base import Trouble, slot_name, stored
from seerd.stores.s3.address import Address

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
TRIES = 3
PLACE = re.compile(r".*/(\d+-\d+)\.(pt|json)", re.DOTALL)
RIGHTS = (
    "; checkpoints need s3:ListBucket on the bucket, s3:GetObject, s3:PutObject, s3:DeleteObject "
    "and s3:AbortMultipartUpload on what is in it, and kms:GenerateDataKey and kms:Decrypt if the "
    "bucket is encrypted with a key in KMS"
)


async def near(cloud: Cloud, bucket: str) -> Any:
    """Return the client of the bucket's own region: S3 refuses a URL signed for another one."""
    client = await cloud.client("s3")
    where = (await client.head_bucket(Bucket=bucket)).get("BucketRegion")
    return client if where in {None, client.meta.region_name} else await cloud.client("s3", where)


async def insist(work: Callable[[], Awaitable[str]]) -> str:
    """Run `work` up to `TRIES` times if a download breaks off: the client repeats only requests."""
    broken = (BrokenHttpError, boto.HTTPClientError, boto.IncompleteReadError, TimeoutError)
    for _ in range(TRIES - 1):
        with contextlib.suppress(*broken):
            return await work()
    return await work()


@contextlib.contextmanager
def plain(what: str, denied: type[SeerdError] = StoreError) -> Iterator[None]:
    """Raise errors as `StoreError`, or for credentials and rights as `AwsError` if `denied` is
    `CloudError`. `what`: how they begin. They contain no URL with a signature.
    """
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, BrokenHttpError, TimeoutError, OSError) as error:
        if isinstance(error, OSError) and error.filename:  # of this machine, not of AWS
            raise StoreError(f"{what}: {error.strerror}: {error.filename}") from None
        refusal = explained(error, what)
        why = f"{refusal}{RIGHTS if refusal.kind is ErrorKind.DENIED else ''}"
        if denied is CloudError and refusal.kind in NOT_PERMITTED | {ErrorKind.CREDENTIALS}:
            raise AwsError(why, refusal.kind, refusal.code, refusal.said) from None
        raise StoreError(why, damaged=refusal.kind is ErrorKind.GONE) from None


class S3Store:
    """Checkpoints of a run below `s3://bucket/prefix`: see `base.DataStore`. Credentials, profile,
    endpoint and, unless given, the region are the environment's, as for any AWS tool. URLs work
    until `MARGIN_S` after `expires` (seconds since 1970), but no longer than `LONGEST_S`.
    """

    def __init__(self, address: str, run: str, expires: float, region: str | None = None) -> None:
        self._at = Address.parse(address)
        self._run = run
        self._expires = expires
        self._cloud = Cloud(region)

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
            client = await self._cloud.client("s3")
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
        with contextlib.suppress(SeerdError), plain(f"{self._at} does not answer"):
            client = await self._cloud.client("s3")
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
            client = await self._cloud.client("s3")
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
        newest = max(map(by_number, names), default=None)

        def is_old(key: str) -> bool:
            name = match[1] if (match := PLACE.fullmatch(key)) else None
            if name is None or name in names:
                return False
            return newest is None or by_number(name) < newest

        with plain(f"old checkpoints of {trial} cannot be removed"):
            client = await self._cloud.client("s3")
            where = {"Bucket": self._at.bucket, "Prefix": self._at.key(self._run, trial) + "/"}
            keys = [row["Key"] async for row in _objects(client, **where)]
            old = [key for key in keys if is_old(key)]
            for suffix in (".json", ".pt"):  # all manifests before the first checkpoint
                these = [{"Key": key} for key in sorted(old) if key.endswith(suffix)]
                for at in range(0, len(these), 1000):
                    delete = {"Objects": these[at : at + 1000], "Quiet": True}
                    gone = await client.delete_objects(Bucket=self._at.bucket, Delete=delete)
                    for error in gone.get("Errors", []):
                        why = f"{error.get('Key')} cannot be removed: {error.get('Code')}"
                        raise StoreError(why)
            async for page in client.get_paginator("list_multipart_uploads").paginate(**where):
                for upload in page.get("Uploads", []):
                    if is_old(upload["Key"]):
                        of = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                        with contextlib.suppress(client.exceptions.NoSuchUpload):
                            await client.abort_multipart_upload(Bucket=self._at.bucket, **of)

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        with plain(f"newer checkpoints of {trial} cannot be listed"):
            client = await self._cloud.client("s3")
            where = {
                "Bucket": self._at.bucket,
                "Prefix": self._at.key(self._run, trial, f"{attempt:04d}-"),
            }
            keys = [row["Key"] async for row in _objects(client, **where)]
            matches = [match for key in keys if (match := PLACE.fullmatch(key))]
            names = [match[1] for match in matches if match[2] == "json"]
            later = [name for name in names if by_number(name) > by_number(newest)]
            later.sort(key=by_number)
            manifests = [await self._manifest(client, trial, name) for name in later]
            return [manifest for manifest in manifests if manifest is not None]

    async def downloads(self, source: str, to: str) -> list[Download]:
        address = Address.parse(source)
        with plain(f"the data at {source} cannot be listed"):
            client = await near(self._cloud, address.bucket)
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
            digest = await insist(lambda: self._download(self._key(trial, name, "pt"), part))
        if digest != sha256:
            await asyncio.to_thread(part.unlink)
            why = f"it is damaged, its SHA-256 is {digest}, {sha256} was confirmed"
            raise StoreError(f"{what}: {why}", damaged=True)
        await asyncio.to_thread(part.replace, to)

    async def manifest(self, trial: str, name: str) -> Manifest:
        what = f"the manifest of checkpoint {name} of {trial} cannot be read from {self._at}"
        with plain(what):
            manifest = await self._manifest(await self._cloud.client("s3"), trial, name)
        if manifest is None:
            raise StoreError(f"{what}: it is damaged", damaged=True)
        return manifest

    def place(self, trial: str, name: str) -> str:
        return f"s3://{self._at.bucket}/{self._key(trial, name, 'pt')}"

    async def close(self) -> None:
        await self._cloud.close()

    async def _manifest(self, client: Any, trial: str, name: str) -> Manifest | None:
        answer = await client.get_object(Bucket=self._at.bucket, Key=self._key(trial, name, "json"))
        async with answer["Body"]:
            return stored(name, await answer["Body"].read(LARGEST_MANIFEST + 1))

    def _key(self, trial: str, name: str, suffix: str) -> str:
        return self._at.key(self._run, trial, f"{name}.{suffix}")

    async def _slot(self, operation: str, trial: str, name: str) -> Slot:
        client, bucket = await self._cloud.client("s3"), self._at.bucket
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

    async def _download(self, key: str, part: Path) -> str:
        """Download an object into this file, flush it to the disk and return its SHA-256."""
        client, digest = await self._cloud.client("s3"), hashlib.sha256()
        answer = await client.get_object(Bucket=self._at.bucket, Key=key)
        file: BinaryIO = await asyncio.to_thread(part.open, "wb")
        with contextlib.closing(file):
            async with answer["Body"]:
                while block := await answer["Body"].read(BLOCK):
                    await asyncio.to_thread(digest.update, block)
                    await asyncio.to_thread(file.write, block)
            await asyncio.to_thread(file.flush)
            await asyncio.to_thread(os.fsync, file.fileno())
        return digest.hexdigest()


async def _objects(client: Any, **where: str) -> AsyncIterator[dict[str, Any]]:
    async for page in client.get_paginator("list_objects_v2").paginate(**where):
        for row in page.get("Contents", []):
            yield row


@dataclass(slots=True)
class _Probe:
    """Makes calls as a run will, and records what is refused."""

    client: Any
    troubles: list[Trouble] = field(default_factory=list)

    async def ask(self, action: str, operation: str, **where: Any) -> Any:
        """Return the answer; None, with a trouble recorded, if it was refused now or before."""
        if action in {trouble.action for trouble in self.troubles}:
            return None
        try:
            with plain(action, CloudError):
                return await getattr(self.client, operation)(**where)
        except AwsError as error:
            missing = action if error.kind is not ErrorKind.FORBIDDEN else ""
            self.troubles.append(Trouble(str(error), missing, error.said))
        except StoreError as error:
            self.troubles.append(Trouble(str(error)))
        return None


async def check_store(address: str, region: str | None) -> list[Trouble]:
    """Return what prevents checkpoints there, with an empty object below the prefix, which is
    removed. Raises `CloudError` without credentials.
    """
    at = Address.parse(address)
    async with Cloud(region) as cloud:
        with plain(f"{at} cannot be the store of checkpoints", CloudError):
            probe = _Probe(await cloud.client("s3"))
        here = probe.client.meta.region_name
        about = await probe.ask("s3:ListBucket", "head_bucket", Bucket=at.bucket)
        if (region_of := (about or {}).get("BucketRegion") or here) != here:
            why = f"the bucket {at.bucket} is in {region_of}, the run in {here}"
            probe.troubles.append(Trouble(f"{why}: every checkpoint would cross regions"))
        if any(not trouble.action for trouble in probe.troubles):
            return probe.troubles
        key = at.key(f".seerd-doctor-{secrets.token_hex(4)}")
        where, below = {"Bucket": at.bucket, "Key": key}, {"Bucket": at.bucket, "Prefix": key}
        try:
            put = await probe.ask("s3:PutObject", "put_object", **where, Body=b"")
            got = put and await probe.ask("s3:GetObject", "get_object", **where)
            if got:
                got["Body"].close()
            await probe.ask("s3:ListBucket", "list_objects_v2", **below)
            await probe.ask("s3:ListBucketMultipartUploads", "list_multipart_uploads", **below)
            begun = await probe.ask("s3:PutObject", "create_multipart_upload", **where)
            if begun is not None:
                part = {**where, "UploadId": begun["UploadId"]}
                abort = "s3:AbortMultipartUpload", "abort_multipart_upload"
                if await probe.ask(*abort, **part) is None:
                    with contextlib.suppress(Exception):  # an open upload would stay and cost
                        sent = await probe.client.upload_part(**part, PartNumber=1, Body=b"")
                        parts = {"Parts": [{"ETag": sent["ETag"], "PartNumber": 1}]}
                        await probe.client.complete_multipart_upload(**part, MultipartUpload=parts)
        finally:  # on Ctrl-C, too: the object would stay
            await probe.ask("s3:DeleteObject", "delete_object", **where)
        return probe.troubles


async def check_data(source: str, region: str | None) -> list[Trouble]:
    """Return what prevents reading the data at `s3://bucket/prefix`; empty if all is well."""
    at = Address.parse(source)
    async with Cloud(region) as cloud:
        try:
            with plain(f"{at} cannot be read", CloudError):
                probe = _Probe(await near(cloud, at.bucket))
            page = await probe.ask(
                "s3:ListBucket", "list_objects_v2", Bucket=at.bucket, Prefix=at.prefix
            )
            if page is None:
                return probe.troubles
            keys = [row["Key"] for row in page.get("Contents", ()) if at.path_of(row["Key"], "")]
        except AwsError as error:
            missing = "s3:ListBucket" if error.kind is not ErrorKind.FORBIDDEN else ""
            return [Trouble(str(error), missing, error.said)]
        except StoreError as error:
            return [Trouble(str(error))]
        if not keys:  # many that only begin alike may come before
            return [] if page.get("IsTruncated") else [Trouble(f"there is nothing at {at}")]
        await probe.ask("s3:GetObject", "head_object", Bucket=at.bucket, Key=keys[0])
        return probe.troubles
