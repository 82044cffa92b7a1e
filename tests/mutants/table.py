"""The list of mutants as the tables of docs/reliability.md.

The one rule: what stands there between the marks is this, word for word; `pytest tests/mutants/test_mutants.py --rewrite` puts it there.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutants.catalogue import AREAS, MUTANTS, QUICK
from tests.mutants.mutant import Mutant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->"


def tables() -> str:
    """A sentence with the figures, and a table for each area."""
    lines = [f"{len(MUTANTS)} mistakes, {len(QUICK)} of them (*) in `make test`.", ""]
    for area, mutants in AREAS.items():
        lines += [f"### {area.capitalize()}", ""]
        lines += ["| mistake | where | what it breaks | caught by |", "| --- | --- | --- | --- |"]
        lines += [*map(_row, mutants), ""]
    return "\n".join(lines)


def shown() -> str:
    """What stands there now."""
    return _parts()[1]


def rewrite() -> None:
    """Put the tables there."""
    before, _, after = _parts()
    PAGE.write_text(f"{before}{BEGIN}{tables()}{END}{after}", encoding="utf-8")


def _parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    between, _, after = rest.partition(END)
    return before, between, after


def _row(mutant: Mutant) -> str:
    files = dict.fromkeys(Path(test.partition("::")[0]).stem for test in mutant.tests)
    star = "" if mutant not in QUICK else " *"
    by = ", ".join(f"`{file}`" for file in files)
    return f"| {mutant.name}{star} | `{mutant.place}` | {mutant.breaks} | {by} |"
