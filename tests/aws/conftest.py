"""moto's server, and an environment with nothing of the person's own AWS in it. Used by tests/shell
as well.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from tests.aws.front import moto_server


@pytest.fixture(scope="session")
def moto_process() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def moto(moto_process: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty moto, and credentials that it takes."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    plain = {
        "AWS_ENDPOINT_URL": moto_process,
        "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(
        urllib.request.Request(f"{moto_process}/moto-api/reset", method="POST")
    ).close()
    return moto_process
