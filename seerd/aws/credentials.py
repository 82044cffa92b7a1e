"""Credentials that are read anew while clients use them. botocore reads files, the environment and
the answer of a role once for a session, so that a program which runs for hours never sees what was
renewed meanwhile (github.com/Netflix/metaflow/issues/486,
github.com/skypilot-org/skypilot/issues/7774).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

AGAIN_S = 5.0
"""How often refused credentials are made again at most while no file has changed, seconds."""
SSO = "sso"  # botocore's word for IAM Identity Center
READ_ONCE = frozenset({"env", "explicit", "shared-credentials-file", "config-file"})
"""botocore's words for sources that no session renews by itself."""
ENDS = ("aws_expiration", "expiration", "aws_session_expiration", "x_security_token_expires")
"""Where programs that write credentials into a file keep their end: saml2aws, aws-azure-login,
granted and others. AWS itself names no key for it.
"""
SSO_TOKENS = Path("~/.aws/sso/cache")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long credentials last."""

    source: str  # botocore's word for where they come from
    # when they end, wall clock, seconds since 1970; None if they do not end, or do not say
    ends_at: float | None
    temporary: bool = False  # whether they end, though they may not say when

    @property
    def renewed(self) -> bool:
        """Whether a session renews them by itself."""
        return self.source not in READ_ONCE


class RenewableCredentials:
    """What signs the requests of a session, and at the same time what botocore asks for it
    (`credential_provider`). `load` reads the credentials and the profile's settings anew; `files`
    are those that they may be in.
    """

    def __init__(
        self, load: Callable[[], Awaitable[tuple[Any, Mapping[str, Any]]]], files: Sequence[Path]
    ) -> None:
        self.profile: Mapping[str, Any] = {}  # what the configuration's files say of the profile
        self._load = load
        self._files = files
        self._present: Any = None  # botocore's credentials; None: there are none
        self._refused = False  # whether AWS has refused what they signed
        self._seen: list[int] = []  # when the files were changed, as of the last reading
        self._tried_at = -math.inf  # when they were last read because of a refusal
        self._reading = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        """Return what botocore's own credentials have: `method`, `get_deferred_property`."""
        return getattr(self._present, name)

    async def load_credentials(self) -> Self | None:
        """Read them for the first time. Raises exceptions of botocore."""
        self._seen = self._stamps()
        self._present, self.profile = await self._load()
        return None if self._present is None else self

    def refuse(self) -> None:
        """Have them read anew before the next signature, since AWS has refused them."""
        self._refused = True

    async def renew(self) -> bool:
        """Read them anew if AWS has refused them, or a file has changed; return whether they are
        others now. What cannot be read leaves those that there are.
        """
        async with self._reading:
            stamps = self._stamps()
            if stamps == self._seen:
                if not self._refused or time.monotonic() < self._tried_at + AGAIN_S:
                    return False
                self._tried_at = time.monotonic()
            with suppress(Exception):
                before, (loaded, profile) = await self._key(), await self._load()
                if loaded is not None:
                    self._present, self.profile = loaded, profile
                    self._seen, self._refused = stamps, False
                    return await self._key() != before
        return False

    async def get_frozen_credentials(self) -> Any:
        """Return what signs a request now. Raises exceptions of botocore."""
        await self.renew()
        try:
            return await self._present.get_frozen_credentials()
        except Exception:  # they have ended, and botocore cannot renew these
            self._refused = True
            if not await self.renew():
                raise
            return await self._present.get_frozen_credentials()

    async def get_account_id(self) -> str | None:
        """Return their account, if they say it."""
        return getattr(await self.get_frozen_credentials(), "account_id", None)

    async def _key(self) -> str:
        """Return the public part of what signs now; empty if they have ended."""
        with suppress(Exception):
            return str((await self._present.get_frozen_credentials()).access_key)
        return ""

    def _stamps(self) -> list[int]:
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in self._files]


async def lifetime_of(credentials: RenewableCredentials) -> Lifetime:
    """Return how long they last. Raises exceptions of botocore."""
    profile = credentials.profile
    frozen, source = await credentials.get_frozen_credentials(), str(credentials.method)
    temporary = bool(frozen.token)
    ends = getattr(credentials, "_expiry_time", None)
    if source == SSO:
        return Lifetime(source, _sso_end(profile), temporary)
    if source in READ_ONCE and temporary and ends is None and source != "env":
        ends = next(filter(None, (_moment(str(profile.get(key, ""))) for key in ENDS)), None)
    return Lifetime(source, None if ends is None else ends.timestamp(), temporary)


def _sso_end(profile: Mapping[str, Any]) -> float | None:
    """Return when a login with IAM Identity Center ends; None if it renews itself, or is unknown
    (docs.aws.amazon.com/sdkref/latest/guide/understanding-sso.html).
    """
    name = str(profile.get("sso_session") or profile.get("sso_start_url") or "")
    file = SSO_TOKENS.expanduser() / f"{hashlib.sha1(name.encode()).hexdigest()}.json"  # noqa: S324
    with suppress(OSError, ValueError, AttributeError):
        token = json.loads(file.read_bytes())
        end = None if token.get("refreshToken") else _moment(str(token.get("expiresAt", "")))
        return None if end is None else end.timestamp()
    return None


def _moment(text: str) -> datetime | None:
    with suppress(ValueError):
        moment = datetime.fromisoformat(text.strip().replace("UTC", "+00:00"))
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None
