"""`seerd.transformers`: for transformers' `Trainer` (extra `transformers`)."""

from pathlib import Path
from typing import Any, Optional

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from seerd.training.framework import Framework
from seerd.training.trial import Trial

PREFIX = "eval_"


class Callback(TrainerCallback):
    """Reports what `Trainer` evaluates, has it save, and ends it when the trial is to leave.

        trial = seerd.trial()
        callback = seerd.transformers.Callback(trial)
        batch = trial.batch(64, per_gpu=16)
        args = TrainingArguments(
            output_dir=callback.folder,
            per_device_train_batch_size=batch.micro,
            gradient_accumulation_steps=batch.accumulate,
            eval_strategy="epoch",
            save_strategy="no",  # seerd says when
            ...
        )
        trainer = Trainer(model, args, ..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.checkpoint)

    What is evaluated is reported without `eval_` before its name: the spec's metric is `loss`, or
    what `compute_metrics` returns. The global batch is the same on any number of GPUs if
    `trial.batch` says it, as above.

    folder      where `Trainer` is to save
    checkpoint  what it is to go on from; None: it begins
    """

    def __init__(self, trial: Trial) -> None:
        """Take part in this trial. Raises `RuntimeError` if it cannot go on from its checkpoint."""
        self._framework = Framework(trial)
        self._saves = self._ends = False
        self._looks_later = False  # whether an evaluation follows first, of this same state
        self.folder = str(self._framework.folder)
        self.checkpoint: Optional[str] = None if trial.checkpoint is None else str(trial.checkpoint)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Tell that training begins."""
        if args.save_only_model:
            raise ValueError(
                "save_only_model=True leaves out the optimizer, so no trial could go on from that"
            )
        trial = self._framework.trial
        trial.see_batch(
            args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)
        )
        self._framework.look()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Look whether to save or to leave."""
        self._ends = state.global_step >= state.max_steps
        is_epoch_end = self._ends or float(state.epoch or 0.0).is_integer()
        follows = control.should_evaluate or (is_epoch_end and args.eval_strategy == "epoch")
        # never twice in a row: no evaluation came where another callback forbids it
        self._looks_later = follows and not self._looks_later
        if not self._looks_later:
            self._look(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Have the last state saved, and nothing more done once the trial leaves."""
        if self._framework.leaves:
            control.should_evaluate = control.should_save = control.should_log = False
        elif self._ends and not self._framework.by_hand:
            self._saves = control.should_save = True

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **_: Any,
    ) -> None:
        """Report; look, if the step before did not, since a trial that goes on from after that step
        would not evaluate it again.
        """
        self._framework.report(
            {name.removeprefix(PREFIX): value for name, value in (metrics or {}).items()}
        )
        if self._looks_later:
            self._looks_later = False
            self._look(control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Make a checkpoint of what was saved, if that was for us."""
        if not self._saves:
            return
        self._saves = False
        folder = Path(args.output_dir or self.folder) / f"checkpoint-{state.global_step}"
        self._framework.keep(folder, removes=not args.load_best_model_at_end)

    def _look(self, control: TrainerControl) -> None:
        if self._framework.look():
            self._saves = control.should_save = True
        if self._framework.leaves:
            control.should_training_stop = True
            control.should_evaluate = False
