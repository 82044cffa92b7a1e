"""The documents say what is so: transition pictures, files that are named, commands that are shown."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from typer.testing import CliRunner

import cli
from seerd.spec import CLUSTER_KEYS, SECTIONS

ROOT = Path(__file__).parent.parent


def test_the_diagrams_are_those_of_the_code() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    assert drawn["PAGE"].read_text(encoding="utf-8") == drawn["page"](), "run `make docs`"


def test_every_key_of_the_spec_is_in_its_reference() -> None:
    text = (ROOT / "docs" / "spec.md").read_text()
    for keys in (
        SECTIONS[""],
        SECTIONS["train"],
        SECTIONS["policy"],
        SECTIONS["limits"],
        SECTIONS["cluster"],
        CLUSTER_KEYS["local"],
    ):
        for key in keys:
            assert f"`{key}`" in text, key


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_command_says_what_it_does() -> None:
    listed = CliRunner().invoke(cli.app, ["--help"]).output
    for command in (
        "run",
        "resume",
        "plan",
        "profile",
        "list",
        "show",
        "watch",
        "logs",
        "ledger",
        "best",
        "stop",
        "replay",
    ):
        assert re.search(rf"^\s+{command}\s+\S", listed, re.MULTILINE), command
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0
