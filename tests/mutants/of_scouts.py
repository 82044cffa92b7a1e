"""Mistakes in what is asked for where all instances may be useless."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCOUTING = "tests/core/test_scouting.py"
AWAITED = "tests/aws/test_ec2_awaited.py"

SCOUTS = (
    Mutant(
        "after a cause that may stop every instance all are asked for again",
        "what is useless is paid for once, and one instance more",
        "provisioning.launches",
        "scouts(state)",
        "False",
        (
            f"{SCOUTING}::test_after_a_batch_that_failed_with_one_cause_the_next_try_is_one_instance",
        ),
    ),
    Mutant(
        "a scout that is useless for the same cause is followed by another one",
        "what is useless is paid for once, and one instance more",
        "after_refusal",
        "cause and same_again",
        "False",
        (
            f"{SCOUTING}::test_after_a_batch_that_failed_with_one_cause_the_next_try_is_one_instance",
        ),
    ),
    Mutant(
        "an instance that is useless counts against a run that had others",
        "a run that has had an instance goes on asking for all",
        "after_refusal",
        "state.facts.cluster.per_instance and not fleet.any_ready",
        "state.facts.cluster.per_instance",
        (f"{SCOUTING}::test_a_run_that_had_an_instance_goes_on_asking_for_all",),
    ),
    Mutant(
        "nobody follows a scout that is ready",
        "where nothing is known the others come when the first is ready",
        "instances.ready",
        "fleet.any_ready = True",
        "pass",
        (
            f"{SCOUTING}::test_the_first_launch_is_one_instance_and_the_others_follow_when_it_is_ready",
        ),
    ),
    Mutant(
        "nobody follows a scout that boots for long",
        "where nothing is known the others come after a median boot",
        "wake_at",
        "launch_at = min(launch_at, fleet.follow_s)",
        "pass",
        (f"{SCOUTING}::test_the_others_follow_after_its_median_boot_too",),
    ),
    Mutant(
        "others follow a scout that nobody can log in to",
        "what is useless is paid for once, and one instance more",
        "Fleet.scouts",
        "any(i.awaited in UNPROVEN for i in self.instances.values() if i.phase in LIVE)",
        "False",
        (f"{SCOUTING}::test_nobody_follows_a_scout_that_runs_and_cannot_be_logged_in_to",),
    ),
    Mutant(
        "every run tries one instance first",
        "where an instance was ever ready all are launched at once",
        "plans.plan_of",
        "any(places.is_noted(home.path, place) for place in quote.places)",
        "False",
        ("tests/test_scouts.py",),
    ),
    Mutant(
        "why nobody can log in is reported once",
        "a cause that changes is reported again",
        "Flight._failed",
        "why != before",
        "not before",
        (
            f"{AWAITED}::test_another_cause_is_reported_again_and_causes_that_alternate_not_each_time",
        ),
    ),
    Mutant(
        "a subnet from which the store cannot be used is asked again",
        "a way to the store that is missing is final for that subnet",
        "LaunchPlaces.leave",
        "others or self._candidates",
        "self._candidates",
        (f"{AWAITED}::test_no_more_is_launched_in_a_subnet_from_which_the_store_cannot_be_used",),
    ),
)
