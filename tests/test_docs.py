"""The documents say what the code does: links lead somewhere, and what is drawn from the code is up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_links_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def test_the_diagrams_are_those_of_the_code() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    assert drawn["PAGE"].read_text(encoding="utf-8") == drawn["page"](), "run `make docs`"
