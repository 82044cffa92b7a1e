"""One account in one region: clients open when first needed, calls wait for their turn, and
failures are `AwsError`. Only botocore handles credentials, so profiles, environment, SSO,
AWS_ENDPOINT_URL and renewal work as in any AWS tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from aiobotocore.config import AioConfig
from botocore.exceptions import NoCredentialsError

from seerd.aws.errors import AGAIN, AwsError, ErrorKind, explained
from seerd.aws.lanes import CallLanes
from seerd.aws.sessions import session

PATIENCE_S = 60.0

# One try only: botocore's own retries would hide a lack of capacity, which EC2 reports as a failure
# of the server.
_CONFIG = AioConfig(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "total_max_attempts": 1},
    max_pool_connections=32,
)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long credentials last."""

    source: str  # botocore's word for where they come from
    # when they end, wall clock, seconds since 1970; None if they do not end, or do not say
    ends_at: float | None

    @property
    def renewed(self) -> bool:
        """Whether botocore renews them: not those of the environment or of files."""
        return self.source not in {"env", "explicit", "shared-credentials-file", "config-file"}


class Cloud:
    """AWS as one set of credentials sees it in one region. Use it as a context, or call `close`.
    Methods raise `AwsError`.
    """

    def __init__(self, region: str | None = None) -> None:
        self._wanted = region
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
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
        end = asyncio.get_running_loop().time() + patience_s
        failures = 0
        await self.lanes[operation].turn()
        while True:
            try:
                return await self.call(service, operation, region=region, **request)
            except AwsError as error:
                failures += 1
                if error.kind not in AGAIN or asyncio.get_running_loop().time() > end:
                    raise
            await self.lanes[operation].again(failures)

    async def once(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> dict[str, Any]:
        """Make one call, and try it only once."""
        await self.lanes[operation].turn()
        return await self.call(service, operation, region=region, **request)

    async def call(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> dict[str, Any]:
        """Make one call, whose turn has come (`lanes`)."""
        lane = self.lanes[operation]
        try:
            client = await self._client(service, region or self.region)
            async with lane.gate:
                answer: dict[str, Any] = await getattr(client, operation)(**request)
        except AwsError:
            raise
        except Exception as error:
            name = "".join(word.capitalize() for word in operation.split("_"))
            refusal = explained(error, name)
            lane.answered(refusal.kind)
            raise refusal from error
        lane.answered()
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
            await credentials.get_frozen_credentials()
        except Exception as error:
            raise explained(error, "reading the AWS credentials") from error
        ends = getattr(credentials, "_expiry_time", None)
        return Lifetime(credentials.method, None if ends is None else ends.timestamp())

    async def close(self) -> None:
        """Close all connections; later calls fail."""
        self._closed = True
        self._clients.clear()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _aws(self) -> Any:
        if self._session is None:
            try:
                self._session = session(self._wanted)
            except Exception as error:
                raise explained(error, "reading the AWS configuration") from error
        return self._session

    async def _client(self, service: str, region: str) -> Any:
        async with self._opening:
            if self._closed:
                why = f"{service}: the connections to AWS have been closed"
                raise AwsError(why, ErrorKind.REFUSED, "Closed")
            key = service, region
            if key not in self._clients:
                context = self._aws().client(service, region_name=region, config=_CONFIG)
                self._clients[key] = await self._stack.enter_async_context(context)
            return self._clients[key]
