"""The metadata service of one instance at 169.254.169.254, version 2 only where the launch asked
for it.

The one rule: it answers what
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html lists, and 404
for what is not so (yet): no spot notice is a 404, not an empty page.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web

TOKEN_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
LATEST = "/latest/"
VERSIONS = ("latest", "2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23")
"""Under which the same pages are: those that cloud-init asks for (`DataSourceEc2.py`)."""

IDENTITY = {
    "availabilityZone": "placement/availability-zone",
    "imageId": "ami-id",
    "instanceId": "instance-id",
    "instanceType": "instance-type",
    "privateIp": "local-ipv4",
    "region": "placement/region",
}


@dataclass(slots=True)
class Metadata:
    """What one instance can learn of itself. Times are seconds since 1970; None: no such notice."""

    pages: dict[str, str]
    user_data: bytes
    token_required: bool = True
    enabled: bool = True
    spot_notice_at: float | None = None
    rebalance_at: float | None = None
    maintenance_at: float | None = None
    tokens: dict[str, float] = field(default_factory=dict)

    def page(self, path: str) -> str | None:
        """The text at a path below /latest/meta-data/."""
        if path == "spot/instance-action":
            return (
                None
                if self.spot_notice_at is None
                else json.dumps({"action": "terminate", "time": stamp(self.spot_notice_at)})
            )
        if path == "spot/termination-time":
            return None if self.spot_notice_at is None else stamp(self.spot_notice_at)
        if path == "events/recommendations/rebalance":
            return (
                None
                if self.rebalance_at is None
                else json.dumps({"noticeTime": stamp(self.rebalance_at)})
            )
        if path == "events/maintenance/scheduled":
            return json.dumps(self._maintenance())
        if path in self.pages:
            return self.pages[path]
        below = path if not path or path.endswith("/") else path + "/"
        names = dict.fromkeys(
            name[len(below) :].partition("/") for name in self.pages if name.startswith(below)
        )
        return "\n".join(dict.fromkeys(head + slash for head, slash, _ in names)) or None

    def _maintenance(self) -> list[dict[str, str]]:
        if self.maintenance_at is None:
            return []
        begins, ends = (
            datetime.fromtimestamp(self.maintenance_at + more, UTC).strftime(
                "%d %b %Y %H:%M:%S GMT"
            )
            for more in (0, 600)
        )
        return [
            {
                "NotBefore": begins,
                "Code": "system-reboot",
                "Description": "scheduled reboot",
                "EventId": "instance-event-0d59937288b749b32",
                "NotAfter": ends,
                "State": "active",
            }
        ]

    def identity(self) -> str:
        """The instance identity document, as far as the pages know it
        (docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html).
        """
        return json.dumps({name: self.pages.get(page) for name, page in IDENTITY.items()}, indent=2)


def stamp(at: float) -> str:
    """A time as AWS writes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def serve(listener: socket.socket, metadata: Metadata) -> Callable[[], object]:
    """Answer on this socket; what is returned closes it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lambda request: _answer(request, metadata))
    runner = web.AppRunner(
        app, access_log=None, logger=logging.getLogger("rig.metadata"), shutdown_timeout=0
    )
    await runner.setup()
    site = web.SockSite(runner, listener)
    await site.start()

    def close() -> None:
        server = runner.server
        if site._server is not None:
            site._server.close()
        for connection in list(server.connections) if server else []:
            connection.force_close()

    return close


async def _answer(request: web.Request, metadata: Metadata) -> web.Response:
    if not metadata.enabled:
        return web.Response(status=403)
    if request.path == LATEST + "api/token":
        return _token(request, metadata)
    if request.method not in {"GET", "HEAD"}:
        return web.Response(status=405)
    given = request.headers.get(TOKEN)
    if (given is None and metadata.token_required) or (
        given is not None and metadata.tokens.get(given, 0) < time.monotonic()
    ):
        return web.Response(status=401, text="Unauthorized")
    version, _, path = request.path.removeprefix("/").partition("/")
    if version not in VERSIONS:
        return web.Response(status=404)
    if path == "user-data":
        return (
            web.Response(body=metadata.user_data)
            if metadata.user_data
            else web.Response(status=404)
        )
    text = _text(path, metadata)
    return web.Response(status=404) if text is None else web.Response(text=text)


def _text(path: str, metadata: Metadata) -> str | None:
    if path.startswith("meta-data"):
        return metadata.page(path.removeprefix("meta-data").removeprefix("/"))
    return {
        "dynamic/instance-identity": "document",
        "dynamic/instance-identity/": "document",
        "dynamic/instance-identity/document": metadata.identity(),
    }.get(path)


def _token(request: web.Request, metadata: Metadata) -> web.Response:
    """PUT with a time to live between 1 s and 6 h; a request that came through a proxy is
    refused.
    """
    if request.method != "PUT":
        return web.Response(status=405)
    if "X-Forwarded-For" in request.headers:
        return web.Response(status=403)
    life = request.headers.get(TOKEN_TTL, "")
    if not life.isdigit() or not 1 <= int(life) <= 21600:
        return web.Response(status=400)
    token = secrets.token_urlsafe(40)
    metadata.tokens[token] = time.monotonic() + int(life)
    return web.Response(text=token, headers={TOKEN_TTL: life})
