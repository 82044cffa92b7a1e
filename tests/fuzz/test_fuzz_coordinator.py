"""Files on the coordinator that are damaged or made by somebody else: each command says so in a
sentence and ends with its exit code.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.testbed.checked_world import Behaviour, World
from seerd import cli
from seerd.commands.common import orderly
from seerd.errors import JournalError, SeerdError
from seerd.runs import wiring
from seerd.runs.reading import replay
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.logs import PIECE, lines
from seerd.telling.plain import lines_to
from tests.conftest import small_facts
from tests.fuzz.kit import ESCAPES, TEXTS, VALUES, fuzzed, junk
from tests.tampered import without_sums

READING = ("list", "show", "watch", "logs", "ledger", "best", "replay")


def seerd(home: Path, *args: str, encoding: str = "utf-8") -> tuple[int, str]:
    """The exit code, and what was printed. Anything that is not an orderly end is raised."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    argv, sys.argv = sys.argv, ["seerd", *args, "--home", str(home)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), orderly():
            cli.app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = argv
    return code, raw.getvalue().decode(encoding, "replace")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home with one run that is over."""
    home = tmp_path_factory.mktemp("home")
    folder = RunFolder(home / "small-1")
    folder.path.mkdir()
    world = World(
        small_facts(),
        Behaviour(metric=lambda config, epoch: float(config["lr"]), unit_s=lambda *_: 4.0),
    )
    world.run()
    with Journal.create(folder.journal, 1e9) as journal:
        journal.append([Entry(seq, *row) for seq, row in enumerate(world.journal, 1)])
        journal._connection.execute("PRAGMA journal_mode=DELETE")
    folder.spec.write_text("")
    folder.setup.write_bytes(setup())
    log = folder.instances / "i" / "trials" / "t0001" / "1" / "logs" / "launcher.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"hello {ESCAPES}\n")
    return home


def setup() -> bytes:
    from seerd.agent.protocol import Job
    from seerd.backends.local.backend import MachineSlots

    job = Job(
        "source",
        "train.py",
        [],
        "python",
        "python3",
        {},
        [],
        "store",
        "accuracy",
        "max",
        [1],
        1,
        10.0,
    )
    told = {"job": job, "store": "/store", "until": 1e9, "local": MachineSlots(1, False, 1)}
    return msgspec.json.encode(told)


def copy(good: Path, tmp_path: Path) -> RunFolder:
    home = tmp_path / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(good, home)
    return RunFolder(home / "small-1")


def read_all(folder: RunFolder) -> None:
    """Every command that reads it ends well, or with a short sentence and nothing that a terminal
    would obey.
    """
    for command in READING:
        code, said = seerd(folder.path.parent, command, *([] if command == "list" else ["last"]))
        assert code in (0, 1, 2, 4), (command, said)
        assert "Traceback" not in said
        assert all(line.replace("\t", "").isprintable() for line in said.split("\n")), (
            command,
            said,
        )


def test_what_is_whole_can_be_read(good):
    read_all(RunFolder(good / "small-1"))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), max_size=40), st.floats(0, 1))
@fuzzed(25)
def test_a_journal_with_turned_bits_or_cut_off_is_told(good, tmp_path, flips, cut):
    folder = copy(good, tmp_path)
    without_sums(folder.journal)
    data = bytearray(folder.journal.read_bytes())
    for place, bit in flips:
        data[int(place * (len(data) - 1))] ^= 1 << bit
    folder.journal.write_bytes(data[: len(data) if cut > 0.2 else int(cut * 5 * len(data))])
    with contextlib.suppress(JournalError), Journal.open(folder.journal, read_only=True) as journal:
        assert journal.origin < 1e12
        replay(journal)


@given(
    st.lists(st.tuples(st.integers(1, 200), VALUES | st.binary(max_size=9)), min_size=1, max_size=3)
)
@example([(1, {"kind": "run-started", "at": 0.0})])
@example([(3, {"kind": "trial-reported"})])
@fuzzed(25)
def test_a_journal_with_other_events_is_told(good, tmp_path, events):
    folder = copy(good, tmp_path)
    without_sums(folder.journal)
    with contextlib.closing(sqlite3.connect(folder.journal, isolation_level=None)) as db:
        rows = dict(db.execute("SELECT seq, event FROM events"))
        for seq, value in events:
            old = rows.get(seq, b"{}")
            new = value if isinstance(value, bytes) else json.dumps(value).encode()
            if isinstance(value, dict):
                new = json.dumps({**json.loads(old), **value}).encode()
            db.execute("UPDATE events SET event = ? WHERE seq = ?", (new, seq))
    with contextlib.suppress(JournalError), Journal.open(folder.journal, read_only=True) as journal:
        replay(journal)


DECISIONS = st.lists(VALUES, max_size=2).map(json.dumps).map(str.encode) | st.binary(max_size=9)


ROWS = st.integers(1, 200)


@given(st.lists(st.tuples(ROWS, DECISIONS | ROWS), min_size=1, max_size=3))
@example([(1, b'[{"kind":"adopted","question":"1.0"}]')])
@example([(5, b'[{"kind":"gone","instance":"x","at_s":1e999}]')])
@example([(9, b"[]")])
@fuzzed(25)
def test_a_journal_with_other_decisions_is_told(good, tmp_path, rows):
    """Anything, or what was decided elsewhere: it is read as it stands, or it is said where not."""
    folder = copy(good, tmp_path)
    without_sums(folder.journal)
    with contextlib.closing(sqlite3.connect(folder.journal, isolation_level=None)) as db:
        decided = dict(db.execute("SELECT seq, decisions FROM events"))
        for seq, new in rows:
            taken = new if isinstance(new, bytes) else decided.get(new, b"[]")
            db.execute("UPDATE events SET decisions = ? WHERE seq = ?", (taken, seq))
    with contextlib.suppress(JournalError), Journal.open(folder.journal, read_only=True) as journal:
        replay(journal)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE meta SET value = 'nan' WHERE key = 'origin'",
        "UPDATE meta SET value = 'x' || char(27) WHERE key = 'origin'",
        "UPDATE meta SET value = char(27) || '[2J' WHERE key = 'format'",
        "DELETE FROM meta",
        "DELETE FROM events",
        "UPDATE events SET decisions = x'5b5d'",
        "UPDATE events SET decisions = x'5b'",
        "UPDATE events SET decisions = (SELECT decisions FROM events WHERE seq = 2) WHERE seq = 3",
        "UPDATE meta SET value = '1' WHERE key = 'format'",
        "UPDATE meta SET value = iif(key = 'format', '3', char(27) || '[2J') WHERE key != 'origin'",
        "UPDATE events SET event = (SELECT event FROM events WHERE seq = 1)",
        "UPDATE events SET event = zeroblob(5000000) WHERE seq = 2",
        "DROP TABLE events",
        (
            "DROP TABLE events; CREATE TABLE events (seq TEXT, at REAL, event, decisions); INSERT "
            "INTO events VALUES ('x', 0, NULL, 5)"
        ),
    ],
)
def test_a_database_that_is_not_our_journal_is_told_by_every_command(good, tmp_path, damage):
    folder = copy(good, tmp_path)
    without_sums(folder.journal)
    with contextlib.closing(sqlite3.connect(folder.journal)) as db:
        db.executescript(damage)
    read_all(folder)


@given(junk(setup()) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[1]")
@example(b"[" * 100_000)
@example(b'{"job":' + setup()[7:].split(b',"local"')[0] + b"}")
@fuzzed(60)
def test_a_setup_that_is_damaged_is_told(good, tmp_path, data):
    folder = RunFolder(tmp_path)
    folder.setup.write_bytes(data)
    with contextlib.suppress(JournalError):
        wiring.load(folder)
    with contextlib.suppress(SeerdError):
        from seerd.telling.logs import log_files

        log_files(folder, None)


def test_logs_show_text_and_nothing_else(good, tmp_path):
    folder = copy(good, tmp_path)
    logs = next(folder.instances.rglob("logs"))
    (tmp_path / "secret").write_text("secret")
    (logs / "link.log").symlink_to(tmp_path / "secret")
    (logs / "pipe.log").symlink_to("/dev/zero")
    (logs / f"{ESCAPES}.log").write_bytes(b"\xff\xfe\0 10%\r20%\n")
    code, said = seerd(folder.path.parent, "logs", "last", "t0001")
    assert code == 0
    assert "hello" in said
    assert "10%\n20%" in said
    assert "secret" not in said
    assert said.replace("\n", "").isprintable()


def test_a_log_is_read_in_pieces(tmp_path):
    (tmp_path / "log").write_text("x" * (10 * PIECE))
    assert max(map(len, lines(tmp_path / "log"))) <= PIECE


@pytest.mark.parametrize("text", [ESCAPES, "[/bold]", ":smile:"])
def test_names_and_values_of_a_run_are_shown_as_they_are(tmp_path, text):
    """A metric called `[/bold]` must not be the end of the command that shows the model."""
    from dataclasses import replace

    from seerd.planner.space import Parameter, Space

    facts = small_facts()
    problem = replace(facts.problem, space=Space((Parameter(text, choices=(text,)),)))
    folder = RunFolder(tmp_path / "odd-1")
    folder.path.mkdir()
    world = World(
        msgspec.structs.replace(facts, metric=text, problem=problem),
        Behaviour(metric=lambda config, epoch: 1.0, unit_s=lambda *_: 4.0),
    )
    world.run()
    with Journal.create(folder.journal, 1e9) as journal:
        journal.append([Entry(seq, *row) for seq, row in enumerate(world.journal, 1)])
    read_all(folder)
    code, said = seerd(tmp_path, "best", "last")
    assert code == 0
    assert json.dumps(text)[1:-1] in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_cannot_show_a_character_ends_nothing(good, tmp_path, encoding):
    for command in READING:
        assert seerd(good, command, *([] if command == "list" else ["last"]), encoding=encoding)[
            0
        ] in (0, 4)
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: 1.0))
    world.facts = msgspec.structs.replace(world.facts, metric="Genauigkeit \u2191")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    watcher = lines_to(RunFolder(tmp_path), out)
    world.state.facts = world.facts
    world.run()
    watcher(
        world.state, 1.0, [Entry(seq, event, []) for seq, (event, _) in enumerate(world.journal, 1)]
    )


def test_the_lock_of_a_run_names_a_process_or_nobody(tmp_path):
    folder = RunFolder(tmp_path)
    for text in ("0", "-1", "\u0663", "9" * 5000, "x"):
        with folder.locked():
            (tmp_path / "lock").write_text(text)
            assert folder.owner() is None


def test_an_error_does_not_paint(tmp_path):
    code, said = seerd(tmp_path, "show", f"{ESCAPES}x")
    assert code == 2
    assert said.replace("\n", "").isprintable()


@given(TEXTS)
@fuzzed(20)
def test_no_run_is_found_outside_of_its_home(good, text):
    with contextlib.suppress(SeerdError):
        assert Home(good).find(text).path.parent == good
