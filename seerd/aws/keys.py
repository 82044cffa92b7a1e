"""The key pairs of a run: one to log in with, and for each launch one that the instance shows. A
key is on disk before any request uses it, and never made twice for the same name, so a launch that
is repeated after a crash is exactly the same request.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from seerd.clock import wall

CLIENT = "id_ed25519"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 key in OpenSSH's format."""

    path: Path  # the file of the private key
    private: str  # the private key's text
    public: str  # the public key's text


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys in a folder that only this user may enter."""

    folder: Path

    def client(self) -> KeyPair:
        """Return the key that the run logs in with; make it when first asked for."""
        return self._pair(CLIENT)

    def host(self, token: str) -> KeyPair:
        """Return the key that the instance of this launch shows; make it when first asked for."""
        return self._pair(_host_file(token))

    def asked(self, token: str) -> float | None:
        """Return when this launch's key was made (seconds since 1970), before its first request;
        None: never.
        """
        path = self.folder / _host_file(token)
        return path.stat().st_mtime if path.exists() else None

    def _pair(self, name: str) -> KeyPair:
        path = self.folder / name
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment="seerd")
            _write(path, key.export_private_key())
        private = path.read_bytes()
        public = asyncssh.import_private_key(private).export_public_key().decode().strip()
        return KeyPair(path, private.decode(), public)


def _host_file(token: str) -> str:
    """Name the file of a launch's key: a hash, since a token may have any characters."""
    return f"host-{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is whole and on the disk, or not there at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    private = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(private, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # The time is compared with this machine's clock, and a file server may have another one.
    now = wall()
    os.utime(draft, (now, now))
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
