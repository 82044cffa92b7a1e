"""Does everything once in a bucket, with an empty object, that a run will do there. Nothing is left
behind, and one refusal does not stop the other checks.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from seerd.errors import CloudError, SeerdError, StoreError
from seerd.stores.base import Trouble
from seerd.stores.s3.address import Address
from seerd.stores.s3.client import SAYS, Clients, plain


class _Probe:
    """One object below the prefix, and the troubles found with it."""

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
            await _objects(probe)
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


async def _objects(probe: _Probe) -> None:
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
