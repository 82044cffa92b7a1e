"""All mutants, and which of them are tried in `make test`.

The one rule: each has a name of its own, and is caught. `make test` tries the most telling of those
that need no more than two seconds, `make mutants` all.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.of_checkpoints import KEEPING
from tests.mutants.of_the_agent import OBEYING
from tests.mutants.of_the_cloud import RENTING
from tests.mutants.of_the_core import DECIDING
from tests.mutants.of_the_fault_world import ENDURING
from tests.mutants.of_the_limits import COUNTING
from tests.mutants.of_the_policy import ASKING, SEARCHING
from tests.mutants.of_the_record import READING
from tests.mutants.of_the_shell import CARRYING
from tests.mutants.of_the_space import DRAWING
from tests.mutants.of_warm_starts import WARM_STARTS

AMONG_FAULTS = "when several things go wrong at once"
AREAS: dict[str, tuple[Mutant, ...]] = {
    "what is decided": DECIDING,
    "what is counted": COUNTING,
    "what the policy answers": ASKING,
    "what is tried": SEARCHING,
    "what is drawn": DRAWING,
    "what is recorded and read": READING,
    "how events are kept and commands carried out": CARRYING,
    "what is rented": RENTING,
    "beside the trials": OBEYING,
    "starts by forks": WARM_STARTS,
    "checkpoints": KEEPING,
    AMONG_FAULTS: ENDURING,
}
MUTANTS = tuple(mutant for area in AREAS.values() for mutant in area)

QUICK_NAMES = (
    # What is decided.
    "an instance that was not found after a restart is believed to be there",
    # What is counted.
    "a launch forgets that a minute is paid at least",
    "what ran on while the daemon was dead is not charged",
    "the ledger bills seconds without the minimum",
    "the last moment that is affordable forgets the release",
    # What the policy answers.
    "the limits wait for the policy's answer",
    # What is tried.
    "who has stopped improving keeps its GPU",
    # What is drawn.
    "constraints that are never met are taken",
    # What is recorded and read.
    "reading goes by how many checkpoints are kept now",
    "a journal of an older format is converted without a copy",
    # How events are kept and commands carried out.
    "the journal does not wait for the disk",
    "facts are acknowledged before they are committed",
    "a command that is given twice is carried out twice",
    # What is rented.
    "a launch has no ClientToken",
    "the ClientToken of a launch is another one each time",
    "an instance has no tags",
    "an instance that powers itself off is only stopped",
    # Starts by forks.
    "a library takes the place of a module of the job",
    # Beside the trials.
    "the lease never ends",
    "a checkpoint's name may lead out of its folder",
    # Checkpoints.
    "the manifest is put into the directory first",
    "bytes are fetched and stored without their checksum",
)
QUICK = tuple(mutant for mutant in MUTANTS if mutant.name in QUICK_NAMES)
