"""What an agent reads that others have made: a trial's files, the cloud's answers, the store's
answers, what tools print.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.testbed.agents import Rig
from seerd.agent import plainfile, postmortem
from seerd.agent.health import gpu_problem
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.manifest import CheckpointError, Comparison, Manifest
from seerd.agent.protocol import Complained, Exited, Prepare, Prepared, Reported, Started
from seerd.agent.receive import FileEntry, PushError, checked
from seerd.agent.spot import Metadata
from seerd.agent.transfer import Directory
from seerd.agent.trial_output import TrialOutput
from seerd.agent.web import WebError, Wires
from seerd.agent.wire import decode, encode
from tests.agent.conftest import bundle, fork, rig
from tests.fuzz.kit import TEXTS, VALUES, fuzzed, junk

__all__ = ["bundle", "fork", "rig"]

GOAL = Comparison("accuracy", "max")
GOOD_MANIFEST = {
    "name": "a",
    "epoch": 1,
    "metrics": {"accuracy": 0.5},
    "sha256": "0" * 64,
    "size": 1,
}
LINES = (
    b'{"kind": "training", "at": 1.0, "epoch": 0}\n',
    b'{"kind": "report", "at": 1.0, "epoch": 1, "metrics": {"accuracy": 0.5}, "unit_s": 0.1}\n',
    b'{"kind": "checkpoint", "at": 1.0, "name": "000001-00000001", "save_s": 0.1}\n',
)
OBSTACLES = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a loop": lambda path: os.symlink(path, path),
    "a device": lambda path: os.symlink("/dev/zero", path),
    "nothing": lambda path: os.symlink(f"{path}-gone", path),
    "a hole": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 42),
    "a file in place of its folder": lambda path: (
        shutil.rmtree(Path(path).parent),
        Path(path).parent.write_text(""),
    ),
}


@pytest.mark.parametrize("what", OBSTACLES)
def test_nothing_that_lies_where_a_file_should_be_is_waited_for_or_read_whole(tmp_path, what):
    path = tmp_path / "logs" / "launcher.log"
    path.parent.mkdir()
    OBSTACLES[what](str(path))
    assert plainfile.size(path) in (-1, 1 << 42)
    assert len("".join(postmortem.examine(path.parent).tail)) <= postmortem.TAIL_BYTES
    with pytest.raises(CheckpointError):
        Manifest.read(path)


def test_an_output_larger_than_the_disk_comes_to_an_end(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(LINES[1])
    os.truncate(path, 1 << 42)
    with path.open("ab") as file:
        file.write(b"\n" + LINES[1])
    told = [
        fact
        for facts in TrialOutput(
            path, "t1", 1, tmp_path, Directory(tmp_path / "s", GOAL), GOAL, ReportLimit()
        ).drain_all()
        for fact in facts
    ]
    assert [fact.epoch for fact in told if isinstance(fact, Reported)] == [1]


@given(junk(*LINES))
@fuzzed(60)
def test_whatever_a_trial_tells_is_a_fact_that_can_travel_or_nothing(tmp_path, data):
    path = tmp_path / "out.jsonl"
    path.write_bytes(data + b"\n")
    trial_output = TrialOutput(
        path, "t1", 1, tmp_path / "local", Directory(tmp_path / "s", GOAL), GOAL, ReportLimit()
    )
    for facts in trial_output.drain_all():
        for fact in facts:
            assert decode(encode(fact)).trial == "t1"
    while trial_output.can_store():
        for fact in trial_output.store():
            assert isinstance(decode(encode(fact)), Complained)


@given(
    junk(json.dumps(GOOD_MANIFEST).encode())
    | st.builds(lambda v: json.dumps(v, allow_nan=True).encode(), VALUES)
)
@example(json.dumps({**GOOD_MANIFEST, "size": 10**18}).encode())
@example(json.dumps({**GOOD_MANIFEST, "epoch": 10**300}).encode())
@fuzzed(80)
def test_a_manifest_is_possible_or_refused(data):
    try:
        made = Manifest.parse(data)
    except CheckpointError:
        return
    assert 0 <= made.size <= 5 << 40
    assert made.name not in (".", "..")
    assert "/" not in made.name


@pytest.mark.parametrize(
    "what", [name for name in OBSTACLES if name != "a file in place of its folder"]
)
def test_a_checkpoint_that_is_no_file_is_not_stored_and_not_fetched(tmp_path, what):
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.json").write_text(json.dumps(GOOD_MANIFEST))
    OBSTACLES[what](str(local / "a.pt"))
    with pytest.raises(CheckpointError):
        Directory(tmp_path / "store", GOAL).put(local, "a")
    assert Directory(local, GOAL).fetch(tmp_path / "there", ["a"]) is None


@given(st.text(st.characters(), max_size=30), st.sampled_from(["9" * 5000, "\u0663", "-1", "0"]))
@fuzzed(30)
def test_whatever_a_launcher_prints_the_crash_is_told(tmp_path, text, number):
    shutil.rmtree(tmp_path / "logs", ignore_errors=True)
    folder = tmp_path / "logs" / "x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stderr.log").symlink_to("gone")
    log = tmp_path / "logs" / "launcher.log"
    log.write_bytes(
        f"{text}\n  rank      : {number} (local_rank: 0)\n".encode("utf-8", "surrogatepass")
    )
    found = postmortem.examine(tmp_path / "logs")
    exited = Exited(1, 0.0, "t", 1, "crashed", 1, found.rank, found.tail, found.silent)
    assert isinstance(decode(encode(exited)), Exited)


@given(st.text(max_size=200) | st.sampled_from([",,\n" * 99, "ERR!" * 9999]), st.integers(0, 16))
@fuzzed(40)
def test_whatever_nvidia_smi_lists_the_answer_is_a_short_sentence(listing, expected):
    assert len(gpu_problem(listing, expected)) < 500


@given(
    st.lists(
        st.builds(FileEntry, TEXTS, TEXTS | st.just("0" * 64), st.integers(), st.booleans()),
        max_size=4,
    )
)
@fuzzed(60)
def test_no_file_is_received_outside_of_its_folder(entries):
    try:
        checked(entries)
    except PushError:
        return
    for entry in entries:
        assert os.path.normpath(os.path.join("/a/b", entry.path)) == f"/a/b/{entry.path}"
        assert "\0" not in entry.path


HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = (
    HEAD
    + b'Content-Length: 62\r\n\r\n{"action": "terminate", "time": "2017-09-18T08:22:00Z"}       ',
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n0\r\n\r\n",
    (
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: "
        b"40\r\n\r\n<Error><Code>AccessDenied</Code></Error> "
    ),
    HEAD + b"ETag: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n" + b"x" * 70_000,
    HEAD + b"Content-Length: 3\r\n\r\n\xff\xfe\n",
    HEAD + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
)


@contextmanager
def answering() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every request with what is in the list."""
    answer = [b""]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.settimeout(5)
                        connection.recv(65536)
                        connection.sendall(answer[0])
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", answer
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[bytes]]]:
    with answering() as made:
        yield made


@given(junk(*ANSWERS))
@fuzzed(60)
def test_rubbish_from_the_metadata_service_is_no_notice_or_one_that_can_travel(server, data):
    url, answer = server
    answer[0] = data
    for notice in Metadata(url).look():
        assert notice.by is None or -1e12 < notice.by < 1e12


@given(junk(*ANSWERS))
@fuzzed(60)
def test_rubbish_from_the_store_is_bytes_or_a_web_error(server, data):
    url, answer = server
    answer[0] = data
    for work in (
        lambda wires: len(wires.small("GET", url, most=1000)) <= 1000,
        lambda wires: wires.put(url, b"x") is not None,
        lambda wires: wires.get(url, 0, 100, lambda block: None) is None,
    ):
        try:
            assert work(Wires())
        except WebError as error:
            assert "127.0.0.1" in str(error)


WRECKER = """
import os, shutil, sys, time
folder, how = os.environ["SEERD_DIR"], os.environ["HOW"]
out = os.path.join(folder, "out.jsonl")
if how == "loop":
    os.symlink(out, out)
elif how == "gone":
    shutil.rmtree(folder)
    open(folder, "w").close()
elif how == "pipe":
    log = os.path.join(folder, "logs", "launcher.log")
    os.unlink(log), os.mkfifo(log)
    sys.exit(1)
elif how == "ranks":
    print("  rank      : " + "9" * 5000 + " (local_rank: 0)")
    sys.exit(1)
open(os.environ["SEERD_DIR"].rstrip("0123456789") + "ready", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["loop", "gone", "pipe", "ranks"])
def test_a_trial_that_wrecks_its_own_folder_ends_its_own_attempt_and_no_other(
    rig: Rig, how: str
) -> None:
    client = rig.ready(rig.job(WRECKER, env={"HOW": how}))
    client.start("t1", gpus=(0,))
    if how in ("pipe", "ranks"):
        assert client.exit_of("t1").cause == "crashed"
    else:
        client.until(Started)
        while not (rig.folder / "trials" / "t1" / "ready").exists():
            time.sleep(0.01)
        client.stop("t1", grace_s=0.3)
        assert client.exit_of("t1").cause == "asked"
    client.say(Prepare("again", rig.job("import time\ntime.sleep(60)")))
    client.until(Prepared, lambda fact: fact.id == "again")
    client.start("t2", gpus=(1,))
    client.until(Started, lambda fact: fact.trial == "t2")
    assert rig.processes[-1].poll() is None
