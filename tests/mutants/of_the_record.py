"""Mistakes in what is recorded and read: a version with other rules must read every run as it was,
and go on from there.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WAYS_OUT = "tests/test_ways_out.py"
FOLD = "tests/core/test_fold.py"
RUN = "tests/core/test_run.py"
ANSWERS = "tests/core/test_answers.py"
LIMITS = "tests/core/test_limits.py"
PROVISIONING = "tests/core/test_provisioning.py"
JOURNAL = "tests/shell/test_journal.py"
DAMAGE = "tests/shell/test_journal_damage.py"
GAPS = "tests/core/test_gaps.py"
DAEMON = "tests/shell/test_daemon.py"
CONVERSATION = "tests/shell/test_conversation.py"
REPLAY = "tests/explanation/test_replay_command.py"
WITHOUT = f"{FOLD}::test_a_run_is_read_from_the_disk_without_a_rule"
BESIDE = f"{REPLAY}::test_other_decisions_are_told_once_beside_the_story_that_was_recorded"
OTHER_RULES = "a version with other rules reads every run as it was"
OLDER = "tests/test_unreadable_runs.py"

SAYS = "a journal that lacks what is known to be committed says so"
ONCE = "after a gap in the journal nothing has a name a second time"

READING = (
    Mutant(
        "a setup is taken as it is, whatever its checksum says",
        "a damaged setup is never read as another one",
        "wiring.load",
        "(None, _sum(body))",
        "(None, checksum)",
        (f"{WAYS_OUT}::test_each_changed_byte_of_a_setup_is_noticed_or_means_nothing",),
    ),
    Mutant(
        "reading goes by how many checkpoints are kept now",
        OTHER_RULES,
        "enact._",
        "verdict.newest",
        "state.rules.kept_checkpoints",
        (WITHOUT,),
    ),
    Mutant(
        "reading goes by when a policy is asked again now",
        OTHER_RULES,
        "enact._",
        "verdict.again_s",
        "state.now + state.rules.ask_again_s",
        (f"{ANSWERS}::test_what_was_declined_is_read_without_a_rule",),
    ),
    Mutant(
        "crashes are counted as far as this version's rule goes",
        OTHER_RULES,
        "count_crash",
        "trial.crashes + 1",
        "min(trial.crashes, state.rules.max_crashes) + 1",
        (WITHOUT,),
    ),
    Mutant(
        "what follows from a fact is decided again when it is read",
        OTHER_RULES,
        "step.follow",
        "for decision in decided:\n    enact(state, decision)",
        "decided = [*settle(state), *decided]\nfor decision in decided:\n    enact(state, "
        "decision)",
        (WITHOUT,),
    ),
    Mutant(
        "what had been looked at is looked at again by whoever takes a run up",
        "a restart decides nothing twice",
        "step.follow",
        "if isinstance(event, QUIET):\n"
        "    state.agenda.saved.clear()\n"
        "    state.agenda.waited.clear()\n"
        "    state.agenda.doubt, state.agenda.quiet, state.agenda.unstored = False, None, False\n"
        "    state.agenda.ask = state.agenda.about = state.agenda.reported = None\n"
        "else:\n"
        "    state.agenda = Agenda()",
        "if isinstance(event, QUIET):\n"
        "    state.agenda.saved.clear()\n"
        "    state.agenda.waited.clear()\n"
        "    state.agenda.doubt, state.agenda.quiet, state.agenda.unstored = False, None, False\n"
        "    state.agenda.ask = state.agenda.about = state.agenda.reported = None",
        (f"{FOLD}::test_whoever_has_read_a_run_has_nothing_left_to_look_at",),
    ),
    Mutant(
        "checkpoints that are not needed any more are listed for ever",
        "only the newest two checkpoints of a trial and its best are kept",
        "enact._",
        "(*trial.checkpoints[:newest], *best)",
        "trial.checkpoints",
        (f"{DAEMON}::test_the_newest_two_checkpoints_of_a_trial_are_kept",),
    ),
    Mutant(
        "a stop without a grace period does not replace the one before",
        "a second interrupt kills",
        "_stop_if_misplaced",
        "not isinstance(before, commands.StopTrial) or not before.checkpoint",
        "before",
        (f"{RUN}::test_a_second_interrupt_kills",),
    ),
    Mutant(
        "a stop that was replaced is said again after a restart",
        "exactly what is under way is carried on after a restart",
        "enact._",
        'state.under_way.pop(trial.stop_command or "", None)',
        "pass",
        (f"{ANSWERS}::test_of_two_stops_of_an_attempt_the_second_is_under_way",),
    ),
    Mutant(
        "a launch that was called off is asked for again after a restart",
        "exactly what is under way is carried on after a restart",
        "instances.terminate",
        "del state.under_way[instance.id]",
        "pass",
        (f"{ANSWERS}::test_a_launch_that_was_called_off_is_under_way_no_more",),
    ),
    Mutant(
        "a timer that was replaced fires after a restart",
        "exactly what is under way is carried on after a restart",
        "enact._",
        "if state.clock.timer is not None:\n    state.under_way.pop(state.clock.timer.id, None)",
        "",
        (f"{ANSWERS}::test_of_two_timers_the_second_is_under_way",),
    ),
    Mutant(
        "a daemon that takes up a run forgets the commands that were under way",
        "a killed daemon loses nothing",
        "Daemon._handle",
        "before = unfinished(self.state) if isinstance(event, events.RunResumed) else []",
        "before: list[AnyCommand] = []",
        (f"{DAEMON}::test_a_launch_under_way_is_named_to_the_provider_and_asked_for_again",),
    ),
    Mutant(
        "what was promised to agents is not recorded",
        "the ledger is the cloud's own account",
        "promises",
        "yield promised",
        "state.end.promised = promised",
        (WITHOUT,),
    ),
    Mutant(
        "after a restart the lease is taken to be this version's",
        "the ledger is the cloud's own account",
        "gone_by",
        "state.end.promised or promise(state)",
        "promise(state)",
        (f"{LIMITS}::test_what_agents_were_promised_counts_whatever_the_rules_are_now",),
    ),
    Mutant(
        "a daemon that takes up a run moves what runs",
        "a restart moves nothing",
        "derive",
        "_aim(state, trial, trial.held)",
        "pass",
        (f"{ANSWERS}::test_a_daemon_that_takes_up_a_run_moves_nothing",),
    ),
    Mutant(
        "a journal of a format that is not known is opened",
        "nothing is read that is not understood",
        "Journal._check_format",
        "written != str(FORMAT)",
        "False",
        (f"{JOURNAL}::test_a_format_that_is_not_known_is_told_with_who_wrote_it",),
    ),
    Mutant(
        "a journal of another format counts as damaged",
        "nothing is read that is not understood",
        "Journal._opened",
        'journal._get("format")',
        "journal._check_format()",
        (f"{JOURNAL}::test_a_format_that_is_not_known_is_told_with_who_wrote_it",),
    ),
    Mutant(
        "a run that was converted from format 1 is read",
        "nothing is read that is not understood",
        "Journal._check_format",
        'self._maybe("converted") == "from format 1"',
        "False",
        (OLDER,),
    ),
    Mutant(
        "what an earlier cut had left half done is in the way of the next one",
        "a run goes on from what is whole of its journal",
        "Journal._cut",
        "remove_file(new_path)",
        "",
        (f"{DAMAGE}::test_a_cut_that_is_broken_off_leaves_the_damaged_journal",),
    ),
    Mutant(
        "reading stops at the first decision that would be another one now",
        "a run is told as it was recorded",
        "DecidingAgain.follow",
        "follow(state, event, decided)",
        "",
        (BESIDE,),
    ),
    Mutant(
        "reading goes on from what would be decided now",
        "a run is told as it was recorded",
        "_go_on",
        "for decision in recorded:\n    enact(state, decision)",
        "if difference.would_be is not None:\n    enact(state, difference.would_be)",
        (BESIDE, f"{FOLD}::test_a_version_with_another_rule_reads_every_run_as_it_was"),
    ),
    Mutant(
        "that something else would be decided now is not told",
        "replay tells what this version would decide otherwise",
        "DecidingAgain.follow",
        "self.difference = again(state, event, decided)",
        "again(state, event, decided)",
        (BESIDE,),
    ),
    Mutant(
        "that something more would be decided now is not told",
        "replay tells what this version would decide otherwise",
        "again",
        "Difference(state.clock.seq, None, more)",
        "None",
        (f"{FOLD}::test_a_decision_more_is_a_difference",),
    ),
    Mutant(
        "that the policy would answer otherwise now is not told",
        "replay tells what this version would decide otherwise",
        "DecidingAgain.follow",
        "self.difference = self._policy.compare(event)",
        "self._policy.compare(event)",
        (f"{REPLAY}::test_another_answer_of_the_policy_is_told_with_its_question",),
    ),
    Mutant(
        "a journal with less than agents were told goes on in silence",
        SAYS,
        "gaps.gap",
        "acked.get(i.id, 0) > i.seen",
        "False",
        (f"{GAPS}::test_a_journal_that_has_less_than_is_known_says_so_and_no_other_does",),
    ),
    Mutant(
        "a journal without trials that the store has goes on in silence",
        SAYS,
        "gaps.gap",
        "not ahead and not strays",
        "not ahead",
        (f"{GAPS}::test_a_journal_that_has_less_than_is_known_says_so_and_no_other_does",),
    ),
    Mutant(
        "a launch that the journal lacks is not seen to be missing",
        SAYS,
        "lacks",
        "recorded.launch != launch",
        "recorded.launch == launch",
        (f"{GAPS}::test_launches_that_the_journal_lacks_are_those_of_events_after_it",),
    ),
    Mutant(
        "a launch that another event of an older copy has the number of is not missed",
        SAYS,
        "lacks",
        "all((recorded.launch != launch for recorded in instances.values()))",
        "int(launch.partition('.')[0]) > int(state.next_id.partition('.')[0])",
        (f"{GAPS}::test_a_launch_of_an_older_copy_is_lacking_though_another_event_has_its_number",),
    ),
    Mutant(
        "facts of an agent that is not ready are received again after a kill",
        "a fact is recorded once",
        "Core.known",
        "max(received, fleet.early.get(instance, 0))",
        "received",
        ("tests/shell/test_core_of_the_shell.py",),
    ),
    Mutant(
        "an instance that the journal lacks is ended for nothing",
        "what the journal lacks is charged",
        "gaps.add_lost",
        "since_s is not None",
        "False",
        (f"{GAPS}::test_an_instance_that_the_journal_lacks_is_charged_from_its_launch",),
    ),
    Mutant(
        "what an agent did before it was ready, as far as the journal says, shows no gap",
        SAYS,
        "gaps.note_unknown_attempt",
        "state.ledger.least_s < event.happened < state.clock.resumed_s",
        "False",
        (
            f"{GAPS}::test_an_attempt_that_was_never_begun_shows_a_gap_also_after_the_run_is_resumed",
        ),
    ),
    Mutant(
        "an agent that did not answer a resume shows no gap when it does",
        SAYS,
        "gaps.events_missing",
        "event.acked > seen and clock.gap_s < clock.resumed_s",
        "False",
        (f"{GAPS}::test_an_agent_that_was_silent_shows_a_gap_before_it_tells_anything",),
    ),
    Mutant(
        "what an agent that answers late knows of the journal is not looked at",
        SAYS,
        "Conversation._welcome",
        "self.welcome is None and welcome.acked > self._seen",
        "False",
        (f"{CONVERSATION}::test_an_agent_that_knows_more_than_the_journal_says_so_once",),
    ),
    Mutant(
        "a checkpoint that is told of late counts as the newest",
        "a confirmed checkpoint can be restored",
        "progress.confirm",
        "sum(kept.name > new.name for kept in trial.checkpoints)",
        "0",
        ("tests/core/test_run.py::test_a_trial_goes_on_from_what_was_saved_unheard",),
    ),
    Mutant(
        "an attempt that an agent invents is charged to the run",
        "an agent that lies ends nothing but its own attempts",
        "gaps.note_unknown_attempt",
        "state.ledger.least_s < event.happened < state.clock.resumed_s",
        "event.happened > state.ledger.least_s",
        ("tests/fuzz/test_fuzz_core.py::test_a_lying_agent_ends_nothing_but_its_own_attempts",),
    ),
    Mutant(
        "an agent that told something before it was ready shows a gap that is none",
        "a journal that is whole is not said to lack anything",
        "instances.ready",
        "instance.seen = fleet.early.pop(instance.id, 0)",
        "",
        (f"{GAPS}::test_what_an_agent_told_before_it_was_ready_is_no_gap",),
    ),
    Mutant(
        "an attempt that the journal lacks trains on",
        "a coordinator ends what it does not know",
        "Orders.end_others",
        "attempt.stop('asked', -math.inf)",
        "attempt.ask('save')",
        ("tests/agent/test_agent_serve.py::test_what_the_daemon_does_not_know_is_ended_first",),
    ),
    Mutant(
        "checkpoints of a trial that the journal lacks stay where another may take them",
        "no trial goes on from a checkpoint of another one",
        "directory._set_aside",
        "(trial := path.parent.name) not in known",
        "not (trial := path.parent.name)",
        ("tests/agent/test_agent_transfer.py",),
    ),
    Mutant(
        "what a gap may have cost ends with what was known to run",
        "all GPUs are charged over a gap in the journal",
        "gaps._charge_lost",
        "until_s = state.ledger.least_s = min(until_s, state.now)",
        "until_s = min(until_s, state.now)",
        (f"{GAPS}::test_all_gpus_cost_until_the_end_of_the_gap_and_none_twice",),
    ),
    Mutant(
        "orders after a gap have ids that were given before it",
        ONCE,
        "State.next_id",
        "self.clock.seq + math.ceil(self.clock.gap_s * 1e6)",
        "self.clock.seq",
        (f"{GAPS}::test_after_a_gap_nothing_has_a_name_again",),
    ),
    Mutant(
        "attempts after a gap have numbers that were given before it",
        ONCE,
        "reconcile._start_if_possible",
        "max(trial.attempt, math.ceil(state.clock.gap_s)) + 1",
        "trial.attempt + 1",
        (f"{GAPS}::test_after_a_gap_nothing_has_a_name_again",),
    ),
)
