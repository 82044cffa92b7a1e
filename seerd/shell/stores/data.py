"""The job's data: from objects below an address to what agents are told to download. Pure.

The one rule: a key becomes a path below `to` or an error; nothing else of the bucket is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seerd.agent.protocol import MAX_LINE, Download, Downloads
from seerd.agent.wire import encode
from seerd.errors import StoreError


@dataclass(frozen=True, slots=True)
class Address:
    """`s3://BUCKET/PREFIX`; the prefix has no slash at its ends."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises `StoreError` if it is none."""
        scheme, found, rest = text.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not found or not bucket:
            raise StoreError(f"{text!r} is no address in S3; it is written s3://bucket/prefix")
        return cls(bucket, prefix.strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, *parts: str) -> str:
        """The key of something below."""
        return "/".join(filter(None, [self.prefix, *parts]))

    def path_of(self, key: str, to: str) -> str | None:
        """Where the object of this key goes, below the folder `to`; None if it is no file of ours:
        a folder's marker, or `data2/x` where `data` was meant. Raises `StoreError` for a key that
        would lead elsewhere.
        """
        if key.endswith("/"):
            return None
        if key == self.prefix:
            relative = key.rpartition("/")[2]
        elif self.prefix and not key.startswith(self.prefix + "/"):
            return None
        else:
            relative = key[len(self.prefix) + 1 :] if self.prefix else key
        parts = [*(part for part in to.split("/") if part not in ("", ".")), *relative.split("/")]
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise StoreError(
                f"s3://{self.bucket}/{key} cannot be data: its name is no path of a file "
                "below a folder"
            )
        return "/".join(parts)


def chunks(items: Sequence[Download]) -> list[Downloads]:
    """As many messages as these need: the first begins anew, none is too long for a line."""
    lines: list[list[Download]] = [[]]
    length = 0
    for item in items:
        size = len(encode(Downloads(False, [item])))
        if length + size > MAX_LINE // 2:
            lines.append([])
            length = 0
        lines[-1].append(item)
        length += size
    return [Downloads(number == 0, line) for number, line in enumerate(lines)]
