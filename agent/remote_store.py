"""A checkpoint store that is reached by presigned URLs alone. A checkpoint exists there when its
manifest does, under the name of the granted place; its own name is in the manifest.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from seerd.agent.manifest import LARGEST_MANIFEST, CheckpointError, Manifest, small_file
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Slot
from seerd.agent.transfer import NotNowError, checksum, good, keep_only, name_file, write_named
from seerd.agent.upload import upload
from seerd.agent.web import TOO_SHORT, Piece, WebError, Wires, download

URLS_S = 30.0
"""Seconds to wait for a grant before a start; the daemon sends it first."""
GONE = (404, TOO_SHORT)
log = logging.getLogger("agent")


class StoreUnreachableError(OSError):
    """No checkpoint could be fetched, and at least one may still be there."""


class RemoteStore:
    """The store as one attempt sees it."""

    def __init__(self, urls: PresignedUrls) -> None:
        self._urls = urls
        self._wires = Wires()

    def ready(self) -> bool:
        """Return whether there is a place for the next checkpoint."""
        return self._urls.place() is not None

    def free(self) -> Optional[int]:
        """Return None: the store is elsewhere."""
        return None

    def last_call(self) -> None:
        """Note that the next checkpoint is the last."""
        self._urls.last_call()

    def cut(self) -> None:
        """End what is under way; nothing works afterwards."""
        self._wires.cut()
        self._urls.close()

    def put(self, local: Path, name: str) -> Tuple[str, Manifest]:
        """Put a checkpoint; return its name there. Raises `CheckpointError`, `NotNowError`."""
        raw = small_file(local / f"{name}.json")
        manifest = Manifest.parse(raw, name)
        slot = self._urls.place()
        if slot is None:
            raise NotNowError("no place has been granted")
        with _opened(local / f"{name}.pt") as descriptor:
            whole = Piece(descriptor, 0, manifest.size)
            md5 = _verified(whole, manifest)
            self._urls.try_it(slot)
            try:
                upload(self._wires, self._urls, slot, whole, md5)
                self._wires.insist(lambda: self._wires.put(slot.manifest_url, raw))
            except WebError as error:
                if error.expired and not self._wires.is_cut:
                    self._urls.is_refused(slot)
                    raise NotNowError(str(error)) from None
                why = f"checkpoint {name} cannot be put into the store: {error}"
                raise CheckpointError(why) from None
            except OSError as error:
                raise CheckpointError(f"checkpoint {name} cannot be read: {error}") from None
        self._urls.is_full(slot)
        return slot.name, manifest

    def fetch(self, local: Path, names: List[str]) -> Optional[str]:
        """Fetch the newest good one of these checkpoints (names in the store, newest first) into
        the folder `local`, and remove all others there; return its name in `local`, None if there
        is none.

        Raises `OSError` if the folder cannot be written, or if none can be reached: a trial must
        not begin anew because the network is down.
        """
        local.mkdir(parents=True, exist_ok=True)
        unreachable = ""
        until = time.monotonic() + URLS_S
        for name in names:
            try:
                here = self._fetch_one(local, name, until)
            except WebError as error:
                log.warning("checkpoint %s cannot be fetched: %s", name, error)
                if not unreachable and error.status not in GONE:
                    unreachable = f"checkpoint {name}: {error}"
            except CheckpointError as error:
                log.warning("checkpoint %s cannot be restored: %s", name, error)
            else:
                keep_only(local, here)
                return here
        if unreachable:
            raise StoreUnreachableError(unreachable)
        keep_only(local)
        return None

    def _fetch_one(self, local: Path, name: str, until: float) -> str:
        slot, raw = self._manifest(name, until)
        manifest = Manifest.parse(raw)
        if not good(local, manifest.name, manifest.sha256):
            part = local / f".{manifest.name}.pt"
            try:
                download(self._wires, slot.data_url, manifest.size, part)
                if checksum(part) != manifest.sha256:
                    raise CheckpointError("its bytes do not have the checksum of its manifest")
                name_file(part, local / f"{manifest.name}.pt")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
            write_named(local / f"{manifest.name}.json", raw)
        return manifest.name

    def _manifest(self, name: str, until: float) -> Tuple[Slot, bytes]:
        while True:
            slot = self._urls.source(name, until)
            if slot is None:
                raise WebError("the daemon has not said where it is")
            try:
                return slot, self._small(slot.manifest_url)
            except WebError as error:
                if not error.expired or time.monotonic() >= until:
                    raise
                self._urls.is_refused(slot)

    def _small(self, url: str) -> bytes:
        return self._wires.insist(lambda: self._wires.small("GET", url, most=LARGEST_MANIFEST))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a plain file, which stays readable when removed. Raises `CheckpointError`."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, or no file")
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _verified(whole: Piece, manifest: Manifest) -> str:
    """Check the bytes; return their MD5 in base64. Raises `CheckpointError`."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        for block in whole.blocks():
            sha256.update(block)
            md5.update(block)
    except OSError as error:
        raise CheckpointError(f"{manifest.name} cannot be read: {error}") from None
    if sha256.hexdigest() != manifest.sha256 or os.fstat(whole.descriptor).st_size != manifest.size:
        raise CheckpointError(f"{manifest.name} does not have the checksum of its manifest")
    return base64.b64encode(md5.digest()).decode()
