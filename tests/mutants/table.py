"""The list of mutants as docs/mutants.md, and their number on docs/reliability.md.

The one rule: the page is this text, word for word; `pytest tests/mutants/test_mutants.py --rewrite`
writes both.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.mutants.catalogue import AREAS, MUTANTS, QUICK
from tests.mutants.mutant import Mutant

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RELIABILITY = DOCS / "mutants.md", DOCS / "reliability.md"
FIGURES = f"[{len(MUTANTS)} mistakes](mutants.md), {len(QUICK)} of them in `make test`"
OPENING = f"""# Deliberate mistakes

`make mutants` makes each of these mistakes in a copy of the project and runs the tests that must
notice it ([reliability.md](reliability.md#mutation-check)). The code that each one changes is in
`tests/mutants`. Of the {len(MUTANTS)} mistakes `make test` tries {len(QUICK)}, marked with `*`.

Written by `pytest tests/mutants/test_mutants.py --rewrite`.
"""


def page() -> str:
    """Write the page: a table for each area."""
    lines = [OPENING]
    for area, mutants in AREAS.items():
        lines += [f"## {area.capitalize()}", ""]
        lines += ["| mistake | what it breaks | caught by |", "| --- | --- | --- |"]
        lines += [*map(_row, mutants), ""]
    return "\n".join(lines)


def rewrite() -> None:
    """Put page and number there."""
    PAGE.write_text(page(), encoding="utf-8")
    told = RELIABILITY.read_text(encoding="utf-8")
    told = re.sub(r"\[\d+ mistakes\]\S+ \d+ of them in `make test`", FIGURES, told)
    RELIABILITY.write_text(told, encoding="utf-8")


def _row(mutant: Mutant) -> str:
    files = dict.fromkeys(Path(test.partition("::")[0]).stem for test in mutant.tests)
    star = "" if mutant not in QUICK else " *"
    by = ", ".join(f"`{file}`" for file in files)
    return f"| {mutant.name}{star} | {mutant.breaks} | {by} |"
