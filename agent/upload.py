"""Puts a checkpoint at its place in the store, in one piece or in parts. S3 compares each body with
its MD5, and parts become an object only when all are completed
(docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html).
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Dict

from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Parts, Slot
from seerd.agent.threads import parallel
from seerd.agent.web import Piece, WebError, Wires, refusal

LARGE = 32 << 20
"""Bytes from which on it is worth asking the daemon for places for parts, sent in parallel."""
MOST_IN_ONE_PIECE = 5 << 30
"""Bytes; S3's limit (docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)."""
THREADS = 4
PLAIN_ETAG = re.compile(r'"?[0-9A-Za-z-]{1,128}"?')
log = logging.getLogger("agent")


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
        raise WebError(why)
    wires.insist(lambda: wires.put(slot.data_url, whole, md5))


def _in_parts(wires: Wires, parts: Parts, whole: Piece) -> None:
    pieces = pieces_of(whole, parts.part_size)
    if len(pieces) != len(parts.urls):
        raise WebError(f"{len(pieces)} parts are to be put in {len(parts.urls)} places", 400)
    tags: Dict[int, str] = {}

    def put(number: int) -> None:
        tags[number] = wires.insist(lambda: wires.put(parts.urls[number], pieces[number]))

    parallel(put, range(len(pieces)), THREADS)
    _complete(wires, parts, [tags[number] for number in range(len(pieces))])


def pieces_of(whole: Piece, size: int) -> "list[Piece]":
    """Split the bytes into pieces of `size` bytes, the last one smaller. Raises `WebError`."""
    if size <= 0:
        raise WebError("parts have a size", 400)
    end = whole.start + whole.size
    return [
        Piece(whole.descriptor, at, min(size, end - at)) for at in range(whole.start, end, size)
    ]


def _complete(wires: Wires, parts: Parts, tags: "list[str]") -> None:
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

    try:
        wires.insist(complete)
    except WebError as error:
        if error.code != "NoSuchUpload":
            raise
        why = "the parts were completed or given up by somebody else"
        raise WebError(why, 404, error.code) from None
