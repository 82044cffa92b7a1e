"""All mutants, and which of them are tried in `make test`.

The one rule: each has a name of its own, and is caught. `make test` tries those whose tests need no more than a second, `make mutants` all.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.of_checkpoints import KEEPING
from tests.mutants.of_the_agent import OBEYING
from tests.mutants.of_the_cloud import RENTING
from tests.mutants.of_the_core import DECIDING
from tests.mutants.of_the_limits import COUNTING
from tests.mutants.of_the_shell import CARRYING

AREAS: dict[str, tuple[Mutant, ...]] = {
    "what is decided": DECIDING,
    "what is counted": COUNTING,
    "how events are kept and commands carried out": CARRYING,
    "what is rented": RENTING,
    "beside the trials": OBEYING,
    "checkpoints": KEEPING,
}
MUTANTS = tuple(mutant for area in AREAS.values() for mutant in area)

QUICK_FILES = frozenset(
    {
        "tests/agent/test_agent_lease.py",
        "tests/agent/test_agent_transfer.py",
        "tests/aws/test_ec2_request.py",
        "tests/core/test_incumbent.py",
        "tests/core/test_ledger.py",
        "tests/core/test_limits.py",
        "tests/core/test_several_nodes.py",
        "tests/shell/test_daemon.py",
        "tests/shell/test_journal.py",
    }
)
QUICK = tuple(mutant for mutant in MUTANTS if {test.partition("::")[0] for test in mutant.tests} <= QUICK_FILES)
