"""Which files of a source are not copied: those that `.seerdignore`, written like a .gitignore,
names. And which usually hold secrets: by their names and, for keys, by their content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from seerd.errors import UsageError

ALWAYS_IGNORED = (
    ".git/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
)
SECRET_PLACES = re.compile(
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
SECRET_MARKS = {
    ".pem": b"PRIVATE KEY-----",
    ".key": b"PRIVATE KEY-----",
    ".json": b'"private_key"',
    ".npmrc": b"_auth",
}
MOST_BYTES = 1 << 14  # bytes that are read of such a file; longer JSON is not read
# returns whether a path, relative to the source, is not copied; a folder's ends with a slash
Ignored = Callable[[str], bool]


def is_copied(source: Path, path: Path) -> bool:
    """Return whether this path in the source is in the copies of it."""
    name = path.relative_to(source).as_posix()
    return not is_left_out(name, ignoring(source / ".seerdignore"))


def is_left_out(name: str, ignored: Ignored) -> bool:
    """Return whether a path of the source, or a folder that it is in, is not copied."""
    folders = (name, *map(str, PurePosixPath(name).parents))
    return ignored(name) or any(ignored(f"{folder}/") for folder in folders)


def ignoring(ignore: Path) -> Ignored:
    """Return the rules of this file. Raises `UsageError` if a line of a `.seerdignore` is no
    pattern; in a .gitignore such a line names nothing, as for git.
    """
    if not ignore.is_file():
        return _is_always_ignored
    import pathspec

    patterns = list(pathspec.GitIgnoreSpec.from_lines(ALWAYS_IGNORED).patterns)
    for number, line in enumerate(os.fsdecode(ignore.read_bytes()).splitlines(), 1):
        try:
            patterns += pathspec.GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error) as error:
            if ignore.name == ".seerdignore":
                what = f"line {number} of {ignore}, {line!r}"
                raise UsageError(f"{what}, is no pattern of a .gitignore: correct it") from error
    return pathspec.GitIgnoreSpec(patterns).match_file


def _is_always_ignored(path: str) -> bool:
    """Return what a .gitignore of `ALWAYS_IGNORED` says, without the import of `pathspec`."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.endswith(".pyc") or (path.endswith("/") and f"{name}/" in ALWAYS_IGNORED)


def holds_secrets(name: str, path: str) -> bool:
    """Return whether a file, of this name in the source and really at this path, may hold secrets.
    Both count: a link may give `~/.aws` another name.
    """
    if SECRET_PLACES.search(name) or SECRET_PLACES.search("/".join(Path(path).parts[-3:])):
        return True
    file = Path(path)
    mark = SECRET_MARKS.get(file.suffix.lower() or file.name.lower())
    with suppress(OSError):
        if mark and (file.suffix != ".json" or file.stat().st_size <= MOST_BYTES):
            with file.open("rb") as opened:
                return mark in opened.read(MOST_BYTES)
    return False
