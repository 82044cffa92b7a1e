"""Mistakes in what one run leaves to the next."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KEEPING = "tests/core/test_keeping.py"
TOKENS = "tests/aws/test_ec2_kept.py"
RIG = "tests/test_ec2_kept.py"
WITHIN = "no run spends more than its limits allow"
WAITING = "what an instance costs while it waits is paid beforehand"

KEPT = (
    Mutant(
        "an instance is kept though the limits have no room for it",
        WITHIN,
        "_is_worth_keeping",
        "limits.affordable_keep(state, instance)",
        "True",
        (f"{KEEPING}::test_only_so_many_are_kept_as_the_limits_have_room_for",),
    ),
    Mutant(
        "what else is being let go of is not counted when one more instance is kept",
        WITHIN,
        "affordable_keep",
        "(*kept, instance)",
        "(instance,)",
        (f"{KEEPING}::test_only_so_many_are_kept_as_the_limits_have_room_for",),
    ),
    Mutant(
        "what waits is charged at the price of the moment",
        WAITING,
        "instances.kept",
        "most and instance.id in book.open",
        "False",
        (f"{KEEPING}::test_what_may_become_dearer_is_kept_at_its_highest_price",),
    ),
    Mutant(
        "what waits is charged until it is let go, and no longer",
        WAITING,
        "instances.kept",
        '_end(state, instance, until_s, f"{instance.id} was let go")',
        '_end(state, instance, event.at, f"{instance.id} was let go")',
        (f"{KEEPING}::test_what_waits_is_paid_until_its_end_when_it_is_let_go",),
    ),
    Mutant(
        "a run that dies while it lets go is charged as if it had ended the instance",
        WAITING,
        "settle._missing",
        "max(ended, keep_until(state, given) or 0.0)",
        "ended",
        (f"{KEEPING}::test_a_run_that_dies_while_it_lets_go_pays_until_the_end_all_the_same",),
    ),
    Mutant(
        "a run lets go of a machine that ends later than is paid",
        WAITING,
        "KeptInstances.leave",
        "wall() + left_s > off_at + LATE_S",
        "False",
        (f"{TOKENS}::test_a_machine_that_would_end_too_late_is_not_left",),
    ),
    Mutant(
        "several runs may have the same machine",
        "one run alone has a machine that waits",
        "KeptInstances.claim",
        "path.rename(self._taken(token))",
        "shutil.copytree(path, self._taken(token))",
        (f"{TOKENS}::test_of_many_who_want_a_machine_at_once_one_gets_it",),
    ),
    Mutant(
        "a machine that was taken ends when it was to end before",
        "a machine that was taken works for its run until that ends",
        "taking_over._made_own",
        "await kept.end_in(access, context.settings.hard_end)",
        "",
        (f"{RIG}::test_the_next_run_begins_at_once_on_a_machine_that_has_nothing_of_the_last",),
    ),
    Mutant(
        "what a run has written outside its folder stays on the machine",
        "nothing of one run is left to the next",
        "letting_go.clean",
        'path != home / ".ssh" and path.name != "authorized_keys"',
        "False",
        (f"{RIG}::test_the_next_run_begins_at_once_on_a_machine_that_has_nothing_of_the_last",),
    ),
    Mutant(
        "trials may move the end of their instance wherever they run",
        "no trial can stop the timer of the hard end",
        "cloud_config",
        "boot.keep_s",
        "True",
        (f"{TOKENS}::test_only_where_instances_are_kept_may_the_user_move_their_end",),
    ),
    Mutant(
        "trials may move the end of their instance as far as they like",
        "an instance ends some day, whoever lives",
        "_END_IN",
        "'[ \"$1\" -le 2678400 ] || exit 2\\n'",
        "''",
        (f"{TOKENS}::test_the_end_is_moved_by_whole_seconds_and_not_for_ever",),
    ),
)
