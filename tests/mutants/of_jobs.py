"""Mistakes in what several jobs that share a run have, and in what is kept to for each of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

JOBS = "tests/planner/test_jobs.py"
FUNCTIONS = "tests/planner/test_policies_are_functions.py"
RECEIVE = "tests/agent/test_agent_receive.py"
SESSIONS = "tests/shell/test_sessions.py"

SHARED = (
    Mutant(
        "a job's own budget is not looked at",
        "each job keeps to limits of its own",
        "job_ends",
        "own.budget_gpu_s < whole.budget_gpu_s",
        "False",
        (f"{JOBS}::test_a_job_whose_own_budget_is_used_up_is_over_and_keeps_it",),
    ),
    Mutant(
        "a job that is over keeps its GPUs until the policy answers",
        "a job that is over gets nothing any more",
        "_end_job",
        "unwant(state, state.trials[name])",
        "pass",
        (f"{JOBS}::test_the_trials_of_a_job_that_is_over_are_stopped_before_the_policy_answers",),
    ),
    Mutant(
        "a job whose share has become smaller keeps all that its policy wants",
        "a plan has no more GPUs than there may be",
        "jobs._Asked.ask",
        "allocation.gpus <= left",
        "True",
        (f"{FUNCTIONS}::test_another_process_gives_the_same_plans[jobs-0-True]",),
    ),
    Mutant(
        "extended limits are those of every job",
        "each job keeps to limits of its own",
        "_with_limits",
        "own.deadline_s >= before.deadline_s",
        "True",
        (f"{JOBS}::test_limits_that_are_extended_leave_a_jobs_own_as_they_are",),
    ),
    Mutant(
        "the source of a job that comes later is sent to no machine",
        "a job that comes later begins only where its source is",
        "Sessions.prepare_for",
        "send is None",
        "True",
        (f"{SESSIONS}::test_sources_come_before_what_is_made_ready_with_them",),
    ),
    Mutant(
        "whatever is sent to a machine makes the whole source anew",
        "a job that comes later disturbs no trial of the others",
        "Received.become",
        'not present or "" in others',
        "True",
        (f"{RECEIVE}::test_what_was_torn_while_it_became_more_is_made_whole",),
    ),
)
