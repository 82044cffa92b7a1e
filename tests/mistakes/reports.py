"""Public reports of tuning and training that went wrong elsewhere, tried on seerd in our own words:
what happens in each, what seerd does, and the test that keeps it so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublicReport:
    """One or several threads on the same kind of mistake."""

    threads: tuple[str, ...]  # as GitHub names them: owner/repository#number
    kind: str  # what happens in them
    answer: str  # what seerd does
    test: str  # file::function, below tests/


REPORTS = (
    PublicReport(
        ("optuna/optuna#820",),
        "a database is locked while several trials start",
        "the trials wait and start again later; no configuration is given up",
        "core/test_obstacles.py::test_it_counts_as_no_crash_and_the_trial_waits_while_others_train",
    ),
    PublicReport(
        ("huggingface/datasets#7506",),
        "a hub answers 429 when several trials start at once",
        "fewer trials run side by side until one more has reported",
        "core/test_last_words.py::test_what_was_in_the_way_is_seen_in_the_line_of_the_error",
    ),
    PublicReport(
        ("modelscope/ms-swift#5118",),
        "a device is busy with another process",
        "that GPU rests, the others go on",
        "core/test_obstacles.py::test_only_the_gpu_that_is_busy_is_left_alone",
    ),
    PublicReport(
        ("ultralytics/ultralytics#23791",),
        "trials of different configurations report the same",
        "a doubt, as soon as it is seen",
        "core/test_alike.py::"
        "test_trials_of_different_configurations_that_report_the_same_are_pointed_out_once",
    ),
    PublicReport(
        ("chemprop/chemprop#130",),
        "half of the configurations run out of memory",
        "the run goes on with the other half: it ends only when both halves were tried",
        "core/test_alike.py::"
        "test_if_all_are_of_one_half_of_the_space_or_fail_in_many_ways_more_are_tried",
    ),
    PublicReport(
        ("niznik-dev/cruijff_kit#448", "shinken-solutions/shinken#1136"),
        "a pattern reads 6.05e-06 as 6.05, and drops signs",
        "the whole number counts, whatever the pattern",
        "agent/test_patterns.py::test_the_whole_number_counts",
    ),
    PublicReport(
        ("keras-team/autokeras#1758",),
        "a loss becomes nan, and the last good value stays",
        "the report is not finite",
        "agent/test_patterns.py::test_the_whole_number_counts",
    ),
    PublicReport(
        ("experimaestro/experimaestro-python#221",),
        "a progress bar fills the log with its refreshes",
        "a number of a bar is a report when it is final or has changed and stays",
        "test_observer.py::test_a_number_that_refreshes_repeat_is_a_report_when_it_changes",
    ),
    PublicReport(
        ("tskit-dev/msprime#1722",),
        "a negative number is taken for an option",
        "it is joined to its option: `--x=-0.5`",
        "agent/test_arguments.py::test_argparse_gets_exactly_what_the_configuration_has",
    ),
    PublicReport(
        ("hiyouga/LlamaFactory#4014", "salesforce/ALBEF#128"),
        "2e-05 is a text to YAML",
        "numbers are written so that YAML reads them: 2.0e-05",
        "agent/test_arguments.py::test_a_filled_file_has_the_values_that_the_configuration_has",
    ),
    PublicReport(
        ("ashleve/lightning-hydra-template#656",),
        "the choices of a Hydra override are lists",
        "a choice may be a list, written as Hydra reads it",
        "test_places.py::test_a_choice_may_be_a_list",
    ),
    PublicReport(
        ("LeeDoYup/FixMatch-pytorch#13", "lukecavabarrett/pna#7"),
        "an option of type=bool takes every text for true",
        "a doubt before the start, with what to write",
        "test_places.py::test_an_option_that_takes_every_text_for_true_is_doubted",
    ),
    PublicReport(
        ("wandb/wandb#1700",),
        "an option that takes no value is given one",
        "the crash has a hint with what to write",
        "test_places.py::test_a_crash_by_an_option_that_takes_no_value_says_what_to_write",
    ),
    PublicReport(
        ("ultralytics/ultralytics#21126", "ludwig-ai/ludwig#792", "ray-project/ray#6228"),
        "trials find caches and results of each other",
        "each attempt has a folder of its own",
        "agent/test_agent_own_folder.py::test_no_attempt_finds_what_another_has_left",
    ),
    PublicReport(
        ("mosaicml/composer#3376",),
        "the checkpoint is a link to the newest file",
        "that file is kept, and put back under the link's name",
        "agent/test_agent_observed.py::"
        "test_a_checkpoint_that_is_a_link_to_the_newest_file_goes_on_as_that_file",
    ),
    PublicReport(
        ("11happy/cpx#9",),
        "a folder holds links beside what they lead to",
        "they stay links",
        "agent/test_folders.py::test_links_that_stay_inside_are_links",
    ),
    PublicReport(
        ("ray-project/ray#14667",),
        "a run is resumed after its specification was edited",
        "`resume` names what has changed, and how to begin anew with it",
        "test_edits.py::test_script_spec_and_data_are_named_and_how_to_begin_anew",
    ),
    PublicReport(
        ("ray-project/ray#45602",),
        "large folders of small files are copied without a word",
        "the copy is bounded by the deadline, and the refusal names the folder",
        "shell/test_source_copy.py::test_a_copy_that_takes_too_long_ends_the_command",
    ),
    PublicReport(
        ("copier-org/copier#1091",),
        "a link leads to a folder above itself",
        "it stays a link; where it must be followed, it is left out and named",
        "shell/test_source_copy.py::"
        "test_listed_links_are_followed_for_other_machines_but_not_in_circles",
    ),
    PublicReport(
        ("bit-team/backintime#1902",),
        "links are copied as what they lead to, and fill the disk",
        "those that lead out are refused unless the spec lists them, and stay links then",
        "shell/test_source_copy.py::"
        "test_links_inside_stay_links_and_listed_ones_that_lead_out_are_not_copied",
    ),
    PublicReport(
        ("benoitc/gunicorn#2478", "benoitc/gunicorn#1666"),
        "a module computes, or starts a thread, as it is imported, and forks of it hang",
        "it is not imported beforehand, but by each trial",
        "agent/test_agent_warm.py::test_an_odd_module_is_left_to_the_trials_and_named",
    ),
    PublicReport(
        ("Lightning-AI/pytorch-lightning#19261", "Lightning-AI/pytorch-lightning#2641"),
        "a framework takes long to import, and reads its rank as it is imported",
        "the package is left out as a whole, and this is said once",
        "agent/test_agent_warm.py::test_a_package_is_left_out_whole_and_this_is_said_once",
    ),
    PublicReport(
        ("kyutai-labs/pocket-tts#219",),
        "gigabytes of CUDA are installed on a machine without a GPU",
        "`make demo` asks uv for the build that fits the machine",
        "test_makefile.py::"
        "test_the_demo_is_installed_by_uv_with_its_choice_of_torch_and_nothing_of_the_tests",
    ),
    PublicReport(
        ("conda/conda#10351", "conda/conda#8586", "astral-sh/uv#12830"),
        "the command that enters an environment keeps signals from Python",
        "trials are started without it, with the variables that it sets",
        "agent/test_agent_environments.py::test_a_signal_reaches_the_script",
    ),
    PublicReport(
        ("wandb/wandb#1190",),
        "trials are started with another Python than the one that is active",
        "`seerd init` writes the active environment into the spec",
        "test_init.py::test_the_environment_that_is_active_is_seen",
    ),
    PublicReport(
        ("pytorch/torchtitan#897", "FareedKhan-dev/train-llm-from-scratch#7"),
        "a script imports the package that it lies in",
        "its package is found; one that lies beside it is named with the line that helps",
        "test_project_paths.py::test_a_script_finds_the_package_that_it_is_in",
    ),
)
