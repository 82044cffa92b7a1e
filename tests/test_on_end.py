"""The command that is run when a run is over: what it gets, that nothing of it touches the run, and
that it is begun once for each end. The examples of docs/on-end.md are run as they stand there,
against a server on loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.commands import on_end
from seerd.core.state import State
from seerd.shell.home import RunFolder
from seerd.telling import run_json
from tests.conftest import small_facts
from tests.test_cli import Seerd, seerd  # noqa: F401 - a fixture

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "on-end.md").read_text(encoding="utf-8")


@pytest.fixture
def ended() -> State:
    return World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()


class Place:
    """The folder of a run whose spec has this command."""

    def __init__(self, path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = RunFolder(path / "run")
        self.spec = path / "spec"
        self.state = state
        self.patch = monkeypatch
        for made in (self.folder.path, self.spec):
            made.mkdir()

    def end(self, command: str, limit_s: float = 20.0) -> dict | None:
        """Run it; return what is noted."""
        setup = SimpleNamespace(on_end=command, spec_folder=str(self.spec))
        self.patch.setattr(on_end.wiring, "load", lambda folder: setup)
        told = run_json.result(self.state, "done")
        on_end.at_end(self.folder, self.state, told, limit_s)
        notes = list(self.folder.path.glob("on_end-*.json"))
        return json.loads(notes[0].read_text()) if notes else None


@pytest.fixture
def place(tmp_path: Path, ended: State, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, ended, monkeypatch)


def test_it_gets_the_result_and_a_line_and_is_begun_once(place: Place) -> None:
    noted = place.end('cat > got.json; echo "$SEERD_RUN/$SEERD_TEXT" > line; echo x >> count')
    assert noted is not None
    assert noted["failed"] is None
    assert json.loads((place.spec / "got.json").read_text()) == run_json.result(place.state, "done")
    line = (place.spec / "line").read_text()
    assert line.startswith("run/small: the plan is carried out; best 0.5 (t")
    assert place.end("echo x >> count") == noted
    assert (place.spec / "count").read_text() == "x\n"


def test_no_command_leaves_nothing(place: Place) -> None:
    assert place.end("") is None


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo no route >&2; exit 3", "ended with exit status 3: no route"),
        ("exit 4", "ended with exit status 4"),
        ("kill -9 $$", "ended with exit status -9"),
    ],
)
def test_a_failure_is_told_and_nothing_else(
    place: Place, capsys: pytest.CaptureFixture[str], command: str, why: str
) -> None:
    noted = place.end(command)
    assert noted is not None
    assert noted["failed"] == why
    assert capsys.readouterr().err == f"on_end {why}; the run's result stands\n"


def test_what_takes_too_long_is_killed_with_what_it_has_started(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = place.end("sleep 600 & echo $! > pid; wait", limit_s=1.0)
    assert noted is not None
    assert noted["failed"] == "took longer than 1s and was killed"
    assert gone(int((place.spec / "pid").read_text()))


def test_a_command_that_reads_nothing_is_no_failure(place: Place) -> None:
    noted = place.end("exec 0<&-; sleep 0.1")
    assert noted is not None
    assert noted["failed"] is None


def gone(pid: int) -> bool:
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


# ------------------------------------------------------------ the page's examples


class Server(HTTPServer):
    """Keeps what was posted, as (path, body)."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), Poster)


class Poster(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.posted.append((self.path, body))
        self.send_response(200 if self.path != "/broken" else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def example(word: str) -> str:
    """The command of the page that has this word in it."""
    found = [line for line in re.findall(r"(?m)^on_end = '(.*)'$", PAGE) if word in line]
    assert found, word
    return found[0]


def test_the_example_for_ntfy(place: Place, server: Server) -> None:
    command = example("ntfy.sh").replace(
        "https://ntfy.sh", f"http://127.0.0.1:{server.server_port}"
    )
    noted = place.end(command)
    assert noted is not None
    assert noted["failed"] is None
    ((path, text),) = server.posted
    assert path == "/my-runs"
    assert text.startswith("small: the plan is carried out")


def test_the_example_for_slack(
    place: Place, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT / "examples" / "on_end" / "slack.sh"
    code = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    assert "\n".join(code) in PAGE
    shutil.copy(script, place.spec)
    monkeypatch.setenv("SLACK_WEBHOOK", f"http://127.0.0.1:{server.server_port}/hook")
    noted = place.end(example("slack.sh"))
    assert noted is not None
    assert noted["failed"] is None
    ((path, body),) = server.posted
    assert path == "/hook"
    assert json.loads(body)["text"].startswith("small: the plan is carried out")


def test_a_webhook_that_refuses_is_told(
    place: Place, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "examples" / "on_end" / "slack.sh", place.spec)
    monkeypatch.setenv("SLACK_WEBHOOK", f"http://127.0.0.1:{server.server_port}/broken")
    noted = place.end(example("slack.sh"))
    assert noted is not None
    assert "500" in noted["failed"]


def test_the_example_for_mail(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = place.spec / "mail"
    mail.write_text('#!/bin/sh\ncat > body; echo "$1|$2|$3" > asked\n')
    mail.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.spec}:{os.environ['PATH']}")
    noted = place.end(example("mail -s"))
    assert noted is not None
    assert noted["failed"] is None
    option, subject, to = (place.spec / "asked").read_text().strip().split("|")
    assert (option, to) == ("-s", "me@example.org")
    assert subject.startswith("small: ")
    assert json.loads((place.spec / "body").read_text())["run"] == "small"


# ------------------------------------------------------------ a real run


def with_command(seerd: Seerd, command: str) -> None:  # noqa: F811
    seerd.write_spec(
        env='SEERD_TEST_EPOCH_S = "0.1"', t_min="15s", deadline="60s", budget="320gpu-s"
    )
    seerd.spec.write_text(f"on_end = '{command}'\n{seerd.spec.read_text()}")


def test_each_end_of_a_run_is_told_once_also_after_a_crash(seerd: Seerd) -> None:  # noqa: F811
    with_command(seerd, "cat >> ends.jsonl; echo >> ends.jsonl; exit 7")
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130, "it is the run's own"
    assert "on_end ended with exit status 7; the run's result stands" in err
    ends = seerd.spec.parent / "ends.jsonl"
    first = [json.loads(line) for line in ends.read_text().splitlines()]
    assert [end["status"] for end in first] == ["interrupted"]
    assert first[0]["run"] == seerd.run_folder().name
    # As if the process had died between the end of the run and its command.
    (note,) = seerd.run_folder().glob("on_end-*.json")
    note.unlink()
    reports = seerd.reports()
    resumed = seerd.start("resume", "last", "--plain")
    seerd.wait_for(reports + 3)
    resumed.send_signal(signal.SIGINT)
    resumed.communicate()
    ends_told = [json.loads(line)["status"] for line in ends.read_text().splitlines()]
    assert ends_told == ["interrupted"] * 3
    assert len(list(seerd.run_folder().glob("on_end-*.json"))) == 2
