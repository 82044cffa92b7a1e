"""Whatever outsiders write (names of metrics and hyperparameters, choices, what trials print, causes
of failures), every output shows it as plain text: terminals, browsers and spreadsheets obey none of
it.
"""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console, Group

from bench.testbed.checked_world import Behaviour, World
from seerd import cli
from seerd.commands.common import orderly
from seerd.core.events import RunFacts, TrialExited, TrialReported
from seerd.errors import SpecError
from seerd.export.rows import Rows
from seerd.export.rows import csv as as_csv
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.parameter import Parameter
from seerd.planner.space import Space
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.spec.reader import toml_of
from seerd.spec.spec import load_spec
from seerd.telling.harmless import Harmless
from seerd.telling.live.board import Recent, board_of
from seerd.telling.live.frame import TrialLife, frame
from seerd.telling.live.look import LiveLook
from tests.fuzz.kit import ESCAPES
from tests.fuzz.test_fuzz_coordinator import setup

NASTY = f"=1+1{ESCAPES}\0\x7f\ufffe\n\t<b>[red]\u2028"
METRIC, OTHER, NAME, CHOICE = (f"{word}{NASTY}" for word in ("m", "o", "n", "c"))
SHOWS: dict[str, list[list[str]]] = {
    "list": [[]],
    "show": [["last"]],
    "watch": [["last"]],
    "logs": [["last"], ["last", "--all"], ["last", "--files"]],
    "ledger": [["last"]],
    "best": [["last"]],
    "replay": [["last"], ["last", "--trial", "t0001"]],
    "report": [["last"]],
    "export": [["last", "--csv", "tables"]],
}
"""Commands that show a run, with what they are given."""
OTHERS = {
    *(
        "run",
        "resume",
        "plan",
        "profile",
        "simulate",
        "stop",
        "set",
        "pause",
        "extend",
        "add",
        "rm",
    ),
    *("gc", "doctor", "machines", "canary", "sweep", "init", "image"),
}
"""Commands that show no run that is over."""
COMMANDS = cli.app.registered_commands


def learns(config: dict[str, Any], epoch: int) -> float:
    return float(config["lr"]) + epoch


def spoilt(event: Any) -> Any:
    """An event with what a trial may say."""
    if isinstance(event, TrialReported):
        return msgspec.structs.replace(event, others={OTHER: 1.0, "=3+3": 1.0}, line=NASTY)
    if isinstance(event, TrialExited):
        return msgspec.structs.replace(event, tail=(NASTY, "Error: " + NASTY))
    return event


def facts() -> RunFacts:
    space = Space(
        (
            Parameter(NAME, choices=(CHOICE, "=2+2", "-1", (CHOICE, 2))),
            Parameter("lr", low=0.1, high=0.9),
        )
    )
    params = PolicyParams(name="random", trials=16, max_reports=4, t_min_s=1.0)
    problem = Problem(Limits(400.0, 6000.0, 4), space, params, gpus_per_instance=4)
    cluster = ClusterFacts("rented", 4, max_instances=1, usd_per_gpu_h=3.0, boot_s=20.0)
    return RunFacts(
        run="nasty-1", name="nasty", metric=METRIC, mode="max", problem=problem, cluster=cluster
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a run that is over."""
    home = tmp_path_factory.mktemp("home")
    folder = RunFolder(home / "nasty-1")
    folder.path.mkdir()
    world = World(facts(), Behaviour(learns, lambda *_: 4.0, crashes=lambda *at: at[1:] == (1, 2)))
    world.run()
    rows = [(spoilt(event), *rest) for event, *rest in world.journal]
    with Journal.create(folder.journal, 1e9) as journal:
        journal.append([Entry(seq, *row) for seq, row in enumerate(rows, 1)])
    folder.spec.write_text(f"# {NASTY}")
    folder.setup.write_bytes(setup())
    log = folder.instances / "i" / "trials" / "t0001" / "1" / "logs" / "launcher.log"
    log.parent.mkdir(parents=True)
    log.write_text(NASTY * 3, newline="")
    return home


@pytest.fixture
def seerd(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Runs a command in a folder of its own; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEERD_HOME", str(home))

    def run(*args: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended, orderly():
            cli.app([*args])
        out = "".join(capsys.readouterr())
        assert ended.value.code in (0, None), out
        return out

    interrupted = signal.getsignal(signal.SIGINT)
    yield run
    signal.signal(signal.SIGINT, interrupted)


def obeyed(text: str, but: str = "\n") -> set[str]:
    return {letter for letter in text if not letter.isprintable()} - set(but)


def test_every_command_is_tried_or_shows_no_run_that_is_over() -> None:
    names = {command.name or command.callback.__name__.strip("_") for command in COMMANDS}
    assert SHOWS.keys() | OTHERS == names | {"image"}
    assert not SHOWS.keys() & OTHERS


@pytest.mark.parametrize("command", SHOWS)
def test_a_terminal_obeys_nothing(seerd: Callable[..., str], command: str, home: Path) -> None:
    for args in SHOWS[command]:
        said = seerd(command, *args)
        assert obeyed(said, "\n\t" if command == "logs" else "\n") == set(), said


@pytest.mark.parametrize("command", ["list", "show", "ledger", "best", "replay"])
def test_json_is_exact(seerd: Callable[..., str], command: str) -> None:
    said = seerd(command, *SHOWS[command][0], "--json")
    assert obeyed(said) == set()
    if command in ("list", "show"):
        assert METRIC in str([json.loads(said)]) or json.dumps(METRIC)[1:-1] in said


def test_a_report_is_drawn(seerd: Callable[..., str], home: Path) -> None:
    seerd("report", "last", "--to", "page.html")
    page = Path("page.html").read_text("utf-8")
    assert obeyed(page) == set()
    assert "<b>[red]" not in page


def test_a_notebook_is_drawn(home: Path) -> None:
    import seerd as package

    run = package.load("nasty-1", home=home)
    told = run._repr_html_()
    assert obeyed(told) == set()
    assert "<b>[red]" not in told
    for chart in (run.curves(), run.gpus(), run.costs(), run.configurations()):
        assert chart._repr_mimebundle_()["image/svg+xml"].startswith("<svg")


def test_a_spreadsheet_computes_nothing(seerd: Callable[..., str], tmp_path: Path) -> None:
    seerd("export", "last", "--csv", "tables")
    cells = 0
    for path in (tmp_path / "tables").glob("*.csv"):
        assert obeyed(path.read_text("utf-8")) == set()
        with path.open(newline="", encoding="utf-8") as file:
            for cell in (cell for row in csv.reader(file) for cell in row):
                cells += 1
                if cell[:1] in tuple("=+-@\t\r"):
                    assert float(cell) < 0, cell
    assert cells


@pytest.mark.filterwarnings("ignore")  # of their libraries
@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "optuna", "wandb"])
def test_other_programs_take_it(seerd: Callable[..., str], tmp_path: Path, kind: str) -> None:
    where = f"sqlite:///{tmp_path}/{kind}.db" if kind in ("mlflow", "optuna") else f"{tmp_path}/x"
    for _ in range(2):
        assert obeyed(seerd("export", "last", f"--{kind}", where)) == set()


@pytest.mark.parametrize("page", ["run", "trial", "help"])
def test_the_live_view_shows_it_on_one_screen(home: Path, page: Literal["run", "trial"]) -> None:
    with Journal.open(RunFolder(home / "nasty-1").journal, read_only=True) as journal:
        state, entries = begin(journal)
        read = list(entries)
        follow(state, read)
    recent = Recent()
    recent.read(read, state)
    board, out = board_of(state, state.now, recent), io.StringIO()
    look = LiveLook(page=page, cursor="t0001", filter=CHOICE)
    life = TrialLife(log=(NASTY,))
    made = frame(board, look, (160, 50), lambda trial: life, NASTY)
    Console(file=out, width=160, color_system=None).print(Harmless(Group(*made.lines)))
    assert obeyed(out.getvalue()) == set()
    assert all(len(line) <= 160 for line in out.getvalue().splitlines())


def test_a_spec_names_nothing_by_control_characters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import seerd")
    document = {
        "metric": {"name": "a\x1b[2J", "mode": "max", "constraint": "b\x07 < 3"},
        "train": {"script": "train.py", "report": {"c\t": "(.*)"}},
        "space": {"lr": 0.1, "d\n": [1, 2], "e\u202e": {"low": 0, "high": 1}},
    }
    path = tmp_path / "spec.toml"
    path.write_text(toml_of(document))
    with pytest.raises(SpecError) as refused:
        load_spec(path)
    wrong = {problem.path for problem in refused.value.problems}
    assert wrong == {
        *("metric.name", "metric.constraint", "train.report", "space.d\n", "space.e\u202e")
    }


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        *(("=1+1", "'=1+1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("\t=1", "\\t=1")),
        *(("-1", "-1"), ("+1e3", "+1e3"), (-1.5, "-1.5"), ("a=1", "a=1"), ("", ""), (None, "")),
        *(("\x1b[2J", "\\x1b[2J"), ("-", "'-"), ("-1+cmd", "'-1+cmd"), ("x", "x")),
    ],
)
def test_a_cell_is_no_formula(tmp_path: Path, cell: Any, written: str) -> None:
    as_csv(Rows(("=name", "b"), [(cell, 1)]), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["'=name", "b"], [written, "1"]]
