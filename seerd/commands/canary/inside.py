"""What an instance reports on itself: the timer, the metadata, what its user may do as root. The
instance only reports (`PROGRAM`); pure functions judge it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from seerd.aws.userdata import POWER, TIMER, WATCH
from seerd.commands.canary.outcome import CheckOutcome
from seerd.units import format_duration

CHECKED = ("user data", "timer", "orphan watch", "IMDSv1", "no credentials", "sudo")
# that the timer may be off: NTP may still be setting the instance's clock when it boots
OFF_S = 60.0
UNAUTHORISED, MISSING = 401, 404
PROGRAM = (
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
    watch = CheckOutcome("orphan watch", "passed", "it runs")
    if facts.watch != "active":
        why = f"it does not run (systemd: {facts.watch})"
        watch = CheckOutcome("orphan watch", "failed", why)
    user_data, timer = _user_data(facts, asked, reported_at), _timer(facts, hard_end)
    return [user_data, timer, watch, *_metadata(facts), _sudo(facts)]


def _user_data(facts: Facts, asked: float, reported_at: float) -> CheckOutcome:
    if facts.timer_at is None:
        return CheckOutcome("user data", "failed", "nothing of the user data has left a trace")
    ahead_s = facts.now - reported_at
    seconds = facts.timer_at - ahead_s - asked
    off = f"; its clock is {abs(ahead_s):.0f}s off" if abs(ahead_s) > 1.0 else ""
    text = f"{format_duration(max(0.0, round(seconds, 1)))} after it was asked for{off}"
    return CheckOutcome("user data", "passed", text, seconds)


def _timer(facts: Facts, hard_end: float) -> CheckOutcome:
    if facts.timer_at is None or facts.timer != "active":
        state = facts.timer or "unknown"
        return CheckOutcome("timer", "failed", f"there is no timer that ends it (systemd: {state})")
    waits_s = _waits_s(facts.timer_unit)
    if waits_s is None:
        return CheckOutcome("timer", "unknown", "it is active, and does not say for how long")
    off_s = facts.timer_at + waits_s - hard_end
    if abs(off_s) > OFF_S:
        off = f"{format_duration(abs(round(off_s)))} too {'late' if off_s > 0 else 'early'}"
        return CheckOutcome("timer", "failed", f"it is {off}")
    waits = format_duration(round(waits_s))
    return CheckOutcome("timer", "passed", f"it fires {waits} after the boot")


def _metadata(facts: Facts) -> list[CheckOutcome]:
    token = f"status {facts.without_token} without a token, {facts.with_token} with one"
    refused = facts.without_token == UNAUTHORISED and facts.with_token < UNAUTHORISED
    imds = CheckOutcome("IMDSv1", "passed" if refused else "failed", token)
    if not facts.without_token or not facts.with_token:
        imds = CheckOutcome("IMDSv1", "unknown", "its metadata did not answer")
    role = CheckOutcome("no credentials", "failed", "its metadata has credentials of a role")
    if facts.role == MISSING:
        role = CheckOutcome("no credentials", "passed", "its metadata has none")
    elif not facts.role or facts.role >= UNAUTHORISED:
        role = CheckOutcome("no credentials", "unknown", f"its metadata answered {facts.role}")
    return [imds, role]


def _sudo(facts: Facts) -> CheckOutcome:
    if facts.root == 0:
        return CheckOutcome("sudo", "failed", "the user may run anything as root")
    allowed = list(commands(facts.may))
    more = [one for one in allowed if one not in POWER]
    if more:
        return CheckOutcome("sudo", "failed", f"the user may also run as root: {', '.join(more)}")
    if not allowed:
        return CheckOutcome("sudo", "failed", "the user may not even power it off")
    return CheckOutcome("sudo", "passed", "to power it off, and nothing else")


def commands(listed: str) -> Iterable[str]:
    """Yield the commands in what `sudo -l` prints, which wraps long lines."""
    _, _, text = " ".join(listed.split()).partition("following commands")
    for part in re.split(r"\((?:[\w-]+(?: : [\w-]+)?)\) (?:NOPASSWD: )?", text)[1:]:
        yield from (one.strip() for one in part.split(",") if one.strip())


_UNITS_S = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0, "d": 86400.0}


def _waits_s(unit: str) -> float | None:
    """Read after how many seconds a timer fires (systemd.time(7)); None: it does not say."""
    found = re.search(r"^OnActiveSec=(.+)$", unit, re.MULTILINE)
    if found is None:
        return None
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", found[1])
    if not parts or any(name not in _UNITS_S for _, name in parts):
        return None
    return sum(float(number) * _UNITS_S[name] for number, name in parts)
