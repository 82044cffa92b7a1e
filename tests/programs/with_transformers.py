"""A small transformer, made from a configuration, trained by transformers' Trainer."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import seerd

STEPS = int(os.environ.get("STEPS", "24"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
NAME, ATTEMPT = os.environ.get("SEERD_ATTEMPT", "run/by-hand/0").split("/")[1:]
trial = seerd.trial()
callback = seerd.transformers.Callback(trial)
batch = trial.batch(8, per_gpu=4)
torch.manual_seed(5)
tokens = torch.randint(1, 50, (64, 8))
rows = [{"input_ids": row, "labels": int(row[0] > 25)} for row in tokens]
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
)  # fmt: skip


class Steps(TrainerCallback):
    """Writes down what each step has, for a comparison number by number."""

    def on_step_begin(self, args, state, control, **_):
        time.sleep(PAUSE_S)
        if (state.global_step, ATTEMPT) == (15, "1") and NAME.endswith("-leaves"):
            Path(os.environ["SEERD_DIR"], "stop").touch()

    def on_log(self, args, state, control, logs=None, **_):
        if trial.rank == 0 and "loss" in (logs or {}):
            about = {
                "step": state.global_step,
                "epoch": state.epoch,
                "world": trial.world,
                "attempt": ATTEMPT,
            }
            kept = {key: logs[key] for key in ("loss", "learning_rate")}
            with open(f"{sys.argv[1]}-{NAME}", "a") as out:
                out.write(json.dumps({**about, **kept}) + "\n")


args = TrainingArguments(
    output_dir=callback.folder,
    max_steps=STEPS,
    learning_rate=0.01,
    lr_scheduler_type="cosine",
    per_device_train_batch_size=batch.micro,
    gradient_accumulation_steps=batch.accumulate,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=3,
)
trainer = Trainer(
    model,
    args,
    train_dataset=rows,
    eval_dataset=rows[:16],
    compute_metrics=lambda found: {
        "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
    },
    callbacks=[callback, Steps()],
)
trainer.train(resume_from_checkpoint=callback.checkpoint)
