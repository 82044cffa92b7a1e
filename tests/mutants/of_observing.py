"""Mistakes in how scripts are observed that do not import seerd."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ARGUMENTS = "tests/agent/test_arguments.py"
OBSERVED = "tests/agent/test_agent_observed.py"
SAVES = "tests/test_observer.py"
WORKPLACE = "tests/agent/test_workplace.py"

OBSERVING = (
    Mutant(
        "a better save waits for its turn",
        "the state of the best report is saved, but for a kill",
        "Observer._is_wanted",
        "self._pace.is_better(self._attempt.goal.worth(standing.metrics))",
        "self._pace.is_better(self._attempt.goal.worth(standing.metrics))"
        " and self._pace.save_due(0.0)",
        (f"{SAVES}::test_a_better_save_is_not_passed_over_for_a_later_one",),
    ),
    Mutant(
        "what the death of its writer has closed counts as whole",
        "a checkpoint is a whole file",
        "Observer._runs",
        "any(map(host.is_there, ranks))",
        "True",
        (f"{SAVES}::test_what_the_death_of_its_writer_has_closed_is_not_whole",),
    ),
    Mutant(
        "a script goes on though nobody observes it",
        "whoever trains can be stopped",
        "ScriptObserver.begin",
        "self._lost()",
        "None",
        (f"{OBSERVED}::test_an_attempt_that_nobody_observes_any_more_ends",),
    ),
    Mutant(
        "a pattern for folders takes files out of the source",
        "a script finds its own files",
        "workplace._Layout._place",
        "is_way and len(saved) == 1",
        "is_way",
        (f"{WORKPLACE}::test_a_pattern_for_folders_leaves_files_where_they_are",),
    ),
    Mutant(
        "small files of the source are shared",
        "trials never read each other's files by a relative path",
        "workplace._Layout._place",
        "is_copy = is_small or path in self._own",
        "is_copy = path in self._own",
        (f"{WORKPLACE}::test_what_is_written_into_stays_in_the_folder",),
    ),
    Mutant(
        "trials can write to files that they share",
        "trials never read each other's files by a relative path",
        "workplace._link",
        "status.st_mode & 0o222",
        "False",
        (f"{WORKPLACE}::test_other_files_are_links_that_nobody_can_write_to",),
    ),
    Mutant(
        "a link that leads into the source leads out of the attempt's folder",
        "trials never read each other's files by a relative path",
        "workplace._target",
        "to if inside else os.path.realpath(source / path)",
        "os.path.realpath(source / path)",
        (f"{WORKPLACE}::test_links_stay_inside_where_they_are_inside",),
    ),
    Mutant(
        "a path into the live project in a script is not told",
        "trials run the code that the run began with, or it is said before the start",
        "project_paths._written_out",
        "_in_copy(path, source)",
        "None",
        ("tests/test_project_paths.py::test_a_path_into_the_live_project_in_a_script_is_a_doubt",),
    ),
    Mutant(
        "changed data is not told when a run goes on",
        "what has changed since a run began is told",
        "edits.note",
        "changed += _others(made.data)",
        "",
        ("tests/test_edits.py::test_data_that_is_read_where_it_is_is_compared",),
    ),
    Mutant(
        "a link of a checkpoint may lead out of it",
        "what is unpacked stays inside",
        "folders._stays_inside",
        "ups <= len(above)",
        "True",
        ("tests/agent/test_folders.py::test_no_list_of_links_leads_out",),
    ),
    Mutant(
        "a path may be written in several ways",
        "what is unpacked stays inside",
        "folders._inside",
        "str(path) != name",
        "False",
        ("tests/agent/test_folders.py::test_no_list_of_links_leads_out",),
    ),
    Mutant(
        "a hyperparameter that nothing carries is taken",
        "every hyperparameter reaches the script, or it is said before the start",
        "program.shown",
        "return False",
        "return None",
        ("tests/test_places.py::test_a_hyperparameter_that_nothing_carries_is_refused",),
    ),
    Mutant(
        "a filled file has what is inactive left out",
        "a filled file is null where a hyperparameter is inactive",
        "arguments.filled_text",
        "values.get(at[1])",
        "values.get(at[1], '')",
        (f"{ARGUMENTS}::test_a_text_has_null_for_what_is_inactive_and_is_else_left_alone",),
    ),
    Mutant(
        "a folder is whole though some of its files are older",
        "no torn pair is ever handed back",
        "SaveOrder.is_complete",
        "times == sorted(times)",
        "True",
        (f"{SAVES}::test_a_folder_is_complete_when_its_last_file_is_newest",),
    ),
    Mutant(
        "an order is learned though its beginning was not seen",
        "no torn pair is ever handed back",
        "SaveOrder.note",
        "first in map(self._key, self._oldest)",
        "True",
        (f"{SAVES}::test_of_a_folder_whose_first_save_was_not_seen_the_order_is_not_known",),
    ),
    Mutant(
        "a file that is being written is copied",
        "no half-written file is ever taken",
        "Watch.held",
        "not self.shows(saved)",
        "False",
        (
            f"{SAVES}::test_a_file_that_is_held_cannot_be_opened_for_writing_and_an_open_one_not_held",
        ),
    ),
    Mutant(
        "a number of another notation is read in silence",
        "numbers are read whole, or the run says so",
        "patterns.GOES_ON",
        "'|[a-zA-Z]+[-+]?[0-9]+'",
        "''",
        ("tests/agent/test_patterns.py::test_a_number_that_may_be_a_part_of_one_is_told",),
    ),
)
