"""What trials have printed, as a machine tells it: what is new, the end of what is long, nothing
from elsewhere.
"""

from __future__ import annotations

import base64
import os
import time
import zlib
from pathlib import Path

from seerd.agent.remote_tasks import MOST, MOST_OF_ONE, printed


def write(folder: Path, name: str, content: bytes, at: float) -> Path:
    path = folder / "trials" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))
    return path


def told(folder: Path, after: float) -> tuple[dict[str, bytes], float]:
    found = printed(folder, after)
    return {
        name: zlib.decompress(base64.b64decode(text)) for name, text in found["logs"].items()
    }, found["until"]


def test_each_time_what_is_new(tmp_path: Path) -> None:
    assert told(tmp_path, 0.0) == ({}, 0.0)
    write(tmp_path, "t0001/1/logs/launcher.log", b"one", 1000.0)
    write(tmp_path, "t0001/2/logs/none_x/attempt_0/1/stderr.log", b"two", 2000.0)
    logs, until = told(tmp_path, 0.0)
    assert logs == {
        "trials/t0001/1/logs/launcher.log": b"one",
        "trials/t0001/2/logs/none_x/attempt_0/1/stderr.log": b"two",
    }
    assert told(tmp_path, until) == ({}, until)
    write(tmp_path, "t0001/1/logs/launcher.log", b"one and more", 3000.0)
    assert told(tmp_path, until)[0] == {"trials/t0001/1/logs/launcher.log": b"one and more"}


def test_what_is_just_being_written_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, "t0001/1/logs/launcher.log", b"one", time.time())
    logs, until = told(tmp_path, 0.0)
    assert told(tmp_path, until)[0] == logs
    assert until < path.stat().st_mtime


def test_of_a_long_log_the_end_and_of_many_one_part_after_the_other(tmp_path: Path) -> None:
    write(tmp_path, "t0001/1/logs/launcher.log", b"a" * MOST_OF_ONE + b"end", 1000.0)
    assert (
        told(tmp_path, 0.0)[0]["trials/t0001/1/logs/launcher.log"]
        == b"a" * (MOST_OF_ONE - 3) + b"end"
    )
    for number in range(2 * MOST // MOST_OF_ONE):
        write(tmp_path, f"t0002/1/logs/{number}.log", b"b" * MOST_OF_ONE, 2000.0 + number)
    found: dict[str, bytes] = {}
    after, rounds = 0.0, 0
    while logs := told(tmp_path, after)[0]:
        after, rounds = told(tmp_path, after)[1], rounds + 1
        assert sum(map(len, logs.values())) <= MOST
        assert not found.keys() & logs.keys()
        found |= logs
    assert len(found) == 1 + 2 * MOST // MOST_OF_ONE
    assert rounds == 3
    assert printed(tmp_path, 0.0)["more"]
    assert not printed(tmp_path, after)["more"]


def test_links_pipes_and_other_files_are_nobodys_business(tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("no")
    logs = write(tmp_path, "t0001/1/logs/empty.log", b"", 1000.0).parent
    (logs / "link.log").symlink_to(secret)
    (logs / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(logs / "pipe.log")
    write(tmp_path, "t0001/1/logs/error.json", b"{}", 1000.0)
    write(tmp_path, "t0001/1/checkpoint.log", b"no", 1000.0)
    assert told(tmp_path, 0.0) == ({}, 0.0)


def test_folders_that_are_links_are_nobodys_business(tmp_path: Path) -> None:
    write(tmp_path, "t0001/1/logs/launcher.log", b"one", 1000.0)
    (tmp_path / "trials" / "t0002").symlink_to(tmp_path / "trials" / "t0001")
    (tmp_path / "trials" / "t0001" / "2").symlink_to(tmp_path / "trials" / "t0001" / "1")
    (tmp_path / "trials" / "t0001" / "3").mkdir()
    (tmp_path / "trials" / "t0001" / "3" / "logs").symlink_to(
        tmp_path / "trials" / "t0001" / "1" / "logs"
    )
    assert list(told(tmp_path, 0.0)[0]) == ["trials/t0001/1/logs/launcher.log"]
