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
        "workplace._link",
        "len(own) > 1 and not entry.is_dir()",
        "False",
        (f"{WORKPLACE}::test_a_pattern_for_folders_leaves_files_where_they_are",),
    ),
)
