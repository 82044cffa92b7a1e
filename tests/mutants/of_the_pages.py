"""Mistakes in what the pages promise of machines, keys and files, and in what ends late or never."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIMITS = "tests/core/test_limits.py"
SHARING = "tests/core/test_sharing.py"
CONVERSATION = "tests/shell/test_conversation.py"
SESSIONS = "tests/shell/test_sessions.py"
FRONT = "tests/test_front.py"
SHARED_GPUS = "tests/agent/test_gpu_sharing.py"
LOGIN = "test_only_keys_are_shown_and_the_agent_of_the_user_goes_nowhere"

PROMISED = (
    Mutant(
        "a run waits for its deadline though nothing can begin any more",
        "a run ends at once when nothing trains and nothing can begin",
        "decide._ending",
        "state.fleet.holding == 0 and not time_left(state)",
        "False",
        (
            (
                "tests/core/test_answers.py"
                "::test_a_run_ends_at_once_when_nothing_runs_and_nothing_may_be_started_any_more"
            ),
        ),
    ),
    Mutant(
        "the source is copied however long that takes",
        "a copy of the source that takes too long ends the command before anything is started",
        "_SourceCopy._keep_time",
        "spent_s > most_s or needs_s > 1.5 * most_s",
        "False",
        ("tests/shell/test_source_copy.py::test_a_copy_that_takes_too_long_ends_the_command",),
    ),
    Mutant(
        "a clock that is behind the journal is not told",
        "clocks that are behind the journal are told",
        "_take_up_clock",
        "behind_s > TOLD_S",
        "False",
        ("tests/shell/test_journal.py",),
    ),
    Mutant(
        "clocks that are apart are not told",
        "clocks that are more than a minute apart are told",
        "Daemon._follow_latest_clock",
        "abs(off_s) > APART_S",
        "False",
        ("tests/test_clock_steps.py",),
    ),
    Mutant(
        "what was not found after a restart is charged until now",
        "what ran on a machine that booted is charged no longer than its lease",
        "settle._missing",
        "min(state.now, gone_by(state))",
        "state.now",
        (f"{LIMITS}::test_what_may_have_run_on_without_a_daemon_is_charged",),
    ),
    Mutant(
        "a plan with less does not say so",
        "what is planned with less says so",
        "budget_margin._with_share",
        "(*adjusted, note)",
        "adjusted",
        (
            (
                "tests/planner/test_budget_margin.py"
                "::test_a_smaller_budget_that_is_planned_with_is_said_with_its_reason"
            ),
        ),
    ),
    Mutant(
        "the last stage of a plan on rented instances ends with the plan",
        "what a plan on rented instances has left at the end is used",
        "open_ended",
        "not problem.whole",
        "True",
        ("tests/planner/test_open_end.py::test_the_last_stage_goes_on_after_its_wall",),
    ),
    Mutant(
        "a trial does not look whether its agent lives",
        "a trial whose agent has died saves and leaves",
        "training.attempt.Attempt.is_to_stop",
        "(self.folder / 'stop').exists() or self.is_alone()",
        "(self.folder / 'stop').exists()",
        ("tests/test_trial.py::test_a_trial_whose_agent_has_died_saves_and_leaves",),
    ),
    Mutant(
        "a rank that is quiet for long works",
        "a rank that does nothing while its neighbours wait for it is a crash",
        "HangDetector._judged",
        "quiet_s < limit_s(self.marks, self._timings)",
        "True",
        ("tests/agent/test_agent_hang_detection.py::test_a_rank_that_is_quiet_for_long_hangs",),
    ),
    Mutant(
        "what a dead process holds of a GPU is overlooked",
        "GPUs are given on when nothing of the last attempt is left on them",
        "health.held",
        "not lives(int(pid))",
        "False",
        (
            (
                "tests/agent/test_agent_gpus.py"
                "::test_what_the_dead_hold_is_held_and_what_the_living_hold_is_theirs"
            ),
        ),
    ),
    Mutant(
        "an agent of another version is lost",
        "an agent that speaks another version is ended, and the next one tells what it had kept",
        "Conversation._talk_to_ours",
        "if self._replaced:\n    raise",
        "raise",
        (
            f"{CONVERSATION}::test_an_agent_of_another_version_is_replaced_and_what_it_had_kept_is_told",
        ),
    ),
    Mutant(
        "an agent's folder is open to everybody",
        "an agent's folder is its user's alone",
        "agent.__main__.PRIVATE",
        "448",
        "493",
        ("tests/agent/test_agent_serve.py::test_the_socket_and_the_folder_are_private",),
    ),
    Mutant(
        "runs share their keys",
        "each run has a new login key",
        "Keys._pair",
        "path = self.folder / name",
        "path = self.folder.parent.parent / name",
        ("tests/aws/test_aws_userdata.py::test_each_run_has_keys_of_its_own",),
    ),
    Mutant(
        "ssh-agent is forwarded",
        "no machine can use the user's ssh-agent",
        "connecting._identity",
        "{'agent_forwarding': False}",
        "{}",
        (f"tests/shell/test_ssh_connecting.py::{LOGIN}",),
    ),
    Mutant(
        "a host may be shown a password",
        "passwords are never used",
        "connecting._identity",
        "options['preferred_auth'] = 'publickey'",
        "",
        (f"tests/shell/test_ssh_connecting.py::{LOGIN}",),
    ),
    Mutant(
        "instances have a key pair that nobody has asked for",
        "without `cluster.key` nobody but the run gets in",
        "run_instances",
        "if settings.key:\n    request['KeyName'] = settings.key",
        "request['KeyName'] = settings.key or 'seerd'",
        ("tests/aws/test_ec2_provider.py",),
    ),
    Mutant(
        "presigned URLs are not renewed",
        "presigned URLs of what runs are renewed while the coordinator lives",
        "Sessions.keep_granting",
        "conversation.answer(partial(conversation.orders.renewal, running))",
        "",
        (f"{SESSIONS}::test_attempts_that_run_get_new_urls_before_theirs_end",),
    ),
    Mutant(
        "an instance may ask for the places of any checkpoint",
        "presigned URLs are handed out for attempts that run there, whatever is asked for",
        "InstanceOrders.parts",
        "ask.name == slot_name(ask.attempt, number) and self.is_ours(ask.trial, ask.attempt)",
        "ask.name == slot_name(ask.attempt, number)",
        (
            (
                f"{SESSIONS}"
                "::test_urls_are_for_checkpoints_of_attempts_that_run_there_whatever_is_asked_for"
            ),
        ),
    ),
    Mutant(
        "an instance may report for trials on others",
        "a report counts if its trial runs on that instance",
        "attempts.current",
        "any((slots.node == node for slots in trial.held))",
        "True",
        ("tests/core/test_several_nodes.py::test_nobody_reports_for_trials_on_other_instances",),
    ),
    Mutant(
        "an agent that sends no messages is tried for ever",
        "an agent that does not keep to the protocol for half a minute is given up",
        "Conversation._keep_talking",
        "now - failing_since > give_up_s",
        "False",
        (f"{CONVERSATION}::test_an_agent_that_answers_renewals_and_then_is_silent_is_lost",),
    ),
    Mutant(
        "an agent can refuse whatever it was told",
        "an agent can refuse orders to start, and nothing else",
        "record._",
        "not isinstance(command, StartTrial)",
        "command is None",
        ("tests/core/test_several_nodes.py::test_only_orders_to_start_can_be_refused",),
    ),
    Mutant(
        "a machine may answer without end",
        "an answer of a machine over SSH has at most 32 MiB",
        "_Lines.next",
        "sum(map(len, pieces)) > self._most",
        "False",
        ("tests/shell/test_ssh_programs.py::test_a_line_without_end_is_no_answer",),
    ),
    Mutant(
        "a log is read as a whole",
        "logs are read in pieces of 64 KiB",
        "telling.logs.lines",
        "log.read(PIECE)",
        "log.read()",
        ("tests/test_around_reading.py::test_a_log_is_read_in_pieces_of_bounded_size",),
    ),
    Mutant(
        "a damaged profile is a traceback",
        "a damaged profile counts as none",
        "load_profile",
        "contextlib.suppress(OSError, ValueError, ArithmeticError, RecursionError)",
        "contextlib.suppress(OSError)",
        ("tests/test_profiles.py::test_a_damaged_profile_counts_as_none",),
    ),
    Mutant(
        "curves may have pickled objects",
        "curves are no program that is run",
        "sim.curves._read",
        "np.load(path, allow_pickle=False)",
        "np.load(path, allow_pickle=True)",
        ("tests/sim/test_curves.py",),
    ),
    Mutant(
        "agents alone store for two minutes, whatever that costs",
        "agents alone store the last checkpoints within the budget",
        "limits.last_s",
        "min(state.rules.last_s, off_in_s(state, now) - alone_s)",
        "state.rules.last_s",
        (f"{LIMITS}::test_the_last_checkpoints_take_no_longer_than_the_limits_leave",),
    ),
    Mutant(
        "an agent that does not answer is waited for although a limit has come",
        "a run that is resumed past a limit gives its machines back at once",
        "Dispatch.reattach",
        "min(most_s, max(least_s, off_in_s()))",
        "most_s",
        (
            (
                "tests/shell/test_reattach.py"
                "::test_an_agent_that_does_not_answer_is_not_waited_for_when_a_limit_has_come"
            ),
        ),
    ),
    Mutant(
        "a trial that is larger than the share waits for ever",
        "a trial that is larger than the share goes on with fewer GPUs",
        "aiming._demands",
        "max(fitting, default=None)",
        "None",
        (f"{SHARING}::test_a_trial_that_is_larger_than_the_share_goes_on_with_fewer_gpus",),
    ),
    Mutant(
        "a daemon that takes a run up leaves trials above the share",
        "GPUs that others got are given back, whoever takes the run up",
        "aiming._is_in_place",
        "max(slots.gpus) < instances[slots.node].usable",
        "True",
        (f"{SHARING}::test_a_daemon_that_takes_the_run_up_leaves_no_trial_above_the_share",),
    ),
    Mutant(
        "leases are not handed to the keeper",
        "a dead agent's trials keep their GPUs",
        "SharedGpus._hand_over",
        "self._keeper.hold(request.attempt, leases)",
        "pass",
        (f"{SHARED_GPUS}::test_gpus_stay_leased_when_the_agent_that_leased_them_has_died",),
    ),
    Mutant(
        "a run that could not be made leaves half a folder",
        "a run that a full disk has refused leaves nothing",
        "runs.create",
        "failing.callback(_discard, folder)",
        "",
        ("tests/violence/test_full_disk.py",),
    ),
    Mutant(
        "a trial that waits for another run's GPUs has none yet",
        "a trial that was told to start counts as if it had its GPUs",
        "enact._",
        "state.ledger.start(Charge(key, slots.node, gpus, state.now))",
        "pass",
        (f"{LIMITS}",),
    ),
    Mutant(
        "a trial that another one dominates is on the front",
        "the front has the trials that no other one dominates",
        "front.undominated",
        "all(map(le, costs, point.costs))",
        "False",
        (FRONT,),
    ),
    Mutant(
        "what is worse by one metric is dominated",
        "the front has the trials that no other one dominates",
        "front.undominated",
        "all(map(le, costs, point.costs))",
        "any(map(le, costs, point.costs))",
        (FRONT,),
    ),
    Mutant(
        "a report that violates a constraint is on the front",
        "a trial stands with its best report that meets all constraints",
        "front.points_of",
        "report.metric is not None and len(values) == len(modes)",
        "len(values) == len(modes)",
        (FRONT,),
    ),
    Mutant(
        "more of each objective is better",
        "an objective's mode says what is better of it",
        "front.points_of",
        'mode == "max"',
        "True",
        (FRONT,),
    ),
    Mutant(
        "a trial that has left the front keeps its tag",
        "an exported run says which trials are on the front now",
        "Tracker.bring",
        "trial.front, trial.reports, trial.state, trial.became",
        "trial.reports, trial.state, trial.became",
        (f"{FRONT}::test_tables_and_trackers_have_it",),
    ),
)
