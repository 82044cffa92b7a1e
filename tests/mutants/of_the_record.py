"""Mistakes in what is recorded and read: a version with other rules must read every run as it was,
and go on from there.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FOLD = "tests/core/test_fold.py"
RUN = "tests/core/test_run.py"
ANSWERS = "tests/core/test_answers.py"
LIMITS = "tests/core/test_limits.py"
LAUNCHING = "tests/core/test_launching.py"
JOURNAL = "tests/shell/test_journal.py"
DAEMON = "tests/shell/test_daemon.py"
REPLAY = "tests/story/test_replay_command.py"
FORMAT1 = "tests/core/test_format1.py"
WITHOUT = f"{FOLD}::test_a_run_is_read_from_the_disk_without_a_rule"
BESIDE = f"{REPLAY}::test_other_decisions_are_told_once_beside_the_story_that_was_recorded"
OTHER_RULES = "a version with other rules reads every run as it was"
OLD_RUN = "a run of format 1 is read as it was"

READING = (
    Mutant(
        "reading goes by how many checkpoints are kept now",
        OTHER_RULES,
        "seerd/core/enact.py",
        "trial.checkpoints = trial.checkpoints[: verdict.newest]",
        "trial.checkpoints = trial.checkpoints[: state.rules.kept_checkpoints]",
        (WITHOUT,),
    ),
    Mutant(
        "reading goes by when a policy is asked again now",
        OTHER_RULES,
        "seerd/core/enact.py",
        "None, verdict.failures, verdict.again_s",
        "None, verdict.failures, state.now + state.rules.ask_again_s",
        (f"{ANSWERS}::test_what_was_declined_is_read_without_a_rule",),
    ),
    Mutant(
        "crashes are counted as far as this version's rule goes",
        OTHER_RULES,
        "seerd/core/attempts.py",
        'trial.crashes, trial.fault = trial.crashes + 1, "crashed"',
        'trial.crashes, trial.fault = min(trial.crashes, state.rules.max_crashes) + 1, "crashed"',
        (WITHOUT,),
    ),
    Mutant(
        "what follows from a fact is decided again when it is read",
        OTHER_RULES,
        "seerd/core/step.py",
        "    for decision in decided:\n        enact(state, decision)\n    # What",
        "    decided = [*settle(state), *decided]\n"
        "    for decision in decided:\n        enact(state, decision)\n    # What",
        (WITHOUT,),
    ),
    Mutant(
        "what had been looked at is looked at again by whoever takes a run up",
        "a restart decides nothing twice",
        "seerd/core/step.py",
        "    else:\n        state.agenda = Agenda()\n",
        "",
        (f"{FOLD}::test_whoever_has_read_a_run_has_nothing_left_to_look_at",),
    ),
    Mutant(
        "checkpoints that are not needed any more are listed for ever",
        "only the newest two checkpoints of a trial are kept",
        "seerd/core/enact.py",
        "    trial.checkpoints = trial.checkpoints[: verdict.newest]\n",
        "",
        (f"{DAEMON}::test_the_newest_two_checkpoints_of_a_trial_are_kept",),
    ),
    Mutant(
        "a stop without a grace period does not replace the one before",
        "a second interrupt kills",
        "seerd/core/reconcile.py",
        "not kill or not isinstance(before, StopTrial) or not before.checkpoint:",
        "before:",
        (f"{RUN}::test_a_second_interrupt_kills",),
    ),
    Mutant(
        "a stop that was replaced is said again after a restart",
        "exactly what is under way is carried on after a restart",
        "seerd/core/enact.py",
        '        state.under_way.pop(trial.stop_command or "", None)\n',
        "        pass\n",
        (f"{ANSWERS}::test_of_two_stops_of_an_attempt_the_second_is_under_way",),
    ),
    Mutant(
        "a launch that was called off is asked for again after a restart",
        "exactly what is under way is carried on after a restart",
        "seerd/core/enact.py",
        "        del state.under_way[instance.id]\n",
        "        pass\n",
        (f"{ANSWERS}::test_a_launch_that_was_called_off_is_under_way_no_more",),
    ),
    Mutant(
        "a timer that was replaced fires after a restart",
        "exactly what is under way is carried on after a restart",
        "seerd/core/enact.py",
        "    if state.clock.timer is not None:\n        state.under_way.pop(state.clock.timer.id, None)\n",
        "",
        (f"{ANSWERS}::test_of_two_timers_the_second_is_under_way",),
    ),
    Mutant(
        "a daemon that takes up a run forgets the commands that were under way",
        "a killed daemon loses nothing",
        "seerd/shell/daemon.py",
        "before = unfinished(self.state) if isinstance(event, RunResumed) else []",
        "before: list[AnyCommand] = []",
        (f"{DAEMON}::test_a_launch_under_way_is_named_to_the_provider_and_asked_for_again",),
    ),
    Mutant(
        "what was promised to agents is not recorded",
        "the ledger is the cloud's own account",
        "seerd/core/decide.py",
        "        yield told\n",
        "        state.end.promised = told\n",
        (WITHOUT,),
    ),
    Mutant(
        "after a restart the lease is taken to be this version's",
        "the ledger is the cloud's own account",
        "seerd/core/limits.py",
        "told = state.end.promised or promise(state)",
        "told = promise(state)",
        (f"{LIMITS}::test_what_agents_were_promised_counts_whatever_the_rules_are_now",),
    ),
    Mutant(
        "a daemon that takes up a run moves what runs",
        "a restart moves nothing",
        "seerd/core/aiming.py",
        "        _aim(state, state.trials[demand.trial], state.trials[demand.trial].held)\n",
        "        pass\n",
        (f"{ANSWERS}::test_a_daemon_that_takes_up_a_run_moves_nothing",),
    ),
    Mutant(
        "a journal of a format that is not known is opened",
        "nothing is read that is not understood",
        "seerd/shell/journal.py",
        "if found.isdecimal() and int(found) in COLUMNS:",
        "if found.isdecimal():",
        (f"{JOURNAL}::test_a_format_that_is_not_known_is_told_with_who_wrote_it",),
    ),
    Mutant(
        "a journal of an older format is converted without a copy",
        "an old journal is kept as it is",
        "seerd/shell/journal.py",
        "                self._connection.backup(copy)\n",
        "                copy.commit()\n",
        (f"{JOURNAL}::test_a_journal_of_format_1_that_is_to_be_written_is_copied_and_converted",),
    ),
    Mutant(
        "a conversion goes on from one that was cut short",
        "a run of format 1 is read as it was",
        "seerd/shell/journal.py",
        "        _remove(new_path)\n",
        "",
        (f"{JOURNAL}::test_a_conversion_that_was_cut_short_is_begun_anew",),
    ),
    Mutant(
        "the log of the old journal is left beside the new one",
        "a run of format 1 is read as it was",
        "seerd/shell/journal.py",
        "        copied._into_one_file()  # noqa: SLF001\n",
        "        pass\n",
        (f"{JOURNAL}::test_a_journal_of_format_1_is_not_replaced_under_whoever_reads_it",),
    ),
    Mutant(
        "crashes of a run of format 1 are judged otherwise",
        OLD_RUN,
        "seerd/core/format1.py",
        "    max_crashes=2,\n",
        "    max_crashes=1,\n",
        (FORMAT1,),
    ),
    Mutant(
        "a run of format 1 goes by this version's rules",
        OLD_RUN,
        "seerd/core/format1.py",
        "    state = new_state(rows[0][0].facts, RULES_1)\n",
        "    state = new_state(rows[0][0].facts)\n",
        (FORMAT1,),
    ),
    Mutant(
        "commands that format 1 gave again are given twice",
        OLD_RUN,
        "seerd/core/format1.py",
        " and one.id not in state.under_way]",
        "]",
        (f"{FORMAT1}::test_commands_that_were_given_again_are_given_once",),
    ),
    Mutant(
        "reading stops at the first decision that would be another one now",
        "a run is told as it was recorded",
        "seerd/core/again.py",
        "            follow(state, event, decided)\n            return\n",
        "            return\n",
        (BESIDE,),
    ),
    Mutant(
        "what the policy of a resumed run says of its stages is not written down",
        OLD_RUN,
        "seerd/core/record.py",
        "    if event.outline is not None:\n",
        "    if state.facts.outline is not None:\n",
        (f"{FORMAT1}::test_a_run_that_is_taken_up_has_an_outline_again",),
    ),
    Mutant(
        "a resumed run of format 1 does not know its stages",
        OLD_RUN,
        "seerd/shell/daemon.py",
        "                    outline=lacking(self.state.facts),\n",
        "",
        (f"{DAEMON}::test_a_run_of_format_1_is_taken_up_with_the_outline_of_its_policy",),
    ),
    Mutant(
        "reading goes on from what would be decided now",
        "a run is told as it was recorded",
        "seerd/core/again.py",
        "    for decision in recorded:\n        enact(state, decision)\n",
        "    if difference.would_be is not None:\n        enact(state, difference.would_be)\n",
        (BESIDE, f"{FOLD}::test_a_version_with_another_rule_reads_every_run_as_it_was"),
    ),
    Mutant(
        "that something else would be decided now is not told",
        "replay tells what this version would decide otherwise",
        "seerd/core/again.py",
        "        self.difference = again(state, event, decided)\n",
        "        again(state, event, decided)\n",
        (BESIDE,),
    ),
    Mutant(
        "that something more would be decided now is not told",
        "replay tells what this version would decide otherwise",
        "seerd/core/again.py",
        "_go_on(state, (), Difference(state.clock.seq, None, more))",
        "_go_on(state, (), None)",
        (f"{FOLD}::test_a_decision_more_is_a_difference",),
    ),
    Mutant(
        "that the policy would answer otherwise now is not told",
        "replay tells what this version would decide otherwise",
        "seerd/core/again.py",
        "            self.difference = self._policy.compare(event)\n",
        "            self._policy.compare(event)\n",
        (f"{REPLAY}::test_another_answer_of_the_policy_is_told_with_its_question",),
    ),
)
