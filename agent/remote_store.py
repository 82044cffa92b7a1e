"""A checkpoint store that is reached by presigned URLs alone. A checkpoint exists there when its
manifest does, under the name of the granted place; its own name is in the manifest. S3 compares
each body with its MD5, and parts become an object only when all are completed
(docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import math
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Optional, Union

from seerd.agent import plainfile
from seerd.agent.manifest import LARGEST_MANIFEST, CheckpointError, Manifest, small_file
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Parts, Slot
from seerd.agent.threads import parallel
from seerd.agent.transfer import (
    Directory,
    NotNowError,
    checksum,
    good,
    keep_only,
    name_file,
    write_named,
)
from seerd.agent.web import TOO_LARGE, TOO_SHORT, Piece, WebError, Wires, download, refusal

URLS_S = 30.0
"""Seconds to wait for a grant before a start; the daemon sends it first."""
AGAIN_S = 5.0
"""Seconds after which a store that took no checkpoint is tried again."""
GONE = (404, TOO_SHORT)
CLOSED = {0: "store-silent", 403: "store-refused"}
"""What is reported of a store that took no checkpoint, by the status of its answer."""
LARGE = 32 << 20
"""Bytes from which on it is worth asking the daemon for places for parts, sent in parallel."""
MOST_IN_ONE_PIECE = 5 << 30
"""Bytes; S3's limit (docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)."""
THREADS = 4
PLAIN_ETAG = re.compile(r'"?[0-9A-Za-z-]{1,128}"?')
log = logging.getLogger("agent")


class StoreUnreachableError(OSError):
    """No checkpoint could be fetched, and at least one may still be there."""


class RemoteStore:
    """A store of one attempt. It blocks, so it is called in a thread."""

    def __init__(self, urls: PresignedUrls, wires: Optional[Wires] = None) -> None:
        self._urls = urls
        self._wires = wires or Wires()
        self._again_at = 0.0
        self._refused_at = -math.inf  # when URLs were refused last

    def ready(self) -> bool:
        """Return whether there is a place for the next checkpoint, and it has not just failed."""
        return self._urls.place() is not None and time.monotonic() >= self._again_at

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

    def put(self, local: Path, name: str) -> tuple[str, Manifest]:
        """Put a checkpoint; return its name there. Raises `CheckpointError`, and `NotNowError` for
        what may be put later.
        """
        raw = small_file(local / f"{name}.json")
        manifest = Manifest.parse(raw, name)
        slot = self._urls.place()
        if slot is None:
            raise NotNowError("no place has been granted")
        try:
            with plainfile.opened(local / f"{name}.pt") as file:
                whole = Piece(file.fileno(), 0, manifest.size)
                md5 = _verified(whole, manifest)
                self._urls.try_it(slot)
                upload(self._wires, self._urls, slot, whole, md5)
                self._wires.insist(lambda: self._wires.put(slot.manifest_url, raw))
        except WebError as error:
            if error.expired and not self._wires.is_cut:
                self._urls.is_refused(slot)
                self._urls.ask_anew(slot)
                now = time.monotonic()
                if now < self._refused_at + AGAIN_S:  # what signs the new ones has ended too
                    self._again_at = now + AGAIN_S
                self._refused_at = now
                raise NotNowError(str(error)) from None
            why = f"checkpoint {name} cannot be put into the store: {error}"
            if error.status in (TOO_SHORT, TOO_LARGE):
                raise CheckpointError(why) from None
            put_off = NotNowError(why)
            if not self._wires.is_cut:
                put_off.what = CLOSED.get(error.status, "store-failed")
            self._again_at = time.monotonic() + AGAIN_S
            raise put_off from None
        except OSError as error:
            raise CheckpointError(f"checkpoint {name} cannot be read: {error}") from None
        self._urls.is_full(slot)
        return slot.name, manifest

    def fetch(self, local: Path, names: list[str]) -> Optional[str]:
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

    def _manifest(self, name: str, until: float) -> tuple[Slot, bytes]:
        while True:
            slot = self._urls.source(name, until)
            if slot is None:
                raise WebError("the daemon has not said where it is")
            try:
                get = partial(self._wires.small, "GET", slot.manifest_url, most=LARGEST_MANIFEST)
                return slot, self._wires.insist(get)
            except WebError as error:
                if not error.expired or time.monotonic() >= until:
                    raise
                self._urls.is_refused(slot)


CheckpointStore = Union[Directory, RemoteStore]
"""The store as one attempt sees it."""


def _verified(whole: Piece, manifest: Manifest) -> str:
    """Check the bytes; return their MD5 in base64. Raises `CheckpointError`, `OSError`."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for block in whole.blocks():
        sha256.update(block)
        md5.update(block)
    if sha256.hexdigest() != manifest.sha256 or os.fstat(whole.descriptor).st_size != manifest.size:
        raise CheckpointError(f"{manifest.name} does not have the checksum of its manifest")
    return base64.b64encode(md5.digest()).decode()


def upload(wires: Wires, urls: PresignedUrls, slot: Slot, whole: Piece, md5: str) -> None:
    """Put these bytes at the place `slot`. Raises `WebError`, or `OSError` for the file."""
    parts = urls.parts(slot, whole.size) if whole.size >= LARGE else None
    if parts is not None:
        try:
            _in_parts(wires, parts, whole)
        except WebError as error:
            text = "checkpoint %s could not be put in parts, so it goes in one piece: %s"
            log.warning(text, slot.name, error)
            # The store keeps parts until they are aborted; the daemon removes what is left.
            with contextlib.suppress(WebError):
                wires.small("DELETE", parts.abort_url)
        else:
            return
    if whole.size > MOST_IN_ONE_PIECE:
        why = f"{whole.size} bytes cannot be put in one piece, and there is no place for parts"
        raise WebError(why, TOO_LARGE)
    wires.insist(lambda: wires.put(slot.data_url, whole, md5))


def _in_parts(wires: Wires, parts: Parts, whole: Piece) -> None:
    pieces = pieces_of(whole, parts.part_size)
    if len(pieces) != len(parts.urls):
        raise WebError(f"{len(pieces)} parts are to be put in {len(parts.urls)} places", 400)
    tags: dict[int, str] = {}

    def put(number: int) -> None:
        tags[number] = wires.insist(lambda: wires.put(parts.urls[number], pieces[number]))

    parallel(put, range(len(pieces)), THREADS)
    _complete(wires, parts, [tags[number] for number in range(len(pieces))])


def pieces_of(whole: Piece, size: int) -> list[Piece]:
    """Split the bytes into pieces of `size` bytes, the last one smaller. Raises `WebError`."""
    if size <= 0:
        raise WebError("parts have a size", 400)
    end = whole.start + whole.size
    return [
        Piece(whole.descriptor, at, min(size, end - at)) for at in range(whole.start, end, size)
    ]


def _complete(wires: Wires, parts: Parts, tags: list[str]) -> None:
    if not all(map(PLAIN_ETAG.fullmatch, tags)):
        raise WebError("the store gave a part no ETag", 400)
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()

    def complete() -> None:
        answer = wires.small("POST", parts.complete_url, body)
        if b"CompleteMultipartUploadResult" not in answer:
            # S3 answers 200 before it knows, see
            # docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html.
            raise refusal("completing the parts", 500, answer)

    wires.insist(complete)
