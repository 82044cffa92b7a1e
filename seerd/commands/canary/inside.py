"""What is found out inside an instance. It reports on itself: the timer, the metadata, what its
user may do as root (`REPORTS`); pure functions judge that here. And it puts into the bucket by
presigned URLs of the run's store: at once, in parts, and too late (`TRANSFERS`, the agent's code).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from seerd.agent.protocol import Ask
from seerd.agent.remote_store import LARGE
from seerd.aws.userdata import POWER, TIMER, WATCH
from seerd.commands.canary.launching import PROVED, CanaryFleet
from seerd.commands.canary.outcome import CheckOutcome, failed, passed, refused, unknown
from seerd.errors import SeerdError
from seerd.stores.base import slot_name
from seerd.stores.s3.address import Address
from seerd.stores.s3.store import S3Store, plain
from seerd.units import format_duration

REPORTED = ("user data", "timer", "orphan watch", "IMDSv1", "no credentials", "sudo")
# that the timer may be off: NTP may still be setting the instance's clock when it boots
OFF_S = 60.0
UNAUTHORISED, MISSING = 401, 404
# of a time span (systemd.time(7))
_UNITS_S = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0, "d": 86400.0}
REPORTS = (
    f"TIMER, WATCH = {TIMER!r}, {WATCH!r}\n"
    """\
import json, os, subprocess, time, urllib.error, urllib.request

def said(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=20)
    return done.returncode, done.stdout.decode(errors="replace")

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def page(path, token="", method="GET", headers=()):
    headers = dict(headers, **({"X-aws-ec2-metadata-token": token} if token else {}))
    request = urllib.request.Request("http://169.254.169.254/latest/" + path, None, headers,
                                     method=method)
    try:
        with direct.open(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)

unit = "/run/systemd/transient/" + TIMER + ".timer"
there = os.path.exists(unit)
_, token = page("api/token", method="PUT",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
print(json.dumps({
    "now": time.time(),
    "timer_at": os.path.getmtime(unit) if there else None,
    "timer_unit": open(unit).read() if there else "",
    "timer": said("systemctl", "is-active", TIMER + ".timer")[1].strip(),
    "watch": said("systemctl", "is-active", WATCH + ".service")[1].strip(),
    "without_token": page("meta-data/instance-id")[0],
    "with_token": page("meta-data/instance-id", token)[0],
    "role": page("meta-data/iam/security-credentials/", token)[0],
    "root": said("sudo", "-n", "true")[0],
    "may": said("sudo", "-n", "-l")[1],
}))
"""
)


class Facts(msgspec.Struct, frozen=True):
    """What the instance reports."""

    now: float  # its wall clock, seconds since 1970
    timer_at: float | None  # when its timer was set, by that clock; None: there is none
    timer_unit: str  # the timer's unit file
    timer: str  # what systemd says of the timer
    watch: str  # what systemd says of the watch for orphans
    without_token: int  # the metadata's status without a token; 0: it did not answer
    with_token: int  # the same with a token
    role: int  # the same for the credentials of a role
    root: int  # the exit status of `sudo true`
    may: str  # what sudo says that the user may do


def judged(facts: Facts, asked: float, reported_at: float, hard_end: float) -> list[CheckOutcome]:
    """Judge what an instance has reported of itself. The times are wall clock here, seconds since
    1970: when it was asked for, when it reported, and when it has to power itself off.
    """
    if facts.timer_at is None:
        user_data = failed("user data", "nothing of the user data has left a trace")
    else:
        ahead_s = facts.now - reported_at
        seconds = facts.timer_at - ahead_s - asked
        off = f"; its clock is {abs(ahead_s):.0f}s off" if abs(ahead_s) > 1.0 else ""
        text = f"{format_duration(max(0.0, round(seconds, 1)))} after it was asked for{off}"
        user_data = passed("user data", text, seconds)
    watch = passed("orphan watch", "it runs")
    if facts.watch != "active":
        watch = failed("orphan watch", f"it does not run (systemd: {facts.watch})")
    return [user_data, _timer(facts, hard_end), watch, *_metadata(facts), _sudo(facts)]


def _timer(facts: Facts, hard_end: float) -> CheckOutcome:
    if facts.timer_at is None or facts.timer != "active":
        state = facts.timer or "unknown"
        return failed("timer", f"there is no timer that ends it (systemd: {state})")
    found = re.search(r"^OnActiveSec=(.+)$", facts.timer_unit, re.MULTILINE)
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", found[1]) if found else []
    if not parts or any(name not in _UNITS_S for _, name in parts):
        return unknown("timer", "it is active, and does not say for how long")
    waits_s = sum(float(number) * _UNITS_S[name] for number, name in parts)
    off_s = facts.timer_at + waits_s - hard_end
    if abs(off_s) > OFF_S:
        off = f"{format_duration(abs(round(off_s)))} too {'late' if off_s > 0 else 'early'}"
        return failed("timer", f"it is {off}")
    return passed("timer", f"it fires {format_duration(round(waits_s))} after the boot")


def _metadata(facts: Facts) -> list[CheckOutcome]:
    token = f"status {facts.without_token} without a token, {facts.with_token} with one"
    refused = facts.without_token == UNAUTHORISED and facts.with_token < UNAUTHORISED
    imds = passed("IMDSv1", token) if refused else failed("IMDSv1", token)
    if not facts.without_token or not facts.with_token:
        imds = unknown("IMDSv1", "its metadata did not answer")
    role = failed("no credentials", "its metadata has credentials of a role")
    if facts.role == MISSING:
        role = passed("no credentials", "its metadata has none")
    elif not facts.role or facts.role >= UNAUTHORISED:
        role = unknown("no credentials", f"its metadata answered {facts.role}")
    return [imds, role]


def _sudo(facts: Facts) -> CheckOutcome:
    if facts.root == 0:
        return failed("sudo", "the user may run anything as root")
    allowed = list(commands(facts.may))
    more = [one for one in allowed if one not in POWER]
    if more:
        return failed("sudo", f"the user may also run as root: {', '.join(more)}")
    if not allowed:
        return failed("sudo", "the user may not even power it off")
    return passed("sudo", "to power it off, and nothing else")


def commands(listed: str) -> Iterable[str]:
    """Yield the commands in what `sudo -l` prints, which wraps long lines."""
    _, _, text = " ".join(listed.split()).partition("following commands")
    for part in re.split(r"\((?:[\w-]+(?: : [\w-]+)?)\) (?:NOPASSWD: )?", text)[1:]:
        yield from (one.strip() for one in part.split(",") if one.strip())


# ------------------------------------------------------------ the bucket

STORED = ("PUT", "multipart", "expired URL", "encryption")
TRIAL = "canary"
BODY = b"seerd canary\n" * 64
LIFE_S = 1  # seconds for which the URL works that is to be refused
LATE_S = 5.0  # seconds after its end in which an instance may still put something
TRANSFERS = """\
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


async def transfers(fleet: CanaryFleet) -> list[CheckOutcome]:
    """Try everything, and leave nothing in the bucket. Raises `SeerdError` if nothing could be
    tried; then, and if it is cancelled, `clean` is needed once the instance has ended.
    """
    fleet.has_objects = True
    store = _store(fleet)
    try:
        grant = await store.presign(TRIAL, 1, 1, [])
        assert grant is not None
        first, second, third = grant.puts
        parts = await store.parts(Ask(TRIAL, 1, second.name, LARGE))
        with plain(f"nothing can be signed for {fleet.cluster.store}"):
            client = await fleet.cloud.client("s3")
            late_url = await client.generate_presigned_url(
                "put_object", Params=_bucket_key(fleet, third.name), ExpiresIn=LIFE_S
            )
        task = {
            "zip": fleet.zip,
            "body": BODY.decode(),
            "put": first.data_url,
            "whole": second.data_url,
            "parts": asdict(parts),
            "size": LARGE,
            "late": late_url,
            "life_s": LIFE_S,
        }
        output = await fleet.run_program(PROVED, f"TASK = {task!r}\n{TRANSFERS}", for_s=120.0)
        tried = msgspec.json.decode(output, type=dict[str, TransferTry])
        outcomes = [
            await _put(fleet, store, tried["put"]),
            await _parts(fleet, tried["parts"]),
            late(tried["late"]),
            await _encryption(fleet, tried["put"]),
        ]
        await store.keep(TRIAL, [])
        fleet.has_objects = False
        return outcomes
    finally:
        await store.close()


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


async def _put(fleet: CanaryFleet, store: S3Store, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        instance = fleet.cloud.launches[PROVED].instance
        todo, _ = fleet.provider.without_store(instance, silent=not tried.status, leave=False)
        return refused("PUT", "failed", tried.why + todo, tried)
    digest, to = hashlib.sha256(BODY).hexdigest(), fleet.folder / "put"
    try:
        await store.fetch(TRIAL, slot_name(1, 1), digest, to)
    except SeerdError as error:
        return failed("PUT", f"it was put, and cannot be fetched: {error}")
    return passed("PUT", "it was put there, and fetched whole from here", tried.seconds)


async def _parts(fleet: CanaryFleet, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        return refused("multipart", "failed", tried.why, tried)
    try:
        stored = await _stored(fleet, slot_name(1, 2))
    except SeerdError as error:
        return failed("multipart", f"it was put, and is not there: {error}")
    if (size := stored["ContentLength"]) != LARGE:
        return failed("multipart", f"{size} of {LARGE} bytes are there")
    if "-" not in str(stored.get("ETag", "")):  # S3 adds the number of parts
        return failed("multipart", "the parts were refused, and it went in one piece")
    text = f"{LARGE >> 20} MiB in parts, {LARGE / 1e6 / max(tried.seconds, 1e-3):.0f} MB/s"
    return passed("multipart", text, tried.seconds)


def late(tried: TransferTry) -> CheckOutcome:
    """Judge the use of a URL whose time was over."""
    check = "expired URL"
    if not tried.why:
        return failed(check, "S3 took what was put by it")
    if not tried.status:
        return refused(check, "unknown", tried.why, tried)
    if not tried.expired:
        why = f"{tried.why}; the agent does not take that for an expired URL"
        return refused(check, "failed", why, tried)
    return refused(check, "passed", tried.why, tried)


async def _encryption(fleet: CanaryFleet, tried: TransferTry) -> CheckOutcome:
    if tried.why:
        return unknown("encryption", "nothing could be put")
    try:
        stored = await _stored(fleet, slot_name(1, 1))
    except SeerdError as error:
        return unknown("encryption", str(error))
    if not (how := stored.get("ServerSideEncryption")):
        return failed("encryption", "S3 does not say how the object is encrypted")
    return passed("encryption", f"the object is encrypted with {how}")


async def _stored(fleet: CanaryFleet, name: str) -> dict[str, Any]:
    """Return what S3 reports of an object. Raises `StoreError`, `CloudError`."""
    with plain(f"{name} cannot be looked at"):
        client = await fleet.cloud.client("s3")
        head: dict[str, Any] = await client.head_object(**_bucket_key(fleet, name))
        return head


def _bucket_key(fleet: CanaryFleet, name: str) -> dict[str, str]:
    at = Address.parse(fleet.cluster.store or "")
    return {"Bucket": at.bucket, "Key": at.key(fleet.run, TRIAL, f"{name}.pt")}
