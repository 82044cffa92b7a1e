"""EC2's notices that it will take this instance away, asked in a thread from the metadata service
(IMDSv2): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
(usually two minutes before), .../rebalance-recommendations.html (perhaps sooner), and
.../viewing_scheduled_events.html (reboots, stops and retirements, also of on-demand instances).
"""

from __future__ import annotations

import calendar
import http.client
import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DEFAULT = "http://169.254.169.254"
TOKENS = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
SPOT_TIME, MAINTENANCE_TIME = "%Y-%m-%dT%H:%M:%SZ", "%d %b %Y %H:%M:%S GMT"
TIMEOUT_S = 1.0
TOKEN_SPARE_S = 60.0
LONGEST = 1 << 16
WITHOUT_PROXY = build_opener(ProxyHandler({}))


@dataclass(frozen=True)
class Notice:
    """What the cloud announces."""

    # "interruption": it takes this instance away; "rebalance": it probably will; "maintenance": it
    # reboots, stops or ends it
    what: str
    # when it does that (wall clock); None: unknown, and of "maintenance": none is scheduled
    by: Optional[float] = None


class Metadata:
    """The metadata service at this URL, for one thread at a time."""

    def __init__(self, url: str, token_s: int = 21600) -> None:
        self._url, self._token_s = url.rstrip("/"), token_s
        self._token = ""
        self._token_ends = 0.0

    def look(self) -> list[Notice]:
        """Return the notices; none of what the service does not answer as it should."""
        (action,), (advice,) = self._objects(ACTION) or [{}], self._objects(REBALANCE) or [{}]
        notices = []
        if isinstance(action.get("action"), str):  # "terminate", "stop" or "hibernate"
            notices.append(Notice("interruption", _moment(action.get("time"), SPOT_TIME)))
        if "noticeTime" in advice:
            notices.append(Notice("rebalance"))
        scheduled = self._objects(MAINTENANCE)
        active = [each for each in scheduled or [] if _is_active(each)]
        begins = [_moment(each.get("NotBefore"), MAINTENANCE_TIME) for each in active]
        if moments := [at for at in begins if at is not None]:
            notices.append(Notice("maintenance", min(moments)))
        elif scheduled is not None and not active:
            notices.append(Notice("maintenance"))
        return notices

    def _objects(self, path: str) -> Optional[list[dict[str, Any]]]:
        """Return the objects of a page, none if it is not there; None: there is no answer."""
        try:
            answer = json.loads(self._get(path))
        except HTTPError as error:
            return [] if error.code == http.client.NOT_FOUND else None
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            return None
        answers = answer if isinstance(answer, list) and path == MAINTENANCE else [answer]
        return [each for each in answers if isinstance(each, dict)]

    def _get(self, path: str) -> bytes:
        if time.monotonic() >= self._token_ends:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(self._token_s)}
            self._token = self._ask("PUT", TOKENS, life).decode("ascii").strip()
            self._token_ends = time.monotonic() + self._token_s - TOKEN_SPARE_S
        try:
            return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        except HTTPError as error:
            if error.code == http.client.UNAUTHORIZED:
                self._token_ends = 0.0
            raise

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        request = Request(self._url + path, headers=headers, method=method)  # noqa: S310 (ours)
        with WITHOUT_PROXY.open(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read(LONGEST)
            return body


def watch(report: Callable[[Notice], Any], every_s: float = 2.0) -> None:
    """Call `report` in another thread with each notice that has changed, until `RuntimeError`."""
    url = os.environ.get(ENDPOINT) or DEFAULT
    args = (url, report, every_s)
    threading.Thread(target=_keep_asking, args=args, name="spot", daemon=True).start()


def _keep_asking(url: str, report: Callable[[Notice], Any], every_s: float) -> None:
    metadata = Metadata(url)
    reported: dict[str, Notice] = {}
    while True:
        for notice in metadata.look():
            if reported.get(notice.what) != notice:
                reported[notice.what] = notice
                try:
                    report(notice)
                except RuntimeError:  # the agent's loop has ended
                    return
        time.sleep(every_s)


def _is_active(event: dict[str, Any]) -> bool:
    """Return whether maintenance is neither canceled nor completed, which its description says."""
    over = str(event.get("Description")).startswith(("[Canceled]", "[Completed]"))
    return event.get("State") == "active" and not over


def _moment(text: Any, form: str) -> Optional[float]:
    """Read a time in UTC; None for what has not this form."""
    try:
        return float(calendar.timegm(time.strptime(text, form)))
    except (TypeError, ValueError):
        return None
