"""docs/mistakes.md: every mistake of the catalogue, and what is answered."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from seerd.telling.complaints import HINTS, OF_SIGNALS
from tests.mistakes.catalogue import SECTIONS, Mistake
from tests.mistakes.reports import REPORTS
from tests.mistakes.samples import SAMPLES

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
WIDTH = 96
COMMANDS = (
    "A run is looked at while it goes on",
    "The log of a trial that has printed nothing",
    "The model of a run that goes on",
    "A run is resumed that goes on",
    "The folder of a run is removed while it runs",
    "No run can be read",
    "The disk will be too small for the checkpoints",
    "The source is larger than the disk",
)
"""The titles of the last part."""
HEAD = """\
# What goes wrong, and what is answered

Mistakes that are easily made, each with what seerd answers. Every answer here was given by a real
run: `pytest tests/mistakes --rewrite` makes each mistake and writes this page, and `make test`
makes each again and compares. Long lines are broken here; `...` stands for the table of trials.

When every trial that was tried fails in the same way, the run ends at once, and says in which way:
at least three trials, of which one has failed again when it was started anew, and none of which has
saved anything; two, if an import fails or the script is no valid Python; six, if they fail in
different ways or their configurations have something in common. A report that is not finite counts
as a failure of that kind from the second on. Where jobs share the run, only that job ends. One
configuration that crashes costs only itself.

A crash since an address was in use, a device was busy, a lock was held or a server could not be
reached is not the configuration's fault. The trial waits, and fewer train side by side.

What is wrong with your account, your image or your network is in [errors.md](errors.md). The words
of `no_model.cause` in `--json` are in [json.md](json.md).
"""
TAIL = """
## What crashes usually mean

Beside the last lines of a trial that has crashed there is a hint where they leave no doubt:

"""

REPORTED = """
## What others have reported

Threads about training and tuning elsewhere, each tried on seerd in words of our own. The test that
keeps each answer true is named in `tests/mistakes/reports.py`.

"""


def section(mistake: Mistake, answered: str) -> str:
    """The part of the page about one mistake."""
    kind = "sh" if mistake.launcher == "command" else "python"
    name = f'metric = {{ name = "accuracy", mode = "max", constraint = "{mistake.constraint}" }}'
    own = [name] if mistake.constraint else []
    keys = [line for line in (*mistake.train.splitlines(), *mistake.cluster.splitlines()) if line]
    keys = [*own, *keys]
    status = "" if mistake.live else f"\nExit status {mistake.code}.\n"
    spec = f"```toml\n{chr(10).join(keys)}\n```\n\n" if keys else ""
    return (
        f"### {mistake.title}\n\n{spec}```{kind}\n{mistake.script}```\n\n"
        f"```text\n{wrapped(answered)}\n```\n{status}"
    )


def command_section(title: str, commands: str, answered: str) -> str:
    """The part of the page about something that is answered to a command."""
    return f"### {title}\n\n```sh\n{commands}\n```\n\n```text\n{wrapped(answered)}\n```\n"


def wrapped(text: str) -> str:
    """Break what is longer than a line of the page."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line.strip(),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def whole(parts: dict[str, str]) -> str:
    """The page, of its parts by their titles; one that is missing is left empty."""
    text = HEAD
    titles = {title: [one.title for one in mistakes] for title, mistakes in SECTIONS}
    for heading, these in {**titles, "Runs and folders": COMMANDS}.items():
        text += f"\n## {heading}\n"
        for title in these:
            text += "\n" + parts.get(title, f"### {title}") + "\n"
    return text + TAIL + hints_list() + REPORTED + reports_list()


def hints_list() -> str:
    """Every hint, with a line for which it is given."""
    samples = zip(SAMPLES, HINTS.values(), strict=True)
    rows = [(f"`{sample}`", text) for sample, text in samples]
    rows += [(f"`killed by signal {number}`", text) for number, text in OF_SIGNALS.items()]
    return _items(f"{words}: {text.format('...', run='RUN')}" for words, text in rows)


def reports_list() -> str:
    """What others have reported, with what seerd does."""
    return _items(
        f"{', '.join(report.threads)}: {report.kind}. Here: {report.answer}." for report in REPORTS
    )


def _items(items: Iterable[str]) -> str:
    return "".join(
        textwrap.fill(
            item,
            WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
        for item in items
    )


def rewrite(title: str, part: str) -> None:
    """Put a part into the page."""
    PAGE.write_text(whole({**parts_of(PAGE.read_text() if PAGE.exists() else ""), title: part}))


def parts_of(page: str) -> dict[str, str]:
    """The parts of a page by the titles of their mistakes."""
    found = re.findall(r"^(### ([^\n]*)\n.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    return {title: part.rstrip("\n") for part, title in found}
