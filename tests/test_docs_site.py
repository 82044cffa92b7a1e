"""The documents as a site, and the commands that stand in them."""

from __future__ import annotations

import os
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer

from seerd import cli
from tests.commands import run_command
from tests.test_docs import documents

ROOT = Path(__file__).parent.parent
ROOT_COMMAND: Any = typer.main.get_command(cli.app)
QUICK = {
    "seerd run first/spec.toml": ("--plain", "--deadline", "20s", "--budget", "40gpu-s"),
    "seerd gc --dry-run": (),
}
"""What is added to a command so that it takes seconds."""


def test_the_site_is_built_can_be_searched_and_fetches_nothing(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "docs" / "site.py"))["build"](tmp_path / "site")
    start = (tmp_path / "site" / "docs" / "start.html").read_text(encoding="utf-8")
    assert 'src="pictures/live.svg"' in start
    assert "What is billed" in (tmp_path / "site" / "search.json").read_text(encoding="utf-8")
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', text), page
        for target in re.findall(r'(?:src|href)="([^"#?:]+)["#?]', text):
            where = page.parent / unquote(target) if target[0] != "/" else tmp_path / "site"
            assert where.exists(), f"{page.name}: {target}"


def test_the_page_of_commands_is_that_of_the_command_line() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run `make docs`"


def commands_of(page: Path) -> Iterator[str]:
    """Yield what stands in the blocks of shell commands, lines put together, without comments."""
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            told = re.split(r"\s#", line)[0]
            yield from (part.strip() for part in re.split(r"&&|;|\||[0-9]?>", told))


ALL = sorted(
    {
        (str(page.relative_to(ROOT)), command)
        for page in documents()
        for command in commands_of(page)
        if command.startswith("seerd ") and "..." not in command and "$" not in command
    }
)


@pytest.mark.parametrize(("page", "command"), ALL)
def test_each_command_in_the_documents_is_one(page: str, command: str) -> None:
    """Read it as the command line would, without doing it."""
    words = shlex.split(command)[1:]
    group, context = ROOT_COMMAND, ROOT_COMMAND.context_class(ROOT_COMMAND, info_name="seerd")
    while hasattr(group, "commands"):
        if words[0].startswith("--"):
            assert words[0] in {"--help", "--version", "--install-completion", "--show-completion"}
            return
        group = group.commands[words.pop(0)]
    if "--help" not in words:
        group.make_context("seerd", words, parent=context)


@pytest.mark.parametrize("name", ["start", "faq"])
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    """Run those that need nothing of the reader's, one after the other."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    environment = {**os.environ, "SEERD_HOME": str(tmp_path / "home")}
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            command = line.partition("#")[0].strip()
            words = [*shlex.split(command)[1:], *QUICK.get(command, ())]
            ended = run_command(words, tmp_path, environment)
            assert ended.returncode == 0, command + ended.stdout + ended.stderr
    assert name != "start" or (tmp_path / "model" / "config.json").exists()
    assert name != "start" or (tmp_path / "run.html").exists()
