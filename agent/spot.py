"""Notices that the cloud will take this instance away, from EC2's instance metadata service
(version 2 alone).

The one rule: nobody waits for it. It is asked in a thread of its own, and a service that is silent,
slow or answers rubbish gives no notice.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
(instance-action: two minutes before, not always)
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html (sooner, perhaps)
"""

from __future__ import annotations

import calendar
import http.client
import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Set, Tuple
from urllib.parse import urlsplit

ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DEFAULT = "http://169.254.169.254"
TOKENS = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
EVERY_S = 2.0
TIMEOUT_S = 1.0
TOKEN_S = 21600
TOKEN_SPARE_S = 60.0
LONGEST = 1 << 16


@dataclass(frozen=True)
class Notice:
    """What the cloud announces."""

    what: str  # "interruption": it takes this instance away; "rebalance": it probably will
    by: Optional[float] = None  # when it takes it away (wall clock); None if that is not said


class Metadata:
    """The metadata service at this URL. Only one thread may use it at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._token = ""
        self._token_ends = 0.0

    def look(self) -> List[Notice]:
        """Ask for notices; return none if the service does not answer, or not as it should."""
        notices = [_interruption(self._said(ACTION)), _rebalance(self._said(REBALANCE))]
        return [notice for notice in notices if notice is not None]

    def _said(self, path: str) -> Dict[str, Any]:
        """Get the JSON object at this path; empty for anything else."""
        try:
            answer = json.loads(self._get(path) or b"{}")
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def _get(self, path: str) -> Optional[bytes]:
        """Get the body at this path; None if there is none."""
        if time.monotonic() >= self._token_ends:
            self._renew()
        status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == http.client.UNAUTHORIZED:
            self._token_ends = 0.0
        return body if status == http.client.OK else None

    def _renew(self) -> None:
        status, body = self._ask(
            "PUT", TOKENS, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        )
        if status != http.client.OK:
            raise ValueError(f"no token: {status}")
        self._token = body.decode("ascii").strip()
        self._token_ends = time.monotonic() + TOKEN_S - TOKEN_SPARE_S

    def _ask(self, method: str, path: str, headers: Dict[str, str]) -> Tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST)
        finally:
            connection.close()


def watch(report: Callable[[Notice], Any]) -> None:
    """Have `report` called, in another thread, once with every kind of notice.

    `report` raises `RuntimeError` when nobody listens any more, which ends the thread.
    """
    url = os.environ.get(ENDPOINT) or DEFAULT
    threading.Thread(target=_keep_asking, args=(url, report), name="spot", daemon=True).start()


def _keep_asking(url: str, report: Callable[[Notice], Any]) -> None:
    metadata = Metadata(url)
    reported: Set[str] = set()
    while True:
        for notice in metadata.look():
            if notice.what not in reported:
                reported.add(notice.what)
                try:
                    report(notice)
                except RuntimeError:  # the agent's loop has ended
                    return
        time.sleep(EVERY_S)


def _interruption(answer: Dict[str, Any]) -> Optional[Notice]:
    """Read `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`; None if it is no such notice.

    To us it makes no difference if the action is to stop or to hibernate.
    """
    if not isinstance(answer.get("action"), str):
        return None
    return Notice("interruption", _moment(answer.get("time")))


def _rebalance(answer: Dict[str, Any]) -> Optional[Notice]:
    """Read `{"noticeTime": "2020-10-26T08:22:00Z"}`; None if it is no such notice."""
    return Notice("rebalance") if "noticeTime" in answer else None


def _moment(text: Any) -> Optional[float]:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
    except (TypeError, ValueError):
        return None
