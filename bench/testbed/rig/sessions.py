"""Temporary credentials: STS's sessions, and what the policy of a session permits.

The one rule: a session with a policy may do what the policy names, and a user of IAM what the
policies name that are attached to it at that moment, and nothing else. Only actions
are compared; resources and conditions are the linter's business (`tests/aws/iam_lint.py`).
https://docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html
"""

from __future__ import annotations

import fnmatch
import json
import re
import secrets
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from bench.testbed.rig import aws
from bench.testbed.rig.faults import DENIED, NOT_ALLOWED, PERMISSIONS
from bench.testbed.rig.wire import AwsError, Call

OTHERWISE = PERMISSIONS | {
    "CompleteMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "UploadPart": "PutObject",
}
FREE = frozenset({"sts:GetCallerIdentity", "sts:GetSessionToken", "sts:GetFederationToken"})
"""What no policy forbids, or what no session may do whatever its policy says."""
FREE_OF_USERS = FREE - {"sts:GetFederationToken"}


TOKEN_OVER = "The provided token has expired."
OVER = {"ec2": ("RequestExpired", "Request has expired.")}
"""What is answered to the credentials of a session that is over."""


@dataclass(slots=True)
class Sessions:
    """All sessions of an account. `keys`: the secrets of all credentials, with theirs; `role`: what
    callers have assumed who are in none of these; "": they are a user.
    """

    keys: dict[str, str]
    allowed: dict[str, list[str] | None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    role: str = ""
    ended: set[str] = field(default_factory=set)
    users: dict[str, str] = field(default_factory=dict)  # of IAM, by the keys that are theirs

    def made_key(self, answer: str) -> None:
        """Take over an access key of a user, as IAM has just answered."""
        names = ("AccessKeyId", "SecretAccessKey", "UserName")
        key, secret, user = (re.findall(f"<{name}>([^<]*)", answer)[0] for name in names)
        self.keys[key], self.users[key] = secret, user

    def answer(self, call: Call, key: str) -> web.Response | None:
        """The answer to a call of STS that is about sessions; None to any other. Raises
        AwsError.
        """
        if call.action == "GetSessionToken":
            if key in self.allowed:
                raise AwsError(
                    "AccessDenied", "Cannot call GetSessionToken with session credentials"
                )
            return self._made(call, None, "", self.users.get(key, ""))
        if call.action == "GetFederationToken":
            if key in self.allowed:
                raise AwsError(
                    "AccessDenied", "Cannot call GetFederationToken with session credentials"
                )
            policy, name = call.params.get("Policy", ""), call.params["Name"]
            return self._made(call, _actions(json.loads(policy)) if policy else [], name)
        owned = self.names.get(key) or self.users.get(key) or self.role
        if call.action == "GetCallerIdentity" and owned:
            arn = self._arn(key)
            inside = f"<Arn>{arn}</Arn><UserId>{aws.ACCOUNT}:{arn.rpartition('/')[2]}</UserId>"
            return _xml(call.action, f"{inside}<Account>{aws.ACCOUNT}</Account>")
        return None

    def check(self, call: Call, key: str) -> None:
        """Raises AwsError if these credentials are of a session that is over or may not do this."""
        if key in self.ended:
            raise AwsError(*OVER.get(call.service, ("ExpiredToken", TOKEN_OVER)))
        allowed, action = self.allowed.get(key), OTHERWISE.get(call.action, call.action)
        if key in self.users:
            allowed = _attached(self.users[key])
        asked = f"{call.service}:{'ListBucket' if action == 'ListObjects' else action}"
        if allowed is None or asked in (FREE_OF_USERS if key in self.users else FREE):
            return
        if not any(fnmatch.fnmatchcase(asked, one) for one in allowed):
            service, _, named = asked.partition(":")
            raise AwsError(
                DENIED.get(service, "AccessDeniedException"),
                NOT_ALLOWED.format(service=service, action=named),
            )

    def clear(self) -> None:
        """End all sessions."""
        for key in [*self.allowed, *self.users]:
            self.keys.pop(key, None)
        self.allowed.clear()
        self.users.clear()
        self.ended.clear()
        self.names.clear()

    def _made(
        self, call: Call, allowed: list[str] | None, name: str, user: str = ""
    ) -> web.Response:
        key, secret = f"ASIARIG{secrets.token_hex(6).upper()}B", secrets.token_urlsafe(30)
        self.keys[key] = secret
        self.allowed[key], self.names[key] = allowed, name
        if user:
            self.users[key] = user
        ends = datetime.now(UTC) + timedelta(seconds=int(call.params.get("DurationSeconds", 3600)))
        inside = (
            f"<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}"
            f"</SecretAccessKey><SessionToken>{secrets.token_urlsafe(120)}</SessionToken>"
            f"<Expiration>{ends.strftime('%Y-%m-%dT%H:%M:%SZ')}</Expiration></Credentials>"
        )
        if name:
            inside += (
                f"<FederatedUser><Arn>{self._arn(key)}</Arn><FederatedUserId>"
                f"{aws.ACCOUNT}:{name}</FederatedUserId></FederatedUser>"
                "<PackedPolicySize>60</PackedPolicySize>"
            )
        return _xml(call.action, inside)

    def _arn(self, key: str) -> str:
        """botocore makes up another name of a role's session for each process
        (docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html).
        """
        sts = f"arn:aws:sts::{aws.ACCOUNT}"
        if user := self.users.get(key):
            return f"arn:aws:iam::{aws.ACCOUNT}:user/{user}"
        if name := self.names.get(key):
            return f"{sts}:federated-user/{name}"
        return f"{sts}:assumed-role/{self.role}/botocore-session-{time.time_ns()}"


def _attached(user: str) -> list[str]:
    """What a user's own policies and those attached to it permit."""
    from moto.iam.models import iam_backends

    made = iam_backends[aws.ACCOUNT]["aws"].users[user]
    texts = [*made.policies.values()]
    for policy in made.managed_policies.values():
        texts += [v.document for v in policy.versions if v.version_id == policy.default_version_id]
    return [action for text in texts for action in _actions(json.loads(text))]


def _actions(policy: dict[str, Any]) -> list[str]:
    return [action for one in policy["Statement"] for action in one["Action"]]


def _xml(action: str, inside: str) -> web.Response:
    text = (
        f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
        f"{inside}</{action}Result><ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId>"
        f"</ResponseMetadata></{action}Response>"
    )
    return web.Response(text=text, content_type="text/xml")
