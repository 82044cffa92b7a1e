"""Which files usually hold secrets: by their names and, for keys, by their content."""

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
# suffix of a file's name -> text in it if it holds a secret
READ = {
    ".pem": b"PRIVATE KEY-----",
    ".key": b"PRIVATE KEY-----",
    ".json": b'"private_key"',
    ".npmrc": b"_auth",
}
MOST_BYTES = 1 << 14  # bytes that are read of such a file; longer JSON is not read


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
