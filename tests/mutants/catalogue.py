"""All mutants, and which of them are tried in `make test`.

The one rule: each has a name of its own, and is caught. `make test` tries the most telling of those that need no more than two
seconds, `make mutants` all.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.of_checkpoints import KEEPING
from tests.mutants.of_the_agent import OBEYING
from tests.mutants.of_the_cloud import RENTING
from tests.mutants.of_the_core import DECIDING
from tests.mutants.of_the_fault_world import ENDURING
from tests.mutants.of_the_limits import COUNTING
from tests.mutants.of_the_shell import CARRYING

AMONG_FAULTS = "when several things go wrong at once"
AREAS: dict[str, tuple[Mutant, ...]] = {
    "what is decided": DECIDING,
    "what is counted": COUNTING,
    "how events are kept and commands carried out": CARRYING,
    "what is rented": RENTING,
    "beside the trials": OBEYING,
    "checkpoints": KEEPING,
    AMONG_FAULTS: ENDURING,
}
MUTANTS = tuple(mutant for area in AREAS.values() for mutant in area)

QUICK_NAMES = (
    # What is decided.
    "what was under way is not asked for again after a restart",
    "an instance that was not found after a restart is believed to be there",
    "a model whose metric is NaN can win",
    "the model of a failed trial wins over a sound one",
    # What is counted.
    "trials are started that could not be given back within the budget",
    "a launch is thought to cost nothing before it runs",
    "a launch forgets that a minute is paid at least",
    "the lease goes on past the end of the run",
    "what ran on while the daemon was dead is not charged",
    "the ledger bills seconds without the minimum",
    "the last moment that is affordable forgets the release",
    "an instance is paid until its end was heard of",
    # How events are kept and commands carried out.
    "the journal does not wait for the disk",
    "each entry of a batch is committed by itself",
    "facts are acknowledged before they are committed",
    "people are told before it is committed",
    "launches under way are not named to the provider that takes up a run",
    "a command that is given twice is carried out twice",
    "leases are not renewed before trials are started",
    # What is rented.
    "a launch has no ClientToken",
    "the ClientToken of a launch is another one each time",
    "the ClientToken is the same for every run",
    "an instance has no tags",
    "an instance that powers itself off is only stopped",
    "disks stay when their instance goes",
    "a launch asks for as many instances as EC2 likes to give",
    # Beside the trials.
    "the lease never ends",
    "a renewal can only prolong the lease",
    "a checkpoint's name may lead out of its folder",
    # Checkpoints.
    "the manifest is put into the directory first",
    "bytes are fetched and stored without their checksum",
    "the only good checkpoint is removed for a new one",
)
QUICK = tuple(mutant for mutant in MUTANTS if mutant.name in QUICK_NAMES)
