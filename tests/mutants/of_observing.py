"""Mistakes in how scripts are observed that do not import seerd."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OBSERVED = "tests/agent/test_agent_observed.py"
WORKPLACE = "tests/agent/test_workplace.py"

OBSERVING = (
    Mutant(
        "a script goes on though nobody observes it",
        "whoever trains can be stopped",
        "Observing._watch",
        "self._lost()",
        "",
        (f"{OBSERVED}::test_an_attempt_that_nobody_observes_any_more_ends",),
    ),
    Mutant(
        "a pattern for folders takes files out of the source",
        "a script finds its own files",
        "workplace._Layout._place",
        "if is_saved and len(saved) == 1:",
        "if is_saved:",
        (f"{WORKPLACE}::test_a_pattern_for_folders_leaves_files_where_they_are",),
    ),
    Mutant(
        "small files of the source are shared",
        "trials never read each other's files by a relative path",
        "workplace._Layout._copy_or_link",
        "if path not in self._own and not is_small:",
        "if path not in self._own:",
        (f"{WORKPLACE}::test_what_is_written_into_stays_in_the_folder",),
    ),
)
