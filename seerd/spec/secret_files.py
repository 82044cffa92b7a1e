"""Which files usually hold secrets, by their names and, for keys, by what they begin with.

The one rule: a name that examples and public keys have, too, is no reason for a doubt.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

PLACES = re.compile(
    r"(^|/)("
    r"\.(aws|gnupg|azure|kube|kaggle|docker|password-store)/.+"
    r"|\.ssh/(?!known_hosts|authorized_keys).+(?<!\.pub)"
    r"|\.?huggingface/(token|stored_tokens)|gcloud/.*(credentials|tokens).*"
    r"|\.envrc|\.env(\.(?!example|sample|template|dist|schema|defaults?)[^/]+)?"
    r"|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|[._]netrc|\.git-credentials|\.pypirc|\.pgpass|\.s3cfg"
    r"|\.boto|\.my\.cnf|\.databrickscfg|\.vault-token|\.dockercfg|\.htpasswd|kaggle\.json"
    r"|aws_?credentials|rootkey\.csv|.*accesskeys\.csv|application_default_credentials\.json"
    r"|credentials\.json|client_secret[^/]*\.json|\.streamlit/secrets\.toml"
    r"|[^/]+\.(p12|pfx|kdbx|jks|ppk)"
    r")$",
    re.IGNORECASE,
)
READ = {
    ".pem": b"PRIVATE KEY-----",
    ".key": b"PRIVATE KEY-----",
    ".json": b'"private_key"',
    ".npmrc": b"_auth",
}
"""How a file's name ends -> what it has if it holds a secret."""
MOST_BYTES = 1 << 14
"""How much of such a file is read, and how long it is at most if it is JSON."""


def holds_secrets(name: str, path: str) -> bool:
    """Return whether a file, of this name in the source and really at this path, may hold secrets.

    Both count: a link may give `~/.aws` another name.
    """
    if PLACES.search(name) or PLACES.search("/".join(Path(path).parts[-3:])):
        return True
    file = Path(path)
    mark = READ.get(file.suffix.lower() or file.name.lower())
    with suppress(OSError):
        if mark and (file.suffix != ".json" or file.stat().st_size <= MOST_BYTES):
            with file.open("rb") as opened:
                return mark in opened.read(MOST_BYTES)
    return False
