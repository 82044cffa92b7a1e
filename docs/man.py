"""Print the manual page seerd(1) in roff, built from the commands and docs/json.md's exit statuses.

The one rule: nothing about a command is written here that the command line does not say itself.

`make man` writes build/seerd.1; `SOURCE_DATE_EPOCH` (seconds, UTC) gives the page a date other than
today's, so that a package can be built twice with the same bytes.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from seerd import cli  # noqa: E402
from seerd.version import VERSION  # noqa: E402


def escaped(text: str) -> str:
    """Return text that roff prints as it is: no control line, no escape, hyphens to be copied."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.MULTILINE)


def quoted(text: str) -> str:
    """Return text as one argument of a macro."""
    return '"' + escaped(text).replace('"', r"\(dq") + '"'


def prose(text: str) -> str:
    """Return a paragraph on one line; what is between backticks becomes bold."""
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", escaped(" ".join(text.split())))


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, between them a break."""
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        yield prose(paragraph)


def parameters(context: Any) -> Iterator[str]:
    """Yield every argument and option of a command with its help."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, told = record
        yield ".TP"
        yield rf"\fB{escaped(names)}\fR"
        yield prose(told) or r"\&"


def commands(context: Any) -> Iterator[Any]:
    """Yield a context for each command that does something, groups opened, in the order of help."""
    for name, command in context.command.commands.items():
        inner = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield from commands(inner)
        else:
            yield inner


def section(context: Any) -> Iterator[str]:
    """Yield one command's part of the page."""
    words = context.command.collect_usage_pieces(context)
    yield f".SS {quoted(context.command_path)}"
    yield rf"\fB{escaped(context.command_path)}\fR {escaped(' '.join(words))}"
    yield ".PP"
    yield from paragraphs(context.command.help)
    yield from parameters(context)


def exit_statuses() -> Iterator[str]:
    """Yield the exit statuses as docs/json.md has them."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| exit status | meaning |\n")
    for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE):
        yield from (".TP", status, *paragraphs(meaning))


def day() -> str:
    """Return the date that the page bears, as YYYY-MM-DD in UTC."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = dt.datetime.now(dt.UTC)
    return f"{dt.datetime.fromtimestamp(int(epoch), dt.UTC) if epoch else now:%Y-%m-%d}"


def page() -> str:
    """Return the whole manual page."""
    root = cli.app
    context = root.context_class(root, info_name="seerd")
    name, _, description = root.help.partition(": ")
    lines = [
        f'.TH SEERD 1 {day()} "seerd {VERSION}" "seerd manual"',
        ".SH NAME",
        rf"seerd \- {escaped(name[0].lower() + name[1:])}",
        ".SH SYNOPSIS",
        rf"\fBseerd\fR {escaped(' '.join(root.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *paragraphs(description[0].upper() + description[1:]),
        ".SH OPTIONS",
        *parameters(context),
        ".SH COMMANDS",
    ]
    for command in commands(context):
        lines += section(command)
    return "\n".join([*lines, '.SH "EXIT STATUS"', *exit_statuses()]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
