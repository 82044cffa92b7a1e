"""Mistakes in starts by forks of a process that has imported what trials import."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WARM = "tests/agent/test_agent_warm.py"
SAME = "a script sees the same however it was started"
ODD = "what does not survive a fork is imported by each trial"

WARM_STARTS = (
    Mutant(
        "forks have the warm process's random numbers",
        "no two trials draw alike by accident",
        "identity.wear",
        "numpy_random.seed()",
        "",
        (f"{WARM}::test_forks_draw_numbers_of_their_own",),
    ),
    Mutant(
        "forks stay in the session of the warm process",
        SAME,
        "identity.take",
        "os.setsid()",
        "",
        (f"{WARM}::test_a_script_sees_the_same_however_it_was_started",),
    ),
    Mutant(
        "the kernel shows the warm process's environment",
        "an agent finds the processes of its attempts",
        "identity.wear",
        "show(argv, env)",
        "",
        (f"{WARM}::test_a_script_sees_the_same_however_it_was_started",),
    ),
    Mutant(
        "it outlives its agent while it imports",
        "nothing survives an agent but its trials",
        "identity.die_with",
        "signal.SIGKILL",
        "0",
        (f"{WARM}::test_it_ends_with_its_agent_in_the_middle_of_an_import",),
    ),
    Mutant(
        "what a script has registered for its end is not called",
        SAME,
        "script.end",
        "atexit._run_exitfuncs()",
        "",
        (f"{WARM}::test_a_script_ends_the_same_however_it_was_started[what runs at the end]",),
    ),
    Mutant(
        "what libraries in C have not written is lost",
        SAME,
        "script.end",
        "ctypes.CDLL(None).fflush(None)",
        "",
        (
            f"{WARM}::test_a_script_ends_the_same_however_it_was_started[a file of C that is not closed]",
        ),
    ),
    Mutant(
        "threads are not looked for",
        ODD,
        "preload._why_odd",
        "threads > threads_before",
        "False",
        (f"{WARM}::test_an_odd_module_is_left_to_the_trials_and_named",),
    ),
    Mutant(
        "nobody notices that a module asks for its rank",
        ODD,
        "_Spy.__enter__",
        "name in own and _caller() not in KNOWN",
        "False",
        (f"{WARM}::test_an_odd_module_is_left_to_the_trials_and_named",),
    ),
    Mutant(
        "a library takes the place of a module of the job",
        SAME,
        "preload.why_not",
        "mine & theirs - set(sys.builtin_module_names)",
        "set()",
        (f"{WARM}::test_a_module_of_the_job_is_its_own",),
    ),
    Mutant(
        "variables that a script sets come too late",
        SAME,
        "WarmStarts._made_ready",
        "self.learns and _sets_variables(plan.path)",
        "False",
        (f"{WARM}::test_variables_that_a_script_sets_before_it_imports_count",),
    ),
    Mutant(
        "a fork whose outcome is not known is left beside its second start",
        "an attempt is started once",
        "WarmStarts._forked",
        "await in_thread_or_here(host.kill, lambda: chain(marked(mark), marked(attempt)), {process.pid})",
        "",
        (f"{WARM}::test_one_that_was_forked_and_not_told_is_ended",),
    ),
    Mutant(
        "an import that is odd ends warm starts",
        ODD,
        "server._import_in_a_fork",
        "imports.odd.update(packages)",
        "",
        (f"{WARM}::test_a_package_is_left_out_whole_and_this_is_said_once",),
    ),
)
