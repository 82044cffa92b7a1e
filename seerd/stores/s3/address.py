"""An address in S3. A key becomes a path below a folder or an error, never another path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from seerd.errors import StoreError


@dataclass(frozen=True, slots=True)
class Address:
    """An address `s3://BUCKET/PREFIX`; the prefix has no slash at its ends."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address. Raises `StoreError` if it is not one."""
        scheme, found, rest = text.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not found or not bucket:
            raise StoreError(f"{text!r} is no address in S3; it is written s3://bucket/prefix")
        return cls(bucket, prefix.strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, *parts: str) -> str:
        """Return the key of an object below this address."""
        return "/".join(filter(None, [self.prefix, *parts]))

    def path_of(self, key: str, to: str) -> str | None:
        """Return the path of this key's object below the folder `to`; None if it is not part of the
        data: the marker of a folder, or `data2/x` where `data` was meant. Raises `StoreError` for a
        key that would lead out of the folder.
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
            name = f"s3://{self.bucket}/{key}"
            raise StoreError(f"{name} cannot be data: its name is no path of a file below a folder")
        return "/".join(parts)
