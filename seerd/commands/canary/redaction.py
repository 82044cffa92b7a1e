"""What may be shown to strangers: texts without accounts, ARNs, addresses, paths, names and keys.
Rather too much is taken out than too little.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from seerd.commands.canary.fleet import CanaryPlan
from seerd.stores.s3.address import Address

# names that identify nobody
COMMON = frozenset(
    {"", "-", ".", "..", "root", "seerd", "ubuntu", "user", "runs", "home", "python", "python3"}
)
# Shorter names are not taken out; those below `SHORT_NAME` only as whole words.
SHORTEST_NAME, SHORT_NAME = 2, 6

# a character of a path: punctuation belongs to it only if the path goes on after it
_INNER = r"(?:[^\s\"'<>|;,:()\[\]{}]|[;,:()\[\]{}](?=[^\s\"']))"
_DOMAINS = (
    "local|localdomain|internal|intranet|lan|corp|home|example|test|invalid|com|net|org|io|dev|ai|"
    "co|app|tech|cloud|edu|gov|info|biz|xyz|eu|us|uk|de|fr|nl|ch|at|es|it|se|no|fi|dk|pl|ca|au|jp|"
    "cn|in|br|kr"
)
_HOST = r"(?<![\w.-])\.*[\w-]+(?:\.[\w-]+)*\."
_NAMED_HOST = rf"{_HOST}(?:{_DOMAINS})(?![\w-])(?:\.[\w-]+)*(?:[:/]{_INNER}*)?"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)),
    ("ARN", re.compile(r"\barn:[a-z-]*:(?:[^\s\"',;)\]}]|,(?=\S))*", re.IGNORECASE)),
    ("key", re.compile(r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ASCA|APKA)[A-Z0-9]{12,}")),
    ("key", re.compile(r"\balias/[\w/-]+")),
    ("address", re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}[\w.-]*")),
    ("host", re.compile(_NAMED_HOST, re.IGNORECASE)),
    ("host", re.compile(rf"{_HOST}[\w-]+:\d{{1,5}}(?!\d)")),
    ("mail", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*")),
    ("address", re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.]*\d)")),
    ("address", re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])")),
    ("UUID", re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("id", re.compile(r"(?<![a-z0-9])[a-z]{1,10}(?:-[a-z]{1,10})?-[0-9a-f]{8,17}(?![0-9a-f])")),
    ("account", re.compile(r"\d{12}|(?<!\d)\d{4}-\d{4}-\d{4}(?!\d)")),
    ("digest", re.compile(r"[0-9a-f]{32,}", re.IGNORECASE)),
    ("digest", re.compile(r"SHA256:[A-Za-z0-9+/=]+")),
    ("path", re.compile(rf"(?<![\w./~>])(?:~\w*|\.{{1,2}})?/(?=[\w.~-]){_INNER}+")),
    ("path", re.compile(r"(?<=')/[\w.~-][^'\n]*(?=')|(?<=\")/[\w.~-][^\"\n]*(?=\")")),
)


def redacted(text: str, names: Iterable[str] = ()) -> str:
    """Return the text without what identifies an account, and without these names, each replaced by
    what it is, in angle brackets.
    """
    named = {one for one in names if one not in COMMON and len(one) >= SHORTEST_NAME}
    patterns = [*_PATTERNS, *(("name", _pattern(name)) for name in named)]
    places = (
        (*match.span(), what) for what, pattern in patterns for match in pattern.finditer(text)
    )
    # What overlaps is joined, so that no part of a name stays because another looked like something
    # else; the longer one says what both are.
    joined: list[tuple[int, int, str]] = []
    for begin, end, what in sorted(places, key=lambda place: (place[0], -place[1], place[2])):
        if not joined or begin >= joined[-1][1]:
            joined.append((begin, end, what))
        else:
            first, last, longer = joined[-1]
            longer = what if end - begin > last - first else longer
            joined[-1] = (first, max(last, end), longer)
    for begin, end, what in reversed(joined):
        text = f"{text[:begin]}<{what}>{text[end:]}"
    return text


def _pattern(name: str) -> re.Pattern[str]:
    """Return what finds the name, and what is below it, if it is that of a folder."""
    word = re.escape(name)
    if len(name) < SHORT_NAME:
        word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
    return re.compile(rf"{word}(?:/{_INNER}+)?")


def names_of(plan: CanaryPlan) -> Iterator[str]:
    """Yield what must not be shown to strangers, though it looks like any other word."""
    cluster, train = plan.cluster, plan.spec.train
    if cluster.store:
        store = Address.parse(cluster.store)
        yield from (store.bucket, store.prefix)
    yield from (plan.run, plan.owner, plan.arn, plan.spec.name)
    yield from (cluster.image, cluster.key or "", *cluster.subnets, *cluster.security_groups)
    yield from (*cluster.tags, *cluster.tags.values())
    for source in [Address.parse(one.source) for one in train.data]:
        yield from (source.bucket, source.prefix)
    for path in (train.script, str(train.source), train.python or ""):
        yield from (path, Path(path).name)
    yield os.environ.get("AWS_PROFILE", "")
    # What comes after the account: `assumed-role/ROLE/SESSION`, `user/PATH/NAME`.
    yield from plan.arn.rpartition(":")[2].split("/")[1:]
    yield from (str(plan.home.path), str(plan.asked.path.resolve().parent), socket.gethostname())
    # A number without an entry in /etc/passwd has neither a name nor a folder.
    with contextlib.suppress(KeyError, ImportError, OSError):
        yield getpass.getuser()
    with contextlib.suppress(RuntimeError):
        yield str(Path.home())
