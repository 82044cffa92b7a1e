"""`seerd.lightning`: a trial whose training loop is Lightning's `Trainer` (extra `lightning`)."""

from pathlib import Path
from typing import Any, Dict, Optional

from lightning.pytorch import Callback as Base
from lightning.pytorch import LightningModule, Trainer

from seerd.training.framework import Framework
from seerd.training.trial import Trial

FILE = "lightning.ckpt"
OURS = "seerd"  # the key of what we add to the checkpoint


class Callback(Base):
    """Reports what Lightning validates, has it save, and ends it when the trial is to leave.

        trial = seerd.trial()
        callback = seerd.lightning.Callback(trial)
        batch = trial.batch(64, per_gpu=16)
        loader = DataLoader(data, batch_size=batch.micro, sampler=trial.sampler(len(data)))
        trainer = Trainer(
            devices=trial.world,
            strategy="ddp" if trial.world > 1 else "auto",
            accumulate_grad_batches=batch.accumulate,
            use_distributed_sampler=False,  # trial.sampler is one
            enable_checkpointing=False,  # seerd says when
            callbacks=[callback],
            ...
        )
        trainer.fit(module, loader, ..., ckpt_path=callback.checkpoint)

    What `self.log` has after a validation is reported: the spec's metric must be among it.

    folder      where Lightning may save
    checkpoint  what it is to go on from; None: it begins
    """

    def __init__(self, trial: Trial) -> None:
        """Take part in this trial. Raises `RuntimeError` if it cannot go on from its checkpoint."""
        self._framework = Framework(trial)
        self._looks_later = False  # whether a validation follows first, of this same state
        self.folder = str(self._framework.folder)
        self.checkpoint: Optional[str] = (
            None if trial.checkpoint is None else str(trial.checkpoint / FILE)
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell that training begins."""
        trial = self._framework.trial
        for optimizer in trainer.optimizers[:1]:
            trial._steps.watch(optimizer)
        loader: Any = trainer.train_dataloader
        size = getattr(loader, "batch_size", None)
        if isinstance(size, int):
            trial.see_batch(size * trainer.accumulate_grad_batches * trainer.world_size)
        self._framework.look()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look whether to save or to leave, after each step of the optimizer."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            fit_loop, has_waited = trainer.fit_loop, self._looks_later
            follows = fit_loop.epoch_loop._should_check_val_fx(fit_loop._data_fetcher)
            # never twice in a row: no validation came where it has no data
            self._looks_later = trainer.enable_validation and follows and not has_waited
            if not self._looks_later:
                self._look(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report; look, if the step before did not, since a trial that goes on from after that step
        would not validate it again.
        """
        if not trainer.sanity_checking:
            self._framework.report(dict(trainer.callback_metrics))
        if self._looks_later:
            self._looks_later = False
            self._look(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Dict[str, Any]
    ) -> None:
        """Note how many batches make a step."""
        checkpoint[OURS] = {"accumulate": trainer.accumulate_grad_batches}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Dict[str, Any]
    ) -> None:
        """Rescale the counts of batches, so that Lightning goes on after the same steps though a
        step has another number of batches now.
        """
        before = checkpoint.get(OURS, {}).get("accumulate", trainer.accumulate_grad_batches)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            ready = counts["ready"]
            more = ready // before * trainer.accumulate_grad_batches - ready
            for name in counts:  # one of them may be one behind, which says where it was saved
                counts[name] += more

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last state."""
        if not self._framework.leaves and self._framework.trial._is_unsaved():
            self._save(trainer)

    def _look(self, trainer: Trainer) -> None:
        if self._framework.look():
            self._save(trainer)
        if self._framework.leaves:
            trainer.should_stop = True
            trainer.limit_val_batches = 0  # it would validate once more, and nobody reports that

    def _save(self, trainer: Trainer) -> None:
        folder = Path(self.folder) / f"step-{trainer.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(folder / FILE)
        self._framework.keep(folder, removes=True)
