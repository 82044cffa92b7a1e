"""Clients of S3, and their errors in plain words, which contain no URL with a signature."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from seerd.errors import SeerdError, StoreError

TRIES = 3
MOST_SAID = 500
SAYS = "; AWS says: "
"""What stands before AWS's own words, which may name a KMS key without permission
(docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html).
"""
PLAINLY = {
    "NoSuchBucket": "there is no such bucket; make it, or name another as the store",
    "404": "there is no such bucket, or nothing of this name; make it, or name another",
    "NoSuchKey": "there is no such object",
    "AccessDenied": (
        "these credentials may not do it; they need s3:ListBucket on the bucket, "
        "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on what is in it, "
        "and kms:GenerateDataKey and kms:Decrypt if the bucket is encrypted with a key in KMS"
    ),
    "PermanentRedirect": "the bucket is in another region; name a bucket in the run's region",
    "AuthorizationHeaderMalformed": (
        "the bucket is in another region; name a bucket in the run's region"
    ),
    "ExpiredToken": "the credentials have expired; log in again",
    "InvalidAccessKeyId": "AWS does not know this access key",
    "SignatureDoesNotMatch": "the secret key is not the one that belongs to this access key",
}
PLAINLY["403"] = PLAINLY["AccessDenied"]
PLAINLY["301"] = PLAINLY["PermanentRedirect"]
CREDENTIALS = ("AccessDenied", "403", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")


class Clients:
    """One client per region, made when first needed: boto is slow to import."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._session: Any = None
        self._open = contextlib.AsyncExitStack()
        self._made: dict[str | None, Any] = {}

    async def of(self, region: str | None) -> Any:
        """Return the client of this region; None: of the environment's region."""
        if region not in self._made:
            self._made[region] = await self._open.enter_async_context(self._client(region))
        return self._made[region]

    async def near(self, bucket: str) -> Any:
        """Return the client of the bucket's own region: S3 refuses a URL signed for another one."""
        client = await self.of(self._home)
        where = (await client.head_bucket(Bucket=bucket)).get(
            "BucketRegion"
        ) or client.meta.region_name
        return client if where == client.meta.region_name else await self.of(where)

    async def close(self) -> None:
        self._made.clear()
        await self._open.aclose()

    def _client(self, region: str | None) -> Any:
        from botocore.config import Config

        from seerd.aws.sessions import session

        self._session = self._session or session()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if endpoint else "virtual"},
            retries={"mode": "standard", "total_max_attempts": 5},
            connect_timeout=10,
            read_timeout=30,
            # A checksum header would become part of the signature, and agents cannot send one.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return self._session.client("s3", region_name=region, config=config)


MISSING = frozenset({"NoSuchKey", "404", "NotFound"})


async def insist(work: Callable[[], Awaitable[str]]) -> str:
    """Run `work` up to `TRIES` times if a download breaks off: the client repeats only requests."""
    import aiohttp
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    for _ in range(TRIES - 1):
        with contextlib.suppress(
            aiohttp.ClientError, HTTPClientError, IncompleteReadError, TimeoutError
        ):
            return await work()
    return await work()


@contextlib.contextmanager
def plain(what: str, denied: type[SeerdError] = StoreError) -> Iterator[None]:
    """Raise errors as `StoreError`, or as `denied` for rights. `what`: how they begin."""
    import aiohttp
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        why = f"{what}: {PLAINLY.get(code, error)} ({error.operation_name})"
        said = str(error.response.get("Error", {}).get("Message", "")).strip()[:MOST_SAID]
        why += f"{SAYS}{said}" if code in PLAINLY and said else ""
        refusal = denied(why) if code in CREDENTIALS else StoreError(why, damaged=code in MISSING)
        raise refusal from None
    except NoCredentialsError:
        raise denied(f"{what}: there are no AWS credentials; set AWS_PROFILE, or log in") from None
    except (BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise StoreError(f"{what}: {error}") from None
