"""A request and its answer, as they are on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came. `url`: path and query, not decoded."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """A header's value, "" if there is none."""
        return next((text for key, text in self.headers.items() if key.lower() == name), "")

    def query(self) -> dict[str, str]:
        """The parameters in the URL."""
        return dict(parse_qsl(self.url.partition("?")[2], keep_blank_values=True))

    def params(self) -> dict[str, str]:
        """The parameters of the query protocols, which may be in the body or in the URL."""
        text = self.body.decode(errors="replace")
        return dict(parse_qsl(text, keep_blank_values=True)) or self.query()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
