"""All mutants, and which of them are tried in `make test`.

The one rule: each has a name of its own, and is caught. `make test` tries the most telling of those
that need no more than two seconds, `make mutants` all.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.of_checkpoints import KEEPING
from tests.mutants.of_floods import FLOODS
from tests.mutants.of_jobs import SHARED
from tests.mutants.of_kept_instances import KEPT
from tests.mutants.of_observing import OBSERVING
from tests.mutants.of_requests import ASKED_MEANWHILE
from tests.mutants.of_scouts import SCOUTS
from tests.mutants.of_sharing import BESIDE_OTHERS
from tests.mutants.of_strangers import STRANGERS
from tests.mutants.of_the_agent import OBEYING
from tests.mutants.of_the_answers import ANSWERING
from tests.mutants.of_the_cloud import RENTING
from tests.mutants.of_the_core import DECIDING
from tests.mutants.of_the_fault_world import ENDURING
from tests.mutants.of_the_limits import COUNTING
from tests.mutants.of_the_pages import PROMISED
from tests.mutants.of_the_policy import ASKING, SEARCHING
from tests.mutants.of_the_record import READING
from tests.mutants.of_the_shell import CARRYING
from tests.mutants.of_the_space import DRAWING
from tests.mutants.of_warm_starts import WARM_STARTS
from tests.mutants.of_what_leaves import LEAVING

AMONG_FAULTS = "when several things go wrong at once"
AREAS: dict[str, tuple[Mutant, ...]] = {
    "what is decided": DECIDING,
    "what is counted": COUNTING,
    "what the policy answers": ASKING,
    "what the person asks for": ASKED_MEANWHILE,
    "what jobs share": SHARED,
    "what is tried": SEARCHING,
    "what is drawn": DRAWING,
    "what is recorded and read": READING,
    "how events are kept and commands carried out": CARRYING,
    "what is rented": RENTING,
    "where instances may be useless": SCOUTS,
    "what one run leaves to the next": KEPT,
    "beside the trials": OBEYING,
    "floods of reports": FLOODS,
    "starts by forks": WARM_STARTS,
    "scripts that do not import seerd": OBSERVING,
    "checkpoints": KEEPING,
    "what is answered when a run goes wrong": ANSWERING,
    "what leaves this machine, and what is shown": LEAVING,
    "when several runs share a machine": BESIDE_OTHERS,
    "what is taken from machines, scripts and files": STRANGERS,
    "what the pages promise besides": PROMISED,
    AMONG_FAULTS: ENDURING,
}
MUTANTS = tuple(mutant for area in AREAS.values() for mutant in area)

QUICK_NAMES = (
    # What trials write.
    "every report is told",
    # What is decided.
    "an instance that was not found after a restart is believed to be there",
    # What is counted.
    "a launch forgets that a minute is paid at least",
    # What the policy answers.
    "the limits wait for the policy's answer",
    # What the person asks for.
    "a limit may be lowered while the run goes on",
    # What jobs share.
    "a job that is over keeps its GPUs until the policy answers",
    # What is tried.
    "who has stopped improving keeps its GPU",
    # What is drawn.
    "constraints that are never met are taken",
    # What is recorded and read.
    "reading goes by how many checkpoints are kept now",
    # How events are kept and commands carried out.
    "the journal does not wait for the disk",
    # What is rented.
    "a launch has no ClientToken",
    "after a cause that may stop every instance all are asked for again",
    "several runs may have the same machine",
    # Starts by forks.
    "a library takes the place of a module of the job",
    # Beside the trials.
    "a checkpoint's name may lead out of its folder",
    # When several runs share a machine.
    "shares do not go by weight",
    # What is taken from machines, scripts and files.
    "a whole number may be of any size",
    # Scripts that do not import seerd.
    "a pattern for folders takes files out of the source",
    # Checkpoints.
    "bytes are fetched and stored without their checksum",
    # What is answered when a run goes wrong.
    "a run ends at the first crash that all trials have in common",
    # What leaves this machine, and what is shown.
    "links that lead out of the source are followed unasked",
    # What the pages promise besides.
    "agents alone store for two minutes, whatever that costs",
)
QUICK = tuple(mutant for mutant in MUTANTS if mutant.name in QUICK_NAMES)
