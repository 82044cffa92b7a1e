"""All mutants.

The one rule: each has a name of its own, and is caught.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.of_the_agent import KEEPING, OBEYING
from tests.mutants.of_the_cloud import RENTING
from tests.mutants.of_the_core import DECIDING
from tests.mutants.of_the_limits import COUNTING
from tests.mutants.of_the_shell import CARRYING

MUTANTS: tuple[Mutant, ...] = (*DECIDING, *COUNTING, *CARRYING, *RENTING, *OBEYING, *KEEPING)
QUICK = tuple(mutant for mutant in MUTANTS if not mutant.slow)
