"""Which interpreter a job gets, and where its data goes: by commands, files and a server of our own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.arguments import interpreter_words
from seerd.agent.downloads import JobData, place
from seerd.agent.health import Interpreters, interpreter_answer
from seerd.agent.protocol import Download, Downloads, Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "source").mkdir()
    return Job(
        source=str(tmp_path / "source"),
        script="train.py",
        args=[],
        launcher="python",
        python="",
        env={"A": "1"},
        setup=[],
        store="",
        metric="m",
        mode="max",
        allocations=[1],
        threads=1,
        checkpoint_every_s=1.0,
    )


def program(path: Path, text: str = "", mode: int = 0o700) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def completed(job: Job, interpreters: Interpreters | None = None, *, anew: bool = False) -> Job:
    return asyncio.run((interpreters or Interpreters("r//looks")).complete(job, anew=anew))


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("python3", ["python3"]),
        ("bin/python", ["{folder}/bin/python"]),
        ("/usr/bin/python3", ["/usr/bin/python3"]),
        ("uv run python", ["uv", "run", "python"]),
        ("bin/enter -n 'a b'", ["bin/enter", "-n", "a b"]),
        ("my env/python", ["{folder}/my env/python"]),
        ("no env/python", ["no", "env/python"]),
        ("", []),
    ],
)
def test_the_words_of_a_command_are_meant_in_its_folder(
    tmp_path: Path, python: str, words: list[str]
) -> None:
    program(tmp_path / "my env" / "python")
    assert interpreter_words(python, str(tmp_path)) == [
        word.format(folder=tmp_path) for word in words
    ]


def test_an_answer_is_the_last_line_and_what_has_changed_of_the_variables() -> None:
    seen = {"A": "1", "B": "new", "C": "3", "PWD": "/x", "_": "y", "SHLVL": "2", "LC_CTYPE": "C"}
    said = "entering\n\n" + json.dumps(["/bin/python", seen]) + "\n"
    assert interpreter_answer(said, {"A": "1", "B": "old", "D": "gone"}) == (
        "/bin/python",
        {"B": "new", "C": "3"},
    )
    for wrong in ("", "entering", "[1]", '["a", 2, 3]'):
        with pytest.raises((ValueError, TypeError)):
            interpreter_answer(wrong, {})


def test_without_a_name_or_with_a_command_for_trials_the_job_stays_as_it_is(job: Job) -> None:
    assert completed(job) is job
    command = replace(job, python="no/such", launcher="command")
    assert completed(command) is command


@pytest.mark.parametrize("is_in", [False, True])
def test_a_path_is_that_of_the_source_first_and_else_of_where_it_is_meant(
    job: Job, tmp_path: Path, *, is_in: bool
) -> None:
    elsewhere = program(tmp_path / "elsewhere" / "env" / "python")
    inside = Path(job.source) / "env" / "python"
    if is_in:
        program(inside)
    made = completed(replace(job, python="env/python", python_in=str(tmp_path / "elsewhere")))
    assert made.python == str(inside if is_in else elsewhere)
    assert made.env == {"A": "1"}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_path_has_to_lead_to_a_program(job: Job, *, is_there: bool) -> None:
    path = Path(job.source) / "python"
    if is_there:
        program(path, mode=0o600)
    with pytest.raises(ValueError, match=f"there is no program {path}, which train.python names"):
        completed(replace(job, python="./python".replace("./", f"{job.source}/")))
    assert completed(replace(job, python="python-of-no-path")).python == "python-of-no-path"


def test_a_command_is_asked_once_with_the_jobs_variables_and_mark(job: Job) -> None:
    enter = 'echo "$A $SEERD_ATTEMPT $(pwd)" >>asked; export ENTERED=yes A=2; exec "$@"'
    program(Path(job.source) / "enter", enter)
    asked = Path(job.source) / "asked"
    entered = replace(job, python=f"sh enter {sys.executable} -IS")
    interpreters = Interpreters("r//looks")
    for _ in range(2):
        made = completed(entered, interpreters)
        assert Path(made.python).resolve() == Path(sys.executable).resolve()
        assert made.env == {"A": "2", "ENTERED": "yes"}
    assert asked.read_text() == f"1 r//looks {job.source}\n"
    completed(replace(entered, env={"A": "3"}), interpreters)
    completed(entered, interpreters, anew=True)
    assert [line[0] for line in asked.read_text().splitlines()] == ["1", "3", "1"]


@pytest.mark.parametrize(
    ("does", "said"),
    [("echo oh >&2; exit 3", "oh"), ("echo hm; exit 3", "hm"), ("exit 3", "no message")],
)
def test_a_command_that_starts_no_python_is_told_with_its_last_words(
    job: Job, does: str, said: str
) -> None:
    program(Path(job.source) / "enter", does)
    with pytest.raises(ValueError, match="starts no Python in") as raised:
        completed(replace(job, python="sh enter python"))
    why = f"train.python, sh enter python, starts no Python in {job.source} (exit status 3): {said}"
    assert str(raised.value) == why


def test_an_interpreter_that_is_not_on_this_machine_is_none(job: Job) -> None:
    program(Path(job.source) / "enter", "echo '[\"/in/a/container\", {}]'")
    with pytest.raises(ValueError, match="starts /in/a/container, which is not on this machine"):
        completed(replace(job, python="sh enter python"))


class Store(BaseHTTPRequestHandler):
    """Gives each file of this content."""

    content = b"0123456789" * 10

    def do_GET(self) -> None:
        begin, end = map(int, self.headers["Range"].partition("=")[2].split("-"))
        if self.path == "/missing":
            self.send_error(404)
            return
        body = self.content[begin : end + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.got.append(self.path)  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.got = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def data(store: Any, *files: tuple[str, int], first: bool = True) -> Downloads:
    url = f"http://127.0.0.1:{store.server_address[1]}"
    return Downloads(first, [Download(f"{url}/{to}", to, size) for to, size in files])


def test_data_is_fetched_to_its_place_once_and_what_is_there_stays(
    store: Any, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("x" * 7)
    (tmp_path / "short").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    fetched = JobData()
    fetched.take(data(store, ("old", 5)))
    fetched.take(data(store, ("a/b", 20), ("there", 7)))
    fetched.take(data(store, ("short", 3), ("link", 7), ("empty", 0), first=False))
    for _ in range(2):
        fetched.fetch(tmp_path)
    assert sorted(store.got) == ["/a/b", "/link", "/short"]
    assert (tmp_path / "a" / "b").read_bytes() == Store.content[:20]
    assert (tmp_path / "there").read_text() == "x" * 7
    assert (tmp_path / "short").read_bytes() == b"012"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty").read_bytes() == b""
    assert not (tmp_path / "old").exists()
    assert not list(tmp_path.rglob(".part-*"))


@pytest.mark.parametrize("size", [29, 30, 31])
def test_what_is_larger_than_a_range_is_fetched_in_several(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("seerd.agent.web.RANGE", 10)
    fetched = JobData()
    fetched.take(data(store, ("large", size)))
    fetched.fetch(tmp_path)
    assert (tmp_path / "large").read_bytes() == Store.content[:size]
    assert len(store.got) == (3 if size <= 30 else 4)


def test_what_cannot_be_fetched_or_written_leaves_nothing(store: Any, tmp_path: Path) -> None:
    cases = [("missing", 5, "cannot be fetched: "), ("folder", 5, "there is a folder of this name")]
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for to, size, why in [*cases, ("file/x", 5, "cannot be written: ")]:
        fetched = JobData()
        fetched.take(data(store, (to, size)))
        with pytest.raises(ValueError, match=f"data for {to}.*{why}"):
            fetched.fetch(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("to", ["/etc/x", "a//b", "", ".", "a/../b", "a/..", "./a", "a\0b"])
def test_data_goes_nowhere_but_below_the_folder(tmp_path: Path, to: str) -> None:
    with pytest.raises(ValueError, match="no plain path below the trials' working folder"):
        place(tmp_path, to)


def test_no_link_leads_data_out_of_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "in" / "deep").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    (root / "back").symlink_to(root / "in")
    assert place(root, "a") == root / "a"
    assert place(root, "in/deep/a") == root / "in/deep/a"
    assert place(root, "back/a") == root / "back/a"
    with pytest.raises(ValueError, match="a link leads out of the trials' working folder"):
        place(root, "out/a")
    assert os.path.lexists(root / "out")
