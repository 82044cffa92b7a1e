"""The documents say what is so: transition pictures, files that are named, commands that are
shown.
"""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from seerd import cli
from seerd.backends.base import Machine
from seerd.commands.options import SimulateOptions
from seerd.commands.simulate import Study, make, row_json, rows
from seerd.planner.clouds import EC2, INSTANCE_TYPES, JOB, LOCAL, LOCAL_JOB, PRICES_AS_OF
from seerd.planner.policies import POLICIES
from seerd.planning.planned import others, plan_for
from seerd.sim.curves import CURVE, load_curves
from seerd.sim.setting import alone
from seerd.spec.clusters import CLUSTER_KEYS
from seerd.spec.reader import SECTIONS
from seerd.spec.spec import load_spec
from seerd.telling import run_json
from seerd.telling.plan_json import plan_json
from seerd.telling.tables import study_view
from tests.sim.hand import IDEAL, curves, limits, play, profile
from tests.sim.hand import planned as planned_by_hand

ROOT = Path(__file__).parent.parent


def test_the_diagrams_are_those_of_the_code() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    assert drawn["PAGE"].read_text(encoding="utf-8") == drawn["page"](), "run `make docs`"


def test_the_pictures_are_what_this_version_shows() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    for name, draw in drawn["PICTURES"].items():
        kept = (drawn["FOLDER"] / name).read_text(encoding="utf-8")
        assert kept == draw(), "run `make docs`"


def test_the_page_on_python_is_that_of_the_code() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "python_page.py"))
    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), "run `make docs`"


def test_the_reference_of_the_spec_has_every_key_and_no_other() -> None:
    page = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"(?ms)^## \[(\w+)\]\n(.*?)(?=^## \[|\Z)", page))
    head = page[: page.index("## [train]")]
    for section in ("train", "policy", "limits", "export"):
        assert keys_told(parts[section]) == set(SECTIONS[section]), section
    metrics = {f"metric.{key}" for key in SECTIONS["metric"].keys() - {"name", "mode"}}
    assert keys_told(head) == {*SECTIONS[""], "metric", *metrics}
    clusters = {key for keys in CLUSTER_KEYS.values() for key in keys}
    assert {*SECTIONS["cluster"], *clusters} <= keys_told(parts["cluster"])


def keys_told(part: str) -> set[str]:
    """Return the keys of the first column of its tables."""
    firsts = re.findall(r"(?m)^\| (`[^|]*`) \|.*\|.*\|$", part)
    return {key for first in firsts for key in re.findall(r"`([\w.]+)`", first)}


def documents() -> list[Path]:
    """Find every page of the project, but what tools have put there."""
    folders = ("", "docs/", "ami/", "examples/*/", "tests/*/", "bench/testbed/*/", ".github/")
    return sorted(page for folder in folders for page in ROOT.glob(f"{folder}*.md"))


def test_links_lead_somewhere() -> None:
    for document in documents():
        for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def anchors(page: Path) -> set[str]:
    """Return what its headings are called in links."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return set(map(anchor_of, headings))


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def test_links_into_a_page_lead_to_a_heading() -> None:
    for document in documents():
        links = re.findall(r"\]\(([\w./-]*)#([^)]+)\)", document.read_text(encoding="utf-8"))
        for target, anchor in links:
            page = document.parent / target if target else document
            assert page.suffix != ".md" or anchor in anchors(page), f"{document.name}: {anchor}"


def test_the_prices_of_instances_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
    told = re.findall(r"(?m)^\| `(\S+)` \| (\d) \| \d+ \| \$([\d.]+) \| \$([\d.]+) \|$", page)
    assert told == [
        (name, str(kind.gpus), f"{kind.usd_per_h:.2f}", f"{kind.usd_per_h / 60:.3f}")
        for name, kind in INSTANCE_TYPES.items()
    ]
    assert f"as of {PRICES_AS_OF}; other regions" in page


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_narrow(page: Path) -> None:
    """Check that prose and code have at most 100 columns, rows of tables 160."""
    for line in written(page.read_text(encoding="utf-8")):
        assert len(line) <= (160 if line.startswith("|") else 100) or has_address(line), line


def written(text: str) -> Iterator[str]:
    """Yield all lines but those that a command has printed: blocks that name no language."""
    language: str | None = None
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            language = line.strip()[3:] if language is None else None
        elif language != "":
            yield line


def has_address(line: str) -> bool:
    """Tell whether there is something in it that cannot be broken."""
    return any(len(word) > 60 and "/" in word for word in line.split())


@pytest.mark.parametrize("name", ["architecture.md", "change.md", "rules.md"])
def test_files_that_are_named_are_there(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    rooms = "seerd|planner|agent|ami|bench|docs|examples|tests"
    named = re.findall(rf"`((?:{rooms})/[\w/.-]*|\w+\.py)`", text)
    assert named
    for path in named:
        assert (ROOT / path).exists(), path


# Changes that were made to try the page, and the files of code that each has touched; NEW stands
# for a file or folder of its own.
MADE = {
    "a-new-policy": ("planner/NEW", "planner/policies.py"),
    "a-new-provider": ("seerd/backends/NEW", "seerd/registry.py"),
    "a-new-checkpoint-store": ("seerd/stores/NEW", "seerd/registry.py"),
    "a-new-command": ("cli.py", "seerd/commands/NEW"),
    "a-new-column-of-the-live-view": (
        "seerd/telling/live/board.py",
        "seerd/telling/live/table.py",
    ),
    "another-tracker-to-export-to": (
        "seerd/commands/options.py",
        "seerd/export/NEW",
        "seerd/export/trackers.py",
        "seerd/spec/reader.py",
    ),
    "a-new-hint-about-a-crash": ("seerd/telling/complaints.py",),
    "another-aggregate-of-the-metric": (
        "agent/protocol.py",
        "seerd/core/events.py",
        "seerd/planning/facts.py",
        "seerd/spec/reader.py",
        "seerd/training/attempt.py",
    ),
    "a-new-key-of-the-spec": ("planner/model.py", "seerd/spec/reader.py", "seerd/spec/spec.py"),
    "another-rule-of-placement": ("seerd/core/aiming.py",),
    "a-new-event": (
        "seerd/core/events.py",
        "seerd/core/record.py",
        "seerd/core/state.py",
        "seerd/shell/translate.py",
    ),
    "a-new-message-of-the-agents-protocol": (
        "agent/protocol.py",
        "agent/serve.py",
        "seerd/shell/translate.py",
    ),
}


@pytest.mark.parametrize("change", MADE)
def test_a_change_touches_the_files_that_the_page_names(change: str) -> None:
    page = (ROOT / "docs" / "change.md").read_text(encoding="utf-8")
    parts = re.split(r"(?m)^## ", page)[1:]
    sections = {anchor_of(part.partition("\n")[0]): part for part in parts}
    for path in MADE[change]:
        named = path.replace("/NEW", "/") if "NEW" in path else path
        assert f"`{named}`" in sections[change], path


def test_every_command_says_what_it_does() -> None:
    listed = CliRunner().invoke(cli.app, ["--help"]).output
    for command in (
        "run",
        "resume",
        "plan",
        "profile",
        "simulate",
        "list",
        "show",
        "watch",
        "logs",
        "ledger",
        "best",
        "stop",
        "pause",
        "extend",
        "add",
        "rm",
        "gc",
        "replay",
        "doctor",
        "canary",
        "sweep",
    ):
        assert re.search(rf"^\s+{command}\s+\S", listed, re.MULTILINE), command
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0


def test_every_command_that_prints_json_has_its_keys_documented() -> None:
    told = (ROOT / "docs" / "json.md").read_text()
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        if "--json" in CliRunner().invoke(cli.app, [name, "--help"]).output:
            assert f"`{name}`" in told, name


def test_the_keys_of_a_plan_and_of_a_simulation_are_documented() -> None:
    told = (ROOT / "docs" / "json.md").read_text()
    setting = alone(curves([0.1, 0.2]), limits(), IDEAL, profile())
    made = planned_by_hand(setting, "seer")
    plan = plan_for(made, IDEAL, profile(), ideal=True)
    (row,) = rows(Study(setting, (made.params,), (limits(1.0, 1.0),), 1), lambda: None)
    for key in [*keys(plan_json(plan, others(made, IDEAL, profile(), ideal=True))), *row_json(row)]:
        assert f"`{key}`" in told, key


def keys(value: Any) -> Iterator[str]:
    """Of all objects in it."""
    if isinstance(value, dict):
        yield from value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from keys(inner)


def test_every_policy_is_described_with_its_keys() -> None:
    policies = (ROOT / "docs" / "policies.md").read_text()
    for name in POLICIES:
        assert f"\n## {name}\n" in policies, name
        assert f"\n| `{name}` |" in policies, name
    for key in SECTIONS["policy"]:
        assert f"`{key}`" in policies or key == "name", key


def test_the_page_on_simulation_has_every_option_and_no_other() -> None:
    listed = CliRunner().invoke(cli.app, ["simulate", "--help"], terminal_width=200).output
    options = set(re.findall(r"^  (--[a-z-]+)", listed, re.MULTILINE)) - {"--help"}
    page = (ROOT / "docs" / "simulate.md").read_text()
    assert options == set(re.findall(r"`(--[a-z-]+)", page.partition("\n## Options\n")[2]))
    example = re.search(r"\$ seerd (simulate .*)\n", page)
    assert example is not None
    shown = [word for word in example[1].split() if word.startswith("--")]
    assert set(shown) <= options


def test_what_is_assumed_of_a_cloud_and_of_this_machine_is_told_as_it_is() -> None:
    page = (ROOT / "docs" / "simulate.md").read_text()
    for what, rented, here in (
        ("pending", EC2.pending, None),
        ("boot", EC2.boot, LOCAL.boot),
        ("termination", EC2.release, None),
        ("start", JOB.start, LOCAL_JOB.start),
        ("stop", JOB.save, LOCAL_JOB.save),
    ):
        (line,) = re.findall(rf"^\| {what}\b.*", page, re.MULTILINE)
        assert f"median {rented.p50_s:g} s, 95% under {rented.p95_s:g} s" in line
        assert here is None or f"on this machine {here.p50_s:g} s and {here.p95_s:g} s" in line


def test_the_worked_example_prints_what_it_shows(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`pytest tests/test_docs.py --rewrite` puts what it prints now into the page."""
    path = ROOT / "docs" / "simulate.md"
    page = path.read_text()
    example = re.search(r"\$ seerd simulate (\S+) (.*)\n((?:.*\n)*?)```", page)
    assert example is not None
    words = example[2].split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert set(options) == {"--policies", "--deadline"}, "the others are as they are without you"
    asked = SimulateOptions(policies=options["--policies"], deadline=options["--deadline"])
    made = make(asked, load_spec(ROOT / example[1]), tmp_path, Machine(0, 8))
    found = [row_json(row) for row in rows(made, lambda: None)]
    with io.StringIO() as file:
        console = Console(file=file, width=80, soft_wrap=True, highlight=False)
        console.print(study_view(found, made.setting.job.curves.mode, made.notes))
        printed = file.getvalue()
    if request.config.getoption("--rewrite"):
        path.write_text(page.replace(example[3], printed))
        return
    assert lines_of(example[3]) == lines_of(printed), "run pytest tests/test_docs.py --rewrite"


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_the_plan_in_the_readme_is_what_plan_prints(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    spec = re.search(r"```toml\n# spec.toml\n((?:.*\n)*?)```", page)
    example = re.search(r"\$ seerd (plan) spec.toml ((?:.*\\\n)*.*)\n((?:.*\n)*?)```", page)
    assert spec
    assert example
    (tmp_path / "spec.toml").write_text(spec[1])
    (tmp_path / "train.py").write_text("import seerd\n")
    asked = [
        "plan",
        str(tmp_path / "spec.toml"),
        *shlex.split(example[2].replace("\\\n", "")),
        "--home",
        str(tmp_path / "home"),
    ]
    printed = lines_of(CliRunner().invoke(cli.app, asked, env={"COLUMNS": "100"}).output)
    for line in lines_of(example[3]):
        assert line == "..." or line in printed


def test_example_curves_can_be_simulated_and_their_origin_is_told() -> None:
    folder = ROOT / "examples" / "curves"
    files = list(folder.glob("*.npz"))
    assert files
    for file in files:
        found = load_curves(file)
        row = f"| `{file.name}` | {len(found.metric)} x {found.epochs} |"
        assert row in (folder / "README.md").read_text()


def test_the_snippet_that_records_curves_records_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose second trial reports NaN for ever: what is recorded is what was replayed."""
    replayed = curves([0.1, 0.2, 0.3], [float("nan")] * 3, [0.3, 0.2, 0.1], seconds=20.0)
    setting = alone(replayed, limits(), IDEAL, profile())
    state = play(setting, planned_by_hand(setting, "grid")).state
    page = (ROOT / "docs" / "simulate.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippet is not None
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(run_json.details(state, "done"))))
    monkeypatch.setattr(sys, "argv", ["record.py", str(tmp_path / "curves.npz")])
    exec(snippet[1], {})
    found = load_curves(tmp_path / "curves.npz")
    assert [[found.at({CURVE: row}, epoch) for epoch in (1, 2, 3)] for row in range(3)] == [
        [0.1, 0.2, 0.3],
        [None, None, None],
        [0.3, 0.2, 0.1],
    ]
    assert [found.unit_s({CURVE: row}, 1) for row in range(3)] == [20.0, 20.0, 20.0]
    assert (found.mode, found.gpus, found.configs) == ("max", 1, ({}, {}, {}))
