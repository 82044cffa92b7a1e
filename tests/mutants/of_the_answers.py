"""Mistakes in what people are told when a run goes wrong, and in what ends such a run."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ALIKE = "tests/core/test_alike.py"
METRICS = "tests/core/test_metrics.py"
OUTPUT = "tests/agent/test_agent_trial_output.py"
RESULTS = "tests/test_configurations.py"
MADE = "tests/mistakes/test_mistakes.py"
AT_ONCE = "a run whose trials all fail alike ends at once, and no other one does"
BEST = "a model that violates a constraint is never the best"
TOLD = "what is wrong is said where it was seen"
NO_MODEL = "a run fails if a promised model is missing, and only then"

ANSWERING = (
    Mutant(
        "a run ends at the first crash that all trials have in common",
        AT_ONCE,
        "_all_crash",
        "t.crashes > 1",
        "t.crashes > 0",
        (
            f"{ALIKE}::test_the_run_ends_when_all_that_were_tried_have_crashed_alike_and_one_of_them_again",
        ),
    ),
    Mutant(
        "trials that fail in different ways end the run",
        AT_ONCE,
        "failures.alike",
        "len(set(map(signature, trials))) == 1",
        "True",
        (ALIKE,),
    ),
    Mutant(
        "a trial that still runs is taken for one that has failed",
        AT_ONCE,
        "_all_crash",
        "not all(map(has_failed, trials))",
        "not any(map(has_failed, trials))",
        (ALIKE,),
    ),
    Mutant(
        "one report that is not finite ends the run",
        AT_ONCE,
        "failures._never_finite",
        "trial.reports > 1",
        "trial.reports > 0",
        (ALIKE,),
    ),
    Mutant(
        "people are told at every word of an agent that nobody has reported",
        TOLD,
        "still_quiet",
        "2 * (told_s - began_s)",
        "0.0",
        (ALIKE,),
    ),
    Mutant(
        "who has trained without a report is said not to have begun",
        TOLD,
        "diagnosis._of_silence",
        "not any(trial.trained for trial in trials)",
        "True",
        (ALIKE,),
    ),
    Mutant(
        "a model that violates a constraint can be handed back",
        BEST,
        "as_it_counts",
        "metrics and violated_by(metrics, goal)",
        "False",
        (METRICS,),
    ),
    Mutant(
        "a constrained metric that is missing keeps to the constraint",
        BEST,
        "MetricConstraint.holds",
        "value is not None and SIGNS[self.sign](value, self.limit)",
        "value is None or SIGNS[self.sign](value, self.limit)",
        (METRICS,),
    ),
    Mutant(
        "other metrics of a report that was taken back stay",
        "every metric that was reported is kept, and no other",
        "progress.rewind",
        "trial.others.pop(trial.history.pop().reports, None)",
        "trial.history.pop()",
        (METRICS,),
    ),
    Mutant(
        "a line that cannot be read is passed over without a word",
        TOLD,
        "TrialOutput._facts",
        'self._complain("output", error, f"line {self._line} of its out.jsonl ({text}): ")',
        "",
        (OUTPUT,),
    ),
    Mutant(
        "a script that saves no model by design has failed",
        NO_MODEL,
        "is_promised",
        "not is_reported and any(trial.trained for trial in state.trials_of(job))",
        "True",
        (RESULTS,),
    ),
    Mutant(
        "a model that was promised and never came is not missed",
        NO_MODEL,
        "is_promised",
        "goal.saves_to or kept.promised",
        "goal.saves_to",
        (RESULTS,),
    ),
    Mutant(
        "a checkpoint with nothing in it is handed back as a model",
        NO_MODEL,
        "saves_no_model",
        "kept.empty",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "one checkpoint with nothing in it hides the models of a job",
        NO_MODEL,
        "saves_no_model",
        "kept.promised or is_named",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "the disk is said to fill up only when it is full",
        TOLD,
        "disk_warning",
        "more <= signs.free",
        "size <= signs.free",
        (f"{MADE}::test_a_disk_that_will_be_too_small_is_told_after_the_first_checkpoint",),
    ),
)
