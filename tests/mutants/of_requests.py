"""Mistakes in what a person asks of a run that goes on, and of what it has left."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EXTENDING = "tests/core/test_extending.py"
ADDING = "tests/core/test_adding.py"
TIDYING = "tests/test_around_tidying.py"

ASKED_MEANWHILE = (
    Mutant(
        "a limit may be lowered while the run goes on",
        "limits are never lowered",
        "why_not_raised",
        "any(new < old for new, old in pairs)",
        "all(new < old for new, old in pairs)",
        (f"{EXTENDING}::test_limits_are_never_lowered",),
    ),
    Mutant(
        "an extension waits for the answer to the old question",
        "the policy is asked at once with the new limits",
        "enact._",
        "state.requests.answered[verdict.request] = None\nstate.forget_question()",
        "state.requests.answered[verdict.request] = None",
        (EXTENDING,),
    ),
    Mutant(
        "who is eliminated may come back when the limits are extended",
        "who is out stays out",
        "adapted._fill",
        '(t for t in view.trials.values() if t.status == "live")',
        "(t for t in view.trials.values())",
        (EXTENDING,),
    ),
    Mutant(
        "an instance that ends itself is kept until it is gone",
        "no instance is used that ends before the run without a replacement",
        "settle.settle",
        "at <= state.now",
        "retired.by_s <= state.now",
        (f"{EXTENDING}::test_an_instance_that_would_end_itself_is_replaced_in_time",),
    ),
    Mutant(
        "what is added need not be in the space",
        "only configurations of the space are tried",
        "_why_not_added",
        "parameters[name].may_be(value)",
        "True",
        (f"{ADDING}::test_what_is_not_in_the_space_is_refused",),
    ),
    Mutant(
        "a run is removed while its agents may be at work",
        "nothing of a run is removed that may still be written to",
        "tidy.rm",
        "not over and quiet_s < QUIET_S",
        "False",
        (f"{TIDYING}::test_a_run_that_lives_or_may_live_is_never_removed",),
    ),
)
