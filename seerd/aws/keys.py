"""The key pairs of a run: one to log in with, and for each launch one that the instance shows.

The one rule: a key is on disk before it is used in any request, readable by this user alone, and
never made twice for the same name. So a launch that is repeated after a crash asks for exactly the
same, and finds an instance whose key is known.
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
    """An ed25519 key as OpenSSH writes it."""

    path: Path  # the file of the private key
    private: str  # the private key's text
    public: str  # the public key's text
    made_at: float  # when it was made, wall clock, seconds since 1970


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
        """Return when this launch's key was made, wall clock, seconds since 1970.

        Nothing was asked of the cloud before; None: nothing ever was.
        """
        path = self.folder / _host_file(token)
        return path.stat().st_mtime if path.exists() else None

    def _pair(self, name: str) -> KeyPair:
        path = self.folder / name
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write(
                path,
                asyncssh.generate_private_key("ssh-ed25519", comment="seerd").export_private_key(),
            )
        private = path.read_bytes()
        key = asyncssh.import_private_key(private)
        public = key.export_public_key().decode().strip()
        return KeyPair(path, private.decode(), public, path.stat().st_mtime)


def _host_file(token: str) -> str:
    """Name the file of a launch's key: a hash, as a token may have characters that a file name
    cannot.
    """
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
