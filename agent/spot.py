"""EC2's notices that it will take this instance away, asked in a thread from the metadata service
(IMDSv2): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
(usually two minutes before) and .../rebalance-recommendations.html (perhaps sooner).
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
    by: Optional[float] = None  # when it takes it away (wall clock); None: unknown


class Metadata:
    """The metadata service at this URL, for one thread at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._token = ""
        self._token_ends = 0.0

    def look(self) -> List[Notice]:
        """Return the notices; none if the service does not answer as it should."""
        action, advice = self._object(ACTION), self._object(REBALANCE)
        notices = []
        if isinstance(action.get("action"), str):  # "terminate", "stop" or "hibernate"
            notices.append(Notice("interruption", _moment(action.get("time"))))
        if "noticeTime" in advice:
            notices.append(Notice("rebalance"))
        return notices

    def _object(self, path: str) -> Dict[str, Any]:
        try:
            answer = json.loads(self._get(path) or b"{}")
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def _get(self, path: str) -> Optional[bytes]:
        if time.monotonic() >= self._token_ends:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            status, body = self._ask("PUT", TOKENS, life)
            if status != http.client.OK:
                raise ValueError(f"no token: {status}")
            self._token = body.decode("ascii").strip()
            self._token_ends = time.monotonic() + TOKEN_S - TOKEN_SPARE_S
        status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == http.client.UNAUTHORIZED:
            self._token_ends = 0.0
        return body if status == http.client.OK else None

    def _ask(self, method: str, path: str, headers: Dict[str, str]) -> Tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST)
        finally:
            connection.close()


def watch(report: Callable[[Notice], Any]) -> None:
    """Call `report` in another thread once per kind of notice, until `RuntimeError`."""
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


def _moment(text: Any) -> Optional[float]:
    """Read "2017-09-18T08:22:00Z"; None for anything else."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
    except (TypeError, ValueError):
        return None
