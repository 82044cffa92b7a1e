"""What the last lines of a script that has crashed say of its error."""

from __future__ import annotations

import pytest

from seerd.core.last_words import error_line, is_certain, obstacle_of

FRAMES = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 3, in <module>',
    "    f()",
)
IN_THE_WAY = {
    "address": (
        "OSError: [Errno 98] Address already in use",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE"
        ),
        (
            "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
            "already in use)."
        ),
        "ValueError: TensorBoard could not bind to port 6006, it was already in use",
        "RuntimeError: Failed to bind to address 0.0.0.0:50051",
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another "
            "process is utilizing it."
        ),
    ),
    "device": (
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "OSError: [Errno 16] Device or resource busy: '/dev/nvidia0'",
        "RuntimeError: Unable to initialize backend 'tpu': The TPU is already in use by process 7",
        "jaxlib.XlaRuntimeError: INTERNAL: CUDA_ERROR_DEVICE_UNAVAILABLE",
    ),
    "lock": (
        "sqlite3.OperationalError: database is locked",
        "filelock._error.Timeout: The file lock '/c/data.lock' could not be acquired.",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        (
            "OSError: Unable to open file (unable to lock file, errno = 11, error message = "
            "'Resource temporarily unavailable')"
        ),
        "duckdb.IOException: Could not set lock on file 'a': Conflicting lock is held in python",
        "sqlite3.OperationalError: database table is locked: studies",
        "psycopg2.errors.LockNotAvailable: could not obtain lock on relation 'trials'",
        "pymysql.err.OperationalError: (1205, 'Lock wait timeout exceeded; try restarting')",
        "plyvel.IOError: IO error: lock /c/db/LOCK: Resource temporarily unavailable",
        "OSError: [Errno 37] No locks available",
        "OSError: [Errno 26] Text file busy: '/c/bin/tokenize'",
        "fatal: Unable to create '/c/.git/index.lock': File exists.",
        "FileExistsError: [Errno 17] File exists: '/c/build/lock'",
        "psycopg2.errors.DeadlockDetected: deadlock detected",
    ),
    "network": (
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub', port=443): Read timed out",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: h",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
        "requests.exceptions.HTTPError: 504 Server Error: Gateway Time-out for url: h",
        "httpx.HTTPStatusError: Server error '502 Bad Gateway' for url 'h'",
        "openai.RateLimitError: Error code: 429 - {'error': {}}",
        "wandb.errors.CommError: Request failed with status code 503",
        "OSError: We couldn't connect to 'https://hub' to load this file",
        "huggingface_hub.errors.LocalEntryNotFoundError: Please check your connection and try again",
        "http.client.IncompleteRead: IncompleteRead(9 bytes read, 91 more expected)",
        "requests.exceptions.ChunkedEncodingError: ('Connection broken: InvalidChunkLength(got 0)')",
        "ssl.SSLEOFError: [SSL: UNEXPECTED_EOF] EOF occurred in violation of protocol (_ssl.c:1006)",
        "botocore.exceptions.ClientError: An error occurred (SlowDown): Please reduce your request rate",
        "botocore.exceptions.ClientError: An error occurred (ThrottlingException): Rate exceeded",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
        "TimeoutError: timed out",
        "TimeoutError: [Errno 110] Connection timed out",
        "OSError: [Errno 116] Stale file handle: '/data/a.npy'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/bucket'",
    ),
}
NOT_IN_THE_WAY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 504.00 MiB",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    "ValueError: batch_size 429 must divide 503",
    "KeyError: 'address'",
    "RuntimeError: can't start new thread (Resource temporarily unavailable)",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable: fork",
    "torch.distributed.DistBackendError: NCCL error: Connection reset by peer",
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "TimeoutError: the step took 300 s",
    "ValueError: unlocked layers: 3; blocks: 12",
    "RuntimeError: optimizer lock is held by group 1",
    "ValueError: Unable to lock weights of layer 3",
    "ValueError: table embeddings are locked",
    "KeyError: 'status 429'",
    "ValueError: class 502 server error has no samples",
    "AssertionError: http_bytes of 503 rows",
    "ValueError: 3 devices are in use, the mesh needs 4",
    "FileExistsError: [Errno 17] File exists: 'out/blocks'",
    "RuntimeError: activation unlock: file exists twice",
    "ValueError: Throttle must be in (0, 1)",
    "ValueError: rate exceeded the schedule",
    "concurrent.futures.TimeoutError: the fit timed out",
)


@pytest.mark.parametrize(
    ("why", "line"), [(why, line) for why, lines in IN_THE_WAY.items() for line in lines]
)
def test_what_was_in_the_way_is_seen_in_the_line_of_the_error(why: str, line: str) -> None:
    assert obstacle_of((*FRAMES, line)) == why
    ranked = tuple(f"[rank0]: {one}" for one in (*FRAMES, line))
    assert obstacle_of((*ranked, "[rank0]: Compile with `TORCH_USE_CUDA_DSA`")) == why
    assert obstacle_of((line, "seerd: out/last.json was not taken")) == why
    assert obstacle_of((line, *FRAMES, "ValueError: lr is too large")) is None, "it was overcome"


@pytest.mark.parametrize("line", NOT_IN_THE_WAY)
def test_what_may_be_of_the_configuration_is_no_obstacle(line: str) -> None:
    assert obstacle_of((*FRAMES, line)) is None


def test_a_connection_between_processes_of_one_attempt_is_no_network() -> None:
    inside = '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 630, in answer'
    line = "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert obstacle_of((*FRAMES, line)) == "network"
    assert obstacle_of((*FRAMES, inside, line)) is None


def test_the_error_is_the_line_below_the_last_traceback_or_else_the_last_line() -> None:
    line = "pkg.SomeError: it is so"
    for said, expected in (
        ((*FRAMES, line, "", "wandb: run failed"), line),
        ((*FRAMES, "OSError: first", "During handling:", *FRAMES, "    ^^^^", line), line),
        (("epoch 1", "killed", "", "seerd: x was not taken"), "killed"),
        ((), ""),
        (FRAMES, "f()"),
    ):
        assert error_line(said) == expected


def test_an_error_that_no_configuration_can_avoid_is_certain() -> None:
    for line in (
        "ModuleNotFoundError: No module named 'timm'",
        "ImportError: cannot import name 'x' from 'y'",
        "SyntaxError: invalid syntax",
        "python3: can't open file '/w/train.py': [Errno 2] No such file or directory",
        "train.py: error: unrecognized arguments: --rl=0.1",
    ):
        assert is_certain((*FRAMES, line))
    for line in ("ValueError: bad", "train.py: error: argument --opt: invalid choice: 'lion'"):
        assert not is_certain((*FRAMES, line))
