"""A small network trained by Lightning."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import seerd

EPOCHS = int(os.environ.get("EPOCHS", "3"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
NAME, ATTEMPT = os.environ.get("SEERD_ATTEMPT", "run/by-hand/0").split("/")[1:]
trial = seerd.trial()
callback = seerd.lightning.Callback(trial)
batch = trial.batch(8, per_gpu=4)
torch.manual_seed(5)
x = torch.randn(64, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())


class Small(LightningModule):
    def __init__(self, lr: float = 0.1, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        )

    def training_step(self, batch, index):
        time.sleep(PAUSE_S)
        if (self.global_step, ATTEMPT) == (15, "1") and NAME.endswith("-leaves"):
            Path(os.environ["SEERD_DIR"], "stop").touch()
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        with open(f"{sys.argv[1]}-{NAME}.{trial.rank}", "a") as out:
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            about = {
                "step": self.global_step,
                "epoch": self.current_epoch,
                "world": trial.world,
                "attempt": ATTEMPT,
            }
            out.write(json.dumps({**about, "loss": loss.item(), "rate": rate}) + "\n")
        return loss

    def validation_step(self, batch, index):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * EPOCHS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


if __name__ == "__main__":
    torch.manual_seed(7)
    module = Small()
    loader = DataLoader(data, batch_size=batch.micro, sampler=trial.sampler(len(data)))
    trainer = Trainer(
        accelerator="cpu",
        devices=trial.world,
        strategy="ddp" if trial.world > 1 else "auto",
        max_epochs=EPOCHS,
        accumulate_grad_batches=batch.accumulate,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[callback],
    )
    trainer.fit(module, loader, DataLoader(data, batch_size=16), ckpt_path=callback.checkpoint)
