"""What an instance may do in the bucket: put by a presigned URL, in parts, and not too late. It
runs the agent's own code, with URLs that the run's store has signed.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import asdict, replace
from typing import Any

import msgspec

from seerd.agent.protocol import Ask
from seerd.agent.remote_store import LARGE
from seerd.commands.canary.fleet import PROVED, CanaryFleet
from seerd.commands.canary.outcome import CheckOutcome
from seerd.errors import SeerdError
from seerd.stores.base import slot_name
from seerd.stores.s3.address import Address
from seerd.stores.s3.client import Clients, plain
from seerd.stores.s3.store import S3Store

CHECKED = ("PUT", "multipart", "expired URL", "encryption")
TRIAL = "canary"
BODY = b"seerd canary\n" * 64
LIFE_S = 1  # seconds for which the URL works that is to be refused
LATE_S = 5.0  # seconds after its end in which an instance may still put something
PROGRAM = """\
import base64, hashlib, json, os, sys, tempfile, time
sys.path.insert(0, os.path.expanduser("~/.cache/seerd/agents/" + TASK["zip"] + ".pyz"))
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Parts, Slot
from seerd.agent.remote_store import upload
from seerd.agent.web import Piece, WebError, Wires, content_md5

wires, told = Wires(), {}

def tried(what, work):
    began = time.monotonic()
    try:
        work()
    except WebError as error:
        told[what] = {"why": str(error), "status": error.status, "code": error.code,
                      "expired": error.expired, "seconds": time.monotonic() - began}
    else:
        told[what] = {"seconds": time.monotonic() - began}

def put():
    body = TASK["body"].encode()
    wires.insist(lambda: wires.put(TASK["put"], body, content_md5(body)))

def parts():
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(1 << 20) * (TASK["size"] >> 20))
        file.flush()
        whole = Piece(file.fileno(), 0, TASK["size"])
        def say(ask):
            urls.take(Parts(**TASK["parts"]))
            return True
        urls = PresignedUrls(TASK["parts"]["trial"], TASK["parts"]["attempt"], say)
        slot = Slot(TASK["parts"]["name"], TASK["whole"], "")
        upload(wires, urls, slot, whole, content_md5(whole))

def late():
    time.sleep(max(0.0, TASK["life_s"] + 2.0 - (time.monotonic() - began)))
    wires.put(TASK["late"], b"too late")

began = time.monotonic()
tried("put", put)
tried("parts", parts)
tried("late", late)
print(json.dumps(told))
"""


class TransferTry(msgspec.Struct, frozen=True):
    """The result of a transfer on the instance."""

    seconds: float  # how long it took
    why: str = ""  # why it was refused; empty: it was not
    status: int = 0  # HTTP status of the refusal; 0: there was no answer
    code: str = ""  # S3's code
    expired: bool = False  # whether the agent takes it for a URL whose time is over


async def look(fleet: CanaryFleet) -> list[CheckOutcome]:
    """Try everything, and leave nothing in the bucket. Raises `SeerdError` if nothing could be
    tried; then, and if it is cancelled, `clean` is needed once the instance has ended.
    """
    fleet.has_objects = True
    store, clients = _store(fleet), Clients(fleet.cloud.region)
    try:
        task = await _task(fleet, store, clients)
        output = await fleet.run_program(PROVED, f"TASK = {task!r}\n{PROGRAM}", for_s=120.0)
        tried = msgspec.json.decode(output, type=dict[str, TransferTry])
        outcomes = [
            await _put(fleet, store, tried["put"]),
            await _parts(fleet, clients, tried["parts"]),
            late(tried["late"]),
            await _encryption(fleet, clients, tried["put"]),
        ]
        await store.keep(TRIAL, [])
        fleet.has_objects = False
        return outcomes
    finally:
        await asyncio.gather(store.close(), clients.close())


def _store(fleet: CanaryFleet) -> S3Store:
    return S3Store(fleet.cluster.store or "", fleet.run, fleet.hard_end, fleet.cloud.region)


async def clean(fleet: CanaryFleet) -> None:
    """Delete what an interrupted program has left: twice, since an instance that is shutting down
    may still put something. Raises `SeerdError` for what cannot be deleted.
    """
    store = _store(fleet)
    try:
        await store.keep(TRIAL, [])
        await asyncio.sleep(LATE_S)
        await store.keep(TRIAL, [])
    finally:
        await store.close()


async def _task(fleet: CanaryFleet, store: S3Store, clients: Clients) -> dict[str, Any]:
    grant = await store.presign(TRIAL, 1, 1, [])
    assert grant is not None
    first, second, third = grant.puts
    parts = await store.parts(Ask(TRIAL, 1, second.name, LARGE))
    with plain(f"nothing can be signed for {fleet.cluster.store}"):
        client = await clients.of(fleet.cloud.region)
        late = await client.generate_presigned_url(
            "put_object", Params=_bucket_key(fleet, third.name), ExpiresIn=LIFE_S
        )
    return {
        "zip": fleet.zip,
        "body": BODY.decode(),
        "put": first.data_url,
        "whole": second.data_url,
        "parts": asdict(parts),
        "size": LARGE,
        "late": late,
        "life_s": LIFE_S,
    }


async def _put(fleet: CanaryFleet, store: S3Store, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        return _refused("PUT", tried)
    digest, to = hashlib.sha256(BODY).hexdigest(), fleet.folder / "put"
    try:
        await store.fetch(TRIAL, slot_name(1, 1), digest, to)
    except SeerdError as error:
        return CheckOutcome("PUT", "failed", f"it was put, and cannot be fetched: {error}")
    text = "it was put there, and fetched whole from here"
    return CheckOutcome("PUT", "passed", text, tried.seconds)


async def _parts(fleet: CanaryFleet, clients: Clients, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        return _refused("multipart", tried)
    try:
        stored = await _stored(fleet, clients, slot_name(1, 2))
    except SeerdError as error:
        return CheckOutcome("multipart", "failed", f"it was put, and is not there: {error}")
    size = stored["ContentLength"]
    if size != LARGE:
        return CheckOutcome("multipart", "failed", f"{size} of {LARGE} bytes are there")
    if "-" not in str(stored.get("ETag", "")):  # S3 adds the number of parts
        why = "the parts were refused, and it went in one piece"
        return CheckOutcome("multipart", "failed", why)
    text = f"{LARGE >> 20} MiB in parts, {LARGE / 1e6 / max(tried.seconds, 1e-3):.0f} MB/s"
    return CheckOutcome("multipart", "passed", text, tried.seconds)


def late(tried: TransferTry) -> CheckOutcome:
    """Judge the use of a URL whose time was over."""
    outcome = _refused("expired URL", tried)
    if not tried.why:
        return replace(outcome, said="S3 took what was put by it")
    if not tried.status:
        return replace(outcome, result="unknown")
    if not tried.expired:
        return replace(
            outcome, said=f"{tried.why}; the agent does not take that for an expired URL"
        )
    return replace(outcome, result="passed")


async def _encryption(fleet: CanaryFleet, clients: Clients, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        return CheckOutcome("encryption", "unknown", "nothing could be put")
    try:
        stored = await _stored(fleet, clients, slot_name(1, 1))
    except SeerdError as error:
        return CheckOutcome("encryption", "unknown", str(error))
    if not (how := stored.get("ServerSideEncryption")):
        return CheckOutcome("encryption", "failed", "S3 does not say how the object is encrypted")
    return CheckOutcome("encryption", "passed", f"the object is encrypted with {how}")


async def _stored(fleet: CanaryFleet, clients: Clients, name: str) -> dict[str, Any]:
    """Return what S3 reports of an object. Raises `StoreError`, `CloudError`."""
    with plain(f"{name} cannot be looked at"):
        client = await clients.of(fleet.cloud.region)
        head: dict[str, Any] = await client.head_object(**_bucket_key(fleet, name))
        return head


def _bucket_key(fleet: CanaryFleet, name: str) -> dict[str, str]:
    at = Address.parse(fleet.cluster.store or "")
    return {"Bucket": at.bucket, "Key": at.key(fleet.run, TRIAL, f"{name}.pt")}


def _refused(check: str, tried: TransferTry) -> CheckOutcome:
    return CheckOutcome(check, "failed", tried.why, None, tried.code, tried.status or None)
