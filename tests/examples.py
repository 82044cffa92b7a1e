"""How many examples a property is tried with: three of ten in each run of the tests, since each run
draws others; `make soak` and `make mutants` try more.
"""

from __future__ import annotations

import os

PERCENT = int(os.environ.get("SEERD_EXAMPLES", "30"))


def few(count: int) -> int:
    """Return so many percent of the examples that leave little to chance."""
    return max(1, count * PERCENT // 100)
