"""Puts the bytes of one checkpoint at its place in the store: in one piece, or in parts if it is
large.

The one rule: what did not arrive whole does not appear. S3 compares each body with its MD5, and
parts become an object only when all of them are completed in the right order
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
"""Bytes from which on it is worth asking the daemon for places for parts, which go side by side."""
MOST_IN_ONE_PIECE = 5 << 30
"""Bytes; S3 takes no more in one PUT
(docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html).
"""
THREADS = 4
PLAIN_ETAG = re.compile(r'"?[0-9A-Za-z-]{1,128}"?')
log = logging.getLogger("agent")


def upload(wires: Wires, urls: PresignedUrls, slot: Slot, whole: Piece, md5: str) -> None:
    """Put these bytes at the place `slot`; `md5` is theirs, in base64.

    Raises `WebError` if that fails, and `OSError` if the file cannot be read.
    """
    parts = urls.parts(slot, whole.size) if whole.size >= LARGE else None
    if parts is not None:
        try:
            _in_parts(wires, parts, whole)
        except WebError as error:
            log.warning(
                "checkpoint %s could not be put in parts, so it goes in one piece: %s",
                slot.name,
                error,
            )
            _give_up(wires, parts)
        else:
            return
    if whole.size > MOST_IN_ONE_PIECE:
        raise WebError(
            f"{whole.size} bytes cannot be put in one piece, and there is nowhere to put "
            "parts of them"
        )
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
    """Split the bytes into pieces of `size` bytes, the last one smaller. Raises `WebError` if that
    is not possible.
    """
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
        raise WebError(
            "the parts were completed or given up by somebody else", 404, error.code
        ) from None


def _give_up(wires: Wires, parts: Parts) -> None:
    """Abort the upload: the store keeps parts until then. If that fails, the daemon removes what
    is left.
    """
    with contextlib.suppress(WebError):
        wires.small("DELETE", parts.abort_url)
