"""Runs tests in forks of a process that has imported pytest and the libraries already.

The one rule: nothing of the project is imported before the fork, so that each fork reads the code
as it is in its folder at that moment. It reads requests and writes answers, a line of JSON each.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module

import pytest

LIBRARIES = (
    "asyncssh boto3 hypothesis msgspec numpy pathspec rich.table scipy.optimize scipy.stats"
    " scipy.interpolate threadpoolctl typer xdist.plugin pytest_timeout moto aiobotocore.session"
)
"""What tests of all rooms import; each takes a part of a second."""
OPTIONS = (
    *("-x", "-q", "-n", "0", "-rfE", "--tb=short", "--hypothesis-seed=0"),
    *("-p", "no:cacheprovider", "-p", "no:cov"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
TEST_S = 120
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
LOOK_S = 0.01


def main() -> None:
    """Answer requests until there are no more."""
    os.environ["SEERD_EXAMPLES"] = "100"
    for name in LIBRARIES.split():
        import_module(name)
    gc.freeze()  # a fork that looks for garbage looks through what is its own
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["tests"], request["limit_s"])), flush=True)


def answer(tests: list[str], limit_s: float) -> dict[str, object]:
    """Run these tests: pytest's exit status (None if they took too long), and what failed first."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            _run(tests, output.fileno())
        status = _waited(child, limit_s)
        output.seek(0)
        printed = output.read()
    failed = FAILED.search(printed)
    end = printed[-2000:]
    return {"status": status, "failed": failed[1] if failed else "", "printed": end}


def _run(tests: list[str], output: int) -> None:
    """Be the fork."""
    status = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["COLUMNS"] = "300"
        status = int(pytest.main([*OPTIONS, f"--timeout={TEST_S}", *tests]))
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _waited(child: int, limit_s: float) -> int | None:
    """Wait for the fork, and end what is left of it then. Return its exit status."""
    end = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        late = time.monotonic() > end
        if pid or late:
            break
        time.sleep(LOOK_S)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not pid:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
