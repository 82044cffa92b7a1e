"""Clients of S3, and their errors in plain words, which contain no URL with a signature."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import ClientError as BrokenHttpError
from botocore import exceptions as boto

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind, explained
from seerd.errors import CloudError, SeerdError, StoreError

TRIES = 3
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
    `CloudError`. `what`: how they begin.
    """
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, BrokenHttpError, TimeoutError, OSError) as error:
        if isinstance(error, OSError) and error.filename:  # of this machine, not of AWS
            raise StoreError(f"{what}: {error.strerror}: {error.filename}") from None
        refusal = explained(error, what)
        why = f"{refusal}{RIGHTS if refusal.kind is ErrorKind.DENIED else ''}"
        if denied is CloudError and refusal.kind in {ErrorKind.DENIED, ErrorKind.CREDENTIALS}:
            raise AwsError(why, refusal.kind, refusal.code, refusal.said) from None
        raise StoreError(why, damaged=refusal.kind is ErrorKind.GONE) from None
