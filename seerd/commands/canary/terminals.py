"""seerd in another process, with fresh credentials, or with those that may do no more than the
printed policy. It gets them by its environment alone: they are on no command line and no disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import NOT_PERMITTED, AwsError, ErrorKind
from seerd.aws.policy import partition
from seerd.commands.canary.outcome import CheckOutcome, failed, passed, refused, unknown
from seerd.errors import ProviderError

# Characters of a session's policy: see
# docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html
LONGEST_POLICY = 2048
SESSION_S = 900  # seconds of such a session: the least that STS gives
SESSION = "seerd-canary"
PATIENCE_S = 90.0
TIDY_S = 30.0  # seconds that such a process has to end in order
_ROLE = re.compile(r"arn:[^:]*:sts::(\d+):assumed-role/([^/]+)/.*")
_LEFT_OUT = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")
_REFUSALS = NOT_PERMITTED | {ErrorKind.UNKNOWN, ErrorKind.REFUSED}

Statement = dict[str, Any]
Environment = Mapping[str, str]


async def printed_policy(
    cloud: Cloud, arn: str, policy: Mapping[str, Any], doctor: Sequence[str]
) -> CheckOutcome:
    """Ask a doctor who may do exactly what the policy permits which permissions are missing. `arn`
    is whose the credentials are, `doctor` the words of `seerd doctor SPEC --json`.
    """
    name, role = "printed policy", _ROLE.fullmatch(arn)
    parts = split(policy["Statement"])
    # Sessions that may do no more: of a user's a federated user, of a role's the same role.
    make, whose = "get_federation_token", {"Name": SESSION}
    if role is not None:
        its_arn = f"arn:{partition(cloud.region)}:iam::{role[1]}:role/{role[2]}"
        make, whose = "assume_role", {"RoleArn": its_arn, "RoleSessionName": SESSION}
    sessions = []
    try:
        for part in parts:
            limits: dict[str, Any] = {"Policy": written(part), "DurationSeconds": SESSION_S}
            answer = await cloud.call("sts", make, **whose, **limits)
            sessions.append(_environment(answer["Credentials"], cloud.region))
    except AwsError as error:
        if error.kind not in _REFUSALS:
            return unknown(name, str(error))
        text = (
            "these credentials cannot make a session that may do no more than the policy. "
            "Use a user or role that has nothing but the policy, and seerd doctor says the same; "
            f"AWS says: {error.said or error}"
        )
        return refused(name, "unknown", text, error)
    try:
        answers = await asyncio.gather(*(_seerd(doctor, session) for session in sessions))
        reports = [json.loads(answer) for answer in answers]
    except (ProviderError, ValueError) as error:
        return failed(name, f"the doctor gave no answer: {error}")
    # what no part of the policy permits
    missing = sorted(set.intersection(*(set(report["missing"]) for report in reports)))
    if role is None:
        # A federated user may ask nothing of IAM, whatever its policy says
        # (docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html).
        missing = [one for one in missing if not one.startswith("iam:")]
    if missing:
        return failed(name, f"the policy does not permit {', '.join(missing)}")
    return passed(name, f"nothing is missing, in {len(parts)} sessions")


def split(statements: Sequence[Statement]) -> list[list[Statement]]:
    """Split statements, in their order, into as few policies as STS takes with a session. Those
    that belong together stay together as long as they fit.
    """
    parts: list[list[Statement]] = []
    for one in statements:
        if parts and len(written([*parts[-1], one])) <= LONGEST_POLICY:
            parts[-1].append(one)
        else:
            parts.append([one])
    return parts


def written(statements: Sequence[Statement]) -> str:
    """Return a policy as short as can be, without the names of its statements."""
    short = [{k: v for k, v in one.items() if k != "Sid"} for one in statements]
    return json.dumps({"Version": "2012-10-17", "Statement": short}, separators=(",", ":"))


async def sweep(cloud: Cloud, instance: str, home: str) -> list[CheckOutcome]:
    """Have another process look for what was left, in a home without runs, and judge whether it
    finds this instance. It ends nothing.
    """
    try:
        answer = await cloud.call("sts", "get_session_token", DurationSeconds=SESSION_S)
        fresh, source = _environment(answer["Credentials"], cloud.region), "a session of its own"
    except AwsError:  # credentials of a session cannot; what makes them makes others
        fresh = {"AWS_DEFAULT_REGION": cloud.region}
        source = "credentials as any AWS tool gets them"
    words = ["sweep", "--dry-run", "--json", "--region", cloud.region, "--home", home]
    try:
        instances = json.loads(await _seerd(words, fresh))["found"]
    except (ProviderError, ValueError, KeyError) as error:
        return [failed("sweep", f"it gave no answer: {error}")]
    if instance not in [one["id"] for one in instances]:
        text = f"it did not find the instance, with {source}: the owner's tag is another one"
        return [failed("sweep", text)]
    return [passed("sweep", f"it found the instance, with {source}")]


def _environment(credentials: Mapping[str, Any], region: str) -> Environment:
    return {
        "AWS_ACCESS_KEY_ID": credentials["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": credentials["SecretAccessKey"],
        "AWS_SESSION_TOKEN": credentials["SessionToken"],
        "AWS_DEFAULT_REGION": region,
    }


async def _seerd(words: Sequence[str], environment: Environment) -> str:
    """Run seerd in a process of its own, and return its output. Raises `ProviderError` if it prints
    nothing, or takes too long.
    """
    own = dict(os.environ)
    if "AWS_ACCESS_KEY_ID" in environment:
        own = {name: value for name, value in own.items() if name not in _LEFT_OUT}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "seerd.cli", *words),
        env=own | dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ProviderError(f"seerd {words[0]} took longer than {PATIENCE_S:.0f}s") from None
    finally:
        await _ended(process)
    if not output.strip():
        raise ProviderError(errors.decode(errors="replace").strip()[-400:] or "nothing was said")
    return output.decode()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs as Ctrl-C does: a doctor removes its object from the bucket."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIDY_S):
                await process.communicate()
    finally:  # also if this is cancelled in its turn
        if process.returncode is None:
            process.kill()
            await process.communicate()
