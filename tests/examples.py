"""How many examples a property is tried with: two of five in each run of the tests, since each run
draws others; `make soak` and `make mutants` try more.
"""

from __future__ import annotations

import os

PERCENT = int(os.environ.get("SEERD_EXAMPLES", "40"))


def few(count: int) -> int:
    """Return so many percent of the examples that leave little to chance."""
    return max(1, count * PERCENT // 100)
