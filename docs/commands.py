"""Write docs/commands.md: every command with its help, as the command line says it. `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from seerd import cli  # noqa: E402

PAGE = ROOT / "docs" / "commands.md"


def page() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(cli.app)
    context = root.context_class(root, info_name="seerd", terminal_width=84, max_content_width=84)
    lines = [
        "# Commands",
        "",
        "What `seerd COMMAND --help` says. Exit statuses, and what `--json` prints:",
        "[json.md](json.md).",
    ]
    for inner in commands(context):
        lines += ["", f"## {inner.command_path}", "", "```text", helped(inner), "```"]
    return "\n".join(lines) + "\n"


def commands(context: Any) -> Iterator[Any]:
    """Yield a context for each command that does something, groups opened, in the order of help."""
    for name, command in context.command.commands.items():
        inner = command.context_class(
            command, info_name=name, parent=context, terminal_width=84, max_content_width=84
        )
        if hasattr(command, "commands"):
            yield from commands(inner)
        else:
            yield inner


def helped(context: Any) -> str:
    """Return the help of one command."""
    lines = context.command.get_help(context).strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
