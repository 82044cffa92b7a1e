"""One account in one region: clients open when first needed, calls wait for their turn, and
failures are `AwsError`. Only botocore handles credentials, so profiles, environment, SSO,
AWS_ENDPOINT_URL and renewal work as in any AWS tool.

EC2 gives each action of an account and region a bucket of tokens, and refuses calls that find none
(docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html). Here each kind of call has a lane
with a smaller bucket, and waits: a refused call takes a token as well, and others use the account
too.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self

from aiobotocore.config import AioConfig
from botocore.exceptions import NoCredentialsError

from seerd.aws.credentials import Lifetime, lifetime_of
from seerd.aws.errors import AGAIN, AwsError, ErrorKind, explained, kind_of
from seerd.aws.sessions import credentials_of, session

PATIENCE_S = 60.0

# One try only: botocore's own retries would hide a lack of capacity, which EC2 reports as a failure
# of the server.
_CONFIG = AioConfig(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "total_max_attempts": 1},
    max_pool_connections=32,
)

AT_ONCE = 8  # the most calls of a lane that are under way at any time

LIMITS = {
    "run_instances": (3.0, 1.8),
    "terminate_instances": (50.0, 4.0),
    "describe_instances": (50.0, 10.0),
}
"""What a bucket holds and how many tokens come back in a second. EC2's own are 5 and 2, 100 and 5,
100 and 20; something is left of each, since calls do not arrive as evenly as they are sent.
"""
FIRST_S, LONGEST_S = 0.2, 10.0

_dice = random.SystemRandom()


class Bucket:
    """Tokens for calls. All moments are in seconds of one clock."""

    def __init__(self, most: float, per_s: float) -> None:
        self._most = self._left = most
        self._per_s = per_s  # tokens that come back in a second
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is a token."""
        since = now if self._at is None else self._at
        self._left = min(self._most, self._left + max(0.0, now - since) * self._per_s)
        self._at = now
        return max(0.0, (1.0 - self._left) / self._per_s)

    def take(self, now: float) -> float:
        """Take a token, also one that is yet to come; return the seconds until it is there."""
        wait_s = self.wait_s(now)
        self._left -= 1.0
        return wait_s


def longest_wait_s(failures: int) -> float:
    """Return the longest wait in seconds after so many failures in a row."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))


class Lane:
    """The calls of one kind: first come, first served."""

    def __init__(self, limit: tuple[float, float] | None) -> None:
        self.gate = asyncio.Semaphore(AT_ONCE)
        self._bucket = None if limit is None else Bucket(*limit)
        self._queue = asyncio.Lock()

    async def turn(self, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait until a call may be made; without taking a token, return False once it is not
        `wanted`.
        """
        if self._bucket is None:
            return wanted()
        async with self._queue:
            if not wanted():
                return False
            await asyncio.sleep(self._bucket.wait_s(_now()))
            if not wanted():
                return False
            self._bucket.take(_now())
            return True

    async def again(self, failures: int) -> None:
        """Wait until a call that has failed so often in a row (1 or more) may be repeated. It goes
        before new ones: it may have brought something that nobody knows of.
        """
        await self.pause(failures)
        if self._bucket is not None:
            await asyncio.sleep(self._bucket.take(_now()))

    async def pause(self, failures: int) -> None:
        """Wait before the next try, after so many failures in a row (1 or more), longer each time
        (aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
        """
        await asyncio.sleep(_dice.uniform(0.1, 1.0) * longest_wait_s(failures))


class CallLanes(dict[str, Lane]):
    """The lanes of one account and region, by the names that botocore has for actions."""

    def __missing__(self, action: str) -> Lane:
        return self.setdefault(action, Lane(LIMITS.get(action)))


class Cloud:
    """AWS as one set of credentials sees it in one region. Use it as a context, or call `close`.
    Methods raise `AwsError`.
    """

    def __init__(self, region: str | None = None) -> None:
        self._wanted = region
        self._session: Any = None
        self._clients: dict[tuple[str, str | None], Any] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._closed = False
        self.lanes = CallLanes()

    @property
    def region(self) -> str:
        """The region of all calls. Raises `AwsError` if none is named anywhere."""
        region = self._aws().region_name
        if not region:
            why = "no AWS region is named: set `cluster.region` in the spec, or AWS_DEFAULT_REGION"
            raise AwsError(why, ErrorKind.CREDENTIALS, "NoRegion")
        return str(region)

    async def ask(
        self,
        service: str,
        operation: str,
        *,
        region: str = "",
        patience_s: float = PATIENCE_S,
        **request: Any,
    ) -> dict[str, Any]:
        """Make one repeatable call, for up to `patience_s` seconds while AWS is busy or broken."""
        end = _now() + patience_s
        failures = 0
        await self.lanes[operation].turn()
        while True:
            try:
                return await self.call(service, operation, region=region, **request)
            except AwsError as error:
                failures += 1
                if error.kind not in AGAIN or _now() > end:
                    raise
            await self.lanes[operation].again(failures)

    async def call(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> dict[str, Any]:
        """Make one call, only once, whose turn has come (`lanes`). If AWS does not take the
        credentials, and others are there now, it is made with those.
        """
        try:
            return await self._call(service, operation, region, request)
        except AwsError as error:
            if error.kind is not ErrorKind.CREDENTIALS or not await self._renewed():
                raise
        return await self._call(service, operation, region, request)

    async def _call(
        self, service: str, operation: str, region: str, request: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            client = await self.client(service, region or self.region)
            async with self.lanes[operation].gate:
                answer: dict[str, Any] = await getattr(client, operation)(**request)
        except AwsError:
            raise
        except Exception as error:
            name = "".join(word.capitalize() for word in operation.split("_"))
            raise explained(error, name) from error
        return answer

    async def pages(
        self,
        service: str,
        operation: str,
        rows: Callable[[dict[str, Any]], list[Any]],
        *,
        region: str = "",
        patience_s: float = PATIENCE_S,
        **request: Any,
    ) -> list[Any]:
        """Return the rows of all pages of a listing; `rows` reads those of a page."""
        collected: list[Any] = []
        more: dict[str, str] = {}
        while True:
            answer = await self.ask(
                service, operation, region=region, patience_s=patience_s, **request, **more
            )
            collected += rows(answer)
            if not answer.get("NextToken"):
                return collected
            more = {"NextToken": answer["NextToken"]}

    async def lifetime(self) -> Lifetime:
        """Return the credentials' source and end. Raises `AwsError` if there are none."""
        try:
            credentials = await self._aws().get_credentials()
            if credentials is None:
                raise NoCredentialsError
            return await lifetime_of(credentials)
        except Exception as error:
            raise explained(error, "reading the AWS credentials") from error

    async def close(self) -> None:
        """Close all connections; later calls fail."""
        self._closed = True
        self._clients.clear()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def client(self, service: str, region: str | None = None) -> Any:
        """Return the client of a service; `region` None: of the session's, if it has one."""
        async with self._opening:
            if self._closed:
                why = f"{service}: the connections to AWS have been closed"
                raise AwsError(why, ErrorKind.REFUSED, "Closed")
            key = service, region
            if key not in self._clients:
                config = _CONFIG
                if service == "s3":  # its calls have no turns, so botocore repeats them
                    env = os.environ
                    ours = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
                    config = AioConfig(
                        signature_version="s3v4",
                        s3={"addressing_style": "path" if ours else "virtual"},
                        retries={"mode": "standard", "total_max_attempts": 5},
                        connect_timeout=10,
                        read_timeout=30,
                        # A checksum header would become part of the signature, and agents cannot
                        # send one.
                        request_checksum_calculation="when_required",
                        response_checksum_validation="when_required",
                    )
                context = self._aws().client(service, region_name=region, config=config)
                client = await self._stack.enter_async_context(context)
                client.meta.events.register("after-call", self._note_refusal)
                self._clients[key] = client
            return self._clients[key]

    def _note_refusal(self, parsed: dict[str, Any], **_: Any) -> None:
        """Note an answer that does not take the credentials, so that the next call has new ones."""
        code = str(parsed.get("Error", {}).get("Code", ""))
        if code and kind_of(code, 0) is ErrorKind.CREDENTIALS:
            credentials_of(self._session).refuse()

    async def _renewed(self) -> bool:
        return self._session is not None and await credentials_of(self._session).renew()

    def _aws(self) -> Any:
        if self._session is None:
            try:
                self._session = session(self._wanted)
            except Exception as error:
                raise explained(error, "reading the AWS configuration") from error
        return self._session


def _now() -> float:
    return asyncio.get_running_loop().time()
